"""Obstacles to the planned value of a flag: one function for each flag that has any.

They find contradictions with the machine, the model or another flag, whatever the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from caovand.core.problem import Problem
from caovand.engines.vllm.flags.spelling import beyond_limit
from caovand.engines.vllm.machine.attention import (
    SHARED_ON_TURING,
    attends_as_encoder,
    backend_in,
    ends_in_half,
    flashinfer_refusal,
    triton_refuses,
    triton_shared_memory_shortfall,
    undivided_tokens,
)
from caovand.engines.vllm.machine.capabilities import (
    ADA,
    AMPERE,
    EXCLUSIVE,
    HALF,
    MIN_CAPABILITY,
    PADDING_REMEDY,
    SHORT_SIDE,
    WITHOUT_HALF,
    float_weights,
    lacks_bfloat16,
    never_runs,
    not_whole_tiles,
    only_in_half,
    order_problem,
    quantization_method,
    tower_lacks_tiles,
    type_problem,
    type_without_bfloat16,
    weights_problems,
)
from caovand.engines.vllm.machine.ranks import (
    cards_lacking,
    replicas,
    shape_problem,
    shards_whole_experts,
    split_for,
)
from caovand.engines.vllm.memory.kv_cache import TURBOQUANT
from caovand.engines.vllm.memory.settings import gpus_of
from caovand.engines.vllm.planning import parallel
from caovand.engines.vllm.planning.partial_plan import PlanOnCards


def _if_any(problem: Problem | None) -> Iterator[Problem]:
    return iter([problem] if problem else [])


def cards(placed: PlanOnCards) -> Iterator[Problem]:
    size = placed.count("tensor_parallel_size") or 1
    wanted = cards_lacking(size, placed.plan.values, len(placed.gpus))
    if wanted and placed.gpus:
        model, values = placed.model, placed.plan.values
        fits = split_for(model, values, len(placed.gpus), whole_tiles=placed.whole_tiles)
        fewer = " and fewer stages or replicas" if wanted > size else ""
        yield Problem(
            f"use {wanted} GPUs",
            f"{len(placed.gpus)} can be used here",
            f"use --tensor-parallel-size {fits}{fewer}",
        )


def split(placed: PlanOnCards) -> Iterator[Problem]:
    size = placed.count("tensor_parallel_size") or 1
    whole = shards_whole_experts(placed.plan.values)
    problem = shape_problem(placed.model, size, whole_experts=whole, whole_tiles=placed.whole_tiles)
    if problem:
        yield problem


def order(placed: PlanOnCards) -> Iterator[Problem]:
    """A newer card before an older one that cannot run its kernels.

    Replicas may choose their own, each by its card.
    """
    if replicas(placed.plan.values) > 1:
        return
    gpus = gpus_of(placed.plan, placed.inventory)
    asked = str(placed.plan.value("quantization") or "")
    weights = float_weights(placed.model, asked)
    if never_runs(gpus, weights):
        yield from _if_any(order_problem(gpus, weights, ""))


def stages(placed: PlanOnCards) -> Iterator[Problem]:
    yield from _if_any(
        parallel.stages_problem(placed.plan.values, placed.plan.variables, placed.inventory)
    )


def dtype(placed: PlanOnCards) -> Iterator[Problem]:
    model = placed.model
    asked = str(placed.plan.value("dtype")).removeprefix("torch.")
    old = lacks_bfloat16(placed.gpus, asked)
    if old:
        other = type_without_bfloat16(model)
        yield Problem("use --dtype bfloat16", f"{old}, which has none", f"use --dtype {other}")
    if placed.gpus:
        yield from _if_any(type_problem(model, placed.quantization, asked, placed.first(AMPERE)))
    half = only_in_half(model, placed.inventory.engine)
    typed = model.dtype if asked in ("None", "auto") else asked
    if half and typed not in HALF:
        yield Problem(f"use --dtype {typed}", half, "use --dtype half")


def uncompiled(placed: PlanOnCards) -> Iterator[Problem]:
    stages = placed.count("pipeline_parallel_size") or 1
    if placed.plan.device != "cpu" or stages == 1:
        return
    typed = placed.plan.value("compilation_config")
    mode = str(typed.get("mode")).lower() if isinstance(typed, Mapping) and "mode" in typed else ""
    for what, there in (
        ("--enforce-eager", placed.plan.value("enforce_eager")),
        ("--enable-lora", placed.plan.value("enable_lora")),
        ("TORCH_COMPILE_DISABLE", str(placed.plan.variables.get("TORCH_COMPILE_DISABLE")) == "1"),
        ("--compilation-config of mode 0", mode in ("0", "none")),
    ):
        if there:
            yield Problem(
                f"run {stages} pipeline stages with {what} on a CPU build",
                "a later stage then has no buffers, and the first completion crashes the engine",
                f"remove {what}",
            )


def quantisation(placed: PlanOnCards) -> Iterator[Problem]:
    asked = quantization_method(str(placed.plan.value("quantization") or placed.quantization))
    if asked != placed.quantization and {asked, placed.quantization} <= EXCLUSIVE:
        yield Problem(
            f"read {placed.quantization} weights as {asked}",
            "vLLM uses the checkpoint's own method",
            "remove --quantization",
        )
    if asked == placed.quantization:
        yield from weights_problems(
            placed.model, placed.inventory.engine, cards=placed.plan.device != "cpu"
        )
    seeing = not placed.plan.value("language_model_only") and placed.model.vision
    rounds = placed.plan.value("quantization") and not placed.model.quantization
    if rounds and seeing and placed.whole_tiles and tower_lacks_tiles(placed.model):
        yield Problem(
            "quantise the vision tower while it loads",
            f"the rows of its MLP are {not_whole_tiles(SHORT_SIDE)}",
            f"use --language-model-only, or {PADDING_REMEDY}",
        )
    least = MIN_CAPABILITY.get(placed.quantization, (0, 0))
    old = placed.first(least)
    if old:
        major, minor = least
        other = "a checkpoint quantised otherwise (AWQ, GPTQ)"
        if placed.quantization == "mxfp4":  # as its publisher quantised it, which nobody else can
            other = 'its GGUF with [engine] kind = "llamacpp"'
        yield Problem(
            f"serve {placed.quantization} weights",
            f"{old}, but vLLM needs SM{major}{minor} for them",
            f"use a newer card, or {other}",
        )


def length(placed: PlanOnCards) -> Iterator[Problem]:
    asked, model = placed.count("max_model_len"), placed.model
    if asked and beyond_limit(model, asked, placed.plan.values, placed.plan.variables):
        yield Problem(
            f"serve a context of {asked} tokens",
            f"the model's own limit is {model.max_model_len}",
            f"use --max-model-len {model.max_model_len} or less",
        )


def check_attention_backend(placed: PlanOnCards) -> Iterator[Problem]:
    """Whether the attention backend keeps this cache type on these cards."""
    plan, engine = placed.plan, placed.inventory.engine
    backend = str(plan.value("attention_backend") or "").upper()
    nested = backend_in(plan.value("attention_config"))
    if backend and nested:
        yield Problem(
            f"use --attention-backend and --attention-config {nested} both",
            "vLLM accepts only one of the two",
            "remove one",
        )
    backend = backend or nested
    old = placed.first((7, 6))
    if old and backend.startswith("FLASH_ATTN"):
        fact = f"{old}, but it needs SM80"
        yield Problem(f"use {backend}", fact, "remove --attention-backend")
    model, plugin = placed.model, "CAOVAN_KERNELS" not in plan.env
    refusal = flashinfer_refusal(model, engine, str(plan.value("dtype") or ""), plugin, plan.env)
    # An unknown width may work; a kernel that nvcc would have to build is a warning, for nvcc may
    # still be found.
    if old and backend == "FLASHINFER" and refusal and refusal.of in ("model", "engine"):
        remedy = "remove it" if model.latent else "use --attention-backend TRITON_ATTN"
        yield Problem("use FLASHINFER", refusal.why, remedy)
    kind = str(plan.value("kv_cache_dtype") or "auto")
    early = placed.first(ADA)
    if early and triton_refuses(kind, engine) and backend == "TRITON_ATTN":
        yield Problem(
            f"keep the cache in {kind} with TRITON_ATTN",
            f"{early}, but it needs SM89",
            "use --kv-cache-dtype auto",
        )
    own = "TRITON_ATTN" if kind.endswith("per_token_head") else ""
    own = "TURBOQUANT" if kind in TURBOQUANT else own
    if own and backend and backend != own:
        cannot = f"keep the cache in {kind} with {backend}"
        yield Problem(cannot, f"only {own} does", "remove the backend")


def shared_memory(placed: PlanOnCards) -> Iterator[Problem]:
    """Heads too wide for Triton's attention on Turing: the first prompt would end the engine."""
    plan, model, old = placed.plan, placed.model, placed.first(AMPERE)
    backend = str(plan.value("attention_backend") or backend_in(plan.value("attention_config")))
    if not old or backend.upper() not in ("", "TRITON_ATTN"):
        return
    if model.latent or attends_as_encoder(model):
        return
    dtype = str(plan.value("dtype") or model.dtype).removeprefix("torch.")
    width, needed = triton_shared_memory_shortfall(model, dtype)
    if not needed:
        return
    if not backend and not flashinfer_refusal(
        model, placed.inventory.engine, dtype, "CAOVAN_KERNELS" not in plan.env, plan.env
    ):
        return  # vLLM itself chooses FlashInfer's
    half = (
        model.model_type not in WITHOUT_HALF
        and not triton_shared_memory_shortfall(model, "half")[1]
    )
    gguf = 'its GGUF with [engine] kind = "llamacpp"'
    yield Problem(
        f"read prompts with heads of {width} in {dtype}",
        f"{old}, where Triton's attention has {SHARED_ON_TURING} bytes of shared memory per "
        f"block but needs {needed}: the first prompt would crash the engine",
        f"use --dtype half, or {gguf}" if half else f"use {gguf}, or a card of SM80 or newer",
    )


def cache_type(placed: PlanOnCards) -> Iterator[Problem]:
    kind = placed.plan.value("kv_cache_dtype")
    known = dict(placed.inventory.engine.choices).get("--kv-cache-dtype")
    if kind is not None and known and str(kind) not in known:
        yield Problem(
            f"use --kv-cache-dtype {kind}",
            f"vLLM {placed.inventory.engine.version} has no such type",
            f"use one of {', '.join(known)}",
        )
    card = ends_in_half(placed.plan.values, placed.inventory, placed.gpus)
    if card:
        typed = 'set [policy] kv_cache_dtype = "auto", or dtype = "bfloat16"'
        flags = "use --kv-cache-dtype auto, or --dtype bfloat16"
        yield Problem(
            f"keep the cache in {kind} while computing in float16",
            f"{card}, where attention over an 8-bit cache writes only bfloat16: the first "
            "request would crash the engine",
            flags if "kv_cache_dtype" in placed.plan.verbatim else typed,
        )


def step(placed: PlanOnCards) -> Iterator[Problem]:
    batch, sequences = placed.count("max_num_batched_tokens"), placed.count("max_num_seqs")
    if batch and sequences and sequences > batch:
        yield Problem(
            f"decode {sequences} sequences in steps of {batch} tokens",
            "each sequence needs at least one",
            f"use --max-num-seqs {batch} or less",
        )
    model, plan = placed.model, placed.plan
    images = model.vision and not plan.value("language_model_only")
    item = undivided_tokens(model, vision=images)
    if batch and batch < item and plan.value("limit_mm_per_prompt") is None:
        yield Problem(
            f"read {'images and videos' if images else 'recordings'} in steps of {batch} tokens",
            f"vLLM does not split them, and a single one can have {item} tokens",
            f"use --max-num-batched-tokens {item} or more"
            + (", or --language-model-only" if images else ""),
        )
    context = placed.count("max_model_len")
    if placed.plan.value("enable_chunked_prefill") is False and batch and (context or 0) > batch:
        yield Problem(
            f"read a prompt of {context} tokens in one step of {batch}",
            "chunked prefill is off",
            f"use --max-num-batched-tokens {context}, or remove --no-enable-chunked-prefill",
        )
    elif placed.model.one_step and batch and (context or 0) > batch:
        yield Problem(
            f"read a text of {context} tokens in one step of {batch}",
            "the model needs a whole text in a step",
            f"use --max-num-batched-tokens {context} or more, or --max-model-len {batch}",
        )


def states(placed: PlanOnCards) -> Iterator[Problem]:
    size = placed.count("mamba_block_size")
    off = placed.plan.value("enable_prefix_caching") is False
    if size and size != placed.count("max_model_len") and off:
        yield Problem(
            f"keep states every {size} tokens",
            "vLLM accepts --mamba-block-size only with --enable-prefix-caching, which is off",
            "remove it, or pass both",
        )


def matches(placed: PlanOnCards) -> Iterator[Problem]:
    unit, model = placed.plan.value("prefix_match_unit"), placed.model
    if unit and len(set(model.cached_layers)) == 1:
        yield Problem(
            f"match prompts every {unit} tokens",
            "all layers of this model have one kind of cache, which vLLM matches by whole blocks",
            "remove --prefix-match-unit",
        )
