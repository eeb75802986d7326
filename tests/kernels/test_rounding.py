"""Which weights become int8, and which rows drafts need."""

from __future__ import annotations

from dataclasses import replace

import pytest
from caovan_vllm_sm75_turbo3 import rounding

from caovand.engines.vllm.log.phases import read_figures

LM_HEAD = rounding.LmHeadFacts(
    platform="cuda",
    capability=(7, 5),
    library_error=None,
    forced=False,
    dtype="float16",
    head_dtype="float16",
    method="UnquantizedEmbeddingMethod",
    vocabulary=248_320,
    hidden=5120,
)


@pytest.mark.parametrize(
    ("changed", "words", "noted"),
    [
        ({}, None, False),
        ({"method": "UnquantizedLinearMethod", "vocabulary": 64}, None, False),
        ({"capability": (9, 0), "forced": True}, None, False),
        ({"platform": "cpu"}, "vLLM's cpu build", False),
        ({"capability": (9, 0)}, "CAOVAN_SM75_FORCE=1", False),
        ({"library_error": "cannot find it"}, "cannot find it", True),
        ({"method": "GPTQMarlinLinearMethod"}, "quantised already (GPTQMarlin", False),
        ({"tied": True}, "weights are shared with the embedding", False),
        ({"vocabulary": 63}, "it has 63 rows of 5120", False),
        ({"hidden": 96}, "a multiple of 64", False),
        ({"dtype": "bfloat16"}, "use --dtype half", True),
        ({"head_dtype": "float32"}, "logits float32", True),
        ({"adapters": True}, "--enable-lora", True),
        ({"draft_copy": "fp8"}, "a copy of it in fp8", True),
        ({"batch_invariant": True}, "VLLM_BATCH_INVARIANT", True),
        ({"load_format": "ipc_cache"}, "--load-format ipc_cache", True),
    ],
)
def test_an_lm_head_that_cannot_be_int8_is_refused_in_words(
    changed: dict, words: str | None, noted: bool
) -> None:
    why = rounding.lm_head_refusal(replace(LM_HEAD, **changed))
    assert why is None if words is None else words in (why or "")
    said = f"INFO 11-27 00:24:35 [a.py:1] caovan: the lm_head stays in 16 bits: {why}"
    if why:
        assert read_figures(said).get("kernels_refusal") == (why if noted else None)


@pytest.mark.parametrize(
    ("environment", "config", "wanted"),
    [
        ({}, {}, "off"),
        ({"CAOVAN_LM_HEAD": "int8"}, {}, "int8"),
        ({}, {"caovan_lm_head": "int8"}, "int8"),
        ({"CAOVAN_LM_HEAD": "off"}, {"caovan_lm_head": "int8"}, "off"),
        ({"CAOVAN_LM_HEAD": "int8", "CAOVAN_KERNELS": "off"}, {}, "off"),
        ({"CAOVAN_LM_HEAD": "int8"}, {"caovan": False}, "off"),
    ],
)
def test_an_lm_head_is_int8_only_where_that_is_asked_for(
    environment: dict, config: dict, wanted: str
) -> None:
    assert rounding.lm_head_wanted(environment, config) == wanted


def test_an_mtp_layer_is_int8_only_where_that_is_asked_for() -> None:
    assert rounding.drafter_wanted({}, {}) == "off"
    assert rounding.drafter_wanted({}, {"caovan_drafter": "int8"}) == "int8"
    assert rounding.drafter_wanted({"CAOVAN_DRAFTER": "off"}, {"caovan_drafter": "int8"}) == "off"
    assert rounding.drafter_wanted({"CAOVAN_KERNELS": "off"}, {"caovan_drafter": "int8"}) == "off"
    with pytest.raises(ValueError, match="CAOVAN_DRAFTER = 'fp8': it must be one of off, int8"):
        rounding.drafter_wanted({"CAOVAN_DRAFTER": "fp8"}, {})


def test_a_part_of_the_vocabulary_is_a_number() -> None:
    assert rounding.draft_vocabulary({}, {}) == 0
    assert rounding.draft_vocabulary({}, {"caovan_draft_vocabulary": 65536}) == 65536
    environment = {"CAOVAN_DRAFT_VOCABULARY": "32768"}
    assert rounding.draft_vocabulary(environment, {"caovan_draft_vocabulary": 64}) == 32768
    for wrong in ("many", "-1", "63", ""):
        with pytest.raises(ValueError, match="it must be 0, or 64 or more"):
            rounding.draft_vocabulary({"CAOVAN_DRAFT_VOCABULARY": wrong}, {})


@pytest.mark.parametrize(
    ("count", "start", "end", "rows"),
    [
        (65_536, 0, 248_320, [(0, 65_536), (247_808, 248_320)]),
        (65_536, 0, 124_160, [(0, 65_536)]),  # of two cards
        (65_536, 124_160, 248_320, [(123_648, 124_160)]),
        (65_536, 62_080, 124_160, [(0, 3_456)]),  # of four
        (124_170, 124_160, 248_320, [(0, 64), (123_648, 124_160)]),  # 64 fit a launch
        (65_536, 186_240, 247_818, [(61_514, 61_578)]),
        (248_000, 0, 248_320, [(0, 248_320)]),
        (300_000, 0, 248_320, [(0, 248_320)]),
        (64, 100_000, 200_000, []),
    ],
)
def test_a_shard_drafts_the_first_tokens_and_the_last_that_it_has(
    count: int, start: int, end: int, rows: list[tuple[int, int]]
) -> None:
    assert rounding.drafted_rows(count, 248_320, start, end) == rows


def test_a_switch_of_the_lm_head_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="CAOVAN_LM_HEAD = 'fp8': it must be one of off, int8"):
        rounding.lm_head_wanted({"CAOVAN_LM_HEAD": "fp8"}, {})
