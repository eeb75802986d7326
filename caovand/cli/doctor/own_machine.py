"""Checks of this machine for any engine: confinement, the engines' user, page and gateway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from caovand.adapters.confinement import launch
from caovand.adapters.network import ports
from caovand.adapters.privileges import engine_user
from caovand.adapters.servers import server_process
from caovand.adapters.servers.server_process import GATEWAY, PAGE, ServerKind
from caovand.core.addresses import split_address
from caovand.core.config.schema import Config
from caovand.core.facts.checks import CheckResult
from caovand.core.problem import Problem
from caovand.preparation.confinement import readable_keys

CONFINEMENT = "confinement"


def own_machine_checks(config: Config, status: Mapping[str, Any]) -> Iterator[CheckResult]:
    daemon = status.get("daemon", {})
    user = daemon.get("engine_user", "")
    yield confinement_check(config.engine.confine, launch.landlock_abi(), user)
    if "engine_user" in daemon:
        yield user_check(daemon["engine_user"], daemon["own_user"])
    if config.engine.confine:
        for file in readable_keys(config):
            text = f"the engine can read {file}: files in /etc cannot be hidden from it"
            remedy = "move it to a folder outside /etc that only the daemon's user can enter"
            yield CheckResult(CONFINEMENT, "WARN", text, remedy)
    for kind, section in ((PAGE, config.page), (GATEWAY, config.gateway)):
        yield from server_checks(kind, section.listen, status.get(kind.name))


def confinement_check(confine: bool, abi: int, user: str) -> CheckResult:
    """Check the confinement of the engine; `abi` is the version of the kernel's Landlock.

    `user` is the engines' own user, if the running daemon has one.
    """
    if not confine:
        text = "[engine] confine is off: the engine can do everything that caovan's user can"
        return CheckResult(CONFINEMENT, "WARN", text, "set it to true")
    if abi < launch.MIN_ABI:
        text = (
            "this kernel has no usable Landlock: the engine can read caovan's keys and kill the "
            "daemon"
        )
        remedy = "use Linux 5.19 or newer with landlock among its security modules (`lsm=`)"
        return CheckResult(CONFINEMENT, "WARN", text, remedy)
    kept = f"Landlock (version {abi}) keeps the engine from caovan's files, keys and"
    if abi >= launch.SCOPE_ABI or user:
        return CheckResult(CONFINEMENT, "PASS", f"{kept} processes")
    text = f"{kept} memory, but before Linux 6.12 an engine that runs as the daemon's user can kill"
    text += " the daemon through the id of one of its threads, and also the page and the gateway"
    remedy = f"run engines as a separate user ({engine_user.NAME}), or use Linux 6.12 or newer"
    return CheckResult(CONFINEMENT, "WARN", text, remedy)


def user_check(user: str, why_none: str) -> CheckResult:
    """Check the user of the engine's processes: `user`, or the daemon's own for a reason."""
    if user:
        text = (
            f"engines run as the user {user}, who has no access to the daemon's files and processes"
        )
    else:
        text = f"engines run as the daemon's user ({why_none}): only Landlock and seccomp"
        text += " keep them from the daemon's files"
    return CheckResult(CONFINEMENT, "PASS", text)


def server_checks(
    kind: ServerKind, listen: str, served: Mapping[str, Any] | None
) -> Iterator[CheckResult]:
    """Check whether the page or the gateway is served, and if not, why; `served` is its entry in
    the status."""
    if not listen:
        return
    if not server_process.has_library():
        problem = kind.no_library
        yield CheckResult(kind.name, "WARN", problem.message, problem.remedy)
    elif served and served["problem"]:
        problem = Problem.stated(served["problem"])
        yield CheckResult(kind.name, "WARN", problem.fact, problem.remedy)
    elif served:
        yield CheckResult(kind.name, "PASS", f"{kind.title} is served on {served['url']}")
    else:
        _, port = split_address(listen)
        for listener in ports.listeners(port):
            text = f"{kind.title}'s port {port} is taken by {listener}"
            yield CheckResult(kind.name, "WARN", text, f"set another [{kind.name}] listen")
