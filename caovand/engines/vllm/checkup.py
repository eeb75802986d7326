"""The doctor's checks for vLLM, each a function from facts to findings.

A check that does not apply reports nothing. FAIL stops the engine or loses requests, WARN costs
speed or causes trouble later; both carry the command or the key that fixes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import PurePath
from shlex import quote

from caovand.core.facts.checks import CheckResult, DoctorFacts
from caovand.core.facts.shortfalls import cannot_map, more_swap, old_driver
from caovand.engines.common.checks import (
    cache_checks,
    driver_checks,
    failed_check,
    link_checks,
    port_checks,
)
from caovand.engines.vllm import kernels, releases
from caovand.engines.vllm.all_reduce import all_reduce_check
from caovand.engines.vllm.machine.attention import flashinfer_refusal, remedy
from caovand.engines.vllm.machine.capabilities import type_without_bfloat16
from caovand.engines.vllm.machine_checks import (
    cards,
    cuda_release,
    foreign_memory,
    open_files,
    orphans,
    python_release,
    shared_memory,
    wsl,
)
from caovand.engines.vllm.planning.devices import unusable
from caovand.engines.vllm.planning.loading import lack_of_memory
from caovand.engines.vllm.plugin_checks import WITH_PLUGIN, plugin_checks, turing


def checkup(facts: DoctorFacts) -> tuple[CheckResult, ...]:
    """Every finding, in the order of CHECKS; root needs no sudo, which may be missing."""
    found = tuple(finding for check in CHECKS for finding in check(facts))
    if not facts.as_root:
        return found
    return tuple(replace(finding, remedy=finding.remedy.replace("sudo ", "")) for finding in found)


SMALL_CACHE_MIB = 10 * 1024


def engine(facts: DoctorFacts) -> Iterator[CheckResult]:
    found = facts.engine
    if found is None:
        if facts.engine_problem:
            yield failed_check("engine", facts.engine_problem)
        return
    if lack := releases.untested(found):
        yield CheckResult("engine", "WARN", lack.fact, lack.remedy)
    else:
        text = f"vLLM {found.version} ({found.build}), torch {found.torch}"
        yield CheckResult("engine", "PASS", text)
    if facts.half_asked:
        text = "vLLM is still being imported to ask for its flags, parsers, models and kernels"
        fix = "run the doctor again in a minute, or `caovanctl inventory`, which waits for it"
        yield CheckResult("engine", "WARN", f"{text}: they are not checked", fix)
    if found.build == "cuda" and not found.compiler and found.python_version:
        text = "there is no C compiler: Triton cannot build its launchers"
        yield CheckResult("engine", "FAIL", text, "sudo apt install gcc")
    elif found.build == "cuda" and found.python_h is None:
        release = ".".join(found.python_version.split(".")[:2])
        text = f"Python.h is missing for Python {release}: Triton cannot build its launchers"
        yield CheckResult("engine", "FAIL", text, f"sudo apt install python{release}-dev")
    elif found.build == "cuda" and found.nvcc and found.cxx is None:
        text = "there is no C++ compiler: nvcc cannot build FlashInfer's kernels"
        yield CheckResult("engine", "FAIL", text, "sudo apt install g++")


def flashinfer(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check FlashInfer: without it attention falls back to Triton, slower and with a float16
    cache."""
    found = facts.engine
    if found is None or found.build != "cuda" or not turing(facts):
        return
    model = facts.model
    dtype = facts.dtype or (type_without_bfloat16(model) if model else "")
    refusal = flashinfer_refusal(model, found, dtype, facts.wants_plugin, facts.engine_env)
    why = refusal.why if refusal else ""
    if refusal is None:
        yield CheckResult("engine", "PASS", f"FlashInfer {found.flashinfer} serves SM75")
    elif refusal.of in ("model", "width"):
        yield CheckResult(
            "engine", "PASS", f"{why}; the plan has another attention serve the model"
        )
    elif refusal.of == "engine":
        fix = f"{found.python} -m pip install flashinfer-python==0.6.8.post1"
        if found.release >= releases.FLASHINFER_REFUSES_SM75:
            fix = WITH_PLUGIN
        yield CheckResult("engine", "WARN", f"{why}: attention falls to Triton", fix)
    else:
        text = f"{why}: attention falls to Triton, with a float16 cache"
        yield CheckResult("engine", "WARN", text, remedy(found))


def built_kernels(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check for compiled kernels: the first start that needs a missing one compiles it, for
    minutes."""
    found = facts.engine
    if found is None or not found.cuda_home:
        return
    usable = Counter(gpu.compute_capability for gpu in facts.gpus if not unusable(gpu))
    for capability, count in sorted(usable.items()):
        name, lacking = "SM{}{}".format(*capability), kernels.missing(found, capability, count)
        if lacking:
            text = f"FlashInfer's kernels for {name} are not built ({', '.join(lacking)})"
            fix = "sudo caovanctl engine build-kernels"
            yield CheckResult("engine", "WARN", f"{text}: a start compiles them", fix)
        else:
            text = f"FlashInfer's kernels that most models need on {name} are built"
            yield CheckResult("engine", "PASS", text)


def model(facts: DoctorFacts) -> Iterator[CheckResult]:
    found = facts.model
    if found is None:
        if facts.model_problem:
            yield failed_check("model", facts.model_problem)
        return
    if not found.architecture:
        text = f"{found.path} is not on this machine yet"
        yield CheckResult(
            "model",
            "WARN",
            text,
            f"sudo caovanctl model pull {found.path}, then set [model] path to its folder",
        )
        return
    gib = found.size() / (1 << 30)
    drafts = "an MTP head" if found.mtp_layers else "no MTP head"
    drafts = f"the drafter {found.drafter.path}" if found.drafter else drafts
    yield CheckResult("model", "PASS", f"{found.architecture}, {gib:.1f} GiB, {drafts}")
    for note in found.notes:
        yield CheckResult("model", "WARN", note.message, note.remedy)
    if facts.unreadable:
        text = f"user {facts.service_user} may not read {facts.unreadable}"
        yield CheckResult("model", "FAIL", text, _grant_command(facts.unreadable, found.path))


def _grant_command(closed: str, model: str) -> str:
    """The command that grants the service access; for a folder above the model, without listing
    it."""
    if PurePath(closed) in PurePath(model).parents:
        return f"sudo chmod a+x {quote(closed)}"
    return f"sudo chmod -R a+rX {quote(model)}"


def host_memory(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check host memory, which the files of a checkpoint pass through when they are loaded."""
    if facts.model is None or not facts.model.weights:
        return
    need, host = facts.model.size() >> 20, facts.host
    lack = lack_of_memory(facts.model, host)
    if lack and cannot_map(facts.model, host):
        yield CheckResult("memory", "FAIL", lack.fact, more_swap(facts.model.largest_file >> 20))
    elif lack:
        yield CheckResult("memory", "WARN", lack.fact, lack.remedy)
    elif need > host.available_mib:
        text = f"the checkpoint has {need} MiB, {host.available_mib} MiB of RAM are available"
        yield CheckResult("memory", "WARN", text, "stop other programs; loading will be slow")
    else:
        yield CheckResult(
            "memory", "PASS", f"{host.available_mib} MiB of RAM for {need} MiB of weights"
        )


def fit(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.plan_problem:
        text, _, fix = facts.plan_problem.partition("; ")
        yield CheckResult("memory", "FAIL", text, fix)
    memory = facts.memory
    if memory is None:
        return
    for conflict in memory.conflicts:
        yield failed_check("memory", conflict)
    if memory.fits is None:
        text = f"nothing is forecast: {memory.reason}"
        yield CheckResult("memory", "WARN", text, "read the memory that vLLM logs when it starts")
    if memory.conflicts or memory.fits is None:
        return
    have, need = memory.kv_mib / 1024, memory.needed_mib / 1024
    text = f"{have:.2f} GiB left for the cache, {need:.2f} GiB needed for one whole request"
    if memory.fits:
        yield CheckResult("memory", "PASS", f"the model fits: {text}")
    else:
        short = memory.lack or memory.shortage or text
        fix = "; ".join(memory.advice)
        yield CheckResult("memory", "FAIL", f"the model does not fit: {short}", fix)


def choices(facts: DoctorFacts) -> Iterator[CheckResult]:
    """The cost of the plan in speed and memory."""
    share = facts.memory.gpu_memory_utilization if facts.memory else None
    if facts.mtp is None or share is None:
        return
    tokens = "1 token" if facts.mtp == 1 else f"{facts.mtp} tokens"
    drafts = f"MTP drafts {tokens}" if facts.mtp else "nothing is drafted (MTP 0)"
    text = f"{drafts}, and gpu_memory_utilization is {share:g}"
    yield CheckResult("plan", "PASS", f"{text}; `caovanctl plan` says why")


def warnings(facts: DoctorFacts) -> Iterator[CheckResult]:
    reported = tuple(map(str, facts.model.notes)) if facts.model else ()
    reported += tuple(map(str, facts.memory.conflicts)) if facts.memory else ()
    reported += (str(old_driver(facts.gpus, cuda_release(facts))),)
    reported += (str(releases.untested(facts.engine)),) if facts.engine else ()
    reported += (str(lack_of_memory(facts.model, facts.host)),) if facts.model else ()
    for text in facts.plan_warnings:
        if text not in reported and not text.startswith("it does not fit"):
            fact, _, fix = text.partition("; ")
            yield CheckResult("plan", "WARN", fact, fix)


def caches(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check the caches: compiled kernels are kept there."""
    loss = "every start compiles again"
    yield from cache_checks(facts, loss=loss, least_mib=SMALL_CACHE_MIB)


CHECKS: tuple[Callable[[DoctorFacts], Iterator[CheckResult]], ...] = (
    python_release, wsl, shared_memory, open_files, driver_checks, cards, link_checks,
    orphans, foreign_memory, all_reduce_check, engine, flashinfer, built_kernels,
    plugin_checks, model, host_memory, fit, choices, warnings, port_checks, caches,
)  # fmt: skip
