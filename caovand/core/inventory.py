"""What is there: GPUs, host, engine, model. Filled by adapters, read by the planner."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA card as NVML shows it; memory in MiB.

    A part of a partitioned card (MIG) is a Gpu of its own with the card's index and a uuid that
    begins with "MIG-"; `mig` without such a uuid is a card whose parts are not known.
    `users` are the processes that hold its memory: (pid, name, MiB); MiB is 0 where the driver
    does not tell. `pcie` is (generation, lanes) as linked now. `bus` is its PCI address.
    """

    index: int
    name: str
    compute_capability: tuple[int, int]
    total_mib: int
    free_mib: int
    uuid: str = ""
    nvlink: tuple[int, ...] = ()
    driver: str = ""
    cuda: str = ""
    persistence: bool | None = None
    pcie: tuple[int, int] | None = None
    mig: bool = False
    users: tuple[tuple[int, str, int], ...] = ()
    bus: str = ""


def device_name(gpu: Gpu) -> str:
    """What CUDA_VISIBLE_DEVICES calls it: parts of a partitioned card have no index there."""
    return gpu.uuid if gpu.uuid.startswith("MIG-") else str(gpu.index)


def reclaimed(gpus: Iterable[Gpu], pids: Container[int]) -> tuple[Gpu, ...]:
    """The cards as they will be when these processes are gone: a plan for their successor."""
    return tuple(
        replace(gpu, free_mib=min(gpu.free_mib + _held(gpu, pids), gpu.total_mib)) for gpu in gpus
    )


def _held(gpu: Gpu, pids: Container[int]) -> int:
    return sum(mib for pid, _, mib in gpu.users if pid in pids)


@dataclass(frozen=True)
class Host:
    """The machine; memory in MiB, `cpus` is physical cores this process may use."""

    ram_mib: int
    available_mib: int
    swap_mib: int
    shm_mib: int
    cpus: int
    wsl: bool = False
    open_files: int = 0
    cache_free_mib: int | None = None


@dataclass(frozen=True)
class EngineInfo:
    """What the probe, run by the engine's own Python, found there.

    `flags` are the options its parser takes, each as typed (`--max-model-len`, `-tp`); empty is
    "not asked"; `switches` those of them that take no value. `choices` are the values an option
    is limited to, such as KV cache types.
    `nvcc` is the compiler that FlashInfer would run, `jit_cache` the release of its ready kernels.
    `gdn_interface` is the plugin's own "pass" or "fail: why", `operators` what it would replace.
    """

    python: str
    vllm: str
    torch: str
    build: Literal["cuda", "cpu"]
    flashinfer: str | None = None
    plugin: str | None = None
    flags: frozenset[str] = frozenset()
    switches: frozenset[str] = frozenset()
    deprecated: frozenset[str] = frozenset()
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    tool_parsers: frozenset[str] = frozenset()
    reasoning_parsers: frozenset[str] = frozenset()
    architectures: frozenset[str] = frozenset()
    python_version: str = ""
    cuda: str | None = None
    nvcc: str | None = None
    jit_cache: str | None = None
    compiler: str | None = None
    gdn_interface: str = ""
    operators: tuple[str, ...] = ()
    library_problem: str = ""

    def knows(self, architecture: str) -> bool:
        """Whether its models include this one; where it was not asked, it is taken to."""
        return not self.architectures or not architecture or architecture in self.architectures

    @property
    def version(self) -> tuple[int, ...]:
        """vLLM's release as numbers, (0, 21, 0)."""
        numbers = self.vllm.split("+")[0].split(".")
        return tuple(int(n) for n in numbers[:3] if n.isdecimal())


Sharding = Literal["sharded", "kv", "replicated"]
Part = Literal["embedding", "head", "layers", "experts", "mtp", "vision"]


@dataclass(frozen=True)
class Weights:
    """Bytes of the tensors of one part of the model that are split over GPUs in one way.

    `dtype` is safetensors' name for how they are stored; "kv" is split over at most as many
    ranks as there are key-value heads.
    """

    part: Part
    sharding: Sharding
    dtype: str
    size: int


@dataclass(frozen=True)
class LinearAttention:
    """Shape of the layers that keep a recurrent state: Gated DeltaNet's, or Mamba-2's.

    Of Mamba-2 the keys are its groups, as wide as its state, and the values its heads.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    state_dtype: str = "float32"


@dataclass(frozen=True)
class LatentAttention:
    """Shape of MLA: what keys and values, and queries (0 where they are not), are compressed to.

    A head's keys are `key_dim` wide without the part that rotary positions turn.
    """

    rank: int
    key_dim: int
    value_dim: int
    query_rank: int = 0


@dataclass(frozen=True)
class ModelCard:
    """What the model's folder says of it, its weights unread.

    `architecture` is empty for a model that is not on this machine yet. `layer_types` are
    "full_attention", "sliding_attention", "linear_attention" and "mamba"; `chat_template` is its
    text. Without `limit_known` the configuration does not tell `max_model_len`, which then is what
    vLLM takes where Transformers knows none either. `global_kv_heads` and `global_head_dim` are
    those of full attention where it differs from a window's (0 where it does not). `latent` is
    what a token's compressed key-value pair (MLA) takes, in elements; `rope_elements` what the
    tables of sines and cosines take; `group_size` how many quantised weights of one output share a
    scale, `block_size` how many outputs do (block fp8); `spared` are the parts kept as floats
    ("attention", "shared experts", "MLP"). `shared_size` and `dense_size` are the widths of the
    MLPs beside a model's experts, 0 where there are none; `dense_layers` have an MLP in place of
    experts. The last `kv_shared` layers read the caches of earlier ones (Gemma 3n). `notes` are
    what is odd about the folder without making it unusable.
    """

    path: str
    architecture: str
    model_type: str
    layer_types: tuple[str, ...]
    max_model_len: int
    limit_known: bool = True
    mtp_layers: int = 0
    hidden_size: int = 0
    intermediate_size: int = 0
    vocab_size: int = 0
    heads: int = 1
    kv_heads: int = 1
    head_dim: int = 0
    global_kv_heads: int = 0
    global_head_dim: int = 0
    sliding_window: int = 0
    kv_shared: int = 0
    latent: int = 0
    mla: LatentAttention | None = None
    rope_elements: int = 0
    linear: LinearAttention | None = None
    mamba: LinearAttention | None = None
    dtype: str = "bfloat16"
    quantization: str | None = None
    group_size: int = 0
    block_size: int = 0
    spared: frozenset[str] = frozenset()
    experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    shared_size: int = 0
    dense_size: int = 0
    dense_layers: int = 0
    vision: bool = False
    chat_template: str | None = None
    weights: tuple[Weights, ...] = ()
    folder: bool = True
    notes: tuple[str, ...] = ()

    @property
    def hybrid(self) -> bool:
        """Whether some layers keep a recurrent state instead of a KV cache."""
        return not {"linear_attention", "mamba"}.isdisjoint(self.layer_types)

    @property
    def cached_layers(self) -> tuple[str, ...]:
        """The types of the layers that keep a cache or a state of their own."""
        return self.layer_types[: len(self.layer_types) - self.kv_shared]

    def size(self, *parts: Part) -> int:
        """Bytes stored for these parts, for all of them where none is named."""
        return sum(w.size for w in self.weights if not parts or w.part in parts)


@dataclass(frozen=True)
class Inventory:
    """Everything a plan is made from beside the configuration."""

    gpus: tuple[Gpu, ...]
    host: Host
    engine: EngineInfo
    model: ModelCard
