"""The doctor's checks that are the same for every engine: memory, plan, port and orphans."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.facts.checks import CheckResult, DoctorFacts

PLAN, SERVER = "plan", "server"


def memory_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Whether the plan fits."""
    memory = facts.memory
    if memory is None or memory.fits is None:
        return
    if memory.fits:
        text = f"{memory.max_model_len} tokens of context for each of {memory.concurrency:g} slots"
        yield CheckResult("memory", "PASS", text)
    else:
        yield CheckResult("memory", "FAIL", memory.lack, "; ".join(memory.advice))


def plan_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Why there is no plan, and what it warns of."""
    if facts.plan_problem:
        yield CheckResult(PLAN, "FAIL", facts.plan_problem)
    for warning in facts.plan_warnings:
        yield CheckResult(PLAN, "WARN", warning)


def server_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Who has the port, and engines that nobody supervises."""
    if facts.listeners:
        who = ", ".join(facts.listeners)
        yield CheckResult(
            SERVER, "FAIL", f"port {facts.port} is used by {who}",
            "stop it, or choose another [server] port",
        )  # fmt: skip
    for pid, name in facts.orphans:
        yield CheckResult(
            SERVER, "WARN", f"{name} (pid {pid}) is an engine that nobody supervises",
            f"kill {pid}",
        )  # fmt: skip
