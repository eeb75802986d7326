"""Checks of caovan's plugin: whether it is installed, and what it supports in this vLLM."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.doctor.facts import DoctorFacts
from caovand.core.facts.checks import CheckResult
from caovand.engines.vllm import releases
from caovand.engines.vllm.machine.capabilities import TURING
from caovand.engines.vllm.machine.plugin import verdict

PLUGIN = "plugin"
WITH_PLUGIN = "install the package caovan-kernels, then: sudo caovanctl engine install"
WITH_LIBRARY = (
    "reinstall the package caovan-kernels (in a checkout: make -C csrc package), then: "
    "sudo caovanctl engine install --again"
)
WITHOUT_FIXES = "set [policy] mtp = 0, or use newer vLLM: sudo caovanctl engine install 0.33.0"


def has_turing(facts: DoctorFacts) -> bool:
    return any(gpu.compute_capability == TURING for gpu in facts.gpus)


def _plugin_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine is None or facts.engine.build != "cuda" or not has_turing(facts):
        return
    if facts.engine.plugin:
        yield CheckResult(PLUGIN, "PASS", f"caovan's kernels {facts.engine.plugin} are installed")
    elif facts.wants_plugin:
        text = "caovan's SM75 kernels are not installed in the engine"
        yield CheckResult(PLUGIN, "WARN", text, WITH_PLUGIN)


def _gdn_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check whether the plugin finds the Gated DeltaNet layers that its kernels replace."""
    engine = facts.engine
    hybrid = facts.model is None or facts.model.linear is not None
    if engine is None or not engine.plugin or not hybrid or not has_turing(facts):
        return
    fix = f"sudo caovanctl engine install {releases.name(releases.REFERENCE)}"
    known = verdict(engine, "gdn_interface")
    if engine.library_problem:
        text = f"the kernels cannot be loaded: {engine.library_problem}"
        yield CheckResult(PLUGIN, "FAIL", text, WITH_LIBRARY)
    elif known.ok is False:
        text = f"the GDN interface of vLLM {engine.version} is not supported ({known.reason})"
        yield CheckResult(PLUGIN, "WARN", f"{text}: vLLM uses its own kernels", fix)
    elif known.ok:
        replaced = ", ".join(name.rpartition(".")[2] for name in engine.operators)
        yield CheckResult(
            PLUGIN, "PASS", f"the GDN interface is supported: {replaced} are replaced"
        )


def _attention_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check whether the plugin supports the caches that it would read for Triton's attention."""
    engine = facts.engine
    if engine is None or not engine.plugin or not has_turing(facts) or engine.library_problem:
        return
    known = verdict(engine, "attention")
    if known.ok is None or engine.release < releases.CACHES_PER_TOKEN_HEAD:
        return
    if known.ok:
        text = "Triton attention's cache layout is supported: caovan's kernels decode"
        yield CheckResult(PLUGIN, "PASS", text)
    else:
        text = f"vLLM {engine.version} lays out Triton attention's caches differently"
        text = f"{text} ({known.reason}): vLLM decodes with its own kernels"
        yield CheckResult(PLUGIN, "WARN", text, "sudo caovanctl engine install 0.33.0")


def _lm_head_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check whether the plugin can make this vLLM's lm_head int8, if that is configured."""
    engine = facts.engine
    if engine is None or not engine.plugin or not has_turing(facts) or engine.library_problem:
        return
    supported = verdict(engine, "lm_head")
    if supported.ok is not False:
        return
    text = f"vLLM {engine.version} computes logits differently ({supported.reason})"
    text = f'{text}: [policy] lm_head = "int8" is refused'
    yield CheckResult(PLUGIN, "WARN", text, "sudo caovanctl engine install 0.33.0")


def _state_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check whether a hybrid model that drafts can use a prefix cache."""
    engine, model = facts.engine, facts.model
    if engine is None or engine.build != "cuda" or engine.release >= releases.DRAFTS_KEEP_STATES:
        return
    if model is None or model.linear is None or not model.mtp_layers:
        return
    fixed = verdict(engine, "states")
    if engine.plugin and fixed.ok is None:
        return
    if engine.plugin and fixed.ok:
        text = (
            f"its fixes match vLLM {engine.version}: drafts together with a prefix cache are safe"
        )
        yield CheckResult(PLUGIN, "PASS", text)
        return
    text = (
        f"no prefix cache while drafting: the two together would corrupt vLLM {engine.version}'s "
        "answers"
    )
    if engine.plugin:
        reason, remedy = fixed.reason, WITHOUT_FIXES
    else:
        reason, remedy = "the plugin is not installed", WITH_PLUGIN
    yield CheckResult(PLUGIN, "WARN", f"{text} ({reason})", remedy)


PLUGIN_CHECKS = (_plugin_checks, _gdn_checks, _attention_checks, _lm_head_checks, _state_checks)
