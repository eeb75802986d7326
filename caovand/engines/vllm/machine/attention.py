"""The attention backend that serves a model on these cards, and whether its kernels build here.

FlashInfer ships its attention, sampler, expert and Gated DeltaNet kernels as source, and runs nvcc
at their first use. vLLM 0.21 chooses such kernels without checking for nvcc wherever the package
flashinfer-cubin is installed, as it is by our lock file; the start then fails at the first of them.
The package flashinfer-jit-cache contains them compiled.

On compute capability 7.5 FlashInfer's attention runs in vLLM 0.21, with a float16 or an fp8 cache.
Later releases require SM80 for it, and Triton's attention, the only one left, refuses an fp8 cache
below SM89; our plugin lets these cards in again if FlashInfer itself works.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from caovand.core.checkpoint.model_task import ENCODER
from caovand.core.facts.inventory import EngineInfo, Gpu, Inventory, ModelCard, version_numbers
from caovand.engines.vllm import releases
from caovand.engines.vllm.machine.capabilities import ADA, BLACKWELL, HALF, HOPPER, TURING, first_of
from caovand.engines.vllm.machine.plugin import verdict

NO_NVCC = "no nvcc is installed to build it"
OWN_TOOLKIT = ("CUDA_HOME", "CUDA_PATH", "PATH")
"""Variables of [engine] env that point FlashInfer to a toolkit the probe did not see."""


def lacks_nvcc(engine: EngineInfo) -> bool:
    """Whether FlashInfer's kernels are unavailable: neither compiled nor buildable.

    A saved inventory may lack the compilers: one is then assumed.
    """
    return bool(engine.python_version) and not engine.nvcc and not engine.jit_cache


def lacks_toolkit(engine: EngineInfo, env: Container[str]) -> bool:
    """Like lacks_nvcc, but `env`, the variable names of [engine] env, may point to a toolkit."""
    return lacks_nvcc(engine) and not any(name in env for name in OWN_TOOLKIT)


def remedy(engine: EngineInfo) -> str:
    """How to install an nvcc that is new enough.

    Ubuntu 22.04 and 24.04 and Debian 12 and 13 package CUDA 11.5, 12.0, 11.8 and 12.4.
    """
    release = (engine.cuda or "").replace(".", "-")
    package = f"cuda-toolkit-{release}" if release else "cuda-toolkit"
    return (
        "install an engine that includes nvcc: sudo caovanctl engine install; or add NVIDIA's "
        "apt repository (https://developer.nvidia.com/cuda-downloads), then: sudo apt install "
        f"{package} (the distribution's own nvidia-cuda-toolkit is too old)"
    )


FLASHINFER_HEADS = (64, 128, 256)
WITH_SINKS = ("gpt_oss", "mimo_v2", "openpangu", "laguna")
NO_KERNELS = "has no prebuilt kernels for SM75, and no nvcc is installed to build them"
UNKNOWN_WIDTH = "config.json does not state the width of the attention heads"
MODELS_WITH_TWO_HEAD_SIZES = ("gemma4",)
"""vLLM itself uses Triton for such models, unless a backend was named."""
BIDIRECTIONAL_IMAGE_TYPES = frozenset(
    {"bagel", "gemma3", "molmo2", "moondream3", "paligemma", "umm"}
)
"""Model types in which every token of an image attends to all the others: in vLLM only Triton's
attention supports that (is_mm_prefix_lm)."""
IMAGE_TOKENS, VIDEO_TOKENS = {"gemma3": 256}, {"gemma4": 2496}
"""Tokens of an image, or of a video of 32 frames, for types whose steps do not divide them."""
WRAPPED = ("Bagel", "PaliGemma")
"""Architectures of such models whose text part has another family's type."""


@dataclass(frozen=True)
class FlashInferRefusal:
    """Why FlashInfer's attention does not serve SM75, and which fact decides that."""

    why: str
    of: Literal["model", "engine", "width", "toolchain"]


def flashinfer_refusal(
    model: ModelCard | None,
    engine: EngineInfo,
    dtype: str,
    plugin: bool,
    env: Container[str],
) -> FlashInferRefusal | None:
    """Why FlashInfer's attention does not serve this model on SM75 here; None if it does.

    `plugin` says whether caovan's plugin may be used, `env` has the names of [engine] env. An
    unknown model is assumed to have the widest heads.
    """
    unfit = flashinfer_lacks(model, dtype) if model else ""
    if unfit:
        return FlashInferRefusal(unfit, "model")
    refused = _refused_by_engine(engine, model.head_dim if model else 256, plugin)
    if refused:
        return FlashInferRefusal(refused, "engine")
    if model and lacks_width(model):
        return FlashInferRefusal(UNKNOWN_WIDTH, "width")
    if lacks_toolkit(engine, env):
        return FlashInferRefusal(f"FlashInfer {NO_KERNELS}", "toolchain")
    return None


def _refused_by_engine(engine: EngineInfo, head_dim: int, plugin: bool) -> str:
    """Why this engine's FlashInfer does not serve SM75; empty if it does."""
    plugin = plugin and bool(engine.plugin)
    installed = version_numbers(engine.flashinfer)
    first, last = releases.BROKEN_FLASHINFER
    if not installed:
        return "FlashInfer is not installed in the engine's environment"
    if engine.release >= releases.FLASHINFER_REFUSES_SM75:
        if not plugin:
            return (
                f"vLLM {engine.version} does not let FlashInfer serve SM75 without caovan's plugin"
            )
        if installed < releases.REPAIRED_FLASHINFER:
            return f"FlashInfer {engine.flashinfer} does not serve SM75; 0.6.16 and newer do"
    elif first <= installed <= last and head_dim >= 256:
        return f"FlashInfer {engine.flashinfer} cannot serve 256-wide heads on SM75"
    return ""


def flashinfer_lacks(model: ModelCard, dtype: str, *, sinks: bool = False) -> str:
    """Why FlashInfer's attention cannot serve this model; empty if it can. It supports attention
    `sinks` only on SM100."""
    if attends_as_encoder(model):
        return (
            "FlashInfer's attention is for decoders, but in this model tokens attend to later ones"
        )
    if model.latent:
        return "FlashInfer's attention has no kernel for compressed key-value pairs (MLA) here"
    if model.model_type.startswith(WITH_SINKS) and not sinks:
        return "FlashInfer's attention supports attention sinks only from SM100"
    if has_heads_of_two_widths(model):
        return f"layers of {model.model_type} have heads of two widths, one of 512"
    if model.head_dim and model.head_dim not in FLASHINFER_HEADS:
        return f"FlashInfer's attention has no kernel for heads of {model.head_dim}"
    if dtype == "float32":
        return "FlashInfer's attention has no kernel for float32"
    if images_attend_both_ways(model):
        return "FlashInfer's attention does not let an image's tokens attend in both directions"
    return ""


def attends_as_encoder(model: ModelCard) -> bool:
    """Whether layers are not causal, or attend to an encoder's states as in Whisper."""
    return ENCODER in model.layer_types or model.task == "transcription"


def has_heads_of_two_widths(model: ModelCard) -> bool:
    """Whether vLLM itself chooses Triton's attention for this model because its heads have two
    widths."""
    return model.model_type.startswith(MODELS_WITH_TWO_HEAD_SIZES)


def images_attend_both_ways(model: ModelCard) -> bool:
    """Whether only Triton's attention supports this model."""
    kind = model.model_type.removesuffix("_text")
    return kind in BIDIRECTIONAL_IMAGE_TYPES or model.architecture.startswith(WRAPPED)


def undivided_tokens(model: ModelCard, *, vision: bool) -> int:
    """Tokens of an image, video or recording that a step must process as a whole: vLLM does not
    start with shorter steps. 0 if there is none."""
    kind = model.model_type.removesuffix("_text")
    if not vision:
        return model.encoder_tokens
    return VIDEO_TOKENS.get(kind, 0) if model.images_both_ways else IMAGE_TOKENS.get(kind, 0)


def attended_by_triton(model: ModelCard, gpus: tuple[Gpu, ...]) -> bool:
    """Whether vLLM uses Triton's attention because no other serves the model.

    Attention sinks are supported by FlashAttention on Hopper, and by FlashInfer on SM100.
    """
    sinks = model.model_type.startswith(WITH_SINKS)
    with_sinks = {HOPPER[0], BLACKWELL[0]} & {gpu.compute_capability[0] for gpu in gpus}
    return images_attend_both_ways(model) or (sinks and not with_sinks)


def reads_latent_eight_bits(gpus: tuple[Gpu, ...]) -> bool:
    """Whether vLLM's attention for compressed key-value pairs (MLA) reads an fp8 cache.

    Its lists of cache types are the same in 0.21 and 0.33: FLASHMLA on Hopper, FLASHINFER_MLA and
    CUTLASS_MLA on SM100, TRITON_MLA elsewhere, whose fp8 Triton compiles from SM89 on.
    """
    return all(gpu.compute_capability >= ADA for gpu in gpus)


def cuts_latent_graphs(model: ModelCard, engine: EngineInfo, gpus: tuple[Gpu, ...]) -> bool:
    """Whether attention over compressed key-value pairs (MLA) uses an early release's Triton
    kernel, which is not captured in graphs and treats drafts as prompts. The others are for SM90
    and SM100."""
    early = bool(model.latent) and engine.release < releases.LATENT_IN_WHOLE_GRAPHS
    others = {HOPPER[0], BLACKWELL[0]}
    return early and any(gpu.compute_capability[0] not in others for gpu in gpus)


def backend_in(config: Any) -> str:
    """The attention backend that --attention-config names; empty if it names none."""
    return str(config.get("backend") or "").upper() if isinstance(config, Mapping) else ""


def triton_refuses(kind: str, engine: EngineInfo) -> bool:
    """Whether Triton's attention supports no cache of this type on cards before SM89."""
    newer = engine.release >= releases.TRITON_REFUSES_FP8
    return is_plain_fp8(kind) and (newer or kind != "fp8_e5m2")


SHARED_ON_TURING = 65_536
"""Bytes of shared memory that a block may use on SM75; from SM80 on 101,376 or more."""
TRITON_PROMPT_SHARED = {("half", 512): 98_304, ("float32", 256): 81_920, ("float32", 512): 98_304}
"""Bytes of shared memory that Triton's attention needs to read a prompt (in tiles of 32 keys), by
compute type and head width; only those over SM75's limit. Compiled for SM75 with Triton 3.6 from
vLLM 0.21 and 0.33, which agree; 256 in half needs 49,152, 128 in float32 40,960."""


def triton_shared_memory_shortfall(model: ModelCard, dtype: str) -> tuple[int, int]:
    """The head width that Triton's attention cannot handle for prompts on SM75, and the shared
    memory in bytes that it would need; zeros if it handles all."""
    kind = "float32" if dtype in ("float32", "float") else "half"
    for width in (model.head_dim, model.global_head_dim):
        padded = 1 << max(width - 1, 0).bit_length()
        if needed := TRITON_PROMPT_SHARED.get((kind, padded), 0):
            return width, needed
    return 0, 0


def is_plain_fp8(kind: str) -> bool:
    """Whether a cache of this type has at most one scale, as FlashInfer's attention requires."""
    return kind.startswith("fp8") and not kind.endswith("per_token_head")


def lacks_width(model: ModelCard) -> bool:
    return bool(model.architecture) and not model.head_dim


def attended_by_flashinfer(
    values: Mapping[str, Any], inventory: Inventory, gpus: tuple[Gpu, ...]
) -> bool:
    """Whether attention is FlashInfer's, as far as these settings determine it.

    They may name the backend. Otherwise vLLM prefers FlashInfer on SM100, and uses it for an fp8
    cache on all cards but Hopper, because no backend before it in vLLM's order supports one.
    """
    backend = values.get("attention_backend") or backend_in(values.get("attention_config"))
    if backend or not gpus:
        return str(backend).upper() == "FLASHINFER"
    kind, dtype = str(values.get("kv_cache_dtype")), str(values.get("dtype") or "")
    generations = {gpu.compute_capability[0] for gpu in gpus}
    first = BLACKWELL[0] in generations
    able = bool(inventory.engine.flashinfer)
    able = able and not flashinfer_lacks(inventory.model, dtype, sinks=first)
    return able and (first or (is_plain_fp8(kind) and generations != {HOPPER[0]}))


SM75_HEADS = (128, 256)
SM75_CACHES = ("None", "auto", "float16", "int8_per_token_head", "int4_per_token_head")


def attended_by_sm75(
    values: Mapping[str, Any], inventory: Inventory, gpus: tuple[Gpu, ...], env: Mapping[str, Any]
) -> bool:
    """Whether caovan's attention serves these settings, ahead of vLLM's Triton attention."""
    backend = values.get("attention_backend") or backend_in(values.get("attention_config"))
    plain = inventory.model.head_dim in SM75_HEADS and not inventory.model.sliding_window
    ours = plain and str(values.get("kv_cache_dtype")) in SM75_CACHES
    return (
        ours
        and str(backend).upper() == "TRITON_ATTN"
        and plugin_attends(inventory.engine, gpus, env)
    )


def plugin_attends(engine: EngineInfo, gpus: tuple[Gpu, ...], env: Mapping[str, Any]) -> bool:
    """Whether caovan's attention is active on these cards, by the plugin's probe and switches."""
    ours = bool(gpus) and all(gpu.compute_capability == TURING for gpu in gpus)
    ours = ours and bool(engine.plugin) and bool(verdict(engine, "attention").ok)
    return ours and "off" not in (env.get("CAOVAN_KERNELS"), env.get("CAOVAN_ATTENTION"))


def ends_in_half(values: Mapping[str, Any], inventory: Inventory, gpus: tuple[Gpu, ...]) -> str:
    """The name of the card on which FlashAttention would crash the engine; empty if there is none.

    FlashAttention 3 writes bfloat16 whenever it reads 8 bits, but vLLM passes it an output of the
    model's type: with float16 the start succeeds and the first request fails (0.21 on an H200; 0.32
    is the same by its sources).
    """
    backend = values.get("attention_backend") or backend_in(values.get("attention_config"))
    model, dtype = inventory.model, str(values.get("dtype") or "auto").removeprefix("torch.")
    dtype = model.dtype if dtype == "auto" else dtype
    kind = str(values.get("kv_cache_dtype"))
    triton = images_attend_both_ways(model) or has_heads_of_two_widths(model)
    own = not backend and not model.latent and not triton
    if dtype not in HALF or not is_plain_fp8(kind):
        return ""
    return first_of(gpus, HOPPER[0]) if own or str(backend).upper() == "FLASH_ATTN" else ""
