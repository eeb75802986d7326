"""Which kernels run, and why not: pure decisions."""

from dataclasses import replace
from pathlib import Path

import pytest
from caovan_vllm_sm75_turbo3 import dispatch

from caovand.engines.vllm.log.phases import read_figures

ROOT = Path(__file__).resolve().parents[2]
TURING = dispatch.Facts(
    platform="cuda",
    capability=(7, 5),
    dtype="float16",
    conv_dtype="float16",
    state_dtype="float32",
    k_heads=8,
    v_heads=24,
    head_k_dim=128,
    head_v_dim=128,
    conv_width=4,
    activation="silu",
    spec_tokens=3,
)


def test_a_turing_card_with_the_27b_model_is_taken() -> None:
    assert dispatch.refusal(TURING) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"platform": "cpu"}, "vLLM's cpu build"),
        ({"platform": ""}, "vLLM finds no GPU here"),
        ({"capability": None}, "unknown compute capability"),
        ({"capability": (7, 0)}, "SM70, but the kernels need SM75"),
        ({"capability": (9, 0)}, "CAOVAN_SM75_FORCE=1"),
        ({"library_error": "cannot find it"}, "cannot find it"),
        ({"dtype": "bfloat16"}, "use --dtype half"),
        ({"conv_dtype": "bfloat16"}, "conv state bfloat16"),
        ({"state_dtype": "float16"}, "use --mamba-ssm-cache-dtype float32"),
        ({"head_k_dim": 256, "head_v_dim": 256}, "64 and 128"),
        ({"head_v_dim": 64}, "64 and 128"),
        ({"v_heads": 25}, "25 value heads are not a multiple of 8"),
        ({"conv_width": 3}, "3 wide"),
        ({"activation": "gelu"}, "gelu"),
        ({"spec_tokens": 8}, "8 draft tokens"),
        ({"overlapped_batches": True}, "--enable-dbo, --ubatch-size"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(changed: dict, words: str) -> None:
    assert words in (dispatch.refusal(replace(TURING, **changed)) or "")


@pytest.mark.parametrize(
    ("changed", "noted"),
    [
        ({"platform": "cpu"}, False),
        ({"platform": ""}, False),
        ({"capability": (9, 0)}, False),
        ({"head_k_dim": 96, "head_v_dim": 96}, False),
        ({"v_heads": 25}, False),
        ({"conv_width": 3}, False),
        ({"activation": "gelu"}, False),
        ({"state_dtype": "float16"}, True),
        ({"spec_tokens": 8}, True),
        ({"overlapped_batches": True}, True),
        ({"library_error": "cannot find it"}, True),
        ({"dtype": "bfloat16"}, True),
        ({"capability": (9, 0), "forced": True, "dtype": "bfloat16"}, True),
    ],
)
def test_caovan_notes_a_refusal_unless_the_kernels_are_for_other_cards_or_models(
    changed: dict, noted: bool
) -> None:
    why = dispatch.refusal(replace(TURING, **changed))
    said = f"INFO 11-25 20:24:35 [a.py:1] caovan: Gated DeltaNet stays on vLLM's own kernels: {why}"
    assert read_figures(said).get("kernels_refusal") == (why if noted else None)


ATTENTION = dispatch.AttentionFacts(
    platform="cuda",
    capability=(7, 5),
    library_error=None,
    forced=False,
    dtype="float16",
    cache="int4_per_token_head",
    heads=24,
    kv_heads=4,
    head_dim=256,
)


@pytest.mark.parametrize(
    "changed", [{}, {"cache": "auto"}, {"cache": "fp8"}, {"head_dim": 128, "kv_heads": 8}]
)
def test_attention_of_the_27b_model_is_taken_on_turing(changed: dict) -> None:
    assert dispatch.attention_refusal(replace(ATTENTION, **changed)) is None


@pytest.mark.parametrize(
    ("changed", "words", "noted"),
    [
        ({"platform": "cpu"}, "vLLM's cpu build", False),
        ({"capability": (9, 0)}, "CAOVAN_SM75_FORCE=1", False),
        ({"library_error": "cannot find it"}, "cannot find it", True),
        ({"kind": "encoder"}, "the kernels are for decoders", False),
        ({"features": ("sinks", "a soft cap")}, "has sinks and a soft cap", False),
        ({"head_dim": 64}, "128 and 256", False),
        ({"heads": 25}, "25 query heads are not a multiple of 4", False),
        ({"cache": "fp8_e5m2"}, "the cache is fp8_e5m2", False),
        ({"dtype": "bfloat16"}, "use --dtype half", True),
        ({"overlapped_batches": True}, "micro-batches", True),
        ({"context_parallel": True}, "--decode-context-parallel-size", True),
        ({"batch_invariant": True}, "VLLM_BATCH_INVARIANT", True),
        ({"sleeps": True}, "--enable-sleep-mode", True),
    ],
)
def test_a_layer_that_attends_otherwise_is_refused_in_words(
    changed: dict, words: str, noted: bool
) -> None:
    why = dispatch.attention_refusal(replace(ATTENTION, **changed)) or ""
    assert words in why
    said = f"INFO 11-27 00:24:35 [a.py:1] caovan: attention stays on vLLM's own kernels: {why}"
    assert read_figures(said).get("kernels_refusal") == (why if noted else None)


@pytest.mark.parametrize(
    ("environment", "config", "wanted"),
    [
        ({}, {}, "all"),
        ({}, {"caovan": False}, "off"),
        ({"CAOVAN_KERNELS": "off"}, {"caovan_attention": "all"}, "off"),
        ({"CAOVAN_KERNELS": "prefill"}, {}, "all"),
        ({}, {"caovan_attention": "read"}, "read"),
        ({"CAOVAN_ATTENTION": "off"}, {"caovan_attention": "read"}, "off"),
    ],
)
def test_attention_has_a_switch_of_its_own(environment: dict, config: dict, wanted: str) -> None:
    assert dispatch.attention_wanted(environment, config) == wanted


def test_a_switch_of_attention_that_means_nothing_is_refused() -> None:
    with pytest.raises(
        ValueError, match="CAOVAN_ATTENTION = 'on': it must be one of off, decode, read"
    ):
        dispatch.attention_wanted({"CAOVAN_ATTENTION": "on"}, {})


def launches(lengths: list[int], shape: tuple[int, int, int] = (24, 4, 256), processors: int = 68):
    found = dispatch.attention_launches(lengths, *shape, processors)
    return [(one.kernel[0], one.first, one.last, one.tokens) for one in found]


def test_each_sequence_of_a_batch_has_the_kernel_of_its_length() -> None:
    assert launches([2048]) == [("p", 0, 1, 2048)]
    assert launches([5, 0, 8, 1]) == [("d", 0, 4, 8)]
    assert launches([5, 1, 9, 100, 2048]) == [("d", 0, 2, 5), ("e", 2, 4, 100), ("p", 4, 5, 2048)]
    assert launches([1, 2048, 1]) == [("d", 0, 1, 1), ("p", 1, 2, 2048), ("d", 2, 3, 1)]


def test_an_extension_is_split_while_it_leaves_most_of_the_card_idle() -> None:
    """27 of 68 multiprocessors: six tiles of 128 rows of four KV heads; two heads a tile at 128."""
    assert launches([128]) == [("e", 0, 1, 128)]
    assert launches([129]) == [("p", 0, 1, 129)]
    assert launches([192], (32, 8, 128)) == [("e", 0, 1, 192)]
    assert launches([193], (32, 8, 128)) == [("p", 0, 1, 193)]
    assert launches([277], processors=132) == [("e", 0, 1, 277)]
    assert launches([17] * 7) == [("p", 0, 7, 17)], "prompts enough fill the card"
    assert launches([513], (1, 1, 128), 108) == [("p", 0, 1, 513)]
    assert launches([]) == []


def test_force_opens_newer_cards_and_never_older_ones() -> None:
    assert dispatch.refusal(replace(TURING, capability=(9, 0), forced=True)) is None
    assert dispatch.refusal(replace(TURING, capability=(7, 0), forced=True))


@pytest.mark.parametrize("heads", [(8, 24), (16, 48), (4, 12), (2, 2)])
def test_group_mappings_of_the_models_are_taken(heads: tuple[int, int]) -> None:
    assert dispatch.refusal(replace(TURING, k_heads=heads[0], v_heads=heads[1])) is None


@pytest.mark.parametrize(
    ("environment", "config", "wanted"),
    [
        (None, {}, "all"),
        (None, {"caovan": True, "caovan_mode": "auto"}, "all"),
        (None, {"caovan": False}, "off"),
        (None, {"caovan_kernels": "prefill"}, "prefill"),
        ("decode", {"caovan_kernels": "prefill"}, "decode"),
        ("off", {}, "off"),
        ("all", {"caovan": False}, "all"),
    ],
)
def test_environment_wins_over_config(environment: str | None, config: dict, wanted: str) -> None:
    assert dispatch.kernels_wanted(environment, config) == wanted


def test_a_switch_that_is_neither_true_nor_false_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot use caovan = 'false': it must be true or false"):
        dispatch.kernels_wanted(None, {"caovan": "false"})


def test_a_word_that_means_nothing_is_refused() -> None:
    with pytest.raises(
        ValueError, match="CAOVAN_KERNELS = 'fast': it must be one of off, prefill, decode, all"
    ):
        dispatch.kernels_wanted("fast", {})


@pytest.mark.parametrize(
    ("wanted", "taken"), [("off", ""), ("prefill", "p"), ("decode", "ds"), ("all", "pdsm")]
)
def test_batches_go_where_the_operator_wants(wanted: str, taken: str) -> None:
    batches = {
        "p": (1, 0, 0),
        "d": (0, 2, 0),
        "s": (0, 0, 2),
        "m": (1, 0, 1),
    }  # prefill, decode, verify, mixed
    for kind, (prefills, decodes, spec) in batches.items():
        assert dispatch.takes_batch(
            wanted, prefills=prefills, decodes=decodes, spec_decodes=spec
        ) == (kind in taken)


@pytest.mark.parametrize(
    ("capability", "vllm", "version", "words"),
    [
        ((7, 5), (0, 33, 0), (0, 7, 2), None),
        ((7, 5), (0, 32, 0), (0, 6, 16), None),
        ((7, 5), (0, 33, 0), (0, 6, 15), "0.6.15 is broken on SM75"),
        ((7, 5), (0, 33, 0), None, "not installed"),
        ((7, 5), (0, 21, 0), (0, 6, 8), "accepts FlashInfer on SM75 itself"),
        ((9, 0), (0, 33, 0), (0, 7, 2), "the GPU is SM90"),
        (None, (0, 33, 0), (0, 7, 2), "unknown compute capability"),
    ],
)
def test_flashinfer_is_offered_again_only_where_it_works(
    capability, vllm, version, words: str | None
) -> None:
    reason = dispatch.flashinfer_refusal(capability, vllm, version)
    assert reason is None if words is None else words in reason


def test_deciding_on_flashinfer_imports_no_flashinfer() -> None:
    """Its import initialises CUDA, which forces vLLM's workers to be spawned."""
    source = (ROOT / "plugin/caovan_vllm_sm75_turbo3/attention.py").read_text()
    assert "backends.flashinfer" not in source
    assert "import flashinfer" not in source
