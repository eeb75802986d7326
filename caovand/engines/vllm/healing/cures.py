"""The rungs that help against each failure of vLLM, best first, by phase where that matters."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.healing.failure import Failure
from caovand.core.healing.rung import ANY, Healing
from caovand.engines.common.healing.rungs import BY_PERSON
from caovand.engines.vllm.flags.spelling import option
from caovand.engines.vllm.flags.table import KINDS
from caovand.engines.vllm.healing.rungs import RUNGS

_CRASH = (
    "piecewise", "mtp-even", "mtp-safe", "attention-own", "half-drafter", "half-head", "plugin-off",
    "mtp-off", "eager",
)  # fmt: skip
_JIT = ("sampler-plain", "experts", "gdn", "attention", "eager")
_PEAK = ("batch", "sequences", "mtp", "replicas-off", "offload")

CURES: Mapping[tuple[Failure, str], tuple[str, ...]] = {
    ("device-oom-load", ANY): ("mtp-off", "replicas-off", "offload"),
    # The draft model is loaded after the model.
    ("device-oom-load", "load"): ("replicas-off", "offload"),
    ("kv-cache-none", ANY): (
        "gmu-up", "batch", "mtp", "kv-dtype", "sequences", "replicas-off", "eager", "offload",
        "kv-memory",
    ),
    ("kv-cache-short", ANY): (
        "context", "gmu-up", "kv-memory", "kv-dtype", "batch", "mtp", "replicas-off", "eager",
    ),
    ("vram-busy", ANY): ("share",),
    ("device-oom-capture", ANY): (
        "gmu-down", "mtp-even", "graph-sizes", "mtp", "replicas-off", "eager",
    ),
    ("device-oom-capture", "profile"): _PEAK,
    ("device-oom-capture", "compile"): _PEAK,
    ("device-oom-run", ANY): (
        "gmu-down", "batch", "mtp", "sequences", "replicas-off", "eager",
    ),
    ("sampler-oom", ANY): ("sequences", "gmu-down", "batch"),
    ("illegal-access", ANY): _CRASH,
    ("launch-failure", ANY): _CRASH,
    ("launch-failure", "capture"): (
        "mtp-even", "piecewise", "eager", "attention-own", "half-drafter", "half-head",
        "plugin-off", "mtp-off",
    ),
    ("collective-timeout", ANY): ("p2p-off", "all-reduce-off", "replicas-off", "eager"),
    ("collective-timeout", "capture"): ("all-reduce-off", "p2p-off", "replicas-off", "eager"),
    ("gpu-lost", ANY): (),
    ("gpu-absent", ANY): (),
    ("engine-unusable", ANY): (),
    ("host-oom", ANY): ("jobs", "compile-threads", "kv-memory-less", "sequences", "mtp-off"),
    ("shm-full", ANY): (),
    ("compile-cache-stale", ANY): ("fresh-cache", "no-compile-cache", "eager"),
    ("shared-memory-limit", ANY): ("attention", "gdn", "plugin-off", "eager"),
    ("jit-toolchain", ANY): _JIT,
    # Usually torch.compile's compiler; kernels may be built in this phase, too.
    ("jit-toolchain", "compile"): ("eager", *_JIT[:-1]),
    ("backend-unsupported", ANY): ("half-input", "half", "kv-dtype-plain", "attention"),
    ("bad-arguments", ANY): (),
    ("model-missing", ANY): (),
    ("network", ANY): (),
    ("access-denied", ANY): (),
    ("port-busy", ANY): (),
    ("plugin-error", ANY): ("plugin-off",),
    ("compile-failed", ANY): ("compile-threads", "fresh-cache", "eager", "plugin-off"),
    ("engine-died", ANY): (*_CRASH[:-1], "prefix-caching-off", "replicas-off", *_CRASH[-1:]),
    ("start-stall", ANY): ("mtp-safe", "plugin-off", "mtp-off", "eager"),
    # Reading files waits for a disk or the network, which no setting makes faster.
    ("start-stall", "resolve"): (),
    ("start-stall", "load"): ("plugin-off",),
    ("start-stall", "drafter"): ("mtp-off", "plugin-off"),
    ("start-stall", "engine"): ("p2p-off", "all-reduce-off", "replicas-off"),
    ("start-stall", "compile"): ("compile-threads", "fresh-cache", "eager"),
    ("start-stall", "capture"): ("all-reduce-off", "piecewise", "eager"),
    ("hang", ANY): (*_CRASH[:-1], "p2p-off", "all-reduce-off", "replicas-off", *_CRASH[-1:]),
    ("draft-collapse", ANY): ("half-drafter", "piecewise", "mtp-off"),
    ("answers-changed", ANY): (
        *_CRASH[:-1], "prefix-caching-off", "all-reduce-off", "p2p-off", *_CRASH[-1:],
    ),
    # Settings that make numbers too large, or read memory that was never written.
    ("answers-degenerate", ANY): (
        "attention-own", "half-head", "plugin-off", "kv-dtype-plain", "piecewise", "mtp-off",
        "prefix-caching-off", "all-reduce-off", "p2p-off", "attention", "eager",
    ),
    ("allreduce-wrong", ANY): ("p2p-off", "all-reduce-off"),
    ("allreduce-hung", ANY): ("p2p-off", "all-reduce-off"),
    ("node-missing", ANY): (),
    ("node-unfit", ANY): (),
    ("node-lost", ANY): (),
    ("unknown", ANY): ("plugin-off", "mtp-off", "replicas-off", "eager"),
}  # fmt: skip

# The rung for a component that a traceback names; tried before all others.
BLAMED: Mapping[str, str] = {
    "plugin": "plugin-off", "prefix-cache": "prefix-caching-off", "drafter": "mtp-off",
}  # fmt: skip

# Signatures that mean the same in every phase: a missing nvcc is not a reason to disable graphs.
WHATEVER_PHASE = frozenset({"jit.nvcc"})

# Rows more specific than their failure: only these rungs apply, none if a person must act.
PRECISE: Mapping[str, tuple[str, ...]] = {
    **BY_PERSON,
    "oom.weights": ("replicas-off", "offload"),
    "states.short": ("sequences", "gmu-up"),
    "args.limit": ("limit",),
    "weights.fp8": (),
    "cache.fp8": ("kv-dtype-plain", "attention", "half-input"),
    "uva.absent": (),
    "raised.kernel": ("kv-dtype-plain", "attention", "plugin-off", "mtp-off", "eager"),
    # Only torch.compile can be done without: every other kernel needs the compiler as well
    "jit.cc": ("eager",),
    "jit.python": (),
    "jit.cuda": (),
    "torch.card": (),
    "cuda.arch": (),
    "jit.assembler": (),
    "jit.listed": (),
    "backend.capability": (),
    "backend.dtype": ("half",),
    "jit.refused": ("experts", "attention", "gdn", "sampler-plain"),
    "jit.toolkit": ("sampler-plain", "experts", "attention"),
    "flashinfer.card": ("sampler-plain", "experts", "attention"),
    "flashinfer.workspace": ("batch", "attention"),
    "backend.only": ("attention",),
    "backend.attention": ("kv-dtype-plain", "attention", "half"),
    "kernel.deepgemm": (),
    "kernels.package": (),
    "kernels.attention": ("attention",),
    "kernels.flashinfer": ("sampler-plain", "experts", "attention"),
}

# A client's request crashes the engine, whatever the plan is.
BLAMELESS = frozenset({"prompt.short"})

HEALING = Healing(
    rungs=RUNGS,
    cures=CURES,
    option=option,
    blamed=BLAMED,
    whatever_phase=WHATEVER_PHASE,
    precise=PRECISE,
    blameless=BLAMELESS,
    mode_rungs=frozenset({"mtp", "mtp-even", "mtp-safe", "mtp-off"}),
    mode_settings=("speculative_config",),
    kinds=KINDS,
)
