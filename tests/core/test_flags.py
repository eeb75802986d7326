"""Verbatim flags are read as vLLM's parser reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.flags import read, redact, values, whole_number, without

KNOWN = (
    "--enforce-eager", "--no-enforce-eager", "--gpu-memory-utilization", "--port",
    "--max-model-len", "--enable-prefix-caching", "--no-enable-prefix-caching",
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--max-model-len", "8192"], "max_model_len", 8192),
        (["--max_model_len=8192"], "max_model_len", 8192),
        (["-tp", "2"], "tensor_parallel_size", 2),
        (["-O3"], "optimization_level", 3),
        (["--enforce-eager"], "enforce_eager", True),
        (["--no-enable-prefix-caching"], "enable_prefix_caching", False),
        (["-cc.mode", "3"], "compilation_config", {"mode": 3}),
        (["--compilation-config.a.b=x"], "compilation_config", {"a": {"b": "x"}}),
        (["--served-model-name", "a", "b"], "served_model_name", ["a", "b"]),
        (["--gpu-mem", "0.5"], "gpu_memory_utilization", 0.5),
        (["--seed", "-1"], "seed", -1),
        (["-sc", '{"method":"mtp"}'], "speculative_config", {"method": "mtp"}),
    ],
)
def test_a_flag_is_read_in_each_way_it_can_be_written(
    words: list[str], name: str, value: object
) -> None:
    assert values(read(words, KNOWN)) == {name: value}


def test_a_switch_takes_no_word_that_follows() -> None:
    found = read(["--enforce-eager", "stray", "--port", "1"], KNOWN)
    assert [flag.name for flag in found] == ["enforce_eager", "", "port"]


def test_dotted_keys_are_merged_and_the_last_flag_wins() -> None:
    words = ["-cc.a", "1", "--compilation-config.b", "2", "--port", "1", "--port", "2"]
    assert values(read(words)) == {"compilation_config": {"a": 1, "b": 2}, "port": 2}


def test_one_flag_can_be_taken_out_whole() -> None:
    words = ["--a", "1", "--additional-config", "{}", "--b"]
    assert without(read(words), "additional_config") == ("--a", "1", "--b")


def test_secrets_are_hidden_in_both_spellings() -> None:
    shown = " ".join(redact(["--api-key", "k1", "--hf-token=k2", "--port", "1"]))
    assert "k1" not in shown
    assert "k2" not in shown
    assert "--port 1" in shown


@pytest.mark.parametrize(("text", "count"), [("8k", 8000), ("8K", 8192), (5, 5), ("auto", None)])
def test_counts_may_have_units(text: object, count: int | None) -> None:
    assert whole_number(text) == count


@given(st.lists(st.text(max_size=12), max_size=8))
def test_any_words_are_read_and_none_is_lost(words: list[str]) -> None:
    found = read(words, KNOWN)
    assert [word for flag in found for word in flag.words] == words
    values(found)
