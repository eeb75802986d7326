"""The inventory: GPUs, host, engine, model. Filled by adapters, read by the planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from caovand.core.facts.gguf import Gguf
from caovand.core.facts.network import Network
from caovand.core.model_task import ModelTask
from caovand.core.problem import Problem


def version_numbers(text: str | None) -> tuple[int, ...]:
    """0.6.8.post1 and 0.6.8+cu130 as (0, 6, 8)."""
    parts = (text or "").partition("+")[0].split(".")[:3]
    return tuple(int(part) for part in parts if part.isdecimal())


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA card as reported by NVML; memory in MiB.

    Each part of a partitioned card (MIG) is a Gpu with the card's index and a uuid that begins with
    "MIG-"; `mig` without such a uuid is a card whose parts are unknown.
    `users` are the processes that use its memory: (pid, name, MiB); MiB is 0 if the driver does not
    report it. `pcie` is the link's highest generation and its lanes. `bus` is its PCI address.
    `p2p` are the indices of the cards whose memory it reaches directly, None if that is unknown.
    `memory_gb_s` is what its memory clock and bus allow, `multiprocessors` their number and
    `clock_mhz` their highest clock; None where the driver does not report them. The memory of a
    `unified` card is the host's, of which `free_mib` leaves the host its reserve.
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
    p2p: tuple[int, ...] | None = None
    memory_gb_s: float | None = None
    multiprocessors: int | None = None
    clock_mhz: int | None = None
    unified: bool = False


def device_name(gpu: Gpu) -> str:
    """Its name in CUDA_VISIBLE_DEVICES, where parts of a partitioned card have no index."""
    return gpu.uuid if gpu.uuid.startswith("MIG-") else str(gpu.index)


@dataclass(frozen=True)
class Host:
    """The machine; memory in MiB, `cpus` the physical cores this process may use.

    `memory_gb_s` is how fast all of them together read and write memory, None if not measured.
    `architecture` is the kernel's name for the processor, `instructions` those of its vector
    extensions that engines have code for, by the kernel's names. `numa_nodes` is how many parts
    of it have memory of their own.
    """

    ram_mib: int
    available_mib: int
    swap_mib: int
    shm_mib: int
    cpus: int
    wsl: bool = False
    open_files: int = 0
    cache_free_mib: int | None = None
    shm_free_mib: int | None = None
    memory_gb_s: float | None = None
    architecture: str = ""
    instructions: tuple[str, ...] = ()
    numa_nodes: int = 1


@dataclass(frozen=True)
class EngineInfo:
    """What the probe, run by the engine's own Python, found there.

    `version` is the engine's own, such as "0.32.0+cpu".
    `flags` are the options of its parser, as typed (`--max-model-len`, `-tp`), empty if not asked;
    `switches` those of them that take no value. `choices` are the values an option is limited to,
    such as KV cache types. `nvcc` is the compiler that FlashInfer would run, `cuda_home` the
    environment's own toolkit, `jit_cache` the release of FlashInfer's prebuilt kernels, `kernels`
    what was built here for cards such as "sm75". `cxx` is the C++ compiler that nvcc needs,
    `python_h` the header that Triton's launchers need, None where there is none, "" where it was
    not asked. `gdn_interface` is the plugin's own "pass" or "fail: why", `operators` those it would
    replace; `states` says likewise whether it keeps states right where hybrids draft. `executable`
    is the server, of an engine that is a program. `nccl` and `ray` are releases of packages.
    `decodes_sound` is whether a package is there that reads files of sound, None if not asked.
    """

    python: str
    version: str
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
    cuda_home: str | None = None
    cxx: str | None = ""
    kernels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    jit_cache: str | None = None
    compiler: str | None = None
    python_h: str | None = ""
    gdn_interface: str = ""
    operators: tuple[str, ...] = ()
    library_problem: str = ""
    states: str = ""
    executable: str = ""
    nccl: str | None = None
    ray: str | None = None
    decodes_sound: bool | None = None

    def knows(self, architecture: str) -> bool:
        """Whether its models include this one; assumed so if it was not asked."""
        return not self.architectures or not architecture or architecture in self.architectures

    @property
    def release(self) -> tuple[int, ...]:
        """The version as numbers, (0, 21, 0)."""
        return version_numbers(self.version)


Sharding = Literal["sharded", "kv", "replicated"]
Part = Literal["embedding", "head", "layers", "experts", "mtp", "vision"]


@dataclass(frozen=True)
class Weights:
    """Bytes of the tensors of one part of the model that are split over GPUs the same way.

    `dtype` is safetensors' name for how they are stored; "kv" is split over at most as many
    ranks as there are key-value heads. `layers` is how the bytes lie in the model's layers, as
    proportions, empty where all layers are taken to be alike.
    """

    part: Part
    sharding: Sharding
    dtype: str
    size: int
    layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class LinearAttention:
    """Shape of layers with a recurrent state: Gated DeltaNet's, or Mamba-2's.

    For Mamba-2 the keys are its groups, as wide as its state, and the values its heads.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    state_dtype: str = "float32"


@dataclass(frozen=True)
class LatentAttention:
    """Shape of MLA: compressed widths of keys and values, and of queries (0 if uncompressed).

    A head's keys are `key_dim` wide without their rotary part.
    """

    rank: int
    key_dim: int
    value_dim: int
    query_rank: int = 0


@dataclass(frozen=True)
class Gptq:
    """How GPTQ stored the weights: with `act_order` a group's weights are not neighbours, and in a
    `mixed` checkpoint some modules are stored differently."""

    bits: int
    symmetric: bool
    act_order: bool = False
    mixed: bool = False


@dataclass(frozen=True)
class ModelCard:
    """A model as its folder describes it, without reading the weights.

    `architecture` is empty for a model that is not on this machine yet. `layer_types` are
    "full_attention", "sliding_attention", "linear_attention" and "mamba"; `chat_template` is its
    text. Without `limit_known` the configuration does not give `max_model_len`, and this is vLLM's
    default where Transformers has none either. `global_kv_heads` and `global_head_dim` are those of
    full attention if it differs from the windowed one (else 0). `latent` is the size of a token's
    compressed key-value pair (MLA) in elements; `rope_elements` that of the tables of sines and
    cosines; `group_size` how many quantised weights of one output share a scale, `block_size` how
    many outputs do (block fp8); `spared` are the parts kept as floats ("attention", "shared
    experts", "MLP"). `shared_size` and `dense_size` are the widths of the MLPs alongside a model's
    experts, 0 without them; `dense_layers` have an MLP instead of experts. The last `kv_shared`
    layers read the caches of earlier ones (Gemma 3n). `negative_scale` is the first tensor with a
    negative scale, empty without one, None where no scales were read. `notes` name oddities of the
    folder that leave it usable. `gguf` describes a model in GGUF files; `path` is then the first.
    `one_step` is whether a whole prompt must be processed in one step (layers of type
    "encoder_attention", whose tokens attend to later ones and need no cache, and some poolings).
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
    gptq: Gptq | None = None
    negative_scale: str | None = None
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
    notes: tuple[Problem, ...] = ()
    gguf: Gguf | None = None
    task: ModelTask = "generate"
    one_step: bool = False

    @property
    def hybrid(self) -> bool:
        """Whether some layers have a recurrent state instead of a KV cache."""
        return not {"linear_attention", "mamba"}.isdisjoint(self.layer_types)

    @property
    def cached_layers(self) -> tuple[str, ...]:
        """The types of the layers that have their own cache or state."""
        return self.layer_types[: len(self.layer_types) - self.kv_shared]

    def size(self, *parts: Part) -> int:
        """Bytes stored for these parts, by default for all."""
        return sum(w.size for w in self.weights if not parts or w.part in parts)


@dataclass(frozen=True)
class Node:
    """Another machine that serves the model with this one: its cards, and what is free of them.

    A card's index is its place among them; who uses the rest of its memory is not known. `ram_mib`
    is its host's memory, None where that is taken to be as large as here.
    """

    name: str
    gpus: tuple[Gpu, ...]
    ram_mib: int | None = None


@dataclass(frozen=True)
class Inventory:
    """Everything that a plan depends on, except the configuration.

    `others` are the nodes that serve the model with this one, by rank, and `link` is what joins
    them, None if its speed is unknown.
    """

    gpus: tuple[Gpu, ...]
    host: Host
    engine: EngineInfo
    model: ModelCard
    others: tuple[Node, ...] = ()
    link: Network | None = None

    @property
    def least_ram_mib(self) -> int:
        """The host memory of the node that has the least: a plan is the same for all."""
        known = [node.ram_mib for node in self.others if node.ram_mib is not None]
        return min([self.host.ram_mib, *known])
