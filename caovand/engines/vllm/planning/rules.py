"""The rules: one function for each flag, from a partial plan to a setting, or None to omit the
flag.

They run in the order of `decisions`, with the cards sized (`fit`) in between; a rule may read
earlier decisions.
"""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.facts.inventory import Gpu
from caovand.core.facts.occupancy import DESKTOP_MIB, host_reserve_mib, in_use
from caovand.core.plan import Setting, Unplannable
from caovand.engines.common.cards import without_tensor_cores
from caovand.engines.common.speeds import all_linked
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import count
from caovand.engines.vllm.machine.attention import (
    NO_NVCC,
    cuts_latent_graphs,
    triton_shared_memory_shortfall,
)
from caovand.engines.vllm.machine.capabilities import (
    HALF,
    HOPPER,
    lacks_bfloat16,
    only_in_half,
    type_without_bfloat16,
)
from caovand.engines.vllm.memory.candidate import free_share, reserve
from caovand.engines.vllm.memory.estimate import share_of_sized
from caovand.engines.vllm.memory.steps import MAX_CAPTURE_KEY
from caovand.engines.vllm.planning import precision
from caovand.engines.vllm.planning.drafters import (
    drafting_corrupts_states,
    plugin_keeps_states,
    why_unfixed,
)
from caovand.engines.vllm.planning.fit import (
    block_tokens,
    graphs_for,
    share_of_unknown,
)
from caovand.engines.vllm.planning.partial_plan import PartialPlan, nearest, policy, user
from caovand.engines.vllm.planning.precision import cannot_build, own_type
from caovand.engines.vllm.sizing.space import WORKLOADS

MATCHED = 16  # tokens; divides each block of attention
STOCK_COMPILE = 1  # vLLM's CompilationMode.STOCK_TORCH_COMPILE


def dtype(partial: PartialPlan) -> Setting | None:
    typed = partial.config.policy.dtype
    other = type_without_bfloat16(partial.model)
    old = lacks_bfloat16(partial.cards, typed or "bfloat16")
    if typed and old:
        raise Unplannable(
            f'cannot use dtype "bfloat16": {old}, which does not support it; set dtype = "{other}"'
        )
    if typed:
        return user(typed, "[policy] dtype")
    half = only_in_half(partial.model, partial.engine)
    if half and partial.model.dtype not in HALF:
        return policy("half", half)
    if not old:
        return None
    reason = "cards before SM80 do not support bfloat16"
    if (slow := without_tensor_cores(partial.cards)) and not partial.model.quantization:
        width, _ = triton_shared_memory_shortfall(partial.model, "float32")
        if not width and not partial.trial.half:
            return policy("float32", f"{slow}: float16 is up to nine times slower there")
        lack = f"Triton's attention does not support heads of {width} in float32 there"
        reason += f", and {lack if width else 'in float32 the weights leave no room'}"
    if other == "float32":
        reason += f", and vLLM refuses float16 for models of type {partial.model.model_type}"
    return policy(other, reason)


def _gain_text(partial: PartialPlan) -> str:
    return "requests" if partial.config.policy.workload == "batch" else "context"


def kv_cache_dtype(partial: PartialPlan) -> Setting | None:
    typed, tried = partial.config.policy.kv_cache_dtype, partial.trial.cache
    if not typed and tried == precision.OWN_TYPE:
        return policy(None, "the model's own type")
    if not typed and tried == precision.FOUR_BITS:
        return policy(
            tried,
            "nearly twice the context of fp8 in the same memory; rotated and quantised to 4 bits, "
            "keys and values err by some 10 %. On real text a model of 270M parameters kept 79 % of"
            " its 20 likeliest tokens, with fp8 95 %; larger ones were not measured: set [policy]"
            ' kv_cache_dtype = "fp8", or mode = "stable", for 8 bits',
        )
    if not typed and tried:
        return policy(
            tried,
            f"twice the {_gain_text(partial)} in the same memory is worth more here, though"
            f" {precision.UNCALIBRATED}; set [policy] kv_cache_dtype ="
            f' "{own_type(partial)}" for the model\'s own',
        )
    if not typed:
        return precision.kv_cache_dtype_by_default(partial)
    known = dict(partial.engine.choices).get("--kv-cache-dtype", (typed,))
    if typed not in known:
        raise Unplannable(
            f'cannot use kv_cache_dtype "{typed}": vLLM {partial.engine.version} has no such type; '
            f"use {nearest(typed, known)}"
        )
    refused = precision.why_cache_refused(partial, typed)
    if refused and not partial.pinned("kv_cache_dtype"):
        return policy(None, refused)
    return user(typed, "[policy] kv_cache_dtype")


def enable_prefix_caching(partial: PartialPlan) -> Setting | None:
    if not partial.generates:
        return None  # vLLM decides by the model's attention and pooling
    step = partial.verbatim.get(
        "max_num_batched_tokens", partial.config.policy.max_num_batched_tokens
    )
    step = count(step) if partial.cuda and partial.model.hybrid else None
    if step and partial.engine.release < releases.STATES_IN_STEPS and step < block_tokens(partial):
        return policy(
            False,
            f"steps of {step} tokens are shorter than a block of {block_tokens(partial)}, at whose"
            " borders a hybrid model's state is kept",
        )
    if useless := _useless_prefixes(partial):
        return policy(False, f"{useless}; --enable-prefix-caching in [engine] extra_args keeps it")
    if drafting_corrupts_states(partial):
        fixed = releases.name(releases.DRAFTS_KEEP_STATES)
        return policy(
            False,
            f"when a hybrid model drafts, vLLM {partial.engine.version} can silently continue "
            "from a wrong state (vllm#43559), and "
            f"{why_unfixed(partial) or 'the plugin does not fix a separate draft model'}; fix "
            f"that, turn drafting off ([policy] mtp = 0), or use vLLM {fixed} or newer",
        )
    if plugin_keeps_states(partial):
        return policy(
            True,
            "a prompt that begins like an earlier one skips that part; the plugin keeps vLLM "
            f"{partial.engine.version}'s states correct while it drafts",
        )
    if partial.cuda:
        return policy(True, "a prompt that begins like an earlier one skips that part")
    if partial.value("speculative_config"):
        return policy(False, "on the CPU build MTP with prefix caching crashes the engine")
    return None


def _useless_prefixes(partial: PartialPlan) -> str:
    """Why a batch does without the prefix cache of a hybrid, for which each request keeps one more
    recurrent state; empty if it does not."""
    usual = WORKLOADS[partial.config.policy.workload]
    if not (partial.cuda and partial.model.hybrid and usual.batch):
        return ""
    block = block_tokens(partial)
    if block > usual.prompt:
        return (
            f"for batch workloads: prompts of {usual.prompt} tokens do not fill a block of "
            f"{block}, at whose borders a hybrid model's state is kept, so a prefix cache would "
            "never hit"
        )
    if partial.trial.prefixes:
        return ""
    return (
        "for batch workloads: without a prefix cache each request keeps fewer recurrent states, "
        "and the cards finish more requests"
    )


def mamba_cache_mode(partial: PartialPlan) -> Setting | None:
    if not partial.cuda or not partial.model.hybrid or not partial.value("enable_prefix_caching"):
        return None
    if partial.engine.release >= releases.STATES_BY_THEMSELVES:
        return policy(
            None, f"vLLM {partial.engine.version} keeps states at block borders by default"
        )
    return policy("align", "prefix caching of a hybrid model keeps its state at block borders")


def prefix_match_unit(partial: PartialPlan) -> Setting | None:
    """Mode fast sets it on cards that read slowly: on an H200 the additional short step per prompt
    cost a model of 1.4 billion parameters more time than reading the rest of a block."""
    aligned = partial.turing and partial.model.hybrid and partial.value("enable_prefix_caching")
    old = partial.engine.release < releases.PREFIX_HITS_IN_BLOCKS
    if not aligned or old or not partial.cuda or partial.mode != "fast":
        return None
    block = block_tokens(partial)
    if block % MATCHED or block == MATCHED:
        return None
    return policy(
        MATCHED,
        "mode fast: the next turn of a conversation computes only what is new, without the rest "
        f"of a block of {block} tokens; each prompt takes one extra short step",
    )


def disable_custom_all_reduce(partial: PartialPlan) -> Setting | None:
    if not partial.turing or partial.count("tensor_parallel_size") < 2:
        return None
    fact = "has never been tested on linked SM75 cards; NCCL's also uses their links"
    if not all_linked(partial.gpus):
        fact = "is not safe between cards without full NVLink"
    return policy(True, f"vLLM's own all-reduce {fact}")


def enable_flashinfer_autotune(partial: PartialPlan) -> Setting | None:
    if not partial.turing or precision.attention(partial) != "FLASHINFER":
        return None
    return policy(True, "vLLM measures the best kernels for these cards once, while starting")


def gdn_prefill_backend(partial: PartialPlan) -> Setting | None:
    """On Hopper vLLM chooses FlashInfer's kernel, which is built at the first start (minutes)."""
    hopper = any(gpu.compute_capability[0] == HOPPER[0] for gpu in partial.cards)
    if not hopper or partial.model.linear is None or not cannot_build(partial):
        return None
    return policy("triton", f"FlashInfer's kernel is compiled at the start, and {NO_NVCC}")


def enforce_eager(partial: PartialPlan) -> Setting | None:
    if partial.warms_up_stages:
        return None
    if partial.config.policy.cuda_graphs == "none":
        return user(True, "[policy] cuda_graphs is none")
    if not partial.cuda:
        return policy(True, "compiling for a CPU takes longer than it saves")
    if partial.choice and partial.choice.candidate.eager:
        return policy(True, "memory is short: compiled steps and graphs need more")
    return None


def compilation_config(partial: PartialPlan) -> Setting | None:
    if partial.warms_up_stages:
        return policy(
            {"mode": STOCK_COMPILE, "backend": "eager"},
            "later stages allocate buffers in a warm-up, which vLLM's CPU build runs only in a "
            "compile mode; this model compiles nothing",
        )
    if not partial.cuda or partial.value("enforce_eager"):
        return None
    typed = partial.config.policy.cuda_graphs
    config, smaller = {"cudagraph_mode": graphs_for(partial)}, ""
    chosen = partial.choice.candidate.compilation if partial.choice else {}
    if MAX_CAPTURE_KEY in chosen:
        most = config[MAX_CAPTURE_KEY] = chosen[MAX_CAPTURE_KEY]
        smaller = f"; memory is short: none for steps of more than {most} tokens"
    if typed:
        return user(config, f"[policy] cuda_graphs is {typed}{smaller}")
    reason = "attention runs outside the graphs, which is safe for drafting and long prompts"
    if cuts_latent_graphs(partial.model, partial.engine, partial.cards):
        reason = (
            f"vLLM {partial.engine.version} does not capture TRITON_MLA, the attention for MLA here"
        )
    mode = config["cudagraph_mode"]
    if mode != "PIECEWISE":
        reason = "full graphs for decode steps; mixed steps " + (
            "run without" if mode == "FULL_DECODE_ONLY" else "keep attention outside the graphs"
        )
    return policy(config, f"{reason}{smaller}")


RESERVED = 3
RESERVES = {
    "driver": "driver and context",
    "context": "long prompts",
    "drafting": "drafts",
    "step": "large steps",
    "collectives": "exchange between cards",
    "sampling": "sampling of all sequences",
    "unmeasured": "FlashInfer's workspace",
}
"""The parts of the reserve, of which a reason names the largest."""
FREE_STEP = 0.02
"""Steps in which AutoMem counts free memory, and its margin below it, as a fraction of a card."""


def gpu_memory_utilization(partial: PartialPlan) -> Setting | None:
    if not partial.cuda:
        return None
    share = partial.choice.candidate.utilization if partial.choice else share_of_unknown(partial)
    typed = partial.config.policy.gpu_memory_utilization
    if typed is not None and (share == typed or partial.pinned("gpu_memory_utilization")):
        return user(typed, "[policy] gpu_memory_utilization")
    if typed is not None:
        return policy(share, f"[policy] requests {typed}, but only this much is free now")
    if partial.choice and partial.choice.candidate.in_bytes and not partial.why_unmodelled:
        share = share_of_sized(partial.model, partial.choice.candidate, partial.cards)
        return policy(
            share,
            "the fraction of a card that must be free at the start, because the cache's "
            "size is set",
        )
    total = min(gpu.total_mib for gpu in partial.cards)
    reason = f"AutoMem: leaves {total * (1 - share):.0f} MiB for what vLLM does not measure"
    fullest = min(partial.cards, key=lambda gpu: gpu.free_mib / gpu.total_mib)
    if taken := _taken_mib(fullest):
        left = fullest.total_mib * (1 - share)
        rest = left - sum(taken.values())
        bound = share < free_share(partial.cards) < share + FREE_STEP
        what = "what is free" if bound else f"leaves {left:.0f} MiB"
        if rest > 0:
            listed = ", ".join(f"{mib} MiB {of}" for of, mib in taken.items() if mib)
            return policy(
                share,
                f"AutoMem: {what}; {listed}, and {rest:.0f} MiB are left for what vLLM does not "
                "measure",
            )
    if partial.choice:
        kept = reserve(partial.choice.candidate, total_mib=total)
        largest = sorted(zip(kept, kept._fields, strict=True), reverse=True)[:RESERVED]
        named = ", ".join(f"{RESERVES[name]} {mib:.0f}" for mib, name in largest)
        reason += f" ({named})"
    return policy(share, reason)


def _taken_mib(gpu: Gpu) -> dict[str, int]:
    """MiB of a card that are not the engine's to use, by what they are for."""
    host = host_reserve_mib(gpu.total_mib) if gpu.unified else 0
    taken = {
        "remain for the host (unified memory)": host,
        "are used by other programs": in_use(gpu),
    }
    return taken if host or in_use(gpu) >= DESKTOP_MIB else {}


def cpu_offload_gb(partial: PartialPlan) -> Setting | None:
    if partial.choice is None or not partial.choice.offloaded:
        return None
    amount = partial.choice.candidate.offload_gib
    return policy(
        amount, "the part of the weights that does not fit on a card, which stays in host memory"
    )


def additional_config(partial: PartialPlan) -> Setting | None:
    own = partial.verbatim.get("additional_config")
    own = dict(own) if isinstance(own, Mapping) else {}
    if not partial.cuda:
        return user(own, "passed verbatim") if own else None
    ours = {"caovan": True, "caovan_mode": partial.mode}
    reason = "informs the kernels' plugin of this plan and its mode"
    if own:
        return user({**ours, **own}, f"passed verbatim, with ours merged in: {reason}")
    return Setting(ours, partial.mode_setting.origin, reason)
