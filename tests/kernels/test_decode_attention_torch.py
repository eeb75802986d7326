"""A layer's calls of the attention kernel on the CPU: which batches, over which cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip(
    "torch", reason="this Python has no torch: run these with the engine's Python"
)

import numpy  # noqa: E402
from caovan_vllm_sm75_turbo3 import core, decode_attention, dispatch, launch  # noqa: E402
from caovan_vllm_sm75_turbo3.decode_attention import MAX_SCRATCH, DecodeAttention  # noqa: E402
from caovan_vllm_sm75_turbo3.measure import paged  # noqa: E402

CPU = torch.device("cpu")
HEADS, KV_HEADS, DIM, BLOCK = 8, 2, 128, 16
SCALE = DIM**-0.5
CACHES = {
    "auto": "fp16",
    "fp8": "fp8",
    "int8_per_token_head": "int8",
    "int4_per_token_head": "int4",
}


class Library:
    """Sizes as large as the batch; every call by the float64 oracle, from what it was passed."""

    def attention_segments(self, format_: int, sequences: int, *shape: int) -> int:
        return max(1, 8 // sequences)

    def attention_workspace_bytes(self, sequences: int, tokens: int, *shape: int) -> int:
        return sequences * tokens * (1 << 16)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """The calls of the attention kernel, which the oracle answers."""
    made: list[dict] = []

    def prepared(q, out, cache, table, cu, lengths, signs, **options):
        launch_args(q, out, cache, table, cu, lengths, signs, **options)
        made.append({"cache": cache, "out": out, **options})
        kind = next(kind for kind, dtype in paged.DTYPES.items() if dtype is cache.dtype)
        got = paged.attention(kind, q, cache, table, cu.tolist(), lengths.tolist(), signs, SCALE)
        return out, got

    launch_args = launch.attention_args
    monkeypatch.setattr(launch, "shared_library", Library)
    monkeypatch.setattr(launch, "prepare", lambda device: None)
    monkeypatch.setattr(launch, "attention_args", prepared)

    def answered(kernel: str, args) -> None:
        made[-1]["kernel"] = kernel
        out, got = args
        out.copy_(torch.where(got.isnan(), out, got.to(out.dtype)))  # rows of others stay

    monkeypatch.setattr(launch, "attention_decode", lambda args, _: answered("split", args))
    monkeypatch.setattr(launch, "attention_prefill", lambda args, _: answered("prefill", args))
    monkeypatch.setattr(decode_attention, "processors", lambda device: 5)
    monkeypatch.setattr(decode_attention, "_workspaces", {})
    decode_attention.split.cache_clear()
    decode_attention.parts.cache_clear()
    core.counts.clear()
    return made


def layer(cache: str = "auto", sequences: int = 4, **more) -> DecodeAttention:
    torch.manual_seed(1)
    signs = torch.randint(0, 2, (DIM,)) * 2.0 - 1
    return DecodeAttention(
        heads=HEADS, kv_heads=KV_HEADS, dim=DIM, scale=SCALE, cache=cache,
        signs=signs if "int4" in cache else None, sequences=sequences, device=CPU, **more,
    )  # fmt: skip


def metadata(tokens: list[int], lengths: list[int], **more) -> SimpleNamespace:
    """A batch of so many query tokens and keys a sequence, every block its own."""
    blocks = -(-max(lengths) // BLOCK)
    table = torch.arange(len(tokens) * blocks, dtype=torch.int32).view(len(tokens), blocks)
    start = torch.tensor([0, *torch.tensor(tokens).cumsum(0).tolist()], dtype=torch.int32)
    batch = {
        "max_query_len": max(tokens), "causal": True, "mm_prefix_range_tensor": None,
        "rswa_prefix_lens": None, "query_start_loc": start, "block_table": table,
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
    }  # fmt: skip
    return SimpleNamespace(**batch | more)


def scales(kind: str) -> launch.Scales | None:
    one = torch.full((), paged.FP8_SCALE)
    return launch.Scales(one, one.clone()) if kind == "fp8" else None


def stored(kind: str, x, signs):
    """Keys and values `x` as vLLM's cache has them: fp8 as bytes."""
    rows = torch.cat([paged.write(kind, half, signs) for half in x], -1)
    return rows if kind == "fp8" else rows.view(paged.DTYPES[kind])


def taken(ours: DecodeAttention, query, meta):
    found = ours.parts(query, None, meta)
    assert found
    return found


@pytest.mark.parametrize("cache", CACHES)
def test_ragged_tokens_attend_to_their_own_keys(calls: list[dict], cache: str) -> None:
    ours, kind = layer(cache), CACHES[cache]
    meta = metadata([5, 1, 0, 2], [40, 17, 9, 2])
    x = torch.randn(12, KV_HEADS, BLOCK, DIM), torch.randn(12, KV_HEADS, BLOCK, DIM)
    signs = ours.signs
    rows = stored(kind, x, signs)
    # as vLLM has it: padding rows of the batch, and queries inside a wider row
    wide = torch.randn(10, HEADS * DIM + 64).half()
    query, out = wide[:, : HEADS * DIM].view(10, HEADS, DIM), torch.zeros(10, HEADS, DIM).half()
    meta.max_query_len = numpy.int64(meta.max_query_len)  # as vLLM's drafters pass it
    ours.attend("l", query, rows, meta, out, taken(ours, query, meta), scales(kind))
    want = torch.zeros(8, HEADS, DIM, dtype=torch.float64)
    for n, (first, tokens, length) in enumerate(((0, 5, 40), (5, 1, 17), (6, 0, 9), (6, 2, 2))):
        k, v = (
            paged.read(kind, paged.write(kind, half, signs), signs)[n * 3 : n * 3 + 3]
            .transpose(1, 2).flatten(0, 1).repeat_interleave(HEADS // KV_HEADS, 1)
            for half in x
        )  # fmt: skip
        for t in range(tokens):
            seen = length - tokens + 1 + t
            scores = torch.einsum("hd,khd->hk", query[first + t].double(), k[:seen]) * SCALE
            want[first + t] = torch.einsum("hk,khd->hd", scores.softmax(-1), v[:seen])
    assert (out[:8].double() - want).norm() / want.norm() < 1e-3
    (call,) = calls
    assert type(call["max_tokens"]) is int
    assert (call["max_tokens"], call["segments"], call["scale"]) == (5, 2, SCALE)
    assert core.counts["l", "attention"] == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"max_query_len": dispatch.MAX_QUERY_TOKENS + 1},
        {"causal": False},
        {"causal": torch.ones(2, dtype=torch.bool)},
        {"mm_prefix_range_tensor": torch.zeros(1)},
        {"rswa_prefix_lens": torch.zeros(1)},
    ],
)
def test_other_batches_are_vllms(calls: list[dict], changed: dict) -> None:
    query, meta = torch.zeros(2, HEADS, DIM).half(), metadata([1, 1], [9, 9])
    assert layer().parts(query, None, meta)
    assert not layer().parts(query, None, SimpleNamespace(**vars(meta) | changed))
    assert not layer().parts(query.float(), None, meta)
    assert not layer().parts(query, torch.ones(1), meta)


@pytest.mark.parametrize("cache", CACHES)
def test_a_mixed_batch_is_cut_by_query_length(calls: list[dict], cache: str) -> None:
    """Decoding, extensions, a prompt, an idle sequence, verification."""
    ours, kind = layer(cache), CACHES[cache]
    tokens, lengths = [1, 9, 65, 40, 0, 4, 33], [40, 70, 66, 41, 7, 17, 33]
    meta = metadata(tokens, lengths, caovan_query_lengths=tuple(tokens))
    blocks = meta.block_table.numel()
    x = torch.randn(2, blocks, KV_HEADS, BLOCK, DIM)
    signs = ours.signs
    rows = stored(kind, x, signs)
    total = sum(tokens)
    query, out = (
        torch.randn(total + 3, HEADS, DIM).half(),
        torch.zeros(total + 3, HEADS, DIM).half(),
    )
    ours.attend("l", query, rows, meta, out, taken(ours, query, meta), scales(kind))
    want = paged.attention(
        kind, query, rows, meta.block_table, meta.query_start_loc.tolist(), lengths, signs, SCALE
    )
    assert (out[:total].double() - want[:total]).norm() / want[:total].norm() < 1e-3
    assert not out[total:].any()
    assert [(c["kernel"], c["max_tokens"]) for c in calls] == [
        ("split", 1), ("split", 9), ("prefill", 65), ("split", 40), ("split", 4), ("split", 33)
    ]  # fmt: skip
    assert core.counts == {
        ("l", "attention"): 2, ("l", "attention extend"): 3, ("l", "attention prefill"): 1
    }  # fmt: skip


def test_prompts_are_vllms_in_graphs_and_where_they_are_switched_off(calls: list[dict]) -> None:
    query = torch.zeros(40, HEADS, DIM).half()
    eager = metadata([40], [40], caovan_query_lengths=(40,))
    assert taken(layer(), query, eager)
    assert layer(prompts=False).parts(query, None, eager) is None
    for lengths in (None, (20, 20)):  # captured; of another batch
        assert (
            layer().parts(query, None, metadata([40], [40], caovan_query_lengths=lengths)) is None
        )
    assert layer(prompts=False).parts(query[:8], None, metadata([8], [8]))


def test_an_extension_that_lacks_scratch_is_prefilled(calls: list[dict]) -> None:
    shape, lengths = layer().shape, (1, 64)
    assert [p.launch.kernel for p in decode_attention.parts(shape, lengths, 1 << 25)] == [
        "decode", "extend"
    ]  # fmt: skip
    few = decode_attention.parts(shape, lengths, 63 << 16)
    assert [(p.launch.kernel, p.segments) for p in few] == [("decode", 8), ("prefill", 0)]
    assert decode_attention.parts(shape, lengths, 0) is None


def test_scratch_that_no_sequence_fits_in_is_refused_in_words(
    calls: list[dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Library, "attention_workspace_bytes", lambda *shape: 64 << 20)
    with pytest.raises(ValueError, match="one sequence of 8 heads takes 64 MiB of scratch memory"):
        layer()


def test_scratch_is_taken_once_and_holds_every_batch_that_is_taken(calls: list[dict]) -> None:
    first, second = layer(), layer("int8_per_token_head")
    assert first.workspace is second.workspace
    assert first.workspace.numel() == MAX_SCRATCH, "an extension of 512 tokens"
    assert layer(prompts=False).workspace is first.workspace
    many = layer(sequences=4096)
    assert many.workspace.numel() <= MAX_SCRATCH
    assert many.workspace is first.workspace, "a captured graph writes there"
    query, sizes = torch.zeros(1, HEADS, DIM).half(), MAX_SCRATCH >> 16
    assert many.parts(query, None, metadata([1] * sizes, [1] * sizes))
    assert not many.parts(query, None, metadata([1] * (sizes + 1), [1] * (sizes + 1)))


def test_new_rows_are_written_where_vllm_says(
    calls: list[dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(launch, "kv_write", lambda *tensors: seen.append(tensors))
    ours, cache = layer("int4_per_token_head"), torch.zeros(1)
    key, value = torch.randn(2, 6, KV_HEADS * DIM).half().unbind()
    ours.write("l", key, value, cache, torch.arange(5))  # a padded row of the batch has no slot
    ((k, v, written, slots, signs, scales),) = seen
    assert scales is None
    assert torch.equal(k, key[:5].view(5, KV_HEADS, DIM))
    assert torch.equal(v, value[:5].view(5, KV_HEADS, DIM))
    assert (written is cache, slots.tolist(), signs is ours.signs) == (True, [0, 1, 2, 3, 4], True)
    assert core.counts["l", "cache write"] == 1
    both = launch.Scales(torch.ones(1), torch.ones(1))
    layer("fp8").write("l", key, value, torch.zeros(1, dtype=torch.uint8), torch.arange(5), both)
    assert seen[-1][2].dtype is torch.float8_e4m3fn
    assert seen[-1][-1] is both


def attend(ours: DecodeAttention, query, cache) -> None:
    meta = metadata([1], [1])
    ours.attend("l", query, cache, meta, query.clone(), taken(ours, query, meta))


def test_a_cache_whose_rows_the_kernel_could_not_load_is_refused(calls: list[dict]) -> None:
    content = paged.content("int4", DIM)
    odd = torch.zeros(2, BLOCK, KV_HEADS * content + 2, dtype=torch.uint8)[..., :-2]
    cache = odd.unflatten(2, (KV_HEADS, content)).transpose(1, 2)
    query = torch.zeros(1, HEADS, DIM).half()
    with pytest.raises(ValueError, match="4-byte boundaries"):
        attend(layer("int4_per_token_head"), query, cache)
    short = torch.zeros(2, KV_HEADS, 24, 2 * DIM).half()
    with pytest.raises(ValueError, match="multiple of 16 tokens"):
        attend(layer(), query, short)
    with pytest.raises(ValueError, match=r"it must be \[blocks, 2, "):
        attend(layer(), query, short.transpose(1, 2))
    assert calls == []
