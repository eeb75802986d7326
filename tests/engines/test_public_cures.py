"""The lines of public reports, printed again by every start until its plan is the report's cure.

The real reader finds the cause, the machine and the ladder decide. A report with a cure ends in
SERVING, with the plan that its resolution names; one without in FAILED or HOLD, at the first start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from caovand.core.engine.record import Engine
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import LadderRules, decide
from caovand.core.lifecycle.events import (
    Exited,
    Gone,
    Inspect,
    LifecycleEvent,
    Planned,
    Proven,
    Start,
    TimePassed,
)
from caovand.core.lifecycle.state import LifecycleRules, Snapshot, State
from caovand.core.lifecycle.transitions import step
from caovand.core.plan import Plan, Setting
from caovand.engines import registry
from caovand.engines.explaining.answer import answer_of
from caovand.engines.writer import explain_log
from tests.public_reports import SETS, reports

REPORTS = {report.source: report for name in SETS if name != "aside" for report in reports(name)}
MAX_STARTS = 12
END = frozenset({State.SERVING, State.FAILED})
Cured = Callable[[Plan], bool]


@dataclass
class World:
    """One engine whose every start prints the lines of a report until the plan is `cured`."""

    engine: Engine
    plan: Plan
    printed: tuple[str, ...]
    phase: str
    cured: Cured
    s: Snapshot = field(default_factory=Snapshot)
    at: float = 0.0
    starts: int = 0
    found: Finding | None = None

    def run(self, until: frozenset[State]) -> State:
        """Let it live until it is in one of these states, or starts too often."""
        ladder = LadderRules(self.engine.healing)
        rules = LifecycleRules(judge=lambda plan, found, n: decide(plan, found, n, ladder))
        looks: Inspect | None = None
        event: LifecycleEvent = Start(at=0.0)
        while self.starts < MAX_STARTS:
            self.s, actions = step(self.s, event, rules)
            looks = next((one for one in actions if isinstance(one, Inspect)), None)
            if self.s.state in until:
                break
            event = self._next(looks)
            self.at = event.at
        return self.s.state

    def _next(self, looks: Inspect | None) -> LifecycleEvent:
        if self.s.state is State.RECYCLING:
            return Gone(at=self.at, generation=self.s.generation)
        if self.s.spawned:
            self.starts += 1
            assert self.s.plan is not None
            if self.cured(self.s.plan):
                return Proven(at=self.at + 1, generation=self.s.generation)
            texts = [text for line in self.printed for text in self.engine.log.plain(line)]
            self.found = self.engine.log.find_cause(texts, self.phase)
            assert self.found is not None
            return Exited(at=self.at + 1, generation=self.s.generation, finding=self.found)
        if looks is not None:
            plan = looks.plan or self.plan
            return Planned(at=self.at, inspection=looks.number, plan=plan)
        return TimePassed(at=max(self.at, self.s.deadline or 0.0))


def plan_of(settings: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Plan:
    return Plan(
        "/m",
        {name: Setting(value, "policy", "") for name, value in settings.items()},
        {name: Setting(value, "policy", "") for name, value in (env or {}).items()},
        device="sm120" if "experts" in settings else "sm86",
    )


def at_most(name: str, most: float) -> Cured:
    return lambda plan: (plan.value(name) or 0) <= most


def at_least(name: str, least: float) -> Cured:
    return lambda plan: (plan.value(name) or 0) >= least


def equals(name: str, value: Any) -> Cured:
    return lambda plan: plan.value(name) == value


def env(name: str, value: str | None) -> Cured:
    return lambda plan: name in plan.env and plan.env[name].value == value


# The report, the phase of its lines, the plan it began with, the resolution's plan, and how many
# starts it may take.
VLLM = {
    "max_model_len": 32768, "gpu_memory_utilization": 0.95, "max_num_seqs": 1024,
    "max_num_batched_tokens": 8192,
}  # fmt: skip
CURES: Mapping[str, tuple[str, Mapping[str, Any], Cured, int]] = {
    "vllm-project/vllm#49064": ("capture", VLLM, equals("max_num_seqs", 161), 2),
    "xorbitsai/inference#4745": ("capture", VLLM, at_most("max_num_seqs", 512), 2),
    "vllm-project/vllm#20305": ("engine", VLLM, at_most("gpu_memory_utilization", 0.66), 6),
    "gpustack/gpustack#1800": ("kv", VLLM, at_most("max_model_len", 2400), 2),
    "vllm-project/vllm#27508": ("warmup", VLLM, at_most("max_num_seqs", 512), 2),
    "vllm-project/vllm#40291": ("load", VLLM, equals("cpu_offload_gb", 2), 2),
    "substratusai/vllm-docker#37": ("load", VLLM, equals("dtype", "half"), 2),
    "vllm-project/vllm#26431": (
        "load", {**VLLM, "kv_cache_dtype": "fp8"}, equals("kv_cache_dtype", "auto"), 2,
    ),
    "flashinfer-ai/flashinfer#3675": (
        "profile", VLLM, env("VLLM_USE_FLASHINFER_SAMPLER", "0"), 2,
    ),
    "vllm-project/vllm#27542": ("profile", VLLM, lambda plan: bool(plan.taken), 2),
    "vllm-project/vllm#5828": (
        "serving", {**VLLM, "tensor_parallel_size": 2}, env("NCCL_P2P_DISABLE", "1"), 3,
    ),
    "zai-org/GLM-V#172": ("serving", VLLM, lambda plan: bool(plan.taken), 3),
    "sgl-project/sglang#5285": (
        "capture", {"mem_fraction_static": 0.9}, at_most("mem_fraction_static", 0.85), 2,
    ),
    "sgl-project/sglang#6342": (
        "capture", {"mem_fraction_static": 0.9}, lambda plan: bool(plan.taken), 2,
    ),
    "sgl-project/sglang#11218": (
        "capture", {}, lambda plan: plan.rungs == ("graphs-off off",), 3,
    ),
    "SystemPanic/flashinfer-windows#6": (
        "profile", VLLM, env("VLLM_USE_FLASHINFER_SAMPLER", "0"), 2,
    ),
    "vllm-project/vllm#19668": (
        "serving", VLLM, lambda plan: plan.rungs == ("piecewise",), 3,
    ),
    "kvcache-ai/ktransformers#1978": ("load", {}, equals("attention_backend", "triton"), 2),
    "ggml-org/llama.cpp#20431": (
        "load", {"gpu_layers": 48, "max_model_len": 8192}, at_most("gpu_layers", 42), 2,
    ),
    "ggml-org/llama.cpp#15009": (
        "load", {"gpu_layers": 48, "ubatch_size": 512, "batch_size": 2048},
        at_most("ubatch_size", 256), 2,
    ),
    "ggml-org/llama.cpp#24324": (
        "serving", {"flash_attn": "on", "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
        equals("cache_type_v", "f16"), 2,
    ),
    "vllm-project/vllm#2248": ("kv", VLLM, at_least("gpu_memory_utilization", 0.97), 2),
    "vllm-project/vllm#34076": ("kv", VLLM, at_least("gpu_memory_utilization", 0.97), 2),
    "vllm-project/vllm#19445": ("warmup", VLLM, at_most("max_num_seqs", 512), 2),
    "vllm-project/vllm#21731": ("serving", VLLM, lambda plan: plan.rungs == ("piecewise",), 3),
    "sgl-project/sglang#3713": (
        "serving", {}, lambda plan: plan.rungs == ("graphs-off off",), 3,
    ),
    "ikawrakow/ik_llama.cpp#235": (
        "load", {"gpu_layers": 48, "ubatch_size": 512, "batch_size": 2048},
        at_most("ubatch_size", 256), 2,
    ),
    "abetlen/llama-cpp-python#1944": (
        "load", {"gpu_layers": 48, "max_model_len": 8192}, lambda plan: bool(plan.taken), 2,
    ),
    "mozilla-ai/llamafile#881": (
        "warmup", {"gpu_layers": 48, "ubatch_size": 512, "batch_size": 2048},
        at_most("ubatch_size", 256), 2,
    ),
    "ollama/ollama#7146": ("load", {"max_model_len": 8192}, lambda plan: bool(plan.taken), 2),
}  # fmt: skip
# Only a person can act: no second start, and the state says whether caovan goes on by itself.
NO_CURE: Mapping[str, State] = {
    "vllm-project/vllm#12474": State.FAILED,
    "vllm-project/vllm#36099": State.FAILED,
    "verl-project/verl#4337": State.FAILED,
    "vllm-project/vllm#5501": State.FAILED,
    "vllm-project/vllm#9624": State.FAILED,
    "vllm-project/vllm#3676": State.FAILED,
    "vllm-project/vllm#2652": State.FAILED,
    "vllm-project/vllm#29469": State.FAILED,  # an old ptxas serves no kernel of Triton
    "vllm-project/vllm#26161": State.FAILED,
    "vllm-project/vllm#20654": State.FAILED,
    "verl-project/verl#834": State.FAILED,
    "ggml-org/llama.cpp#13465": State.FAILED,
    "ggml-org/llama.cpp#24015": State.FAILED,
    "xorbitsai/inference#971": State.FAILED,
    "canonical/inference-snaps#255": State.FAILED,
    "vllm-project/vllm#9377": State.FAILED,
    "vllm-project/vllm#13669": State.FAILED,
    "vllm-project/vllm-ascend#11368": State.FAILED,
    "baidu/vLLM-Kunlun#386": State.FAILED,
    "sgl-project/sglang#302": State.FAILED,
    "sgl-project/sglang#4598": State.FAILED,
    "sgl-project/sglang#4972": State.FAILED,
    "Anbeeld/beellama.cpp#120": State.FAILED,
    "vllm-project/vllm#11617": State.HOLD,
    "ollama/ollama#5938": State.FAILED,
    "xorbitsai/inference#2756": State.HOLD,
    "MiniMax-AI/MiniMax-01#42, vllm-project/production-stack#276": State.HOLD,
    "PiDanShouRouZhouXD/Sakura_Launcher_GUI#71": State.HOLD,
    "ollama/ollama#8638": State.HOLD,
    "vllm-project/vllm#10483": State.FAILED,
    "sgl-project/sglang#23233": State.FAILED,
    "hiyouga/LlamaFactory#10240": State.HOLD,
    "gpustack/gpustack#3741": State.FAILED,
    "ggml-org/llama.cpp#17327": State.FAILED,
    "ollama/ollama#9148": State.FAILED,
    "ollama/ollama#3010": State.FAILED,
    "ollama/ollama#4919": State.HOLD,
    "ollama/ollama#4492": State.HOLD,
}


def world(source: str, phase: str, settings: Mapping[str, Any], cured: Cured) -> World:
    report = next(report for name, report in REPORTS.items() if source in name)
    found = explain_log(report.text)
    assert found is not None
    engine = found[0].engine or registry.engine_of("vllm")  # the lines alone may be any engine's
    return World(engine, plan_of(settings), tuple(report.lines), phase, cured)


@pytest.mark.parametrize("source", CURES)
def test_a_report_with_a_cure_ends_with_the_plan_that_it_names(source: str) -> None:
    phase, settings, cured, most = CURES[source]
    one = world(source, phase, settings, cured)
    assert not one.cured(one.plan)
    assert one.run(END) is State.SERVING, one.found
    assert one.s.plan is not None
    assert cured(one.s.plan)
    assert one.starts <= most
    assert one.found is not None
    assert answer_of(one.engine, one.found, one.plan).heals == "yes"


@pytest.mark.parametrize("source", NO_CURE)
def test_a_report_without_one_is_no_reason_to_start_again(source: str) -> None:
    one = world(source, "load", {}, lambda plan: False)
    assert one.run(END | {State.HOLD}) is NO_CURE[source], one.found
    assert one.starts == 1
    assert one.found is not None
    assert answer_of(one.engine, one.found, one.plan).heals == (
        "no" if NO_CURE[source] is State.FAILED else "waits"
    )


@pytest.mark.parametrize("source", ["vllm-project/vllm#22383", "sgl-project/sglang#565"])
def test_a_call_that_kernels_refuse_is_final_only_after_the_ladder(source: str) -> None:
    one = world(source, "load", {}, lambda plan: False)
    assert one.run(END) is State.FAILED, one.found
    assert one.starts > 1
    assert one.found is not None
    assert one.found.failure == "unknown"
