"""vLLM's Triton attention with ours in front of it, on the CPU: who takes which layer and batch.

Runs in an engine's Python, by test_cpu_engine.py. The calls of both sides are recorded.
"""

from __future__ import annotations

import logging
import os
import types

import torch
from caovan_vllm_sm75_turbo3 import layout, library
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backends import triton_attn

in_tree = triton_attn.TritonAttentionImpl
calls: list[str] = []
in_tree.forward = lambda self, *a: calls.append("vllm")  # type: ignore[method-assign]
in_tree.do_kv_cache_update = (  # type: ignore[method-assign]
    lambda self, *a: calls.append("vllm writes")
)

from caovan_vllm_sm75_turbo3 import triton_sm75  # noqa: E402

logging.basicConfig(level=logging.INFO)
TURING = {"platform": "cuda", "capability": (7, 5), "library_error": None, "forced": False}
triton_sm75.card_facts = lambda device: TURING
torch.cuda.current_device = lambda: 0
vllm_signs, cpu = triton_sm75._get_rht_signs, torch.device("cpu")
triton_sm75._get_rht_signs = lambda dim, round_idx, device: vllm_signs(dim, round_idx, cpu)
made: list[dict] = []
seen: list[object] = []


class Ours:
    """What the kernels would be called with."""

    problem: Exception | None = None

    def __init__(self, **shape) -> None:
        made.append(shape)
        if self.problem:
            raise self.problem

    def parts(self, query, output_scale, meta):
        return (meta.max_query_len,) if meta.max_query_len <= 8 and output_scale is None else None

    def attend(self, name, query, cache, meta, out, parts, scales) -> None:
        assert parts == (meta.max_query_len,)
        seen.append(scales)
        self.called("ours")

    def write(self, name, key, value, cache, slots, scales) -> None:
        seen.append(scales)
        self.called("ours writes")

    def called(self, what: str) -> None:
        if self.problem:
            raise self.problem
        calls.append(what)


triton_sm75.DecodeAttention = Ours
layer = types.SimpleNamespace(layer_name="l", _k_scale=torch.ones(1), _v_scale=torch.ones(1))


def impl(cache="int4_per_token_head", dtype="float16", additional=None, **shape):
    """A layer as vLLM makes it: 24 query and 4 KV heads of 256."""
    config = types.SimpleNamespace(
        additional_config=additional or {},
        model_config=types.SimpleNamespace(dtype=dtype),
        parallel_config=types.SimpleNamespace(use_ubatching=False, decode_context_parallel_size=1),
        scheduler_config=types.SimpleNamespace(max_num_seqs=4),
    )
    triton_sm75.get_current_vllm_config = lambda: config
    arguments = {
        "num_heads": 24, "head_size": 256, "scale": 1 / 16, "num_kv_heads": 4,
        "alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": cache,
    }  # fmt: skip
    return triton_sm75.Sm75TritonAttentionBackend.get_impl_cls()(**arguments | shape)


def step(one, tokens: int, **more) -> list[str]:
    """Who writes and attends in a step of so many query tokens."""
    calls.clear()
    key = torch.zeros(tokens, 4, 256).half()
    one.do_kv_cache_update(layer, key, key, None, None)
    meta = types.SimpleNamespace(max_query_len=tokens)
    one.forward(layer, key, key, key, None, meta, key, **more)
    return calls[:]


def error_of(call, *args, **more) -> str:
    """What the call cannot do, in words."""
    try:
        call(*args, **more)
    except (RuntimeError, ValueError) as error:
        return str(error)
    raise AssertionError("it was accepted")


OURS, VLLMS, READ = (
    ["ours writes", "ours"],
    ["vllm writes", "vllm"],
    ["vllm writes", "ours"],
)

torch.set_default_dtype(torch.float16)  # as vLLM builds models
assert impl().caovan
torch.set_default_dtype(torch.float32)
assert made[-1]["signs"].dtype is torch.float32
made.clear()

# Turing with each cache: what ours takes, and the rest
for cache in ("int4_per_token_head", "int8_per_token_head"):
    one = impl(cache)
    assert step(one, 5) == OURS
    assert step(one, 9) == ["ours writes", "vllm"]
    assert step(one, 5, output_scale=torch.ones(1)) == ["ours writes", "vllm"]
    assert step(one, 5, output_block_scale=torch.ones(1))[-1] == "vllm"
assert step(impl("auto"), 1) == READ, "vLLM's own write of fp16 is one launch, too"
assert [shape["signs"] is not None for shape in made] == [True, False, False]
asked = ("heads", "kv_heads", "dim", "cache", "sequences", "prompts")
assert [made[0][name] for name in asked] == [24, 4, 256, "int4_per_token_head", 4, True]
calls.clear()
one.forward(layer, None, None, None, None, None, None)
assert calls == ["vllm"], "vLLM's memory profile has no metadata"

# an fp8 cache, with the layer's scales; on a card whose Triton refuses it, too
assert set(seen) == {None}
for cuda in (False, True):
    triton_attn.current_platform.is_cuda = lambda cuda=cuda: cuda
    triton_attn.current_platform.get_device_capability = lambda: DeviceCapability(7, 5)
    triton_attn.current_platform.has_device_capability = lambda least: least <= 75
    triton_attn.current_platform.get_device_name = lambda: "RTX 2080 Ti"
    for cache in ("fp8", "fp8_e4m3"):
        seen.clear()
        one = impl(cache)
        assert (one.kv_cache_dtype, one._kv_quant_mode.name) == (cache, "FP8_PER_TENSOR")
        assert not one.supports_quant_query_input
        assert step(one, 5) == OURS
        assert [s.k is layer._k_scale and s.v is layer._v_scale for s in seen] == [True, True]
    if not cuda:
        assert step(one, 9) == ["ours writes", "vllm"]
        assert step(impl("fp8", additional={"caovan_attention": "read"}), 5) == READ
        continue
    assert step(impl("fp8", additional={"caovan_attention": "decode"}), 5) == OURS
    assert made[-1]["prompts"] is True, "nobody else takes them"
    assert step(impl("fp8", additional={"caovan_attention": "read"}), 5) == OURS
    assert "with 9 query tokens" in error_of(step, one, 9)
    assert "switched off" in error_of(impl, "fp8", additional={"caovan_attention": "off"})
    assert "head sizes are 64" in error_of(impl, "fp8", head_size=64)
    assert "requires SM89+" in error_of(impl, "fp8_e5m2")
    Ours.problem = RuntimeError("out of memory")
    assert "cannot use an fp8 cache on this card" in error_of(step, one, 5)
    Ours.problem = None
triton_attn.current_platform.is_cuda = lambda: False

# the switches
assert step(impl(additional={"caovan_attention": "read"}), 5) == READ
assert step(impl(additional={"caovan_attention": "off"}), 5) == VLLMS
assert step(impl(additional={"caovan_attention": "decode"}), 5) == OURS
assert made[-1]["prompts"] is False
assert step(impl(additional={"caovan_attention": "some"}), 5) == VLLMS
assert step(impl(additional={"caovan": False}), 5) == VLLMS
os.environ["CAOVAN_ATTENTION"] = "read"
assert step(impl(), 5) == READ
del os.environ["CAOVAN_ATTENTION"]

# a packed cache's scales: vLLM's views, but what other layers keep in that memory stays
for hnd, cache in ((True, "int4_per_token_head"), (False, "int8_per_token_head")):
    content = 2 * (256 // (2 if "int4" in cache else 1) + 4)
    pages = torch.randint(0, 256, (3, 4 * 16 * content + 64), dtype=torch.uint8)
    page = pages[:, 32 : 32 + 4 * 16 * content]
    kv = (
        page.unflatten(1, (4, 16, content))
        if hnd
        else page.unflatten(1, (16, 4, content)).transpose(1, 2)
    )
    kept, one, theirs = pages.clone(), impl(cache), object.__new__(in_tree)
    one._ensure_scale_caches(kv)
    assert torch.equal(pages, kept)
    in_tree._ensure_scale_caches(theirs, kv)
    assert not torch.equal(pages, kept)
    for name in ("_k_scale_cache", "_v_scale_cache"):
        got, want = getattr(one, name), getattr(theirs, name)
        assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)
        assert got.data_ptr() == want.data_ptr()
    found = one._k_scale_cache
    one._ensure_scale_caches(kv)
    assert one._k_scale_cache is found

# what a batch's sequences ask, said outside of graphs alone
Builder = triton_sm75.Sm75TritonAttentionBackend.get_builder_cls()
assert issubclass(Builder, triton_attn.TritonAttentionMetadataBuilder)
builder = object.__new__(Builder)
nothing = dict.fromkeys(
    ("seq_threshold_3D", "num_par_softmax_segments", "softmax_segm_output", "softmax_segm_max",
     "softmax_segm_expsum", "rswa_window")
)  # fmt: skip
vars(builder).update(nothing, max_seqs_64_segments=0)


def batch(*tokens: int) -> types.SimpleNamespace:
    """As vLLM's runner has it: the host's array is longer than the batch."""
    cu = torch.tensor([0, *tokens, 0]).cumsum(0, dtype=torch.int32)
    return types.SimpleNamespace(
        num_reqs=len(tokens), num_actual_tokens=sum(tokens), max_query_len=max(tokens),
        max_seq_len=99, query_start_loc=cu[:-1], query_start_loc_cpu=cu, block_table_tensor=None,
        seq_lens=torch.tensor(tokens), slot_mapping=None, causal=True, mm_req_doc_ranges=None,
        rswa_prefix_lens=None,
    )  # fmt: skip


assert builder.build(0, batch(1, 4, 90)).caovan_query_lengths == (1, 4, 90)
assert not hasattr(builder.build(0, batch(1, 8)), "caovan_query_lengths")
assert builder.build_for_drafting(batch(30), 0).caovan_query_lengths == (30,)
assert builder.build_for_cudagraph_capture(batch(1, 90)).caovan_query_lengths is None

# layers outside the contract
for changed in (
    {"sliding_window": 1024}, {"alibi_slopes": [1.0] * 24}, {"logits_soft_cap": 30.0},
    {"sinks": torch.zeros(24)}, {"head_size": 64}, {"cache": "fp8_e5m2"}, {"dtype": "bfloat16"},
    {"attn_type": triton_attn.AttentionType.ENCODER_ONLY, "cache": "auto"},
):  # fmt: skip
    before = len(made)
    assert step(impl(**changed), 5) == VLLMS, changed
    assert len(made) == before
TURING["capability"] = (9, 0)
assert step(impl(), 5) == VLLMS
TURING["capability"] = (7, 5)

# what fails goes back to vLLM's, for good
for problem in (library.KernelError("cannot load attention"), RuntimeError("out of memory")):
    Ours.problem = problem
    assert step(impl(), 5) == VLLMS
Ours.problem = None
one, other = impl(), impl()
Ours.problem = ValueError("cannot use a cache of torch.int16")
assert step(one, 5) == VLLMS
other.caovan_writes = False
assert step(other, 5) == VLLMS
Ours.problem = None
assert step(one, 5) == step(other, 5) == VLLMS
one, Ours.problem = impl(), TypeError("int expected instead of numpy.int64 instance")
assert step(one, 5) == VLLMS
Ours.problem = None

# the sources of this vLLM, and others
assert layout.source_refusal() is None
for name, known in list(layout.SOURCES.items()):
    layout.SOURCES[name] = ("another",)
    assert layout.source_refusal() == f"{name[0]}.{name[1]} is not vLLM 0.32's or 0.33's"
    layout.SOURCES[name] = known
layout.FORWARD = ("self",)
assert "TritonAttentionImpl.forward accepts ('self', 'layer'," in layout.source_refusal()
layout.FORWARD = triton_sm75.Sm75TritonAttentionImpl.forward.__code__.co_varnames[:10]
layout.METADATA = {*layout.METADATA, "b", "a"}
assert layout.source_refusal() == "TritonAttentionMetadata has no a, b"
layout.METADATA -= {"a", "b"}
assert layout.refusal() == "this is vLLM's cpu build"

from vllm.platforms import current_platform  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402

backend = AttentionBackendEnum.TRITON_ATTN
assert layout.offer_kernels() == "this is vLLM's cpu build"
assert backend.get_class() is triton_attn.TritonAttentionBackend
current_platform.is_cuda = lambda: True
assert layout.offer_kernels() is None
assert backend.get_class() is triton_sm75.Sm75TritonAttentionBackend
assert not torch.cuda.is_initialized()
