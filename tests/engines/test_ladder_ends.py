"""Whatever a failure takes away, the ladder ends at a plan that goes without it, if there is one.

An engine is imagined that fails as long as its plan uses one thing, the culprit. The ladder goes
down until the plan does without it; where it has nothing left before that, no plan may be known
that would.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from caovand.core.facts.inventory import Inventory
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import LadderRules, decide
from caovand.core.plan import Plan, Unplannable
from caovand.engines.vllm.healing.cures import CURES, HEALING
from caovand.engines.vllm.memory.settings import gpus_of
from caovand.engines.vllm.planning.decisions import conflicts, forecast
from tests.core.machines import (
    A100,
    CPU,
    CUDA,
    GEMMA_4,
    GPT_OSS,
    H200,
    LLAMA_70B_AWQ,
    QWEN_27B,
    QWEN_27B_AWQ,
    SMALL_HYBRID,
    TINY_HYBRID,
    cards,
    inventory,
    named,
    plan,
    turing,
)

LATER = replace(CUDA, version="0.33.0", flashinfer="0.7.2", plugin="0.1")
WITH_PLUGIN = replace(CUDA, plugin="0.1")
NO_NVCC = replace(CUDA, python_version="3.12.1")
PLAIN = replace(SMALL_HYBRID, model_type="llama", linear=None, mtp_layers=0,
                layer_types=("full_attention",) * 8)  # fmt: skip
MACHINES: Mapping[str, Inventory] = {
    "2 x 2080 Ti": inventory(),
    "2 x 2080 Ti, plugin": inventory(engine=WITH_PLUGIN),
    "2 x 2080 Ti, 0.33": inventory(engine=LATER),
    "2 x 2080 Ti, no nvcc": inventory(engine=NO_NVCC),
    "1 x 2080 Ti, small": inventory(SMALL_HYBRID, turing(1)),
    "4 x 2080 Ti, dense": inventory(PLAIN, turing(4)),
    "4 x 2080 Ti, 70B": inventory(LLAMA_70B_AWQ, turing(4)),
    "2 x 3090": inventory(gpus=named("RTX 3090", 2)),
    "A100, gpt-oss": inventory(GPT_OSS, A100),
    "2 x 4090, 70B": inventory(LLAMA_70B_AWQ, named("RTX 4090", 2)),
    "H200, 27B": inventory(QWEN_27B, H200),
    "H200, experts": inventory(GEMMA_4, H200),
    "H200, 0.33": inventory(QWEN_27B_AWQ, H200, LATER),
    "RTX PRO 6000, experts": inventory(GEMMA_4, cards(1, "NVIDIA RTX PRO 6000", (12, 0), 97887)),
    "CPU": inventory(TINY_HYBRID, (), CPU),
}
Uses = Callable[[Plan, Inventory, Plan], bool]
"""Whether a plan on a machine uses the culprit; the first plan is there to compare with."""


def several(plan: Plan) -> bool:
    return (plan.value("tensor_parallel_size") or 1) > 1


def env(plan: Plan, name: str) -> str:
    return str(plan.env[name].value) if name in plan.env else ""


def nvcc(plan: Plan, machine: Inventory, first: Plan) -> bool:
    """FlashInfer's attention, sampler, Gated DeltaNet or experts."""
    newest = max((gpu.compute_capability for gpu in machine.gpus), default=(0, 0))
    older = machine.engine.release < (0, 32)
    additional = plan.value("additional_config") or {}
    gdn = plan.value("gdn_prefill_backend") or additional.get("gdn_prefill_backend")
    experts = machine.model.experts and machine.model.quantization is None and older
    return machine.engine.build == "cuda" and (
        plan.value("attention_backend") == "FLASHINFER"
        or env(plan, "VLLM_USE_FLASHINFER_SAMPLER") != "0"
        or (newest[0] == 9 and machine.model.linear is not None and gdn != "triton")
        or bool(experts and newest >= (9, 0) and env(plan, "VLLM_USE_FLASHINFER_MOE_FP16") != "0")
    )


def kernels(plan: Plan, machine: Inventory, first: Plan) -> bool:
    acts = (plan.value("additional_config") or {}).get("caovan") and "sm75" in plan.device
    return bool(acts) and "VLLM_PLUGINS" not in plan.env and env(plan, "CAOVAN_KERNELS") != "off"


def graphs(plan: Plan) -> bool:
    return plan.value("enforce_eager") is not True


def attention_graphs(plan: Plan) -> bool:
    mode = (plan.value("compilation_config") or {}).get("cudagraph_mode")
    return graphs(plan) and mode not in ("PIECEWISE", "NONE")


def number(plan: Plan, name: str, default: float) -> float:
    value = plan.value(name)
    return float(value) if isinstance(value, (int, float)) else default


def share(plan: Plan) -> float:
    return number(plan, "gpu_memory_utilization", 0.9)


CULPRITS: Mapping[str, Uses] = {
    "nvcc": nvcc,
    "plugin": kernels,
    "drafting": lambda plan, machine, first: plan.mtp > 0,
    "deep drafting": lambda plan, machine, first: plan.mtp > 3,
    "compilation": lambda plan, machine, first: graphs(plan),
    "attention in graphs": lambda plan, machine, first: attention_graphs(plan),
    "prefix cache": lambda plan, machine, first: plan.value("enable_prefix_caching") is not False,
    "peer to peer": lambda plan, machine, first: (
        several(plan) and env(plan, "NCCL_P2P_DISABLE") != "1"
    ),
    "custom all-reduce": lambda plan, machine, first: (
        several(plan) and not plan.value("disable_custom_all_reduce")
    ),
    "old compile cache": lambda plan, machine, first: (
        graphs(plan) and "CAOVAN_CACHE" not in plan.env
    ),
    "compile cache": lambda plan, machine, first: (
        graphs(plan) and env(plan, "VLLM_DISABLE_COMPILE_CACHE") != "1"
    ),
    "FlashInfer attention": lambda plan, machine, first: (
        plan.value("attention_backend") == "FLASHINFER"
    ),
    "8-bit cache": lambda plan, machine, first: str(plan.value("kv_cache_dtype")).startswith("fp8"),
    "share": lambda plan, machine, first: share(plan) > share(first) - 0.05,
    "too small a share": lambda plan, machine, first: (
        share(plan) < share(first) + 0.015
        and number(plan, "max_num_batched_tokens", 0) >= number(first, "max_num_batched_tokens", 0)
        and number(plan, "cpu_offload_gb", 0) <= number(first, "cpu_offload_gb", 0)
    ),
    "context": lambda plan, machine, first: (
        number(plan, "max_model_len", 1e9) > number(first, "max_model_len", 1e9) / 2
    ),
    "sequences": lambda plan, machine, first: number(plan, "max_num_seqs", 256) > 1,
    "weights on the card": lambda plan, machine, first: number(plan, "cpu_offload_gb", 0) < 4,
    "compilers": lambda plan, machine, first: env(plan, "MAX_JOBS") not in ("", "1"),
}
CRASH = ("deep drafting", "drafting", "plugin", "compilation", "attention in graphs")
FAULTS: Mapping[str, tuple[str, ...]] = {
    "device-oom-load": ("weights on the card",),
    "device-oom-load load": ("weights on the card",),
    "kv-cache-none": ("too small a share",),
    "kv-cache-short": ("context",),
    "vram-busy": ("share",),
    "device-oom-capture": ("share", "compilation"),
    "device-oom-capture profile": ("sequences", "drafting", "weights on the card"),
    "device-oom-capture compile": ("sequences", "drafting", "weights on the card"),
    "device-oom-run": ("share", "sequences", "compilation"),
    "sampler-oom": ("sequences", "share"),
    "illegal-access": CRASH,
    "launch-failure": CRASH,
    "launch-failure capture": CRASH,
    "collective-timeout": ("peer to peer", "custom all-reduce"),
    "collective-timeout capture": ("peer to peer", "custom all-reduce"),
    "host-oom": ("compilers", "sequences", "drafting"),
    "compile-cache-stale": ("old compile cache", "compile cache", "compilation"),
    "shared-memory-limit": ("FlashInfer attention", "plugin", "compilation"),
    "jit-toolchain": ("nvcc", "compilation"),
    "jit-toolchain compile": ("nvcc", "compilation"),
    "backend-unsupported": ("FlashInfer attention", "8-bit cache"),
    "plugin-error": ("plugin",),
    "compile-failed": ("old compile cache", "compilation", "plugin"),
    "engine-died": (*CRASH, "prefix cache"),
    "start-stall": ("deep drafting", "drafting", "plugin", "compilation"),
    "start-stall load": ("plugin",),
    "start-stall drafter": ("drafting", "plugin"),
    "start-stall engine": ("peer to peer", "custom all-reduce"),
    "start-stall compile": ("old compile cache", "compilation"),
    "start-stall capture": ("custom all-reduce", "attention in graphs", "compilation"),
    "hang": (*CRASH, "peer to peer", "custom all-reduce"),
    "draft-collapse": ("attention in graphs", "drafting"),
    "answers-changed": (*CRASH, "prefix cache", "custom all-reduce", "peer to peer"),
    "answers-degenerate": ("plugin", "drafting", "prefix cache", "custom all-reduce",
                           "peer to peer", "8-bit cache", "attention in graphs", "compilation"),
    "allreduce-wrong": ("peer to peer", "custom all-reduce"),
    "allreduce-hung": ("peer to peer", "custom all-reduce"),
    "unknown": ("plugin", "drafting", "compilation"),
}  # fmt: skip
"""What may be at fault, by row of CURES."""
CAPTURES: Mapping[str, Callable[[Plan], Mapping[str, str]]] = {
    "kv-cache-short": lambda first: {
        "len": f"{number(first, 'max_model_len', 8192):.0f}",
        "fits": f"{number(first, 'max_model_len', 8192) // 2:.0f}",
    },
    "vram-busy": lambda first: {"free": f"{20 * (share(first) - 0.04):.2f}", "total": "20"},
    "host-oom": lambda first: {"compiler": "cicc"},
}
WITHOUT: tuple[Mapping[str, Any], ...] = (
    {"policy": {"mtp": 0}},
    {"policy": {"cuda_graphs": "none"}},
    {"policy": {"cuda_graphs": "piecewise"}},
    {"policy": {"kv_cache_dtype": "auto"}},
    {"engine": {"plugin": False}},
    {"engine": {"extra_args": ["--attention-backend", "TRITON_ATTN", "--kv-cache-dtype", "auto"]}},
    {"engine": {"extra_args": ["--disable-custom-all-reduce"]}},
    {"engine": {"extra_args": ["--no-enable-prefix-caching"]}},
    {"engine": {"env": {"NCCL_P2P_DISABLE": "1"}}},
    {"policy": {"max_num_seqs": 1}},
    {"policy": {"max_num_batched_tokens": 2048}},
    {"policy": {"tensor_parallel_size": 1}},
    {"model": {"max_model_len": 4096}},
    {"engine": {"env": {"MAX_JOBS": "1"}}},
)
"""Configurations that each do without something."""


@cache
def planned(machine: str) -> Plan:
    return plan(MACHINES[machine])


def alternatives(machine: Inventory) -> list[Plan]:
    """The planner's plans that do without one thing, or without a compiler, and can run."""
    found = []
    barren = replace(machine.engine, python_version="3.12.1", nvcc=None)
    for seen in (machine, replace(machine, engine=barren)):
        for sections in ({}, *WITHOUT):
            try:
                other = plan(seen, **sections)
            except Unplannable:
                continue
            if forecast(other, seen).fits is not False:
                found.append(other)
    return found


def end(machine: Inventory, first: Plan, finding: Finding, uses: Uses) -> Plan:
    """The plan at which the engine serves, or the ladder has nothing left."""
    rules = LadderRules(
        HEALING, conflicts=lambda plan: conflicts(plan, machine, gpus_of(plan, machine))
    )
    current = first
    while uses(current, machine, first):
        lower = decide(current, finding, 99, rules).plan
        if lower is None:
            break
        assert not conflicts(lower, machine, gpus_of(lower, machine))
        current = lower
    return current


def test_every_row_of_cures_has_something_that_may_be_at_fault() -> None:
    rows = {f"{failure} {phase}".rstrip() for (failure, phase), names in CURES.items() if names}
    assert rows == set(FAULTS)
    assert {culprit for culprits in FAULTS.values() for culprit in culprits} == set(CULPRITS)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("row", FAULTS)
def test_no_descent_ends_above_a_plan_that_would_serve(row: str, machine: str) -> None:
    failure, _, phase = row.partition(" ")
    seen, first = MACHINES[machine], planned(machine)
    assert not conflicts(first, seen, gpus_of(first, seen))
    captures = CAPTURES.get(failure, lambda first: {})(first)
    for signature in ("a.row", "jit.nvcc"):
        if signature == "jit.nvcc" and failure != "jit-toolchain":
            continue
        finding = Finding(failure, "it failed", phase or "warmup", captures, signature)  # type: ignore[arg-type]
        for culprit in FAULTS[row]:
            uses = CULPRITS[culprit]
            last = end(seen, first, finding, uses)
            if uses(last, seen, first):
                known = [other for other in alternatives(seen) if not uses(other, seen, first)]
                assert not known, f"{culprit}: {last.rungs} and no further"


def test_a_missing_compiler_leaves_no_fp8_cache_to_an_attention_that_refuses_it() -> None:
    machine, first = MACHINES["2 x 2080 Ti"], planned("2 x 2080 Ti")
    said = Finding("jit-toolchain", "Could not find nvcc", "profile", {}, "jit.nvcc")
    last = end(machine, first, said, nvcc)
    assert last.rungs == ("sampler-plain", "attention TRITON_ATTN")
    assert (last.value("attention_backend"), last.value("kv_cache_dtype")) == (
        "TRITON_ATTN",
        "auto",
    )
    reason = last.settings["kv_cache_dtype"].reason
    assert re.match(r"attention FLASHINFER -> TRITON_ATTN, KV cache fp8 -> auto, because", reason)


@pytest.mark.parametrize("rules", [{"pinned": frozenset({"kv_cache_dtype"})}, {}])
def test_a_step_that_takes_a_second_setting_along_asks_for_both(rules: dict[str, Any]) -> None:
    machine, first = MACHINES["2 x 2080 Ti"], planned("2 x 2080 Ti")
    kept = LadderRules(
        HEALING, conflicts=lambda plan: conflicts(plan, machine, gpus_of(plan, machine)), **rules
    )
    if not rules:
        first = replace(first, verbatim=frozenset({"kv_cache_dtype"}))
    said = Finding("backend-unsupported", "Reason: ['compute']", "engine", {}, "a.row")
    decision = decide(first, said, 1, kept)
    told = "pinned names kv_cache_dtype" if rules else "--kv-cache-dtype is passed verbatim"
    assert decision.plan is None
    assert any(told in obstacle for obstacle in decision.obstacles)
