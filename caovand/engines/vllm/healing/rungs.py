"""The ladder's rungs: each makes one change that leads to a more modest plan.

A rung is pure: plan and finding in, a Step out, or None if it has none left. Every step goes one
way only, so that each rung ends, and with them the ladder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from caovand.core.facts.all_reduce import CUSTOM, NCCL
from caovand.core.healing.failure import Finding
from caovand.core.healing.rung import Rung, Step
from caovand.core.plan import Plan
from caovand.engines.vllm.flags.spelling import INT8, MARLIN_INPUT, PARTS_OF_SPECULATION, count
from caovand.engines.vllm.planning.draft import PLUGIN, PLUGINS
from caovand.engines.vllm.planning.environment import STATES, THREADS

BLOCK = 16  # tokens: context lengths are multiples of it
MIN_CONTEXT, MIN_FITTING = 2048, 512  # by guess, and if vLLM names the size that fits
MIN_BATCH = 2048  # tokens; a hybrid model's attention block has up to 1,600
GMU_STEP = 0.03
GMU_DOWNS = 3  # after so many steps the cause is something else
GMU_DEFAULT = 0.9  # vLLM's default, if the plan has none
GMU_BOUNDS = (0.3, 0.97)
SHARE_MARGIN_GIB = 0.5
OFFLOAD_GIB = (2, 4, 8)
GRAPH_SIZES = (64, 16, 4)
# Names in the kernel's log of killed processes.
COMPILERS = frozenset({"cc1plus", "cicc", "ptxas", "nvcc", "cudafe++", "fatbinary", "nvlink"})
COMPILING = frozenset({"drafter", "compile", "profile", "capture", "warmup"})
"""The phases of a start in which torch.compile may run."""
EXPERTS = tuple(f"VLLM_USE_FLASHINFER_MOE_{kind}" for kind in ("FP16", "FP8", "FP4", "MXFP4_BF16"))
OF_WEIGHTS = ("method", "scheme", "other", "kernel", "input")
"""Captures of rows about what multiplies the weights."""
_LIMITED = ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
BACKENDS = ("FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION")


def _number(finding: Finding, name: str) -> float | None:
    try:
        number = float(finding.captures[name])
    except (KeyError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _used(plan: Plan, *names: str) -> bool:
    return any(taken.rung in names for taken in plan.taken)


def _context(plan: Plan, finding: Finding) -> Step | None:
    """To the length named by the error; a second time by at least an eighth, so that it ends."""
    now = count(plan.value("max_model_len")) or int(_number(finding, "len") or 0)
    fits = _number(finding, "fits")
    goal = int(fits) if fits else now // 2
    if _used(plan, "context"):
        goal = min(goal, now * 7 // 8)
    goal = goal // BLOCK * BLOCK
    # A context too short for a conversation is no remedy, unless the operator asked for a short
    # one.
    least = MIN_FITTING if fits else MIN_CONTEXT
    floor = least if now >= least or not fits else BLOCK
    if not floor <= goal < now:
        return None
    return Step({"max_model_len": goal}, value=str(goal), change=f"context {now} -> {goal}")


def _gmu(plan: Plan) -> float:
    value = plan.value("gpu_memory_utilization")
    return GMU_DEFAULT if value is None else float(value)


def _on_cpu(plan: Plan) -> bool:
    return plan.device == "cpu"


def _to_gmu(plan: Plan, goal: float) -> Step | None:
    now, goal = _gmu(plan), round(goal, 3)
    if _on_cpu(plan) or not GMU_BOUNDS[0] <= goal <= GMU_BOUNDS[1] or goal == now:
        return None
    change = f"GPU memory share {now:g} -> {goal:g}"
    changed: dict[str, Any] = {"gpu_memory_utilization": goal}
    if plan.value("kv_cache_memory_bytes") is not None:  # which leaves the share without effect
        changed["kv_cache_memory_bytes"] = None
        change += ", and vLLM sizes the KV cache"
    return Step(changed, value=f"{goal:g}", change=change)


def _gmu_up(plan: Plan, finding: Finding) -> Step | None:
    """Never after going down: the higher share was already too much."""
    goal = min(_gmu(plan) + GMU_STEP, GMU_BOUNDS[1])
    if _used(plan, "gmu-down", "share"):
        return None
    return _to_gmu(plan, goal) if goal > _gmu(plan) else None


def _gmu_down(plan: Plan, finding: Finding) -> Step | None:
    spent = sum(taken.rung == "gmu-down" for taken in plan.taken) >= GMU_DOWNS
    if spent or finding.beyond_card:
        return None
    return _to_gmu(plan, _gmu(plan) - GMU_STEP)


def _share(plan: Plan, finding: Finding) -> Step | None:
    """To the memory that others leave free, by vLLM's count."""
    free, total = _number(finding, "free"), _number(finding, "total")
    if not free or not total:
        return None
    goal = int((free - SHARE_MARGIN_GIB) / total * 1000) / 1000
    return _to_gmu(plan, goal) if goal < _gmu(plan) else None


def _kv_memory(plan: Plan, finding: Finding) -> Step | None:
    """On the CPU build: to the KV cache's full need, if that is at most four times as much."""
    now, need = plan.value("kv_cache_memory_bytes"), _number(finding, "need")
    if not _on_cpu(plan) or not isinstance(now, int) or not need:
        return None
    if _used(plan, "kv-memory-less"):
        return None
    goal = int(need * 1.1 * 2**30) // 2**20 * 2**20
    if not now < goal <= 4 * now:
        return None
    change = f"KV memory {now >> 20} -> {goal >> 20} MiB"
    return Step({"kv_cache_memory_bytes": goal}, value=f"{goal >> 20}", change=change)


def _kv_memory_less(plan: Plan, finding: Finding) -> Step | None:
    now, free = plan.value("kv_cache_memory_bytes"), _number(finding, "free")
    if not _on_cpu(plan) or not isinstance(now, int):
        return None
    goal = now // 2 if not free else min(now // 2, int(free * 0.8 * 2**30))
    goal = goal // 2**20 * 2**20
    if goal < 2**24:
        return None
    change = f"KV memory {now >> 20} -> {goal >> 20} MiB"
    return Step({"kv_cache_memory_bytes": goal}, value=f"{goal >> 20}", change=change)


def _halved(plan: Plan, name: str, unset: int, least: int, label: str) -> Step | None:
    """Half of a setting; `unset` is the start for a plan without one."""
    now = count(plan.value(name))
    goal = unset if now is None else max(now // 2, least)
    if now is not None and goal >= now:
        return None
    shown = "vLLM's default" if now is None else now
    return Step({name: goal}, value=str(goal), change=f"{label} {shown} -> {goal}")


def _batch(plan: Plan, finding: Finding) -> Step | None:
    return _halved(plan, "max_num_batched_tokens", MIN_BATCH, MIN_BATCH, "batch tokens")


def _sequences(plan: Plan, finding: Finding) -> Step | None:
    """Lower max_num_seqs to the number that vLLM names, else to half."""
    most, now = _number(finding, "most"), count(plan.value("max_num_seqs"))
    if most and most >= 1 and (now is None or most < now):
        shown = "vLLM's default" if now is None else now
        goal = int(most)
        return Step({"max_num_seqs": goal}, value=str(goal), change=f"sequences {shown} -> {goal}")
    return _halved(plan, "max_num_seqs", 32, 1, "sequences")


def _limit(plan: Plan, finding: Finding) -> Step | None:
    """Lower an argument to the maximum that vLLM allows, if its text names both."""
    name, most = finding.captures.get("argument", "").replace("-", "_"), _number(finding, "most")
    now = count(plan.value(name)) if name in _LIMITED else None
    if name not in _LIMITED or not most or most < 1 or (now is not None and now <= most):
        return None
    goal = int(most)
    shown = "vLLM's default" if now is None else now
    return Step({name: goal}, value=f"{name} {goal}", change=f"{name} {shown} -> {goal}")


def _depth(plan: Plan) -> int:
    """As planned, or as set by verbatim flags, which are then reported as the obstacle."""
    return plan.mtp or count(plan.value("spec_tokens")) or 0


def _to_mtp(plan: Plan, depth: int) -> Step | None:
    now = _depth(plan)
    if not 0 <= depth < now:
        return None
    config = plan.value("speculative_config")
    config = config if isinstance(config, Mapping) else {}
    config = {**config, "num_speculative_tokens": depth} if depth else None
    shown = str(depth) if depth else "off"
    return Step({"speculative_config": config}, value=shown, change=f"MTP {now} -> {shown}")


def _mtp_less(plan: Plan, finding: Finding) -> Step | None:
    return _to_mtp(plan, _depth(plan) - 1)


def _mtp_safe(plan: Plan, finding: Finding) -> Step | None:
    return _to_mtp(plan, 3)


def _mtp_off(plan: Plan, finding: Finding) -> Step | None:
    return _to_mtp(plan, 0)


def _compilation(plan: Plan) -> Mapping[str, Any]:
    value = plan.value("compilation_config")
    return value if isinstance(value, Mapping) else {}


def _has_graphs(plan: Plan) -> bool:
    return not _on_cpu(plan) and not plan.value("enforce_eager")


def _fewer_graphs(plan: Plan, finding: Finding) -> Step | None:
    config = _compilation(plan)
    size = "max_cudagraph_capture_size"
    now = count(config.get(size)) or count(plan.value(size))
    smaller = [size for size in GRAPH_SIZES if now is None or size < now]
    if not _has_graphs(plan) or not smaller or "cudagraph_capture_sizes" in config:
        return None
    goal = smaller[0]
    changed = {**config, "max_cudagraph_capture_size": goal}
    shown = "vLLM's default" if now is None else now
    return Step(
        {"compilation_config": changed}, value=str(goal), change=f"largest graph {shown} -> {goal}"
    )


def _piecewise(plan: Plan, finding: Finding) -> Step | None:
    config = _compilation(plan)
    now = config.get("cudagraph_mode", "vLLM's default")
    if not _has_graphs(plan) or now in ("PIECEWISE", "NONE"):
        return None
    changed = {**config, "cudagraph_mode": "PIECEWISE"}
    return Step({"compilation_config": changed}, change=f"CUDA graphs {now} -> PIECEWISE")


def _eager(plan: Plan, finding: Finding) -> Step | None:
    if plan.value("enforce_eager"):
        return None
    changed = {"enforce_eager": True, "compilation_config": None}
    return Step(changed, change="CUDA graphs and compilation off")


def _kv_dtype_small(plan: Plan, finding: Finding) -> Step | None:
    now = plan.value("kv_cache_dtype")
    if _on_cpu(plan) or now not in (None, "auto", "half", "float16", "bfloat16"):
        return None
    return Step({"kv_cache_dtype": "fp8"}, value="fp8", change=f"KV cache {now or 'auto'} -> fp8")


def _is_of_weights(finding: Finding) -> bool:
    """Whether the card cannot run the weights: then neither attention nor cache is at fault."""
    return any(name in finding.captures for name in OF_WEIGHTS)


def _kv_dtype_plain(plan: Plan, finding: Finding) -> Step | None:
    now = plan.value("kv_cache_dtype")
    # vLLM lists everything wrong with a backend; often the cache is fine.
    blameless = "Reason:" in finding.text and "kv_cache_dtype" not in finding.text
    if now in (None, "auto") or blameless or _is_of_weights(finding):
        return None
    return _plain_cache(now)


def _plain_cache(now: Any) -> Step:
    return Step({"kv_cache_dtype": "auto"}, value="auto", change=f"KV cache {now} -> auto")


def _half(plan: Plan, finding: Finding) -> Step | None:
    now, told = plan.value("dtype"), finding.captures
    of_dtype = "needs" in told or told.get("dtype") in ("bfloat16", "float32")
    if now in ("half", "float16") or not of_dtype:
        return None
    return Step({"dtype": "half"}, change=f"activations {now or 'auto'} -> half")


def _half_input(plan: Plan, finding: Finding) -> Step | None:
    """Half-precision activations, where an int8 kernel of the weights is at fault."""
    now = plan.env[MARLIN_INPUT].value if MARLIN_INPUT in plan.env else None
    if now != INT8 or not _is_of_weights(finding):
        return None
    return Step(env={MARLIN_INPUT: None}, change="int8 activations -> half")


def _attention(plan: Plan, finding: Finding) -> Step | None:
    """The next untried backend; the one that failed may be vLLM's own choice."""
    now = plan.value("attention_backend")
    tried = {taken.value for taken in plan.taken if taken.rung == "attention"}
    # FlashInfer compiles its own code, so it is the one that fails without a compiler.
    if finding.failure == "jit-toolchain" or "flashinfer" in finding.text.lower():
        tried.add("FLASHINFER")
    if "triton_attn" in finding.text.lower():
        tried.add("TRITON_ATTN")
    left = [name for name in BACKENDS if name not in tried and name != now]
    if _on_cpu(plan) or not left or _is_of_weights(finding):
        return None
    change = f"attention {now or 'automatic'} -> {left[0]}"
    kind = plan.value("kv_cache_dtype")
    plain = None if kind in (None, "auto") else _plain_cache(kind)
    return Step({"attention_backend": left[0]}, value=left[0], change=change, pair=plain)


def _since_hopper(plan: Plan) -> bool:
    return bool(re.search(r"\bsm(9|1\d)\d\b", plan.device))


def _gdn(plan: Plan, finding: Finding) -> Step | None:
    config = plan.value("additional_config")
    config = config if isinstance(config, Mapping) else {}
    now = plan.value("gdn_prefill_backend") or config.get("gdn_prefill_backend")
    # Only FlashInfer's needs a build; vLLM uses it on no card before Hopper.
    built = finding.failure != "jit-toolchain" or _since_hopper(plan)
    if _on_cpu(plan) or now == "triton" or not built:
        return None
    changed = {**config, "gdn_prefill_backend": "triton"}
    return Step({"additional_config": changed}, change="GDN prefill -> triton")


def _experts(plan: Plan, finding: Finding) -> Step | None:
    """Disable FlashInfer's expert kernels, which vLLM uses on cards from SM90 on."""
    new = [name for name in EXPERTS if name not in plan.env or plan.env[name].value != "0"]
    if not _since_hopper(plan) or not new:
        return None
    return Step(env=dict.fromkeys(new, "0"), change="FlashInfer's expert kernels off")


def _plugin_off(plan: Plan, finding: Finding) -> Step | None:
    """Disable our plugin if it is active or failed; keep the operator's other plugins.

    What is right only with its fixes goes with it: the prefix cache and asynchronous scheduling.
    """
    names = plan.env[PLUGINS].value if PLUGINS in plan.env else None
    listed = [name for name in str(names or "").split(",") if name]
    config = plan.value("additional_config")
    here = not plan.device or "sm75" in plan.device
    acts = here and isinstance(config, Mapping) and bool(config.get("caovan"))
    blamed = finding.failure == "plugin-error" or finding.captures.get("component") == "plugin"
    if (names is None and not acts and not blamed) or (names is not None and not listed):
        return None
    if listed and PLUGIN not in listed and not blamed:
        return None
    others = [name for name in listed if name != PLUGIN] if PLUGIN in listed else []
    env = {PLUGINS: ",".join(others)}
    if STATES not in plan.env or not plan.env[STATES].value:
        return Step(env=env, change="caovan's kernels off")
    env[STATES] = ""
    if not plan.value("speculative_config"):
        return Step(env=env, change="caovan's kernels off")
    off = {"enable_prefix_caching": False, "mamba_cache_mode": None, "async_scheduling": False}
    return Step(off, env, change="caovan's kernels off, and the prefix cache with them")


def _prefix_caching_off(plan: Plan, finding: Finding) -> Step | None:
    if plan.value("enable_prefix_caching") is False:
        return None
    changed = {"enable_prefix_caching": False, "mamba_cache_mode": None}
    if STATES in plan.env and plan.env[STATES].value:
        # The plugin fixes asynchronous scheduling with a prefix cache only.
        return Step(
            {**changed, "async_scheduling": False}, {STATES: ""}, change="prefix caching off"
        )
    return Step(changed, change="prefix caching off")


def _is_alone(plan: Plan) -> bool:
    """Whether the engine uses a single card, or none."""
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    return _on_cpu(plan) or all((count(plan.value(size)) or 1) == 1 for size in sizes)


def _variable(
    name: str, value: str, change: str, *, between_cards: bool = False
) -> Callable[[Plan, Finding], Step | None]:
    """A rung that sets one variable of the engine's environment."""

    def step(plan: Plan, finding: Finding) -> Step | None:
        now = plan.env[name].value if name in plan.env else None
        other = _is_alone(plan) or finding.captures.get("by") == CUSTOM
        vain = now == value or (between_cards and other)
        return None if vain else Step(env={name: value}, change=change)

    return step


def _is_of_a_build(finding: Finding) -> bool:
    """Whether a compiler was killed, according to its driver, ninja or the kernel."""
    told = finding.captures
    return "compiler" in told or "object" in told or told.get("name") in COMPILERS


def _fewer_jobs(plan: Plan, finding: Finding) -> Step | None:
    """Half the compilers at once; finished parts of a killed build stay, so each try is shorter.

    FlashInfer, torch's extensions and vLLM obey MAX_JOBS; nvcc uses one thread a job.
    """
    set_to = str(plan.env["MAX_JOBS"].value) if "MAX_JOBS" in plan.env else ""
    now = int(set_to) if re.fullmatch("[0-9]{1,6}", set_to) else 0
    if not _is_of_a_build(finding) or now < 2:
        return None
    goal = str(now // 2)
    return Step(env={"MAX_JOBS": goal}, value=goal, change=f"compiler jobs {now} -> {goal}")


def _one_thread(plan: Plan, finding: Finding) -> Step | None:
    """One thread of torch.compile: the fault may be in its pool, or the memory that this takes."""
    now = str(plan.env[THREADS].value) if THREADS in plan.env else "1"
    if now == "1" or finding.phase not in COMPILING:
        return None
    return Step(env={THREADS: "1"}, value="1", change=f"threads of torch.compile {now} -> 1")


def _all_reduce_off(plan: Plan, finding: Finding) -> Step | None:
    if plan.value("disable_custom_all_reduce") or _is_alone(plan):
        return None
    if finding.captures.get("by") == NCCL:
        return None
    return Step({"disable_custom_all_reduce": True}, change="custom all-reduce off")


def _offload(plan: Plan, finding: Finding) -> Step | None:
    now = plan.value("cpu_offload_gb") or 0
    more = [size for size in OFFLOAD_GIB if size > now]
    if _on_cpu(plan) or not more:
        return None
    change = f"weights kept in host memory {now} -> {more[0]} GiB a card"
    return Step({"cpu_offload_gb": more[0]}, value=str(more[0]), change=change)


_CONFIG = ("compilation_config",)
_SIZES = (*_CONFIG, "max_cudagraph_capture_size", "cudagraph_capture_sizes")
_SPEC = ("speculative_config", *PARTS_OF_SPECULATION)
# Given outright, the cache's size leaves the share without effect.
_GMU = ("gpu_memory_utilization", "kv_cache_memory_bytes")

RUNGS: tuple[Rung, ...] = (
    Rung("context", "shorten the context", "max_model_len", ("max_model_len",), _context),
    Rung("mtp", "draft one token fewer", "mtp", _SPEC, _mtp_less),
    Rung("mtp-safe", "draft at most 3 tokens", "mtp", _SPEC, _mtp_safe),
    Rung("mtp-off", "draft nothing", "mtp", _SPEC, _mtp_off),
    Rung("gmu-up", "use more of the card's memory", "gpu_memory_utilization",
         _GMU, _gmu_up),
    Rung("gmu-down", "leave more of the card's memory free", "gpu_memory_utilization",
         _GMU, _gmu_down),
    Rung("share", "use only memory that others leave", "gpu_memory_utilization",
         _GMU, _share, passing=True),
    Rung("kv-memory", "keep a larger KV cache in host memory", "", ("kv_cache_memory_bytes",),
         _kv_memory),
    Rung("kv-memory-less", "keep a smaller KV cache in host memory", "",
         ("kv_cache_memory_bytes",), _kv_memory_less),
    Rung("batch", "do less in one step", "max_num_batched_tokens", ("max_num_batched_tokens",),
         _batch),
    Rung("sequences", "decode fewer sequences at once", "max_num_seqs", ("max_num_seqs",),
         _sequences),
    Rung("limit", "keep to the limit that the engine names", "", _LIMITED, _limit),
    Rung("graph-sizes", "capture fewer CUDA graphs", "cuda_graphs", _SIZES, _fewer_graphs),
    Rung("piecewise", "keep attention out of CUDA graphs", "cuda_graphs", _CONFIG, _piecewise),
    Rung("eager", "run without CUDA graphs and compilation", "cuda_graphs",
         ("enforce_eager", "compilation_config"), _eager),
    Rung("kv-dtype", "store the KV cache in 8 bits", "kv_cache_dtype", ("kv_cache_dtype",),
         _kv_dtype_small),
    Rung("kv-dtype-plain", "store the KV cache as the model computes", "kv_cache_dtype",
         ("kv_cache_dtype",), _kv_dtype_plain),
    Rung("half", "compute in float16", "dtype", ("dtype",), _half),
    Rung("half-input", "multiply weights by half-precision activations", "activations",
         (MARLIN_INPUT,), _half_input),
    Rung("attention", "use another attention backend", "",
         ("attention_backend", "attention_config"), _attention),
    Rung("experts", "compute experts without FlashInfer", "", EXPERTS, _experts),
    Rung("gdn", "use another GDN backend", "", ("additional_config",), _gdn),
    Rung("plugin-off", "leave caovan's kernels out", "plugin", (PLUGINS,), _plugin_off),
    Rung("prefix-caching-off", "compute every prompt afresh", "", ("enable_prefix_caching",),
         _prefix_caching_off),
    Rung("fresh-cache", "compile into a new cache", "", ("CAOVAN_CACHE",),
         _variable("CAOVAN_CACHE", "2", "a new compile cache"), degrades=False),
    Rung("no-compile-cache", "compile at every start", "", ("VLLM_DISABLE_COMPILE_CACHE",),
         _variable("VLLM_DISABLE_COMPILE_CACHE", "1", "compile cache off")),
    Rung("p2p-off", "move data between cards through the host", "", ("NCCL_P2P_DISABLE",),
         _variable("NCCL_P2P_DISABLE", "1", "NCCL peer-to-peer off", between_cards=True)),
    Rung("all-reduce-off", "leave all-reduce to NCCL", "",
         ("disable_custom_all_reduce",), _all_reduce_off),
    Rung("sampler-plain", "sample without FlashInfer", "", ("VLLM_USE_FLASHINFER_SAMPLER",),
         _variable("VLLM_USE_FLASHINFER_SAMPLER", "0", "FlashInfer's sampler off")),
    Rung("jobs", "run fewer compilers at once", "", ("MAX_JOBS",), _fewer_jobs, degrades=False),
    Rung("compile-threads", "compile with one thread", "", (THREADS,), _one_thread,
         degrades=False),
    Rung("offload", "keep part of the weights in host memory", "", ("cpu_offload_gb",), _offload),
)  # fmt: skip
