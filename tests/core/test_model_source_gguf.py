"""From a repository with several GGUF models, the one that suits the machine is pulled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.model_source import gguf, selection
from caovand.core.model_source.listing import Digest, RemoteFile, split_name

GIB = 1 << 30


def remote(path: str, gib: float = 1) -> RemoteFile:
    return RemoteFile(path, int(gib * GIB), Digest("sha256", "a" * 64))


QWEN_8B = tuple(
    remote(f"Qwen3-8B-{label}.gguf", size)
    for label, size in {
        "BF16": 15.3, "Q8_0": 8.1, "Q6_K": 6.3, "Q5_K_M": 5.4, "Q4_K_M": 4.7, "IQ4_XS": 4.2,
        "Q3_K_M": 3.8, "Q2_K": 3.1, "UD-IQ1_S": 2.1,
    }.items()
)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("UD-Q4_K_XL/Qwen3-235B-A22B-UD-Q4_K_XL-00001-of-00003.gguf", "UD-Q4_K_XL"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("mistral-7b-instruct-v0.2.Q4_K_M.gguf", "Q4_K_M"),
        ("gemma-3-27b-it-q4_0.gguf", "Q4_0"),
        ("Qwen3-0.6B-f16.gguf", "F16"),
        ("Qwen2-Q4-Edition.gguf", "Q4"),
        ("ggml-model.gguf", ""),
    ],
)
def test_the_type_is_in_the_files_name(path: str, label: str) -> None:
    assert gguf.type_of(path) == label


def test_a_split_model_is_one_and_its_last_part_may_not_lack() -> None:
    whole = [remote(f"Q8_0/x-Q8_0-0000{part}-of-00002.gguf") for part in (2, 1)]
    cut = [remote(f"x-Q4_0-0000{part}-of-00003.gguf") for part in (1, 2)]
    found = gguf.variants([*whole, *cut, remote("mmproj-F16.gguf"), remote("imatrix.gguf")])
    assert [one.label for one in found] == ["Q8_0"]
    assert found[0].files == (whole[1], whole[0])


def test_every_model_has_a_label_of_its_own() -> None:
    found = gguf.variants(map(remote, ("small-Q8_0.gguf", "large-Q8_0.gguf", "plain.gguf")))
    assert sorted(one.label for one in found) == ["Q8_0", "plain", "small-Q8_0"]


@pytest.mark.parametrize(
    ("cards_gib", "host_gib", "label"),
    [
        (22, 64, "Q8_0"),  # eight bits answer as sixteen do
        (8, 16, "Q5_K_M"),
        (4, 16, "Q4_K_M"),  # rather shared with the host than of three bits
        (0, 64, "Q4_K_M"),
        (0, 6.5, "IQ4_XS"),
        (0, 1, "UD-IQ1_S"),  # the forecast will refuse it, and name what is lacking
    ],
)
def test_the_model_suits_the_machine(cards_gib: float, host_gib: float, label: str) -> None:
    found = gguf.preferred_variant(
        gguf.variants(QWEN_8B), int(cards_gib * GIB), int(host_gib * GIB)
    )
    assert found.label == label


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_more_memory_never_brings_fewer_bits(cards: int, host: int) -> None:
    found = gguf.variants(QWEN_8B)
    now = gguf.preferred_variant(found, cards, host)
    assert gguf.preferred_variant(found, cards * 2, host * 2).size_bytes >= now.size_bytes
    assert now.label != "BF16"


def test_what_is_not_quantised_is_taken_where_there_is_nothing_else() -> None:
    only = gguf.variants([remote("tiny-F16.gguf")])
    assert gguf.preferred_variant(only, 0, GIB).label == "F16"


def test_a_models_files_come_with_their_terms() -> None:
    files = [*QWEN_8B, remote("LICENSE"), remote("README.md"), remote("config.json")]
    variant = gguf.find_variant(gguf.variants(files), "q4_k_m")
    assert variant is not None
    found = selection.choose_gguf(files, variant)
    assert [one.path for one in found.files] == ["Qwen3-8B-Q4_K_M.gguf", "LICENSE"]
    assert len(found.of(selection.OTHER_TYPES)) == len(QWEN_8B) - 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a/b", ("a", "b", "")), ("a/b:Q4_K_M", ("a", "b", "Q4_K_M")), ("a/b:", None),
        ("a/b:../c", None), ("a/b:x/y", None), ("a", None), ("a/b:c:d", None),
    ],
)  # fmt: skip
def test_a_label_follows_the_name(text: str, found: tuple[str, str, str] | None) -> None:
    expected = None if found is None else (f"{found[0]}/{found[1]}", found[2])
    assert split_name(text) == expected
