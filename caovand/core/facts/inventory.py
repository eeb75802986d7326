"""The inventory: GPUs, host, engine and model. Adapters fill it, the planner reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from caovand.core.facts.drafter import Drafter
from caovand.core.facts.gguf import Gguf
from caovand.core.facts.network import Network
from caovand.core.facts.packed import Packed
from caovand.core.facts.vision import VisionTower
from caovand.core.model_task import ModelTask
from caovand.core.problem import Problem


def version_numbers(text: str | None) -> tuple[int, ...]:
    """Parse 0.6.8.post1 and 0.6.8+cu130 as (0, 6, 8)."""
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
    """Starts with "MIG-" for a part of a partitioned card."""
    nvlink: tuple[int, ...] = ()
    """Indices of the cards that NVLink connects it to."""
    driver: str = ""
    cuda: str = ""
    persistence: bool | None = None
    pcie: tuple[int, int] | None = None
    """The PCIe link's highest generation and its lanes."""
    mig: bool = False
    """Whether the card is partitioned; if `uuid` does not start with "MIG-", its parts are
    unknown."""
    users: tuple[tuple[int, str, int], ...] = ()
    """Processes that use its memory: (pid, name, MiB); 0 MiB if the driver reports no size."""
    bus: str = ""
    """The PCI address."""
    p2p: tuple[int, ...] | None = None
    """Indices of cards it has peer access to; None if unknown."""
    memory_gb_s: float | None = None
    """Bandwidth by memory clock and bus width; None if the driver does not report them."""
    multiprocessors: int | None = None
    """Number of multiprocessors; None if the driver does not report it."""
    clock_mhz: int | None = None
    """The multiprocessors' highest clock; None if the driver does not report it."""
    unified: bool = False
    """Whether its memory is the host's; `free_mib` then excludes the host's reserve."""


def device_name(gpu: Gpu) -> str:
    """Its name in CUDA_VISIBLE_DEVICES; parts of a partitioned card have no index."""
    return gpu.uuid if gpu.uuid.startswith("MIG-") else str(gpu.index)


@dataclass(frozen=True)
class Host:
    """The host; memory in MiB."""

    ram_mib: int
    available_mib: int
    swap_mib: int
    shm_mib: int
    cpus: int
    """Physical cores that this process may use."""
    wsl: bool = False
    open_files: int = 0
    cache_free_mib: int | None = None
    shm_free_mib: int | None = None
    memory_gb_s: float | None = None
    """Memory bandwidth of all `cpus` together; None if not measured."""
    architecture: str = ""
    """The kernel's name for the CPU."""
    instructions: tuple[str, ...] = ()
    """Vector extensions that engines have code for, by the kernel's names."""
    numa_nodes: int = 1
    """Number of NUMA nodes with memory."""


@dataclass(frozen=True)
class EngineInfo:
    """The probe's findings in the engine's own Python."""

    python: str
    version: str
    """The engine's version, such as "0.32.0+cpu"."""
    torch: str
    build: Literal["cuda", "cpu"]
    flashinfer: str | None = None
    plugin: str | None = None
    flags: frozenset[str] = frozenset()
    """The parser's options as typed (`--max-model-len`, `-tp`); empty if not probed."""
    switches: frozenset[str] = frozenset()
    """Flags without a value."""
    deprecated: frozenset[str] = frozenset()
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Allowed values by option, such as KV cache types."""
    tool_parsers: frozenset[str] = frozenset()
    reasoning_parsers: frozenset[str] = frozenset()
    architectures: frozenset[str] = frozenset()
    python_version: str = ""
    cuda: str | None = None
    nvcc: str | None = None
    """The compiler that FlashInfer would run."""
    cuda_home: str | None = None
    """The toolkit inside the environment."""
    cxx: str | None = ""
    """The C++ compiler that nvcc needs; None if there is none, "" if not probed."""
    kernels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Kernels built on this machine, by card type such as "sm75"."""
    jit_cache: str | None = None
    """The release of FlashInfer's prebuilt kernels."""
    compiler: str | None = None
    python_h: str | None = ""
    """The header that Triton's launchers need; None if there is none, "" if not probed."""
    gdn_interface: str = ""
    """Whether the plugin supports this vLLM's GDN interface: "pass" or "fail: why"."""
    operators: tuple[str, ...] = ()
    """Operators that the plugin would replace."""
    library_problem: str = ""
    states: str = ""
    """Whether the plugin keeps states correct when hybrid models draft: "pass" or "fail: why"."""
    attention: str = ""
    """Whether the plugin supports the caches of Triton attention: "pass" or "fail: why"."""
    lm_head: str = ""
    """Whether the plugin can quantise an lm_head to int8: "pass" or "fail: why"."""
    executable: str = ""
    """The server, for an engine that is a program."""
    nccl: str | None = None
    """Release of the package; `ray` likewise."""
    ray: str | None = None
    decodes_sound: bool | None = None
    """Whether an audio decoding package is installed; None if not probed."""

    def knows(self, architecture: str) -> bool:
        """Whether the engine supports this architecture; assumed if it was not probed."""
        return not self.architectures or not architecture or architecture in self.architectures

    @property
    def release(self) -> tuple[int, ...]:
        """The version as numbers, such as (0, 21, 0)."""
        return version_numbers(self.version)


Sharding = Literal["sharded", "kv", "replicated"]
ModelPart = Literal["embedding", "head", "layers", "experts", "mtp", "vision"]


@dataclass(frozen=True)
class Weights:
    """Bytes of the tensors in one part of the model that GPUs split the same way.

    `dtype` is the storage type by safetensors' name. "kv" is split over at most as many ranks as
    there are key-value heads. `layers` is the distribution of the bytes over the model's layers, as
    proportions; empty if all layers count as equal.
    """

    part: ModelPart
    sharding: Sharding
    dtype: str
    size: int
    layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class LinearAttention:
    """Shape of layers with a recurrent state: Gated DeltaNet or Mamba-2.

    For Mamba-2, keys are its groups, as wide as its state, and values its heads.
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

    `key_dim` is the width of a head's keys without the rotary part.
    """

    rank: int
    key_dim: int
    value_dim: int
    query_rank: int = 0


@dataclass(frozen=True)
class Gptq:
    """GPTQ's storage of the weights: with `act_order`, a group's weights are not adjacent; in a
    `mixed` checkpoint, some modules are stored differently. None if `symmetric` is not stated."""

    bits: int
    symmetric: bool | None
    act_order: bool = False
    mixed: bool = False


@dataclass(frozen=True)
class ModelCard:
    """A model as its folder describes it, without reading the weights."""

    path: str
    """The folder, or the first GGUF file."""
    architecture: str
    """Empty for a model that is not on this machine yet."""
    model_type: str
    layer_types: tuple[str, ...]
    """Type of each layer: "full_attention", "sliding_attention", "linear_attention", "mamba"..."""
    max_model_len: int
    limit_known: bool = True
    """Whether the configuration sets `max_model_len`; else it is vLLM's default."""
    mtp_layers: int = 0
    """Layers of the MTP head, or of `drafter`."""
    drafter: Drafter | None = None
    hidden_size: int = 0
    intermediate_size: int = 0
    vocab_size: int = 0
    heads: int = 1
    kv_heads: int = 1
    head_dim: int = 0
    global_kv_heads: int = 0
    """Key-value heads of full attention if they differ from windowed attention's, else 0."""
    global_head_dim: int = 0
    """Head width of full attention if it differs from windowed attention's, else 0."""
    sliding_window: int = 0
    kv_shared: int = 0
    """Number of final layers that read the caches of earlier ones (Gemma 3n)."""
    latent: int = 0
    """Elements of a token's compressed key-value pair (MLA)."""
    mla: LatentAttention | None = None
    indexer: int = 0
    """Bytes per token and layer of sparse attention's index keys (DeepSeek-V3.2)."""
    rope_elements: int = 0
    """Size of the RoPE sine and cosine tables in elements."""
    linear: LinearAttention | None = None
    mamba: LinearAttention | None = None
    dtype: str = "bfloat16"
    """The type in which engines compute unless another is requested."""
    quantization: str | None = None
    group_size: int = 0
    """Number of quantised weights of one output that share a scale."""
    block_size: int = 0
    """Number of outputs that share a scale (block fp8)."""
    spared: frozenset[str] = frozenset()
    """Parts kept as floats: "attention", "shared experts", "MLP"."""
    gptq: Gptq | None = None
    packed: Packed | None = None
    fp8_cache: bool = False
    """Whether the checkpoint declares an fp8 cache and includes its scales."""
    negative_scale: str | None = None
    """The first tensor with a negative scale; empty without one, None if scales were not read."""
    experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    shared_size: int = 0
    """Width of the shared experts, which process every token; 0 without them."""
    dense_size: int = 0
    """Width of the dense MLPs before, between or alongside experts; 0 without them."""
    dense_layers: int = 0
    """Number of layers with a dense MLP instead of experts."""
    vision: bool = False
    tower: VisionTower | None = None
    """Set where a video may be as long as the context."""
    images_both_ways: bool = False
    """Whether an image's tokens attend to its later tokens, as config.json says (Gemma 4)."""
    chat_template: str | None = None
    """The template's text, not its file."""
    mistral_files: bool = False
    """Whether the folder has weights and a tokenizer in Mistral's own form, which vLLM prefers."""
    weights: tuple[Weights, ...] = ()
    largest_file: int = 0
    """Bytes of the largest file of weights; 0 if there is none."""
    pickled: bool = False
    """Whether torch.load unpickles the weights: no file is mapped, each is whole in memory."""
    folder: bool = True
    notes: tuple[Problem, ...] = ()
    """Peculiarities of the folder that leave the model usable."""
    gguf: Gguf | None = None
    """Set for a model in GGUF files."""
    task: ModelTask = "generate"
    encoder_tokens: int = 0
    """Audio encoder states that every layer attends to; 0 without an encoder or if unknown."""
    one_step: bool = False
    """Whether one step must process a whole prompt: required by "encoder_attention" layers, whose
    tokens attend to later ones and need no cache, and by some pooling types."""

    @property
    def hybrid(self) -> bool:
        """Whether some layers have a recurrent state instead of a KV cache."""
        return not {"linear_attention", "mamba"}.isdisjoint(self.layer_types)

    @property
    def cached_layers(self) -> tuple[str, ...]:
        """Types of the layers with their own cache or state."""
        return self.layer_types[: len(self.layer_types) - self.kv_shared]

    def size(self, *parts: ModelPart) -> int:
        """Bytes stored for these parts, by default all."""
        return sum(w.size for w in self.weights if not parts or w.part in parts)


@dataclass(frozen=True)
class Node:
    """Another machine that serves the model together with this one."""

    name: str
    gpus: tuple[Gpu, ...]
    """Its cards in order; the processes that use the rest of their memory are unknown."""
    ram_mib: int | None = None
    """Its host's memory; None if assumed equal to this host's."""


@dataclass(frozen=True)
class Inventory:
    """Everything that a plan depends on, apart from the configuration.

    `others` are the other nodes, by rank; `link` is the network between the nodes, None if its
    speed is unknown.
    """

    gpus: tuple[Gpu, ...]
    host: Host
    engine: EngineInfo
    model: ModelCard
    others: tuple[Node, ...] = ()
    link: Network | None = None

    @property
    def least_ram_mib(self) -> int:
        """Host memory of the node with the least: the plan is the same for all nodes."""
        known = [node.ram_mib for node in self.others if node.ram_mib is not None]
        return min([self.host.ram_mib, *known])
