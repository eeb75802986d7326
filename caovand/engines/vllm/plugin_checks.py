"""The doctor's checks of caovan's plugin: whether it is installed, and what it supports in this
vLLM."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.facts.checks import CheckResult, DoctorFacts
from caovand.engines.vllm import releases
from caovand.engines.vllm.machine.capabilities import TURING

WITH_PLUGIN = "install the package caovan-kernels, then: sudo caovanctl engine install"
WITH_LIBRARY = (
    "reinstall the package caovan-kernels (in a checkout: make -C csrc package), then: "
    "sudo caovanctl engine install --again"
)
WITHOUT_FIXES = "set [policy] mtp = 0, or use newer vLLM: sudo caovanctl engine install 0.33.0"


def plugin_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    for check in (plugin, gdn, attention, lm_head, states):
        yield from check(facts)


def turing(facts: DoctorFacts) -> bool:
    return any(gpu.compute_capability == TURING for gpu in facts.gpus)


def plugin(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine is None or facts.engine.build != "cuda" or not turing(facts):
        return
    if facts.engine.plugin:
        yield CheckResult("plugin", "PASS", f"caovan's kernels {facts.engine.plugin} are installed")
    elif facts.wants_plugin:
        text = "caovan's SM75 kernels are not installed in the engine"
        yield CheckResult("plugin", "WARN", text, WITH_PLUGIN)


def gdn(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check whether the plugin finds the Gated DeltaNet layers that its kernels replace."""
    found = facts.engine
    hybrid = facts.model is None or facts.model.linear is not None
    if found is None or not found.plugin or not hybrid or not turing(facts):
        return
    fix = f"sudo caovanctl engine install {releases.name(releases.REFERENCE)}"
    if found.library_problem:
        text = f"the kernels cannot be loaded: {found.library_problem}"
        yield CheckResult("plugin", "FAIL", text, WITH_LIBRARY)
    elif found.gdn_interface.startswith("fail"):
        text = f"the GDN interface of vLLM {found.version} is unknown ({found.gdn_interface[6:]})"
        yield CheckResult("plugin", "WARN", f"{text}: vLLM uses its own kernels", fix)
    elif found.gdn_interface:
        replaced = ", ".join(name.rpartition(".")[2] for name in found.operators)
        yield CheckResult("plugin", "PASS", f"the GDN interface is known: {replaced} are replaced")


def attention(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check whether the plugin supports the caches that it would read for Triton's attention."""
    found = facts.engine
    if found is None or not found.plugin or not turing(facts) or found.library_problem:
        return
    if not found.attention or found.release < releases.CACHES_PER_TOKEN_HEAD:
        return
    if found.attention == "pass":
        text = "the caches of Triton's attention are known: decoding is caovan's"
        yield CheckResult("plugin", "PASS", text)
    else:
        text = f"vLLM {found.version} fills the caches of Triton's attention differently"
        text = f"{text} ({found.attention[6:]}): it decodes with its own kernels"
        yield CheckResult("plugin", "WARN", text, "sudo caovanctl engine install 0.33.0")


def lm_head(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check whether the plugin can make this vLLM's lm_head int8, if that is configured."""
    found = facts.engine
    if found is None or not found.plugin or not turing(facts) or found.library_problem:
        return
    if not found.lm_head.startswith("fail"):
        return
    text = f"vLLM {found.version} computes logits differently ({found.lm_head[6:]})"
    text = f'{text}: [policy] lm_head = "int8" is refused'
    yield CheckResult("plugin", "WARN", text, "sudo caovanctl engine install 0.33.0")


def states(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check whether a hybrid model that drafts may have a prefix cache."""
    found, served = facts.engine, facts.model
    if found is None or found.build != "cuda" or found.release >= releases.DRAFTS_KEEP_STATES:
        return
    if served is None or served.linear is None or not served.mtp_layers:
        return
    if found.plugin and not found.states:
        return  # the plugin could not be probed
    if found.plugin and found.states == "pass":
        text = f"its fixes fit vLLM {found.version}: drafts and a prefix cache together are safe"
        yield CheckResult("plugin", "PASS", text)
        return
    why = found.states.removeprefix("fail: ") if found.plugin else "the plugin is not installed"
    text = f"no prefix cache while drafting: it would spoil vLLM {found.version}'s answers ({why})"
    yield CheckResult("plugin", "WARN", text, WITHOUT_FIXES if found.plugin else WITH_PLUGIN)
