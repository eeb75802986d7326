"""Verbatim flags are read as vLLM's parser reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.config.parser import parse
from caovand.engines.vllm.engine import ENGINE
from caovand.engines.vllm.flags.command_line import is_secret, read, redact, values, without
from caovand.engines.vllm.flags.spelling import count, is_left_to_vllm, whole_number

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
        (["--api-key", "1e5", "b"], "api_key", ["1e5", "b"]),
        (["--max-model-len", "auto"], "max_model_len", "auto"),
    ],
)
def test_a_flag_is_read_in_each_way_it_can_be_written(
    words: list[str], name: str, value: object
) -> None:
    assert values(read(words, KNOWN)) == {name: value}


def test_a_switch_takes_no_word_that_follows() -> None:
    found = read(["--enforce-eager", "stray", "--port", "1"], KNOWN)
    assert [flag.name for flag in found] == ["enforce_eager", "", "port"]


def test_a_short_name_and_a_beginning_are_as_good_as_the_whole_name() -> None:
    known = (*KNOWN, "--api-key", "--api-server-count", "--enable-expert-parallel",
             "--no-enable-expert-parallel")  # fmt: skip
    found = read(["-ep", "stray", "--api-k", "a", "b", "--enforce", "stray"], known)
    assert [flag.name for flag in found] == [
        "enable_expert_parallel", "", "api_key", "enforce_eager", "",
    ]  # fmt: skip
    assert found[2].texts == ("a", "b")


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


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", "hunter2", "hunter2"],
        ["--api-k", "hunter2", "hunter2"],
        ["--api-k=hunter2"],
        ["--api_key=hunter2", "hunter2"],
        ["--api", "hunter2"],
        ["--hf-t=hunter2"],
        ["--hf-token", "hunter2"],
        ["-api-key", "hunter2"],
    ],
)
def test_a_secret_is_hidden_however_it_is_written(words: list[str]) -> None:
    shown = redact(["serve", "model", "--port", "1", *words, "--seed", "3"])
    assert "hunter2" not in " ".join(shown)
    assert shown[:4] == ("serve", "model", "--port", "1")
    assert shown[-2:] == ("--seed", "3")


def test_what_only_looks_like_a_secret_is_shown() -> None:
    words = ("--api-server-count", "2", "--hf-overrides", "{}", "--hf-config-path", "x", "stray")
    assert redact(words) == words
    assert not is_secret("")


def test_a_secret_with_no_value_stays_a_switch() -> None:
    assert redact(["--hf-token", "--seed", "3"]) == ("--hf-token", "--seed", "3")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8k", 8000), ("8K", 8192), ("25.6k", 25600), ("25.6K", None), (5, 5), (-1, -1),
        ("auto", None), (True, None), (8192.0, None), ("9" * 5000 + "k", None),
    ],
)  # fmt: skip
def test_counts_may_have_units(text: object, number: int | None) -> None:
    assert whole_number(text) == number
    assert count(text) == (number if number and number > 0 else None)


@pytest.mark.parametrize(
    ("value", "left"), [("auto", True), ("AUTO", True), (-1, True), (1, False)]
)
def test_a_context_may_be_left_to_vllm(value: object, left: bool) -> None:
    assert is_left_to_vllm(value) is left


@given(st.lists(st.text(max_size=12), max_size=8))
def test_any_words_are_read_and_none_is_lost(words: list[str]) -> None:
    found = read(words, KNOWN)
    assert [word for flag in found for word in flag.words] == words
    values(found)


SOME = ("--enforce-eager", "--headless", "--disable-log-stats")


@pytest.mark.parametrize("switch", SOME)
@pytest.mark.parametrize(("known", "switches"), [((), ()), (SOME, SOME), (SOME, ())])
def test_a_switch_without_a_twin_leaves_the_model(
    switch: str, known: tuple[str, ...], switches: tuple[str, ...]
) -> None:
    found = read([switch, "/m/model"], known, switches)
    assert [(flag.name, flag.value) for flag in found][1:] == [("", "/m/model")]
    assert found[0].value is True


def test_the_engines_own_switches_win_over_those_we_know() -> None:
    found = read(["--brand-new", "/m/model"], ["--brand-new"], ["--brand-new"])
    assert [flag.name for flag in found] == ["brand_new", ""]
    found = read(["--headless", "pod-3"], ["--headless", "--grpc"], ["--grpc"])
    assert found[0].value == "pod-3"


@pytest.mark.parametrize(("text", "number"), [(".9", 0.9), ("1.", 1.0), ("+0.5", 0.5)])
def test_numbers_are_read_as_float_reads_them(text: str, number: float) -> None:
    assert values(read(["--gpu-memory-utilization", text])) == {"gpu_memory_utilization": number}


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_number_beyond_all_memory_is_no_count(sign: str) -> None:
    assert whole_number(int(f"{sign}9007199254740991")) is not None
    assert whole_number(int(f"{sign}9007199254740992")) is None


@pytest.mark.parametrize(
    ("words", "invents"),
    [
        (["--load-format", "dummy"], True),
        (["--load-format=dummy"], True),
        (["--load_format", "dummy"], True),
        (["--load-format", "auto"], False),
        (["--served-model-name", "load-format dummy"], False),
    ],
)
def test_only_the_flag_itself_makes_vllm_invent_the_weights(
    words: list[str], invents: bool
) -> None:
    config = parse({"engine": {"extra_args": words}})
    assert ENGINE.arguments.invents_weights(config) is invents
