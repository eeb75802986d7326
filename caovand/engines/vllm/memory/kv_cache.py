"""How vLLM lays out its cache memory, computed as vLLM computes it (kv_cache_utils.py).

Memory is cut into blocks that any kind of layer can use. Layers of one kind form groups of equal
length; a block holds one page for each layer of a group, and all pages have the same size. In a
hybrid model an attention page is made long enough to cover one recurrent state, and the state is
padded to it. A request takes blocks of every group: attention by its length, windows by their
width, states one for itself and one for each drafted token.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from caovand.core.facts.inventory import ModelCard
from caovand.engines.common.tensors import element_bytes
from caovand.engines.vllm import releases
from caovand.engines.vllm.memory.candidate import Candidate

FULL, WINDOW, STATE = "full_attention", "sliding_attention", ("linear_attention", "mamba")
TURBOQUANT = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
"""Bits of keys and of values in vLLM's TurboQuantConfig formats."""

MAX_AT_ONCE = 1024
"""Concurrent requests for a model without a cache, which limits none."""


def head_bytes(dtype: str, width: int, activation: int) -> float:
    """Bytes per token of one key-value head of this width, keys and values together."""
    if dtype in TURBOQUANT:
        keys, values = TURBOQUANT[dtype]
        packed = width if keys == 8 else ceil(width * keys / 8) + 2
        slot = packed + ceil(width * values / 8) + 4
        return slot + slot % 2
    if dtype in ("int8_per_token_head", "fp8_per_token_head"):
        return 2 * (width + 4)
    if dtype == "int4_per_token_head":
        return 2 * (ceil(width / 2) + 4)
    if dtype.startswith("nvfp4"):
        return 2 * (ceil(width / 2) + ceil(width / 16))
    if dtype.startswith("fp8") or dtype in ("int8", "uint8"):
        return 2 * width
    return 2 * width * (activation if dtype == "auto" else element_bytes(dtype))


def token_bytes(
    model: ModelCard, dtype: str, tensor_parallel: int, activation: int, kind: str = FULL
) -> float:
    """Bytes per token in one attention layer of one rank; kinds may have their own heads."""
    if model.latent:
        element = 1 if dtype.startswith("fp8") else activation
        return model.latent * element + model.indexer  # not split, and keys and values are one
    heads, width = model.kv_heads, model.head_dim
    if kind == FULL:
        heads, width = model.global_kv_heads or heads, model.global_head_dim or width
    return max(1, heads // tensor_parallel) * head_bytes(dtype, width, activation)


def state_bytes(
    model: ModelCard, mtp: int, tensor_parallel: int, activation: int, dtype: str = "auto"
) -> int:
    """Bytes of one recurrent state of one layer on one rank, convolution included.

    `dtype` is --mamba-ssm-cache-dtype, which overrides the model's configuration.
    """
    linear = model.linear or model.mamba
    if linear is None:
        return 0
    kind = linear.state_dtype if dtype == "auto" else dtype
    element = activation if kind == "auto" else element_bytes(kind)
    key_heads = linear.key_heads
    if model.mamba and key_heads % tensor_parallel:  # every rank needs the groups of its heads
        key_heads = tensor_parallel
    channels = 2 * key_heads * linear.key_dim + linear.value_heads * linear.value_dim
    convolution = (linear.conv_kernel - 1 + mtp) * (channels // tensor_parallel) * activation
    heads = linear.value_heads // tensor_parallel
    return convolution + heads * linear.value_dim * linear.key_dim * element


@dataclass(frozen=True)
class Layout:
    """Blocks: the tokens and bytes (on one rank) of one, and how many groups of each kind use them.

    `window_tokens` are the tokens of a window in one block, 0 for as many as full attention has.
    `reserved_blocks` is how many vLLM keeps back from requests: one in releases after 0.21.
    `encoder_blocks` hold the states of a request's audio, which every layer attends to.
    """

    block_tokens: int
    block_bytes: int
    full_groups: int
    window_groups: int
    state_groups: int
    state_blocks: int
    window: int
    batch_tokens: int
    reserved_blocks: int = 0
    window_tokens: int = 0
    encoder_blocks: int = 0

    @property
    def groups(self) -> int:
        """Groups of layers with a cache or state; none if all attend as an encoder does."""
        return self.full_groups + self.window_groups + self.state_groups

    def blocks_of_request(self, context: int) -> int:
        """Blocks that one request of this length takes at most."""
        tokens = min(self.window - 1 + self.batch_tokens, context)
        return (
            self.full_groups * ceil(context / self.block_tokens)
            + self.window_groups * (ceil(tokens / (self.window_tokens or self.block_tokens)) + 1)
            + self.state_groups * self.state_blocks
            + self.encoder_blocks
        )

    def needed(self, context: int) -> int:
        """The cache bytes below which vLLM refuses to serve requests of this length."""
        if not self.groups:
            return 0
        return (self.blocks_of_request(context) + self.reserved_blocks) * self.block_bytes

    def concurrency(self, available: int, context: int) -> float:
        """Requests of this length that fit at once."""
        if not self.groups:
            return float(MAX_AT_ONCE)
        if available <= 0 or not self.block_bytes:
            return 0.0
        return available // self.block_bytes / self.blocks_of_request(context)

    def tokens(self, available: int, context: int, version: tuple[int, ...]) -> int:
        """The cache size as vLLM of this version reports it."""
        if not self.groups:
            return 0
        if version and version < releases.TOKENS_BY_REQUEST and available > 0:
            tokens = min(self.block_tokens, self.window_tokens or self.block_tokens)
            return available // self.block_bytes // self.groups * tokens
        return int(self.concurrency(available, context) * context)

    def longest(self, available: int, limit: int) -> int:
        """The longest context, up to a limit, for which one request fits; 0 if there is none."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.needed(middle) <= available:
                low = middle
            else:
                high = middle - 1
        return low


def layout_for(model: ModelCard, candidate: Candidate) -> Layout:
    """The layout of this candidate's cache blocks."""
    layers, activation, ranks = model.cached_layers, candidate.activation, candidate.tensor_parallel
    # Counted without a Python loop: a search asks thousands of times.
    full = layers.count(FULL) + (model.mtp_layers if candidate.mtp else 0)
    window = layers.count(WINDOW)
    states = sum(map(layers.count, STATE))
    per_token = token_bytes(model, candidate.kv_dtype, ranks, activation)
    state = 0
    if states:
        state = state_bytes(model, candidate.mtp, ranks, activation, candidate.state_dtype)
    aligned = candidate.alignment
    block = max(aligned, aligned * ceil(state / (aligned * per_token))) if per_token else 1
    page = ceil(block * per_token) or state
    per_window = 0.0
    if window:
        per_window = token_bytes(model, candidate.kv_dtype, ranks, activation, WINDOW)
    if window and not full:
        page = ceil(block * per_window)
    # Pages become as long as the longest: blocks of the smaller kind hold more tokens.
    longest = max(page, ceil(block * per_window))
    tokens = block * max(longest // page, 1) if page else block
    window_tokens = block * (longest // ceil(block * per_window)) if per_window else 0
    group = _group_size((full, window, states))
    drafter = model.drafter if candidate.mtp else None
    if drafter is None or window or states:
        block_bytes = longest * group
    else:  # layers of full attention may have pages of several sizes
        heads = max(1, drafter.kv_heads // ranks)
        drafted = ceil(block * heads * head_bytes(candidate.kv_dtype, drafter.head_dim, activation))
        block_bytes = longest * (group - drafter.layers) + drafted * drafter.layers
    return Layout(
        block_tokens=tokens,
        block_bytes=block_bytes,
        full_groups=ceil(full / group),
        window_groups=ceil(window / group),
        state_groups=ceil(states / group),
        # vLLM's mamba cache mode "align" keeps one more state per request.
        state_blocks=(2 if candidate.aligned_states else 1) + candidate.mtp,
        window=model.sliding_window or 1,
        batch_tokens=candidate.batch_tokens * steps_under_way(candidate),
        reserved_blocks=1 if candidate.kernels.version >= releases.RESERVED_BLOCK else 0,
        window_tokens=window_tokens,
        encoder_blocks=ceil(full / group) * ceil(model.encoder_tokens / tokens),
    )


def steps_under_way(candidate: Candidate) -> int:
    """Steps whose tokens a sliding window holds at once.

    Asynchronous scheduling, vLLM's default, prepares one while each stage computes another.
    """
    if candidate.kernels.version < releases.STEPS_UNDER_WAY_HOLD_WINDOWS:
        return 1
    return max(len(candidate.stages), 1) + 1


def _group_size(counts: tuple[int, ...]) -> int:
    """Layers per group, from the number of layers of each kind."""
    present = [count for count in counts if count] or [1]
    return max(present) if max(present) < 1.5 * min(present) else min(present)


def pages(model: ModelCard, mtp: int, start: int, end: int) -> int:
    """Pages of a block on the stage with the layers from `start` to before `end`.

    All stages share the groups of the whole model, and a block is as wide as the widest group on
    the stage.
    """
    drafted, layers = model.mtp_layers if mtp else 0, len(model.layer_types)
    if end == layers:
        end += drafted
    groups = _groups(model.cached_layers, layers, drafted)
    return max(bisect_left(group, end) - bisect_left(group, start) for group in groups)


@lru_cache(maxsize=8)
def _groups(kinds: tuple[str, ...], layers: int, drafted: int) -> tuple[tuple[int, ...], ...]:
    """The layers of each group: vLLM deals each kind's layers in turn, and drafting layers last."""
    groups = [
        [at for at, kind in enumerate(kinds) if kind == FULL]
        + list(range(layers, layers + drafted)),
        [at for at, kind in enumerate(kinds) if kind == WINDOW],
        [at for at, kind in enumerate(kinds) if kind in STATE],
    ]
    size = _group_size(tuple(map(len, groups)))
    counts = [ceil(len(group) / size) for group in groups]
    return tuple(
        tuple(group[first::count])
        for group, count in zip(groups, counts, strict=True)
        for first in range(count)
    ) or ((),)
