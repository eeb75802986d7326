"""Listings of files, the selection from them, and resuming after any interruption."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.model_source import listing, manifest, selection, transfer
from caovand.core.model_source.listing import BadListing, Digest, RemoteFile
from caovand.core.model_source.manifest import Manifest
from caovand.core.model_source.pace import DownloadRate, duration
from caovand.core.model_source.transfer import Do, RangeRequest

SHA = Digest("sha256", "a" * 64)


def remote(*paths: str) -> list[RemoteFile]:
    return [RemoteFile(path, 1, SHA) for path in paths]


def chosen(*paths: str, shards: tuple[str, ...] = (), code: bool = False) -> list[str]:
    return [one.path for one in selection.choose(remote(*paths), shards, code=code).files]


SETTINGS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "vocab.json", "merges.txt", "tokenizer.model", "qwen.tiktoken", "chat_template.jinja",
    "preprocessor_config.json", "tekken.json", "hf_quant_config.json", "LICENSE", "NOTICE.txt",
    "1_Pooling/config.json", "additional_chat_templates/tool_use.jinja",
)  # fmt: skip
LEFT_OUT = (
    "pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth", "model.gguf",
    "original/params.json", "onnx/model.onnx", "metal/model.bin", "README.md", ".gitattributes",
    "figures/a.png", "tf_model.h5", "flax_model.msgpack", "modeling_x.py", "caovan-model.json",
    "openvino_model.xml", "folder/.hidden/config.json",
)  # fmt: skip


def test_one_set_of_weights_and_everything_vllm_reads_is_wanted() -> None:
    found = chosen(*SETTINGS, *LEFT_OUT, "model.safetensors", "consolidated.safetensors")
    assert found == [*SETTINGS, "model.safetensors"]
    assert chosen("consolidated.safetensors", "params.json") == [
        "consolidated.safetensors", "params.json",
    ]  # fmt: skip


def test_the_index_decides_which_shards_are_wanted() -> None:
    shards = ("a-1.safetensors", "a-2.safetensors")
    both = (*shards, "adapter.safetensors", selection.INDEX, "other.safetensors.index.json")
    assert chosen(*both, shards=shards) == [*shards, selection.INDEX]


def test_code_is_wanted_by_who_trusts_it() -> None:
    assert chosen("modeling_x.py", code=True) == ["modeling_x.py"]
    left = selection.choose(remote("modeling_x.py", "a.gguf"), (), code=False)
    assert (left.of(selection.CODE), left.of(selection.OTHER_WEIGHTS)) == (
        ("modeling_x.py",), ("a.gguf",),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B-AWQ", "a/b", "deepseek-ai/DeepSeek-R1"])
def test_a_name_has_an_owner(name: str) -> None:
    assert listing.is_name(name)


@pytest.mark.parametrize("name", ["gpt2", "a/b/c", "../b", "a/..", "a--b/c", "/a", "a/", "a/b\n"])
def test_what_is_no_name(name: str) -> None:
    assert not listing.is_name(name)


@given(st.text(max_size=40))
def test_a_safe_path_stays_in_its_folder(path: str) -> None:
    if listing.is_safe(path):
        parts = path.split("/")
        assert not path.startswith("/")
        assert ".." not in parts
        assert all(parts)


def test_a_manifest_is_read_as_it_was_written() -> None:
    files = listing.listing("", remote("a", "b/c")).files
    made = Manifest("a/b", "https://hub.example.org", "main", "c0ffee0", "2026-01-01", files)
    assert manifest.read(made.document()) == made
    for broken in ({}, [], {**made.document(), "version": 2}, {**made.document(), "name": 7}):
        with pytest.raises(BadListing):
            manifest.read(broken)
    with pytest.raises(BadListing):
        manifest.read({**made.document(), "files": {"../x": {"size": 1, "hash": str(SHA)}}})


TEXTS = st.sampled_from(["", '"a"', '"b"', 'W/"a"'])
SIZES = st.integers(1, 1 << 40)
RANGES = st.one_of(
    st.text(max_size=20),
    st.builds("bytes {}-{}/{}".format, SIZES, SIZES, st.one_of(SIZES, st.just("*"))),
)


@given(st.integers(0, 1 << 41), SIZES, TEXTS)
def test_what_is_asked_for_is_the_rest_or_all(have: int, size: int, etag: str) -> None:
    asked = transfer.ask(have, size, etag)
    assert asked.offset == (have if have < size else 0)
    assert bool(asked.headers()) == bool(asked.offset)
    assert not asked.etag.startswith("W/")


@given(
    st.integers(0, 999),
    st.just(1000),
    TEXTS,
    st.sampled_from([200, 204, 206, 301, 400, 416, 429, 503]),
    st.dictionaries(
        st.sampled_from(["content-length", "etag", "content-encoding"]),
        st.sampled_from(["1000", "999", "0", "-1", '"a"', '"b"', "gzip", "identity", "", "9" * 99]),
    ),
    RANGES,
)
def test_bytes_are_written_only_where_they_belong(
    have: int, size: int, etag: str, status: int, headers: dict[str, str], ranged: str
) -> None:
    """Whatever a server answers: 200 begins at 0, 206 goes on where it was asked to, to the end."""
    asked = transfer.ask(have, size, etag)
    found = transfer.judge(asked, size, status, {**headers, "content-range": ranged})
    if found.do is not Do.WRITE:
        assert found.why
        return
    assert headers.get("content-encoding", "identity") == "identity"
    if status == 200:
        assert found.offset == 0
        assert headers.get("content-length", "1000") == "1000"
    else:
        assert status == 206
        assert found.offset == asked.offset == have > 0
        assert ranged.startswith(f"bytes {have}-{size - 1}/")
        assert not asked.etag or headers.get("etag", asked.etag) == asked.etag


@given(st.lists(st.integers(0, 400), max_size=30), st.integers(1, 1000), st.booleans())
def test_any_sequence_of_cuts_ends_with_the_file(cuts: list[int], size: int, ranges: bool) -> None:
    """A server that is honest, and cut after these many bytes at each attempt."""
    content, have = bytes(n % 251 for n in range(size)), b""
    for cut in (*cuts, size):
        asked = transfer.ask(len(have), size, '"a"')
        status, begin = (206, asked.offset) if asked.offset and ranges else (200, 0)
        headers = {
            "content-length": str(size - begin),
            "content-range": f"bytes {begin}-{size - 1}/{size}",
            "etag": '"a"',
        }
        found = transfer.judge(asked, size, status, headers)
        assert found.do is Do.WRITE
        have = have[: found.offset] + content[begin : begin + cut]
        if len(have) == size:
            break
    assert have == content


@pytest.mark.parametrize(
    ("asked", "status", "headers", "do"),
    [
        (RangeRequest(10, '"a"'), 416, {}, Do.START_OVER),
        (RangeRequest(0), 416, {}, Do.REFUSE),
        (RangeRequest(0), 206, {"content-range": "bytes 0-99/100"}, Do.REFUSE),
        (RangeRequest(10), 206, {"content-range": "bytes 10-99/100"}, Do.WRITE),
        (RangeRequest(10), 206, {"content-range": "bytes 10-99/*"}, Do.WRITE),
        (RangeRequest(10), 206, {"content-range": "bytes 10-99/101"}, Do.REFUSE),
        (RangeRequest(10), 206, {"content-range": "bytes 10-98/100"}, Do.REFUSE),
        (RangeRequest(10), 206, {}, Do.REFUSE),
        (
            RangeRequest(10, '"a"'),
            206,
            {"content-range": "bytes 10-99/100", "etag": '"b"'},
            Do.START_OVER,
        ),
        (RangeRequest(0), 200, {"content-length": "99"}, Do.REFUSE),
        (RangeRequest(0), 200, {"content-encoding": "gzip"}, Do.REFUSE),
        (RangeRequest(0), 429, {}, Do.WAIT),
        (RangeRequest(0), 404, {}, Do.REFUSE),
    ],
)
def test_an_answer_is_judged(
    asked: RangeRequest, status: int, headers: dict[str, str], do: Do
) -> None:
    assert transfer.judge(asked, 100, status, headers).do is do


def test_attempts_are_spread_and_end() -> None:
    waits = [transfer.pause_s(attempt, 0.5, None) for attempt in range(1, 11)]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, None]
    assert transfer.pause_s(1, 0.5, 0) == 0
    assert transfer.pause_s(1, 0.5, 7) == 7
    assert transfer.pause_s(1, 0.5, 901) is None


def test_the_rate_is_that_of_the_last_seconds() -> None:
    pace = DownloadRate()
    assert pace.text(100) == ""
    for second in range(100):
        pace.add(float(second), (second if second < 50 else 50 + 10 * (second - 50)) << 20)
    assert pace.text(1540 << 20) == "10.0 MiB/s, 100 s left"
    assert [duration(s) for s in (3, 119, 120, 7199, 7200, 90_061)] == [
        "3 s", "119 s", "2 min", "119 min", "2 h 0 min", "25 h 1 min",
    ]  # fmt: skip
