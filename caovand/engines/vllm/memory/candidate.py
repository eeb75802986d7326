"""A candidate: one way to run the engine, and its share of every card.

LoRA adapters take slots of the largest rank, which vLLM allocates at the start. Read in vLLM 0.32
(lora/layers): every layer that can have an adapter gets both matrices, even if no adapter has them.
In a split layer one matrix is split, and the other is whole on each rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log2
from typing import Any, NamedTuple

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.engines.common.tensors import element_bytes
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import count

STARTUP_MIB = 256
"""Memory of a CUDA context, taken before vLLM reads the free memory."""
JOINING_MIB = 256
"""Memory that ranks take besides for NCCL and its context: they join before vLLM reads
the free memory."""
FIXED_MIB, FIXED_SHARE = 752, 1 / 20
"""The part of the reserve that never grows, and its largest share of a card.

vLLM takes its share of what CUDA sees, 279 MiB less than 11 GB: with 752 MiB more, half of a
hybrid's cache stayed empty there. A 20th holds the CUDA context, which takes STARTUP_MIB.
"""
DRAFT_MIB = 128
"""The most that a draft may take. Each is one more row of logits for its sequence, of which the
profiled step has one; a published start with 4 drafts was content with this for all sequences."""
LARGE_CARD_MIB = 70 * 1024
SAMPLED_WORDS = 248_320
SEQUENCE_MIB, MANY_SEQUENCES, LATER_SEQUENCE_MIB = 8, 256, 2
"""Memory that a sequence may take per word of the vocabulary and that is not profiled, about eight
copies of its logits: penalties count every word, and log-probabilities are sorted. Beyond this many
sequences few ask for that at once."""
FLASHINFER_MIB = 394
"""FlashInfer's workspace."""
ADAPTER_RANK = 16
"""vLLM's --max-lora-rank; one slot is its --max-loras."""
WITH_EMBEDDING = (
    "apertus", "cohere", "exaone", "granite", "lfm2", "llama", "minicpm", "mistral", "ministral",
    "nemotron", "qwen3", "solar",
)  # fmt: skip
"""Prefixes of the model types whose embedding and head can have adapters too."""


@dataclass(frozen=True)
class Adapters:
    """The slots, the largest rank, bytes of a number, whether everything is split
    (--fully-sharded-loras), and the layers that may have adapters; empty for all."""

    slots: int = 0
    rank: int = ADAPTER_RANK
    element: int = 2
    sharded: bool = False
    targets: tuple[str, ...] = ()

    def targets_any(self, *names: str) -> bool:
        """Whether a layer with one of these names has adapters."""
        return not self.targets or not set(names).isdisjoint(self.targets)


NO_ADAPTERS = Adapters()


def adapters_of(values: Mapping[str, Any], activation: int) -> Adapters:
    """The adapters that these settings reserve memory for."""
    if not values.get("enable_lora"):
        return NO_ADAPTERS
    kind, targets = str(values.get("lora_dtype") or "auto"), values.get("lora_target_modules")
    return Adapters(
        slots=count(values.get("max_loras")) or 1,
        rank=count(values.get("max_lora_rank")) or ADAPTER_RANK,
        element=activation if kind == "auto" else element_bytes(kind),
        sharded=bool(values.get("fully_sharded_loras")),
        targets=(targets,) if isinstance(targets, str) else tuple(targets or ()),
    )


def why_adapters_unknown(values: Mapping[str, Any], model: ModelCard) -> str:
    """Why the adapters' memory is unknown; empty if it is known, or without adapters."""
    if not values.get("enable_lora"):
        return ""
    if model.experts or model.hybrid or model.latent or model.vision:
        return "the adapters of experts, recurrent layers, MLA and towers are not forecast"
    return ""


def adapters_bytes(model: ModelCard, adapters: Adapters, ranks: int) -> float:
    """Bytes of the adapters' slots on one rank."""
    if not adapters.slots:
        return 0.0
    hidden, inner = model.hidden_size, model.intermediate_size
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    whole = ranks if adapters.sharded else 1
    numbers = 0.0
    if adapters.targets_any("qkv_proj", "q_proj", "k_proj", "v_proj"):
        numbers += 3 * hidden / whole + (queries + 2 * keys) / ranks
    if adapters.targets_any("o_proj"):
        numbers += queries / ranks + hidden / whole
    if adapters.targets_any("gate_up_proj", "gate_proj", "up_proj"):
        numbers += 2 * hidden / whole + 2 * inner / ranks
    if adapters.targets_any("down_proj"):
        numbers += inner / ranks + hidden / whole
    numbers *= len(model.layer_types)
    if model.model_type.startswith(WITH_EMBEDDING):
        numbers += adapters.targets_any("embed_tokens") * (model.vocab_size + hidden)
        numbers += adapters.targets_any("lm_head") * (model.vocab_size + hidden)
    return numbers * adapters.rank * adapters.slots * adapters.element


@dataclass(frozen=True)
class Kernels:
    """The kernels that follow from cards, release and settings: nobody chooses them by
    itself."""

    turing: bool = False
    """Whether a card is a Turing."""
    hopper: bool = False
    """Whether all cards are Hopper, where Machete multiplies 4-bit weights."""
    flashinfer: bool = False
    """Whether attention is FlashInfer's, which takes a workspace."""
    sm75_attention: bool = False
    """Whether attention is caovan's."""
    version: tuple[int, ...] = releases.REFERENCE
    """vLLM's release."""


@dataclass(frozen=True)
class Candidate:
    """The engine settings that determine memory; sizes of types are in bytes."""

    context: int
    sequences: int
    batch_tokens: int
    utilization: float
    tensor_parallel: int = 1
    mtp: int = 0
    looks_up: bool = False
    """Whether drafts are found in the text, without a drafter."""
    narrower: tuple[int, ...] = ()
    """Smaller depths, of steps of many requests."""
    kv_dtype: str = "auto"
    activation: int = 2
    eager: bool = False
    aligned_states: bool = False
    vision: bool = False
    videos: bool = True
    pixels: int = 0
    """The largest image that is not scaled down; 0 for the model's own limit."""
    offload_gib: float = 0.0
    kv_bytes: int | None = None
    alignment: int = 16
    compilation: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """--compilation-config, which says what graphs are captured; a mapping has no hash."""
    quantization: str = ""
    """--quantization, which shrinks an unquantised checkpoint while it loads."""
    kv_blocks: int | None = None
    """--num-gpu-blocks-override, which replaces the cache size that memory allows."""
    state_dtype: str = "auto"
    rounds_input: bool = False
    """Whether weights are multiplied by int8 copies of the activations."""
    rounds_head: bool = False
    """Whether the lm_head is int8."""
    rounds_drafter: bool = False
    """Whether the MTP layer is int8."""
    draft_vocabulary: int = 0
    """The number of tokens from which the MTP layer drafts; 0 for all."""
    whole_experts: bool = False
    """Whether each rank holds some of the experts, whole."""
    stages: tuple[int, ...] = ()
    """The layers of each pipeline stage; empty without a pipeline."""
    first: bool = True
    """Whether this candidate has the first stage."""
    last: bool = True
    """Whether this candidate has the last stage."""
    replicas: int = 1
    """Each has its own cards and cache; their experts, whole or cut, are spread over the cards of
    all replicas, and work on the tokens of all."""
    cold: bool = False
    """Whether this start compiles. vLLM measures a step's memory and gives the rest of the share to
    the cache: then it counts a peak that no later start has."""
    in_bytes: bool = False
    """Whether the cache's size is set, from the forecast of a step's memory once everything is
    compiled, instead of measured."""
    adapters: Adapters = NO_ADAPTERS
    sampled_words: int = SAMPLED_WORDS
    """The vocabulary; 0 if nothing is sampled."""
    kernels: Kernels = field(default_factory=Kernels)

    @property
    def drafting(self) -> bool:
        """Whether the drafting head runs here, on the last stage."""
        return self.mtp > 0 and self.last

    @property
    def measured(self) -> bool:
        """Whether vLLM sizes the cache by what it measures."""
        return not self.in_bytes and self.kv_bytes is None

    @property
    def unmeasured_mib(self) -> int:
        """Memory that the engine takes and vLLM does not count: FlashInfer makes its workspace when
        the first step is planned, after the cache. On Turing it was seen with any attention."""
        own = self.kernels.flashinfer and not self.kernels.turing
        return FLASHINFER_MIB if own and self.measured else 0

    def but(self, **changes: Any) -> Candidate:
        """A copy with other values: a fast `dataclasses.replace`, as a search makes thousands.

        `dataclasses.replace` sets all fields one by one, which took a quarter of a search.
        """
        assert changes.keys() <= self.__dict__.keys()
        candidate = object.__new__(Candidate)
        candidate.__dict__.update(self.__dict__, **changes)
        return candidate


def are_large(gpus: Sequence[Gpu]) -> bool:
    """Whether vLLM uses its H100 defaults for these cards."""
    large = bool(gpus) and min(gpu.total_mib for gpu in gpus) >= LARGE_CARD_MIB
    return large and not any("A100" in gpu.name for gpu in gpus)


def visible_mib(total_mib: float) -> float:
    """The card memory visible to CUDA: the driver reserves part of what NVML reports."""
    return total_mib * 0.9965 - 240


class Reserve(NamedTuple):
    """MiB to leave outside vLLM's share, by consumer (Elastic-KV)."""

    driver: float
    context: float
    drafting: float
    step: float
    collectives: float
    sampling: float
    unmeasured: float


def reserve(candidate: Candidate, context: int | None = None, total_mib: float = inf) -> Reserve:
    """The reserve, which grows with everything that needs it.

    It covers the driver and the CUDA context, what long prompts gather and plan beyond the profiled
    step, drafting buffers, transients of large batches, collectives, the vocabulary of each
    sequence, and what vLLM takes without counting it. `context` replaces the candidate's; the fixed
    part is smaller on a small card. Caovan's attention gathers nothing: it reads the cache in
    place, and allocated its scratch memory earlier.
    """
    length = candidate.context if context is None else context
    return Reserve(
        min(FIXED_MIB, total_mib * FIXED_SHARE),
        (0 if candidate.kernels.sm75_attention else length) * 4 / 1024,
        candidate.mtp * min(_sampling_mib(candidate), DRAFT_MIB),
        candidate.batch_tokens * 48 / 1024,
        256 * log2(candidate.tensor_parallel),
        _sampling_mib(candidate),
        candidate.unmeasured_mib,
    )


def _sampling_mib(candidate: Candidate) -> float:
    """Memory that all sequences may take while they are sampled."""
    many = min(candidate.sequences, MANY_SEQUENCES)
    mib = many * SEQUENCE_MIB + (candidate.sequences - many) * LATER_SEQUENCE_MIB
    return mib * candidate.sampled_words / SAMPLED_WORDS


def reserve_mib(candidate: Candidate, context: int | None = None, total_mib: float = inf) -> float:
    """The whole reserve."""
    return sum(reserve(candidate, context, total_mib))


def utilization(candidate: Candidate, gpus: Sequence[Gpu], context: int | None = None) -> float:
    """AutoMem: the largest share of every card that leaves the reserve and is free.

    Free memory is rounded coarsely, since the use by others varies a little. It always bounds the
    share, so that less free memory or a longer context never yields a larger one.
    """
    smallest = min(gpu.total_mib for gpu in gpus)
    wanted = 1 - reserve_mib(candidate, context, smallest) / smallest
    joined = JOINING_MIB / smallest if candidate.tensor_parallel > 1 else 0
    room = int((free_share(gpus) - joined) * 100 - 0.5) / 100
    return max(int(min(wanted, room) * 1000) / 1000, 0.0)


def free_share(gpus: Sequence[Gpu]) -> float:
    """The largest share of every card that vLLM can ask for and get."""
    return max(min(_free_share(gpu) for gpu in gpus), 0.0)


def _free_share(gpu: Gpu) -> float:
    visible = visible_mib(gpu.total_mib)
    free = min(gpu.free_mib, visible) - STARTUP_MIB
    return min(free / visible, gpu.free_mib / gpu.total_mib) if visible > 0 else 0.0
