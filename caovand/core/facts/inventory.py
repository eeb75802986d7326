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

    Each part of a partitioned card (MIG) is a Gpu with the card's index.
    """

    index: int
    name: str
    compute_capability: tuple[int, int]
    total_mib: int
    free_mib: int
    uuid: str = ""
    """Begins with "MIG-" for a part of a partitioned card."""
    nvlink: tuple[int, ...] = ()
    """The indices of the cards it is linked to."""
    driver: str = ""
    cuda: str = ""
    persistence: bool | None = None
    pcie: tuple[int, int] | None = None
    """The link's highest generation, and its lanes."""
    mig: bool = False
    """Whether it is partitioned; without a uuid that begins with "MIG-", its parts are unknown."""
    users: tuple[tuple[int, str, int], ...] = ()
    """The processes that use its memory: (pid, name, MiB); 0 MiB if the driver reports none."""
    bus: str = ""
    """The PCI address."""
    p2p: tuple[int, ...] | None = None
    """The indices of the cards whose memory it reaches directly, None if unknown."""
    memory_gb_s: float | None = None
    """What its memory clock and bus allow, None if the driver does not report them."""
    multiprocessors: int | None = None
    """How many it has, None if the driver does not report it."""
    clock_mhz: int | None = None
    """The multiprocessors' highest clock, None if the driver does not report it."""
    unified: bool = False
    """Whether its memory is the host's, of which `free_mib` leaves the host its reserve."""


def device_name(gpu: Gpu) -> str:
    """Its name in CUDA_VISIBLE_DEVICES, where parts of a partitioned card have no index."""
    return gpu.uuid if gpu.uuid.startswith("MIG-") else str(gpu.index)


@dataclass(frozen=True)
class Host:
    """The machine; memory in MiB."""

    ram_mib: int
    available_mib: int
    swap_mib: int
    shm_mib: int
    cpus: int
    """The physical cores that this process may use."""
    wsl: bool = False
    open_files: int = 0
    cache_free_mib: int | None = None
    shm_free_mib: int | None = None
    memory_gb_s: float | None = None
    """How fast all `cpus` together read and write memory, None if not measured."""
    architecture: str = ""
    """The kernel's name for the processor."""
    instructions: tuple[str, ...] = ()
    """Its vector extensions that engines have code for, by the kernel's names."""
    numa_nodes: int = 1
    """How many parts of the machine have memory of their own."""


@dataclass(frozen=True)
class EngineInfo:
    """What the probe, run by the engine's own Python, found there."""

    python: str
    version: str
    """The engine's own, such as "0.32.0+cpu"."""
    torch: str
    build: Literal["cuda", "cpu"]
    flashinfer: str | None = None
    plugin: str | None = None
    flags: frozenset[str] = frozenset()
    """The options of its parser, as typed (`--max-model-len`, `-tp`), empty if not probed."""
    switches: frozenset[str] = frozenset()
    """Those of the flags that take no value."""
    deprecated: frozenset[str] = frozenset()
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The values that an option is limited to, such as KV cache types."""
    tool_parsers: frozenset[str] = frozenset()
    reasoning_parsers: frozenset[str] = frozenset()
    architectures: frozenset[str] = frozenset()
    python_version: str = ""
    cuda: str | None = None
    nvcc: str | None = None
    """The compiler that FlashInfer would run."""
    cuda_home: str | None = None
    """The environment's own toolkit."""
    cxx: str | None = ""
    """The C++ compiler that nvcc needs; None if there is none, "" if not probed."""
    kernels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The kernels that were built here, for cards such as "sm75"."""
    jit_cache: str | None = None
    """The release of FlashInfer's prebuilt kernels."""
    compiler: str | None = None
    python_h: str | None = ""
    """The header that Triton's launchers need; None if there is none, "" if not probed."""
    gdn_interface: str = ""
    """Whether the plugin knows this vLLM's GDN interface: "pass" or "fail: why"."""
    operators: tuple[str, ...] = ()
    """The operators that the plugin would replace."""
    library_problem: str = ""
    states: str = ""
    """Whether the plugin keeps states right where hybrids draft: "pass" or "fail: why"."""
    attention: str = ""
    """Whether the plugin knows the caches of Triton's attention: "pass" or "fail: why"."""
    lm_head: str = ""
    """Whether the plugin can make an lm_head int8: "pass" or "fail: why"."""
    executable: str = ""
    """The server, of an engine that is a program."""
    nccl: str | None = None
    """The release of the package; `ray` likewise."""
    ray: str | None = None
    decodes_sound: bool | None = None
    """Whether a package reads files of sound, None if not probed."""

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
    """How GPTQ stored the weights: with `act_order` a group's weights are not adjacent, and in a
    `mixed` checkpoint some modules are stored differently."""

    bits: int
    symmetric: bool
    act_order: bool = False
    mixed: bool = False


@dataclass(frozen=True)
class ModelCard:
    """A model as its folder describes it, without reading the weights."""

    path: str
    """The folder, or the first of the GGUF files."""
    architecture: str
    """Empty for a model that is not on this machine yet."""
    model_type: str
    layer_types: tuple[str, ...]
    """By layer: "full_attention", "sliding_attention", "linear_attention", "mamba" or another."""
    max_model_len: int
    limit_known: bool = True
    """Whether the configuration gives `max_model_len`; else it is vLLM's default."""
    mtp_layers: int = 0
    hidden_size: int = 0
    intermediate_size: int = 0
    vocab_size: int = 0
    heads: int = 1
    kv_heads: int = 1
    head_dim: int = 0
    global_kv_heads: int = 0
    """The key-value heads of full attention if it differs from the windowed one, else 0."""
    global_head_dim: int = 0
    """The width of a head of full attention if it differs from the windowed one's, else 0."""
    sliding_window: int = 0
    kv_shared: int = 0
    """How many of the last layers read the caches of earlier ones (Gemma 3n)."""
    latent: int = 0
    """The size of a token's compressed key-value pair (MLA) in elements."""
    mla: LatentAttention | None = None
    indexer: int = 0
    """Bytes of a token's keys by which sparse attention chooses (DeepSeek-V3.2), of each layer."""
    rope_elements: int = 0
    """The size of the tables of sines and cosines in elements."""
    linear: LinearAttention | None = None
    mamba: LinearAttention | None = None
    dtype: str = "bfloat16"
    quantization: str | None = None
    group_size: int = 0
    """How many quantised weights of one output share a scale."""
    block_size: int = 0
    """How many outputs share a scale (block fp8)."""
    spared: frozenset[str] = frozenset()
    """The parts kept as floats: "attention", "shared experts", "MLP"."""
    gptq: Gptq | None = None
    negative_scale: str | None = None
    """The first tensor with a negative scale, empty without one, None if no scales were read."""
    experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    shared_size: int = 0
    """The width of the experts that process every token, 0 without them."""
    dense_size: int = 0
    """The width of the MLPs before, between or alongside a model's experts, 0 without them."""
    dense_layers: int = 0
    """How many layers have an MLP instead of experts."""
    vision: bool = False
    images_both_ways: bool = False
    """Whether config.json says that the tokens of an image attend to later ones of it (Gemma 4)."""
    chat_template: str | None = None
    """The text of the template, not its file."""
    weights: tuple[Weights, ...] = ()
    folder: bool = True
    notes: tuple[Problem, ...] = ()
    """Oddities of the folder that leave the model usable."""
    gguf: Gguf | None = None
    """Describes a model in GGUF files."""
    task: ModelTask = "generate"
    encoder_tokens: int = 0
    """The states of an encoder of sound that every layer attends to, 0 without it or if unknown."""
    one_step: bool = False
    """Whether a whole prompt must be processed in one step: layers of type "encoder_attention",
    whose tokens attend to later ones and need no cache, and some poolings."""

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
    """Another machine that serves the model with this one."""

    name: str
    gpus: tuple[Gpu, ...]
    """Its cards, by their place among them; who uses the rest of their memory is not known."""
    ram_mib: int | None = None
    """Its host's memory, None if it is assumed to be as large as here."""


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
