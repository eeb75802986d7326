"""Vision towers: steps that hold an image or video, room to encode it, and when a tower is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.core.plan import Plan
from caovand.engines.registry import engine_of
from tests.boxes.machines import box_with
from tests.boxes.models import model
from tests.core.machines import plan

VIDEO = 2496  # 32 frames of 70 tokens, and 8 around each
GEMMA = model("gemma-4-31B-AWQ")


@pytest.mark.parametrize("box", ["l40s", "3090-x2", "5090"])
def test_a_step_holds_a_video_of_gemma_4(box: str) -> None:
    made = plan(box_with(box, GEMMA))
    assert made.value("language_model_only") is None
    assert made.value("max_num_batched_tokens") >= VIDEO
    divided = replace(GEMMA, images_both_ways=False)
    assert plan(box_with("3090-x2", divided)).value("max_num_batched_tokens") < VIDEO


def test_text_alone_and_a_recording_have_steps_of_their_own() -> None:
    text = plan(box_with("3090-x2", GEMMA), model={"text_only": True})
    assert text.value("max_num_batched_tokens") < VIDEO
    small = model("R1-Distill-Qwen-32B-AWQ")
    whisper = plan(box_with("3090", replace(small, task="transcription", encoder_tokens=3000)))
    assert whisper.value("max_num_batched_tokens") >= 3000


def test_shorter_steps_by_hand_are_refused_with_the_remedy() -> None:
    box = box_with("l40s", GEMMA)

    def conflicts(*words: str) -> list[str]:
        words = ("--max-num-batched-tokens", "2048", *words)
        made = plan(box, engine={"extra_args": list(words)})
        return [str(one) for one in engine_of("vllm").planning.conflicts(made, box)]

    (told,) = conflicts()
    assert "images and videos in steps of 2048 tokens" in told
    assert f"use --max-num-batched-tokens {VIDEO} or more, or --language-model-only" in told
    assert conflicts("--language-model-only") == []
    assert conflicts("--limit-mm-per-prompt", '{"video": 0}') == []


def test_vision_is_kept_while_the_context_is_long_enough_however_long_it_were_without() -> None:
    for mib, sees in ((22900, False), (23400, True)):
        box = box_with("a10", model("Qwen3.5-9B"))
        (gpu,) = box.gpus
        made = plan(replace(box, gpus=(replace(gpu, total_mib=mib, free_mib=mib - 300),)))
        assert (made.value("language_model_only") is None) == sees
        assert sees == (32768 <= made.value("max_model_len") < 65536)
        assert not sees or "text alone would hold" in made.settings["max_model_len"].reason


def test_a_model_for_images_keeps_its_tower_for_a_shorter_context() -> None:
    """Text alone would hold more than twice as much."""
    card = model("Qwen3.5-9B")
    box = box_with("a10", card)
    (gpu,) = box.gpus
    tight = replace(box, gpus=(replace(gpu, total_mib=21_000, free_mib=20_700),))
    made = {
        name: plan(replace(tight, model=replace(card, architecture=name)))
        for name in (card.architecture, "Qwen3VLForConditionalGeneration")
    }
    assert made[card.architecture].value("language_model_only")
    kept = made["Qwen3VLForConditionalGeneration"]
    assert kept.value("language_model_only") is None
    assert 16_384 <= kept.value("max_model_len") < 32_768


def _on_12_gb(architecture: str, free_mib: int, workload: str = "chat") -> Plan:
    card = replace(model("Qwen3.5-9B-AWQ"), architecture=architecture)
    box = box_with("3060-12g", card)
    gpu = replace(box.gpus[0], total_mib=free_mib + 300, free_mib=free_mib)
    return plan(replace(box, gpus=(gpu,)), policy={"workload": workload})


@pytest.mark.parametrize("workload", ["chat", "batch"])
@pytest.mark.parametrize(
    ("architecture", "sees"),
    [
        ("MllamaForConditionalGeneration", True),
        ("Qwen3VLForConditionalGeneration", True),
        ("Qwen3_5ForConditionalGeneration", False),
    ],
)
def test_images_outweigh_speed_only_where_the_model_is_for_them(
    architecture: str, sees: bool, workload: str
) -> None:
    made = _on_12_gb(architecture, 10_500, workload)
    assert (made.value("language_model_only") is None) == sees
    assert made.value("max_model_len") >= (8192 if sees else 32_768)
    none = _on_12_gb(architecture, 9_500, workload)  # less than 8,192 tokens would fit with them
    assert none.value("language_model_only")


def test_fewer_bits_are_a_remedy_only_above_four() -> None:
    four = _on_12_gb("Qwen3_5ForConditionalGeneration", 10_500)
    (told,) = [one for one in four.warnings if one.startswith("images are off")]
    assert told.endswith("to serve them set [model] text_only = false")
    box = box_with("a10", model("Qwen3.5-9B"))
    box = replace(box, gpus=(replace(box.gpus[0], free_mib=22_000),))
    (told,) = [one for one in plan(box).warnings if one.startswith("images are off")]
    assert "use a checkpoint quantised to fewer bits" in told


def test_a_cache_that_we_size_leaves_room_to_encode_the_largest_image() -> None:
    """Of Gemma every image is small; vLLM itself measures where it sizes the cache."""
    for name, least in (("Qwen3.5-35B-A3B-AWQ", 1024), ("gemma-4-26B-A4B-AWQ", 0)):
        box = box_with("4090", model(name))
        made = plan(box)
        assert made.value("kv_cache_memory_bytes")
        assert made.value("language_model_only") is None
        found = dict(engine_of("vllm").planning.forecast(made, box).parts)["activations"]
        assert (found >= 1024) == bool(least)
