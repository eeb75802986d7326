"""Parts shared by the verbs of `caovanctl cluster`."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caovand.adapters.network import cluster_key
from caovand.cli.common.client import connect
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.survey import SYSTEM_CONFIG
from caovand.core import addresses
from caovand.core.addresses import url_host
from caovand.core.cluster import checks
from caovand.core.cluster.finding import finding_text
from caovand.core.cluster.key import BadKey

DEFAULT_PORT = 7070
GROUP = "caovan"
"""The service's group, which must be able to read the key."""
CHECKED_S = 180.0
"""Time limit of a check: it waits for workers that do not respond, and for a start that checks at
the same time."""
RESTART = "sudo systemctl restart caovan"


def config_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the configuration file."""
    parser.add_argument(
        "--config",
        type=Path,
        default=SYSTEM_CONFIG,
        metavar="FILE",
        help=f"default {SYSTEM_CONFIG}",
    )


def key_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the key file."""
    help = "file that holds the cluster's key (default: [cluster] key_file)"
    parser.add_argument("--key-file", type=Path, metavar="FILE", help=help)


def host_of(endpoint: str, what: str) -> str:
    """The host in HOST:PORT; raises CommandError if it is invalid or a wildcard address."""
    example = f"write it as HOST:PORT, such as 10.0.0.1:{DEFAULT_PORT}"
    try:
        host, _ = addresses.split_address(endpoint)
    except ValueError as problem:
        raise CommandError(Exit.USAGE, f"cannot {what}: {problem}", example) from None
    if not addresses.is_host(host):
        fact = "it is neither an address nor a host name"
        raise CommandError(Exit.USAGE, f"cannot {what}: {fact}", example)
    if host in ("0.0.0.0", "::"):
        fact = f"{host} stands for every address of a machine, and workers need a specific one"
        raise CommandError(Exit.USAGE, f"cannot {what}: {fact}", example)
    return host


def have_key(key: Path, *, make: bool) -> bool:
    """Ensure a usable key that the service can read; return whether it was created.

    Raises CommandError if the key is unusable, or is missing and may not be created.
    """
    try:
        if make and not os.path.lexists(key):
            cluster_key.make(key, GROUP)
            return True
        cluster_key.read(key)
        cluster_key.share(key, GROUP)
    except BadKey as bad:
        raise CommandError(Exit.FAILED, bad.problem.message, bad.problem.remedy) from None
    return False


def copy_command(host: str, key: Path) -> str:
    """The command that copies the key from the head."""
    folder, file = shlex.quote(str(key.parent)), shlex.quote(str(key))
    return f"sudo install -d {folder} && sudo scp root@{url_host(host)}:{file} {file}"


def ask(args: argparse.Namespace, *, probe: bool = False) -> Mapping[str, Any]:
    """Query the daemon about its cluster; raises CommandError if it is in none.

    With `probe`, the daemon first checks whether the nodes reach each other.
    """
    with connect(args) as client:
        if not probe:
            answer = client.ask("cluster")
        else:
            answer = client.ask("cluster", CHECKED_S, probe=True)
    if answer["role"] == "off":
        raise CommandError(
            Exit.FAILED,
            "this machine serves alone: [cluster] role is off",
            "`sudo caovanctl cluster init` makes it the head of a cluster, `sudo caovanctl cluster"
            f" join HOST:{DEFAULT_PORT}` a worker; then run `{RESTART}`",
            "no-cluster",
        )
    return answer


def missing_nodes(answer: Mapping[str, Any]) -> list[str]:
    """A sentence for each lost node, and one for all that never joined."""
    lost = [node["name"] for node in answer["nodes"] if node["state"] == "lost"]
    sentences = [f"{name} is lost: its daemon or the link to it is down" for name in lost]
    never = answer["missing"] - len(lost)
    if never > 0:
        verb = "has" if never == 1 else "have"
        sentences.append(f"{never} node{'s' * (never > 1)} {verb} not joined")
    return sentences


def named_twice(answer: Mapping[str, Any]) -> list[str]:
    """A sentence for each name that two machines share."""
    names = sorted({node["name"] for node in answer["nodes"] if node["state"] == "refused"})
    return [finding_text(checks.duplicate_names(name)) for name in names]
