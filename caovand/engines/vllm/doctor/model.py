"""Checks of the model for vLLM: whether it can be read, and whether its plan fits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from shlex import quote

from caovand.core.doctor.checks import MEMORY, MODEL, PLAN, failed_check
from caovand.core.doctor.facts import DoctorFacts
from caovand.core.facts.checks import CheckResult
from caovand.core.facts.inventory import ModelCard
from caovand.core.facts.shortfalls import cannot_map, more_swap
from caovand.engines.vllm.planning.loading import lack_of_memory


def describe(model: ModelCard) -> str:
    """Architecture, size and drafter of a model; "" if only its name is known."""
    if not model.architecture:
        return ""
    drafts = "an MTP head" if model.mtp_layers else "no MTP head"
    drafts = f"the drafter {model.drafter.path}" if model.drafter else drafts
    return f"{model.architecture}, {model.size() / (1 << 30):.1f} GiB, {drafts}"


def access_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check that the model is here, and that the service can read it."""
    model = facts.model
    if model is None:
        return
    if not model.architecture:
        yield CheckResult(
            MODEL, "WARN", f"{model.path} is not on this machine yet",
            f"sudo caovanctl model pull {model.path}, then set [model] path to its folder",
        )  # fmt: skip
    elif facts.unreadable:
        text = f"user {facts.service_user} cannot read {facts.unreadable}"
        yield CheckResult(MODEL, "FAIL", text, _grant_command(facts.unreadable, model.path))


def _grant_command(closed: str, model: str) -> str:
    """The command that grants the service access; for a folder above the model, without listing
    it."""
    if PurePath(closed) in PurePath(model).parents:
        return f"sudo chmod a+x {quote(closed)}"
    return f"sudo chmod -R a+rX {quote(model)}"


def host_memory_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check host memory, which the files of a checkpoint pass through when they are loaded."""
    if facts.model is None or not facts.model.weights:
        return
    need, host = facts.model.size() >> 20, facts.host
    lack = lack_of_memory(facts.model, host)
    if lack and cannot_map(facts.model, host):
        yield CheckResult(MEMORY, "FAIL", lack.fact, more_swap(facts.model.largest_file >> 20))
    elif lack:
        yield CheckResult(MEMORY, "WARN", lack.fact, lack.remedy)
    elif need > host.available_mib:
        text = (
            f"the checkpoint has {need} MiB, but only {host.available_mib} MiB of RAM is available"
        )
        yield CheckResult(MEMORY, "WARN", text, "stop other programs; loading will be slow")
    else:
        yield CheckResult(
            MEMORY, "PASS", f"{host.available_mib} MiB of RAM for {need} MiB of weights"
        )


def fit_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check that the plan fits into the cards' memory, without conflicting settings."""
    memory = facts.memory
    if memory is None:
        return
    for conflict in memory.conflicts:
        yield failed_check(MEMORY, conflict)
    if memory.fits is None:
        text = f"no forecast: {memory.reason}"
        yield CheckResult(
            MEMORY, "WARN", text, "check the memory usage that vLLM logs at its start"
        )
    if memory.conflicts or memory.fits is None:
        return
    have, need = memory.kv_mib / 1024, memory.needed_mib / 1024
    text = f"{have:.2f} GiB left for the cache, {need:.2f} GiB needed for one full-length request"
    if memory.fits:
        yield CheckResult(MEMORY, "PASS", f"the model fits: {text}")
    else:
        short = memory.lack or memory.shortage or text
        fix = "; ".join(memory.advice)
        yield CheckResult(MEMORY, "FAIL", f"the model does not fit: {short}", fix)


def choice_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Report the choices of the plan that cost speed or memory."""
    share = facts.memory.gpu_memory_utilization if facts.memory else None
    if facts.mtp is None or share is None:
        return
    tokens = "1 token" if facts.mtp == 1 else f"{facts.mtp} tokens"
    drafts = f"MTP drafts {tokens}" if facts.mtp else "drafting is off (MTP 0)"
    text = f"{drafts}, and gpu_memory_utilization is {share:g}"
    yield CheckResult(PLAN, "PASS", f"{text}; `caovanctl plan` gives the reasons")
