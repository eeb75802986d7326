"""The candidate that settings amount to, and why some settings leave its memory unknown.

Sizing asks before all settings are decided; the forecast asks afterwards, also for plans that the
ladder changed and for flags outside the policy. Both read settings here, with vLLM's own defaults
where nothing is set. A forecast that ignored a flag of `UNFORESEEN` would be trusted and wrong, and
so would a context chosen by it: that is left to vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.checkpoint.vision import MAX_PIXELS
from caovand.core.facts.drafter import Drafter
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard, device_name
from caovand.core.model_task import POOLING
from caovand.core.plan import Plan, is_lookup
from caovand.core.units import GIB
from caovand.engines.common.tensors import element_bytes
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import (
    DRAFT_VOCABULARY,
    DRAFTER,
    INT8,
    LM_HEAD,
    MARLIN_INPUT,
    RANKS_BY_YES,
    beyond_limit,
    count,
    option,
    whole_number,
)
from caovand.engines.vllm.flags.table import UNFORESEEN
from caovand.engines.vllm.machine.attention import attended_by_flashinfer, attended_by_sm75
from caovand.engines.vllm.machine.capabilities import HOPPER, TURING
from caovand.engines.vllm.machine.plugin import verdict
from caovand.engines.vllm.machine.ranks import (
    EXPERT_PARALLEL,
    replicas,
    serving_cards,
    spans_machines,
)
from caovand.engines.vllm.memory import steps
from caovand.engines.vllm.memory.candidate import (
    SAMPLED_WORDS,
    Candidate,
    Kernels,
    adapters_of,
    are_large,
    why_adapters_unknown,
)
from caovand.engines.vllm.memory.kv_cache import STATE, pages
from caovand.engines.vllm.memory.shards import ONLINE, PARTITION, partition, ranges
from caovand.engines.vllm.memory.steps import graph_mode

CPU_BLOCK, CUDA_BLOCK = 128, 16
CPU_CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
DEFAULT_SHARE = 0.9


def aligns_states(mode: Any, prefix_caching: Any, version: tuple[int, ...]) -> bool:
    """Whether a hybrid model's states are kept at block borders, one more per request.

    They are with prefix caching, which releases after 0.21 enable for hybrid models too.
    """
    if mode is not None:
        return bool(mode == "align")
    if prefix_caching is None:
        return version >= releases.PREFIX_CACHING_ALIGNS
    return bool(prefix_caching)


PLUGGED_DRAFTER = "qwen3_5"
"""Prefixes of the model types whose MTP layer the plugin supports."""


def candidate_of(
    values: Mapping[str, Any], inventory: Inventory, gpus: tuple[Gpu, ...], env: Mapping[str, Any]
) -> Candidate:
    """The candidate that these settings and this environment describe on these cards."""
    model, engine = inventory.model, inventory.engine
    if model.fp8_cache and gpus and values.get("kv_cache_dtype") in (None, "auto"):
        values = {**values, "kv_cache_dtype": "fp8"}
    large = are_large(gpus)
    dtype = str(values.get("dtype") or "auto")

    def count_or(name: str, default: int) -> int:
        return count(values.get(name)) or default

    share = values.get("gpu_memory_utilization")
    offload = values.get("cpu_offload_gb")
    compiled = values.get("compilation_config")
    compiled = compiled if isinstance(compiled, Mapping) else {}
    level = values.get("optimization_level")
    captured, compiles = graph_mode(compiled, level), steps.compiles(compiled, level)
    head = env.get(LM_HEAD) == INT8 and bool(verdict(engine, "lm_head").ok)
    # The plugin reaches the drafter through the head that it shares.
    layer = head and model.model_type.startswith(PLUGGED_DRAFTER) and model.drafter is None
    drafted = str(env.get(DRAFT_VOCABULARY))
    activation = element_bytes(model.dtype if dtype == "auto" else dtype)
    sequences = count_or("max_num_seqs", 1024 if large else 256)
    return Candidate(
        context=count_or("max_model_len", model.max_model_len),
        sequences=sequences,
        batch_tokens=count_or("max_num_batched_tokens", 8192 if large else 2048),
        utilization=float(share) if isinstance(share, (int, float)) else DEFAULT_SHARE,
        tensor_parallel=count_or("tensor_parallel_size", 1),
        mtp=_depth(values.get("speculative_config")),
        looks_up=_looks_up(values.get("speculative_config")),
        narrower=_narrower(values.get("speculative_config"), sequences),
        kv_dtype=str(values.get("kv_cache_dtype") or "auto"),
        activation=activation,
        eager=bool(values.get("enforce_eager")) or not compiles,
        aligned_states=aligns_states(
            values.get("mamba_cache_mode"), values.get("enable_prefix_caching"), engine.release
        ),
        vision=model.vision and not values.get("language_model_only"),
        videos=not _without_videos(values.get("limit_mm_per_prompt")),
        pixels=_pixels(values.get("mm_processor_kwargs")),
        sampled_words=0 if model.task in POOLING else model.vocab_size or SAMPLED_WORDS,
        offload_gib=float(offload) if isinstance(offload, (int, float)) else 0.0,
        kv_bytes=kv_bytes_set(values, env, engine.build),
        alignment=count_or("block_size", CUDA_BLOCK if engine.build == "cuda" else CPU_BLOCK),
        compilation={**compiled, "cudagraph_mode": captured},
        quantization=str(values.get("quantization") or ""),
        kv_blocks=whole_number(values.get("num_gpu_blocks_override")),
        rounds_input=env.get(MARLIN_INPUT) == INT8,
        rounds_head=head,
        rounds_drafter=layer and env.get(DRAFTER) == INT8,
        draft_vocabulary=int(drafted) if layer and drafted.isdecimal() else 0,
        state_dtype=str(values.get("mamba_ssm_cache_dtype") or "auto"),
        whole_experts=bool(values.get(EXPERT_PARALLEL)),
        replicas=replicas(values),
        stages=dealt_layers(values, env, len(model.layer_types)),
        adapters=adapters_of(values, activation),
        kernels=Kernels(
            turing=any(gpu.compute_capability == TURING for gpu in gpus),
            hopper=bool(gpus) and all(gpu.compute_capability == HOPPER for gpu in gpus),
            flashinfer=attended_by_flashinfer(values, inventory, gpus),
            sm75_attention=attended_by_sm75(values, inventory, gpus, env),
            version=engine.release,
        ),
    )


def dealt_layers(values: Mapping[str, Any], env: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The layers of each pipeline stage; empty without stages, or if vLLM refuses them."""
    stages = count(values.get("pipeline_parallel_size")) or 1
    return partition(env.get(PARTITION), layers, stages) if stages > 1 else ()


def kv_bytes_set(values: Mapping[str, Any], env: Mapping[str, Any], build: str) -> int | None:
    """The cache's size if it is set; on the CPU build an older variable, in GiB, wins."""
    space = str(env.get(CPU_CACHE_VARIABLE))
    if build == "cpu" and space.isdecimal():
        return int(space) * GIB
    return whole_number(values.get("kv_cache_memory_bytes"))


def _without_videos(limits: Any) -> bool:
    video = limits.get("video") if isinstance(limits, Mapping) else None
    return (video.get("count") if isinstance(video, Mapping) else video) == 0


def _pixels(config: Any) -> int:
    return (whole_number(config.get(MAX_PIXELS)) or 0) if isinstance(config, Mapping) else 0


DEPTHS = "num_speculative_tokens_per_batch_size"


def _narrower(config: Any, sequences: int) -> tuple[int, ...]:
    """The depths below the largest that a schedule drafts with this many sequences or fewer."""
    rows = config.get(DEPTHS) if isinstance(config, Mapping) else None
    rows = rows if isinstance(rows, list) else []
    reached = [row for row in rows if isinstance(row, list) and len(row) == 3]
    found = {whole_number(row[2]) for row in reached if (whole_number(row[0]) or 0) <= sequences}
    return tuple(sorted(depth for depth in found if depth is not None and depth < _depth(config)))


def _depth(config: Any) -> int:
    depth = whole_number(config.get("num_speculative_tokens")) if isinstance(config, Mapping) else 0
    return max(depth or 0, 0)


OTHER_WEIGHTS = {"bitsandbytes", "gguf", "sharded_state", "tensorizer", "mistral"}
"""Load formats that read weights other than the folder's safetensors."""


def why_unmodelled(verbatim: Mapping[str, Any], model: ModelCard) -> str:
    """Why a flag or the model's states prevent a forecast; empty if nothing does."""
    reason = why_weights_unknown(verbatim, model)
    if reason:
        return reason
    if lacking := why_adapters_unknown(verbatim, model):
        return _because("enable_lora", lacking)
    for name, reason in UNFORESEEN.items():
        if _is_set(verbatim.get(name)):
            return _because(name, reason)
    if model.task == "transcription":
        return "an audio encoder's states and the attention to them are not forecast"
    if not (model.head_dim or model.latent or set(model.layer_types) <= {*STATE, "mlp"}):
        return "config.json does not state the attention heads"
    if model.hybrid and not (model.linear or model.mamba):
        return "config.json does not state the shape of the recurrent states"
    if model.mamba and not model.hybrid:
        return "layers that combine attention with a recurrent state are not forecast"
    windows = model.hybrid or "sliding_attention" in model.layer_types
    if windows and verbatim.get("disable_hybrid_kv_cache_manager"):
        return _because(
            "disable_hybrid_kv_cache_manager", "every layer then caches the whole context"
        )
    if model.drafter and (lacking := _drafter_unknown(model, model.drafter)):
        return lacking
    if _drafts_with_a_model(verbatim.get("speculative_config"), model.drafter):
        return _because("speculative_config", "the draft model needs additional memory")
    return ""


def why_weights_unknown(verbatim: Mapping[str, Any], model: ModelCard) -> str:
    """Why a rank's weights are not known; empty if they are."""
    if _is_set(verbatim.get("hf_overrides")) and verbatim["hf_overrides"] != RANKS_BY_YES:
        return _because("hf_overrides", "it changes the model that config.json describes")
    kind, form = verbatim.get("quantization"), verbatim.get("load_format")
    if kind and model.quantization is None and str(kind) not in ONLINE:
        return _because(f"quantization {kind}", "the resulting size of the weights is unknown")
    if str(form) in OTHER_WEIGHTS:
        return _because(f"load_format {form}", "it loads weights that are not safetensors")
    if replicas(verbatim) > 1 and spans_machines(verbatim):
        return _because("data_parallel_size", "replicas can be on other machines")
    return ""


def why_stages_unknown(
    values: Mapping[str, Any], env: Mapping[str, Any], inventory: Inventory
) -> str:
    """Why the memory of pipeline stages is not known; empty if it is, or without stages."""
    model, name = inventory.model, "pipeline_parallel_size"
    count = whole_number(values.get(name)) or 1
    if count < 2:
        return ""
    if spans_machines(values) and not inventory.others:
        return _because(name, "the other machines' cards are not known here")
    if model.kv_shared:
        return _because(name, "layers that read other layers' caches can be on another stage")
    layers = dealt_layers(values, env, len(model.layer_types))
    if not layers:
        return _because(f"{name} {count}", "its layers cannot be split that way")
    if not all(pages(model, 0, start, end) for start, end in ranges(layers)):
        return _because(f"{name} {count}", "a stage would have no layer with a cache")
    return ""


def _is_set(value: Any) -> bool:
    return value is True or value not in (None, False, 1, "auto", {}, [])


def _looks_up(config: Any) -> bool:
    return isinstance(config, Mapping) and is_lookup(config.get("method"))


def _drafts_with_a_model(config: Any, known: Drafter | None) -> bool:
    if not isinstance(config, Mapping) or not config.get("model"):
        return False
    return not is_lookup(config.get("method")) and not (known and config["model"] == known.path)


def _drafter_unknown(model: ModelCard, drafter: Drafter) -> str:
    """Why the cache of a model with this drafter is not forecast; empty if it is."""
    if drafter.windowed:
        return "the cache of a drafter with sliding windows is not forecast"
    if model.latent:
        return "the caches of MLA and of a drafter's own attention together are not forecast"
    mixed = model.hybrid or "sliding_attention" in model.layer_types
    heads, width = model.global_kv_heads or model.kv_heads, model.global_head_dim or model.head_dim
    if mixed and (heads, width) != (drafter.kv_heads, drafter.head_dim):
        return (
            "the drafter's attention heads differ from the model's, and their cache next to windows"
            " or recurrent states is not forecast"
        )
    return ""


def _because(name: str, reason: str) -> str:
    flag, space, value = name.partition(" ")
    return f"{option(flag)}{space}{value} is set, and {reason}"


def gpus_of(plan: Plan, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards the plan uses, in the order in which vLLM sees them."""
    visible = plan.cards
    if visible is None or inventory.engine.build == "cpu":
        return inventory.gpus if inventory.engine.build == "cuda" else ()
    chosen = [
        gpu
        for name in map(str.strip, visible)
        for gpu in inventory.gpus
        if device_name(gpu) == name or (name and gpu.uuid.startswith(name))
    ]
    return tuple(dict.fromkeys(chosen))


def cards_of_plan(plan: Plan, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards of all nodes that the plan uses, by rank."""
    return tuple(gpu for _, gpu in cards_by_node(plan, inventory))


def cards_by_node(plan: Plan, inventory: Inventory) -> tuple[tuple[str, Gpu], ...]:
    return serving_cards(gpus_of(plan, inventory), inventory.others, plan.values)


def candidate_of_plan(plan: Plan, inventory: Inventory) -> Candidate:
    """The candidate that this plan describes."""
    return candidate_of(plan.values, inventory, cards_of_plan(plan, inventory), plan.variables)


def is_longer_on_purpose(plan: Plan, model: ModelCard, context: int) -> bool:
    longer = context > model.max_model_len
    return longer and not beyond_limit(model, context, plan.values, plan.variables)


def why_memory_unknown(plan: Plan, inventory: Inventory, gpus: tuple[Gpu, ...]) -> str:
    """Why nothing can be forecast; empty if it can."""
    model = inventory.model
    if not model.architecture:
        return "the model is not on this machine yet"
    if not model.layer_types:
        return "config.json does not state the model's layers"
    if not model.limit_known and count(plan.value("max_model_len")) is None:
        return "config.json does not state the maximum context; set max_model_len to get a forecast"
    settings = plan.values
    reason = why_unmodelled(settings, model) or why_stages_unknown(
        settings, plan.variables, inventory
    )
    if reason:
        return reason
    if not gpus and replicas(settings) > 1:
        return "replicas of a CPU build share the machine's memory, which is not forecast"
    if not gpus and inventory.engine.build == "cuda":
        return "CUDA_VISIBLE_DEVICES in [engine] env does not name a visible card"
    if not gpus and candidate_of_plan(plan, inventory).kv_bytes is None:
        return "vLLM sizes the cache of a CPU build"
    return ""
