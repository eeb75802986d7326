"""Models whose videos may be as long as the context: vLLM's start encodes one of that length."""

from __future__ import annotations

from typing import Any

import pytest

from caovand.core.checkpoint.values import BadConfig
from caovand.core.checkpoint.vision import vision_tower
from caovand.core.facts.vision import VisionTower
from caovand.core.plan import Plan
from caovand.core.units import GIB
from caovand.engines.registry import engine_of
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.towers import encoded_tokens, encoding_bytes, video_tokens
from tests.boxes.machines import box_with
from tests.boxes.models import CONFIGS, model
from tests.core.machines import plan

QWEN = model("Qwen2.5-VL-7B")
FIVE_TOKENS = 5 * 14 * 14 * 4
GLM = {
    "model_type": "glm4v_moe",
    "vision_config": {
        "hidden_size": 1536, "intermediate_size": 10944, "out_hidden_size": 4096, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    },
}  # fmt: skip
INTERN = {
    "model_type": "internvl_chat", "downsample_ratio": 0.5, "max_dynamic_patch": 12,
    "llm_config": {"model_type": "qwen3"},
    "vision_config": {
        "hidden_size": 1024, "intermediate_size": 4096, "patch_size": 14, "image_size": 448,
    },
}  # fmt: skip


def tower(config: dict[str, Any]) -> VisionTower:
    found = vision_tower(config)
    assert found
    return found


def test_the_peak_is_that_of_a_published_start() -> None:
    """An A100 of 79.15 GiB with a share of 0.22 had weights of 15.67 GiB, graphs of 0.53 and -14.28
    of cache, with a budget of 114,688 tokens: 15.5 GiB besides, of which 0.3 are the context."""
    start = Candidate(128_000, 256, 8192, 0.22, vision=True)
    assert QWEN.tower
    assert encoded_tokens(QWEN.tower, start) == 114_688
    assert encoding_bytes(QWEN, start) / GIB == pytest.approx(15.2, rel=0.03)
    assert encoding_bytes(QWEN, start.but(videos=False)) / GIB == pytest.approx(2.18, rel=0.01)
    assert encoding_bytes(QWEN, start.but(tensor_parallel=2)) < encoding_bytes(QWEN, start)
    assert encoding_bytes(QWEN, start.but(vision=False)) == 0
    assert encoding_bytes(QWEN, start.but(first=False)) == 0


@pytest.mark.parametrize(
    ("context", "tokens"), [(4096, 16384), (49_152, 49_152), (65_535, 49_152), (1 << 20, 114_688)]
)
def test_a_video_of_qwens_has_at_most_fourteen_frames(context: int, tokens: int) -> None:
    assert QWEN.tower
    assert video_tokens(QWEN.tower, context) == tokens


def test_videos_of_glm_end_at_thirty_thousand_tokens_and_leave_room_for_an_image() -> None:
    found = tower(GLM)
    assert found.image_tokens == 6144
    assert found.inner_size == 4096
    assert [video_tokens(found, context) for context in (8192, 20_000, 131_072)] == [
        6144, 12_288, 30_000,
    ]  # fmt: skip


def test_a_video_of_internvl_has_a_tile_for_every_256_tokens_of_the_context() -> None:
    found = tower(INTERN)
    assert (found.frame_tokens, found.image_tokens) == (256, 13 * 256)
    assert video_tokens(found, 40_960) == 40_960
    mute = {**INTERN, "llm_config": {"model_type": "internlm2"}}
    assert vision_tower(mute) is None


def test_the_processor_limits_an_image() -> None:
    config = CONFIGS["Qwen2.5-VL-7B"]
    for processor in ({"max_pixels": FIVE_TOKENS}, {"size": {"longest_edge": FIVE_TOKENS}}):
        found = vision_tower(config, processor)
        assert found
        assert found.image_tokens == 5
        assert video_tokens(found, 128_000) == 35
    start = Candidate(128_000, 256, 8192, 0.22, vision=True, pixels=FIVE_TOKENS)
    assert encoding_bytes(QWEN, start) < encoding_bytes(QWEN, start.but(pixels=0)) / 10
    with pytest.raises(BadConfig, match="max_pixels"):
        vision_tower(config, {"max_pixels": "many"})


def test_other_models_have_no_such_tower() -> None:
    assert model("Qwen3.6-27B").tower is None
    assert model("Llama-3.1-8B").tower is None
    assert tower({**CONFIGS["Qwen2.5-VL-7B"], "model_type": "qwen2_vl", "vision_config": {
        "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "patch_size": 14,
    }}).inner_size == 5120  # fmt: skip


def activations(made: Plan, box: str, name: str) -> float:
    found = engine_of("vllm").planning.forecast(made, box_with(box, model(name)))
    assert found.fits
    return dict(found.parts)["activations"] / 1024


def test_a_small_card_serves_images_without_videos() -> None:
    made = plan(box_with("3060-12g", model("Qwen2.5-VL-7B-AWQ")))
    assert made.value("language_model_only") is None
    assert made.value("limit_mm_per_prompt") == {"video": 0}
    assert made.value("mm_processor_kwargs") == {"max_pixels": 5120 * 784}
    assert made.value("max_model_len") >= 40_960
    assert "images stay" in made.settings["limit_mm_per_prompt"].reason
    assert "down to 5120 tokens" in made.settings["mm_processor_kwargs"].reason
    assert activations(made, "3060-12g", "Qwen2.5-VL-7B-AWQ") < 1.3


def test_a_large_card_keeps_videos_and_their_memory() -> None:
    made = plan(box_with("a100-80g", QWEN))
    assert made.value("limit_mm_per_prompt") is None
    assert made.value("mm_processor_kwargs") is None
    assert activations(made, "a100-80g", "Qwen2.5-VL-7B") > 15


def test_limits_by_hand_are_kept_and_forecast() -> None:
    for words, most in (
        (("--limit-mm-per-prompt", '{"video": 0}'), 2.5),
        (("--limit-mm-per-prompt", '{"video": {"count": 0}}'), 2.5),
        (("--mm-processor-kwargs", '{"max_pixels": 1003520}'), 1.7),
    ):
        made = plan(box_with("a100-80g", QWEN), engine={"extra_args": list(words)})
        assert {"limit_mm_per_prompt", "mm_processor_kwargs"} & made.verbatim
        assert activations(made, "a100-80g", "Qwen2.5-VL-7B") < most


@pytest.mark.parametrize(
    ("words", "pixels"),
    [
        (("--limit-mm-per-prompt", '{"video": 0}'), 5120 * 784),
        (("--mm-processor-kwargs", '{"max_pixels": 1003520}'), 1_003_520),
    ],
)
def test_one_limit_by_hand_leaves_the_other_to_the_plan(
    words: tuple[str, str], pixels: int
) -> None:
    machine = box_with("3060-12g", model("Qwen2.5-VL-7B-AWQ"))
    made = plan(machine, engine={"extra_args": list(words)})
    assert made.value("language_model_only") is None
    assert made.value("mm_processor_kwargs") == {"max_pixels": pixels}
    assert made.value("max_model_len") >= 40_960


def test_glms_images_have_no_limit_to_set() -> None:
    assert tower(GLM).token_pixels == 0
