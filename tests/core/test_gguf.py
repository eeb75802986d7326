"""GGUF headers are read without the tensors, and hostile ones are refused."""

from __future__ import annotations

import contextlib
import io
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.adapters.model_folder import ModelProblem, read_model
from caovand.core.checkpoint import gguf
from caovand.core.checkpoint.budget import BadHeader, Budget, TooLarge
from caovand.core.checkpoint.gguf import ArrayLength, BadGguf, GgufFile, parse
from caovand.core.checkpoint.gguf_model import describe
from caovand.core.facts.inventory import ModelCard
from caovand.engines.common.gguf.placement import Placement, devices
from caovand.engines.common.gguf.sizes import GgufLoad, compute_bytes
from tests import tiny_gguf
from tests.tiny_gguf import ARRAY, BOOL, F32, I32, TEXT, U32, U64, assemble, make, value

LLAMA = make("llama")


def parsed(data: bytes) -> GgufFile:
    return parse(io.BytesIO(data).read, len(data), Budget(lambda: 0.0))


def card(architecture: str, **more: bytes) -> ModelCard:
    values = {f"{architecture}.{name.replace('__', '.')}": one for name, one in more.items()}
    file = parsed(make(architecture, values=values))
    return describe([("a.gguf", file)], "/a.gguf")


def refused(data: bytes, match: str) -> None:
    with pytest.raises(BadGguf, match=match):
        parsed(data)


def test_a_header_is_read_whole_and_nothing_behind_it() -> None:
    stream = io.BytesIO(LLAMA)
    found = parse(stream.read, len(LLAMA), Budget(lambda: 0.0))
    assert found.values["llama.block_count"] == 2
    assert found.values["tokenizer.ggml.tokens"] == ArrayLength(259)
    assert found.tensors[0].name == "token_embd.weight"
    assert found.tensors[0].shape == (64, 259)
    assert sum(tensor.size for tensor in found.tensors) == 428800


def test_each_architecture_is_described() -> None:
    moe = card("qwen3moe")
    assert (moe.experts, moe.experts_per_token, moe.expert_size) == (8, 2, 64)
    assert moe.gguf is not None
    assert moe.gguf.layers[0].expert_size == 3 * 64 * 64 * 8 * 4
    gemma = card("gemma3")
    assert gemma.layer_types == ("sliding_attention",) * 5 + ("full_attention",)
    assert gemma.gguf is not None
    assert [layer.window for layer in gemma.gguf.layers] == [64] * 5 + [0]
    hybrid = card("qwen35")
    assert hybrid.layer_types == (*("mamba",) * 3, "full_attention") * 2
    assert hybrid.hybrid
    assert hybrid.mtp_layers == 1
    assert hybrid.gguf is not None
    assert [layer.mtp for layer in hybrid.gguf.layers] == [False] * 8 + [True]
    assert hybrid.gguf.layers[8].keys == 32
    assert hybrid.gguf.layers[0].state_size == 4 * (3 * (64 + 2 * 2 * 16) + 16 * 64)
    assert card("mamba2").layer_types == ("mamba", "mamba")
    both = card("falcon-h1").gguf
    assert both is not None
    assert both.layers[0].state_size
    assert both.layers[0].keys
    plain = card("llama")
    assert (plain.heads, plain.kv_heads, plain.head_dim, plain.vocab_size) == (4, 2, 16, 259)
    assert plain.max_model_len == 2048
    assert plain.quantization == "F32"
    assert plain.chat_template == tiny_gguf.CHATML


def test_the_windows_of_a_file_count_before_those_of_its_architecture() -> None:
    pattern = value(ARRAY, (BOOL, [True, False, True, False, True, False]))
    by_file = card("gemma3", attention__sliding_window_pattern=pattern).gguf
    assert by_file is not None
    assert [layer.window for layer in by_file.layers] == [64, 0, 64, 0, 64, 0]
    by_period = card("gemma3", attention__sliding_window_pattern=value(U32, 2)).gguf
    assert by_period is not None
    assert [layer.window for layer in by_period.layers] == [64, 0, 64, 0, 64, 0]


def test_ollama_keeps_more_of_gpt_oss_s_windows_than_they_are_wide() -> None:
    """Every second layer, from the first: `model/models/gptoss` of Ollama's own engine."""
    values = {
        name.replace("llama.", "gptoss."): packed
        for name, packed in tiny_gguf._values("llama", 2).items()
    }
    values["general.architecture"] = value(TEXT, "gptoss")
    values["gptoss.attention.sliding_window"] = value(U32, 128)
    own = describe([("a.gguf", parsed(make("llama", values=values)))], "/a.gguf").gguf
    assert own is not None
    assert [layer.window for layer in own.layers] == [4096, 0]


def test_layers_have_their_own_counts_of_heads() -> None:
    found = card("llama", attention__head_count_kv=value(ARRAY, (I32, [1, 4]))).gguf
    assert found is not None
    assert [layer.keys for layer in found.layers] == [16, 64]


def test_the_last_layers_may_share_the_caches_of_others() -> None:
    found = card("qwen3", attention__shared_kv_layers=value(U32, 1)).gguf
    assert found is not None
    assert [layer.keys for layer in found.layers] == [32, 32, 0]


def test_an_image_encoder_in_the_file_takes_memory_and_is_not_read_for_text() -> None:
    values = {
        "general.architecture": value(TEXT, "gemma3"),
        **{f"gemma3.{name}": value(U32, 2) for name in KEYS},
    }
    shapes = dict.fromkeys(("blk.0.x", "v.blk.0.attn_q.weight", "mm.0.bias", "output_norm"), (8,))
    data = assemble(values, shapes, dict.fromkeys(shapes, bytes(32)))
    found = describe([("a.gguf", parsed(data))], "/a.gguf")
    assert found.gguf is not None
    assert (found.gguf.vision, found.gguf.rest, found.gguf.size) == (64, 32, 128)
    with_images, without = (
        devices(replace(found, gguf=one), GgufLoad(256), Placement((3,)))[0]
        for one in (found.gguf, replace(found.gguf, vision=0))
    )
    assert with_images.weights - without.weights == 64
    assert with_images.read == without.read


GEMMA_VISION = {
    "image_size": 896, "patch_size": 14, "embedding_length": 1152, "feed_forward_length": 4304,
    "attention.head_count": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "change", "gib"),
    [
        ("gemma3", {}, 1.19),  # measured of gemma3:12b
        ("mistral3", {"image_size": 1540}, 9.2),
        ("qwen25vl", {"image_size": 560}, 1.8),
        ("llama4", {}, 0),
        ("gemma3", {"patch_size": 0}, 0),
    ],
)
def test_the_graph_of_an_image_encoder_takes_memory_on_its_device(
    architecture: str, change: dict[str, int], gib: float
) -> None:
    """Text and images are computed one after the other, in the same buffer."""
    vision = {f"vision.{name}": size for name, size in {**GEMMA_VISION, **change}.items()}
    values = {
        "general.architecture": value(TEXT, architecture),
        **{f"{architecture}.{name}": value(U32, 2) for name in KEYS},
        **{f"{architecture}.{name}": value(U32, size) for name, size in vision.items()},
    }
    shapes = dict.fromkeys(("blk.0.x", "v.blk.0.attn_q.weight", "output_norm"), (8,))
    found = describe(
        [("a.gguf", parsed(assemble(values, shapes, dict.fromkeys(shapes, bytes(32)))))], "/a.gguf"
    )
    assert found.gguf is not None
    assert found.gguf.vision_graph / 2**30 == pytest.approx(gib, rel=0.03)
    blind = replace(found, gguf=replace(found.gguf, vision_graph=0))
    cards = [devices(one, GgufLoad(256), Placement((2, 1))) for one in (found, blind)]
    assert cards[0][0].compute == cards[1][0].compute
    text = compute_bytes(found, GgufLoad(256))
    more = cards[0][1].compute - cards[1][1].compute
    assert more == max(found.gguf.vision_graph - text, 0)


def test_an_architecture_with_an_index_is_noted() -> None:
    values = {
        "general.architecture": value(TEXT, "glm-dsa"),
        **{f"glm-dsa.{name}": value(U32, 2) for name in KEYS},
    }
    data = assemble(values, {"blk.0.x": (8,)}, {"blk.0.x": bytes(32)})
    found = describe([("a.gguf", parsed(data))], "/a.gguf")
    assert "an index of its cache" in str(found.notes[0])


def test_a_declared_head_that_the_file_lacks_does_not_draft() -> None:
    assert card("qwen3", nextn_predict_layers=value(U32, 1)).mtp_layers == 0


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "fewer than any"),
        (b"GGML" + LLAMA[4:], "does not start with"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (LLAMA[:4] + struct.pack("<I", 1) + LLAMA[8:], "its format is version 1"),
        (LLAMA[:4] + struct.pack(">I", 3) + LLAMA[8:], "big-endian"),
        (LLAMA[:8] + struct.pack("<Q", 2**60) + LLAMA[16:], "claims 1152921504606846976 tensors"),
        (LLAMA[:16] + struct.pack("<Q", 2**40) + LLAMA[24:], "1099511627776 values"),
        (LLAMA[:24] + struct.pack("<Q", 2**63) + LLAMA[32:], "a string of 9223372036854775808"),
        (LLAMA[:1000], "end within its header"),
        (LLAMA[: len(LLAMA) // 2], "truncated: 218384 bytes"),
        (LLAMA[:-300], "truncated"),
    ],
)
def test_a_broken_file_is_refused(data: bytes, match: str) -> None:
    refused(data, match)


def odd(values: dict[str, bytes], tensors: tiny_gguf.Tensors | None = None) -> bytes:
    tensors = tensors or {}
    data = dict.fromkeys(tensors, bytes(32))
    return assemble(values, tensors, data)


def test_absurd_values_are_refused() -> None:
    nested = struct.pack("<IIQ", ARRAY, ARRAY, 1)
    refused(odd({"a": nested}), "an array of type 9")
    refused(odd({"a": struct.pack("<IIQ", ARRAY, U32, 2**50)}), "an array of 1125899906842624")
    refused(odd({"a": struct.pack("<I", 99)}), "unknown type 99")
    refused(odd({"general.alignment": value(U32, 3)}, {"t": (4,)}), "not a power of two")
    refused(odd({"general.alignment": value(F32, 32.0)}, {"t": (4,)}), "not a power of two")
    refused(odd({}, {"t": (4, 1, 1, 1, 1)}), "5 dimensions")
    refused(odd({}, {"t": (0,)}), "the shape")
    refused(odd({}, {"t": (2**40, 2**40)}), "the shape")
    twice = odd({"a": value(U32, 1), "b": value(U32, 1)})
    refused(twice.replace(b"\x01\0\0\0\0\0\0\0b", b"\x01\0\0\0\0\0\0\0a"), "'a' twice")
    tensors = odd({}, {"s": (8,), "t": (8,)})
    refused(tensors.replace(b"\x01\0\0\0\0\0\0\0t", b"\x01\0\0\0\0\0\0\0s"), "'s' twice")
    refused(
        tensors.replace(struct.pack("<IQ", 0, 32), struct.pack("<IQ", 0, 2**40)), "expected at 32"
    )
    refused(
        tensors.replace(struct.pack("<IQ", 0, 32), struct.pack("<IQ", 77, 32)), "unknown type 77"
    )


def test_a_header_without_end_is_read_no_further_than_the_budget() -> None:
    taken = 0

    def read(count: int) -> bytes:
        nonlocal taken
        taken += count
        return bytes(count)

    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a"
    head += struct.pack("<IIQ", ARRAY, U64, 10**6)
    stream = io.BytesIO(head)
    with pytest.raises(TooLarge, match=r"exceeds the limit .*160 MiB"):
        parse(
            lambda count: stream.read(count) or read(count),
            1 << 60,
            Budget(lambda: 0.0, bytes_left=4096),
        )
    assert taken <= 2 * gguf.PIECE


def test_a_large_header_is_read_in_few_pieces() -> None:
    """Each is a request to the hub when a model is pulled."""
    data = odd({"a": value(ARRAY, (TEXT, ["x" * 1000] * 10_000))})
    sizes: list[int] = []
    stream = io.BytesIO(data)

    def read(count: int) -> bytes:
        sizes.append(count)
        return stream.read(count)

    parse(read, len(data), Budget(lambda: 0.0))
    assert len(sizes) <= 4 + len(data) // gguf.PIECE + 1


def test_a_model_in_many_parts_is_within_the_budget() -> None:
    """As large ones are that were split into files of a few GiB; a part's header is small."""
    data, budget = LLAMA + bytes(1 << 20), Budget(lambda: 0.0)
    for _ in range(200):
        parse(io.BytesIO(data).read, len(data), budget)


BOOLS, FLOATS = ((value(ARRAY, (kind, [0] * gguf.MAX_KEPT))) for kind in (BOOL, F32))
COSTLY = {
    "arrays of bits": odd({f"a{n}": BOOLS for n in range(50)}),
    "arrays of floats": odd({f"a{n}": FLOATS for n in range(50)}),
    "texts": odd({f"a{n}": value(TEXT, "x" * 100_000) for n in range(20)}),
    "empty texts": odd({f"a{n}": value(ARRAY, (TEXT, [""] * 20_000)) for n in range(20)}),
    "names": odd({"a" * 65_000 + str(n): value(U32, 0) for n in range(20)}),
    "tensors": odd({}, {f"t{n}": (8,) for n in range(15_000)}),
}


@pytest.mark.parametrize("data", COSTLY.values(), ids=COSTLY)
def test_what_a_header_has_is_taken_from_the_budget_before_it_is_kept(data: bytes) -> None:
    """A file of 77 MiB took 1.6 GiB, in small pieces."""
    one = Budget(lambda: 0.0, values_left=250_000)
    with pytest.raises(TooLarge, match="values"):
        parse(io.BytesIO(data).read, len(data), one)
    # Several files share it: a part may be another link to the first one.
    several = Budget(lambda: 0.0, values_left=5000)
    parse(io.BytesIO(LLAMA).read, len(LLAMA), several)
    with pytest.raises(TooLarge, match="all headers and tables"):
        parse(io.BytesIO(LLAMA).read, len(LLAMA), replace(several, values_left=100))


@given(st.data())
def test_no_changed_byte_does_more_than_refuse(data: st.DataObject) -> None:
    changed = bytearray(LLAMA[:20_000] if data.draw(st.booleans()) else LLAMA)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 9_000))
        changed[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadHeader):
        found = parsed(bytes(changed))
        assert sum(tensor.size for tensor in found.tensors) <= len(changed)


@given(st.binary(max_size=2000))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for one in (data, b"GGUF" + struct.pack("<I", 3) + data):
        with contextlib.suppress(BadHeader):
            parsed(one)


NUMBERS = st.one_of(
    st.integers(0, 2**32 - 1).map(lambda n: value(U32, n)),
    st.integers(0, 2**64 - 1).map(lambda n: value(U64, n)),
    st.floats(width=32).map(lambda n: value(F32, n)),
    st.text(max_size=5).map(lambda t: value(TEXT, t)),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5).map(
        lambda many: value(ARRAY, (I32, many))
    ),
)
KEYS = (
    "block_count", "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "nextn_predict_layers", "full_attention_interval", "attention.sliding_window",
    "attention.sliding_window_pattern", "ssm.state_size", "expert_count", "context_length",
    "embedding_length", "attention.recurrent_layers", "feed_forward_length",
)  # fmt: skip


@given(st.sampled_from(sorted(tiny_gguf.LAYERS)), st.sampled_from(KEYS), NUMBERS)
def test_any_value_of_a_key_makes_a_card_or_a_problem(
    tmp_path_factory: pytest.TempPathFactory, architecture: str, key: str, packed: bytes
) -> None:
    file = tmp_path_factory.mktemp("model") / "a.gguf"
    file.write_bytes(
        assemble(
            {
                "general.architecture": value(TEXT, architecture),
                **{f"{architecture}.{name}": value(U32, 2) for name in KEYS},
                f"{architecture}.{key}": packed,
            },
            {"blk.0.x": (8,)},
            {"blk.0.x": bytes(32)},
        )
    )
    with contextlib.suppress(ModelProblem):
        found = read_model(str(file))
        assert found.gguf is not None
        assert all(layer.keys >= 0 and layer.state_size >= 0 for layer in found.gguf.layers)


def test_parts_are_read_together(tmp_path: Path) -> None:
    first, _, last = tiny_gguf.write_parts("qwen2", tmp_path / "model.gguf", 3)
    found = read_model(str(tmp_path))
    whole = describe([("a", parsed(make("qwen2")))], "")
    assert found.path == str(first)
    assert found.gguf is not None
    assert whole.gguf is not None
    assert found.gguf.layers == whole.gguf.layers
    assert len(found.gguf.files) == 3
    with pytest.raises(ModelProblem, match=r"part 3 of 3; set \[model\] path to the first"):
        read_model(str(last))
    last.unlink()
    with pytest.raises(ModelProblem, match=r"model-00003-of-00003\.gguf is missing"):
        read_model(str(first))
    last.write_bytes(make("llama"))
    with pytest.raises(ModelProblem, match="its parts contain"):
        read_model(str(first))


def test_a_bert_embeds_and_keeps_no_cache() -> None:
    found = describe([("a.gguf", parsed(tiny_gguf.make_encoder()))], "/a.gguf")
    assert (found.task, found.one_step, found.max_model_len) == ("embed", True, 128)
    assert found.gguf is not None
    assert [(layer.keys, layer.values) for layer in found.gguf.layers] == [(0, 0)] * 2


@pytest.mark.parametrize(("pooling", "task"), [(0, "generate"), (3, "embed"), (4, "score")])
def test_the_pooling_of_a_causal_model_is_its_task(pooling: int, task: str) -> None:
    found = card("qwen3", pooling_type=value(U32, pooling))
    assert (found.task, found.layer_types[0]) == (task, "full_attention")


def test_a_folder_has_one_model_and_a_projector_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(LLAMA)
    (tmp_path / "mmproj-F16.gguf").write_bytes(LLAMA)
    assert read_model(str(tmp_path)).path == str(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(LLAMA)
    with pytest.raises(ModelProblem, match=r"several GGUF models: a\.gguf, b\.gguf"):
        read_model(str(tmp_path))
    projector = make("llama", values={"general.architecture": value(TEXT, "clip")})
    (tmp_path / "b.gguf").write_bytes(projector)
    with pytest.raises(ModelProblem, match="not a language model but a clip component"):
        read_model(str(tmp_path / "b.gguf"))
