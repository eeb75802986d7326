"""`caovanctl fieldtest`: measure how well caovan serves on this machine, and write one archive."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from caovand.adapters.files.directories import own_directories
from caovand.cli.common import archive, waiting
from caovand.cli.common.client import connect
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.progress import Screen
from caovand.cli.common.survey import (
    add_config,
    config_path,
    configuration,
    inspect,
    running,
)
from caovand.cli.common.verb import Verb
from caovand.core.config.schema import Config
from caovand.lab.fieldtest.steps import ORDER, QUICK, REPORT, Subject, check, collect, take
from caovand.lab.fieldtest.work import STOPPED, FieldtestResults, keep


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE",
        help="the archive (default: caovan-fieldtest-DATE.tar.gz in the current folder)",
    )  # fmt: skip
    add_config(parser)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only short prompts, one round: a quick check that it runs",
    )
    parser.add_argument(
        "--again", action="store_true", help="discard the results of an interrupted test"
    )
    parser.add_argument(
        "--yes", action="store_true", help="stop the engine of the service without asking"
    )


def run(args: argparse.Namespace) -> int:
    screen = Screen(sys.stderr)
    status = running(args.runtime)
    source = config_path(args.config, status)
    config = configuration(source)
    _refuse_in_a_cluster(config, status, source)
    target = args.file or Path(time.strftime("caovan-fieldtest-%Y%m%d-%H%M.tar.gz"))
    folder = own_directories(os.environ, os.getuid()).state / "fieldtest"
    order = QUICK if args.quick else ORDER
    # Check everything that could make the test fail before stopping the service.
    archive.check(target)
    pid = status.get("engine_pid")
    check(
        Subject(
            config,
            inspect(config, None, pid, source=source).with_model(config),
            source,
            order,
        )
    )
    with _engine_stopped(args, status, folder, screen):
        machine = inspect(config, source=source).with_model(config)  # now with all memory free
        subject = Subject(config, machine, source, order)
        work = FieldtestResults(folder, subject.describe(), again=args.again)
        take(subject, work, screen)
    contents = collect(subject, work)
    archive.write(target, target.name.partition(".")[0], contents)
    work.end()
    print(contents[REPORT].decode(errors="replace"), end="")
    print(f"\nwritten to {target}: all of this, with every round; read it before you post it")
    return Exit.DONE


def _refuse_in_a_cluster(config: Config, status: Mapping[str, Any], source: Path) -> None:
    """Raise CommandError in a cluster: the test would stop the other machines' engine."""
    if config.cluster.role != "off":
        raise CommandError(
            Exit.FAILED,
            "cannot run a field test on several machines: it serves on this machine alone, but "
            f'{source} has [cluster] role = "{config.cluster.role}"',
            "name a file without [cluster] whose model fits on this machine: --config FILE",
        )
    cluster = status.get("cluster")
    if cluster and status["state"] not in waiting.NOT_STARTING:
        also = " on the head and" if cluster["role"] == "worker" else ""
        raise CommandError(
            Exit.FAILED,
            f"cannot stop the engine of the service: it is the {cluster['role']} of a cluster, "
            "so the model would stop on every node",
            f"stop it with `caovanctl stop`{also} here, and start it again after the test",
        )


@contextlib.contextmanager
def _engine_stopped(
    args: argparse.Namespace, status: Mapping[str, Any], folder: Path, screen: Screen
) -> Iterator[None]:
    """Free the cards: stop the service's engine, and restart it afterwards.

    A note in `folder` makes a resumed test restart it, too, if this one is killed.
    """
    note = folder / f"{STOPPED}.json"
    if status and status["state"] not in waiting.NOT_STARTING:
        _confirm(status, yes=args.yes)
        screen.say("the engine of the service is stopped until the test is over")
        keep(note, True)
        with connect(args) as client:
            client.ask("stop")
            waiting.follow(client, "stopped", waiting.PATIENCE_S, quiet=True)
    try:
        yield
    finally:
        if status and note.exists():
            with connect(args) as client:
                client.ask("start")
            note.unlink()
            screen.say("the engine of the service is starting again")


def _confirm(status: Mapping[str, Any], *, yes: bool) -> None:
    """Raise CommandError unless the operator agrees to stop the service's engine."""
    if yes:
        return
    name = status["served"]["name"] if status["served"] else status["model"]
    remedy = "pass --yes if it may be stopped for 20 minutes or longer"
    if not sys.stdin.isatty():
        raise CommandError(
            Exit.FAILED,
            f"cannot stop the engine of {name}, which is {status['state']}: no terminal is there "
            "to ask on",
            remedy,
        )
    question = f"stop the engine of {name}, which is {status['state']}, until the test is over?"
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError(Exit.FAILED, "nothing was stopped or measured: not confirmed", remedy)


VERB = Verb(
    name="fieldtest",
    help="measure caovan on this machine, for a report to post",
    description="Measure caovan on this machine, in 20 minutes or more: the machine, our kernels"
    " against float64 and against vLLM's own, then the configured model served in several ways (as"
    " configured, without our kernels, with int8 activations, with an int8 lm_head and int8 drafts,"
    " on one card and on two); each is started, benchmarked as `bench` does, and stopped. If you"
    " agree, the engine of the service is stopped meanwhile and started again afterwards; nothing"
    " else on the machine is changed. After Ctrl-C, the same command continues where it stopped."
    " The report and the archive with every round contain no secrets.",
    epilog="example: sudo caovanctl fieldtest",
    arguments=arguments,
    run=run,
    effects=True,
)
