"""Rules for images and videos: the tower, and the sizes of what it reads."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.checkpoint.vision import MAX_PIXELS
from caovand.core.plan import Setting
from caovand.core.units import GIB
from caovand.engines.vllm.machine.capabilities import is_fp8
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.towers import encoding_bytes, video_tokens
from caovand.engines.vllm.planning.partial_plan import PartialPlan, chosen_by_policy, policy, user
from caovand.engines.vllm.planning.precision import tower_breaks_tiles

LIMITS, PROCESSOR = "limit_mm_per_prompt", "mm_processor_kwargs"
SMALLER_TOKENS = 5120
"""The tokens of the largest image where memory is short: four million pixels for Qwen2.5-VL, a page
of text at 200 dots per inch. Encoding it takes less than a step of text."""


def language_model_only(partial: PartialPlan) -> Setting | None:
    typed = partial.config.model.text_only
    if not partial.model.vision:
        return None
    if typed is not None:
        return user(typed, "[model] text_only")
    if partial.model.weights and not partial.model.size("vision"):
        return policy(True, "the model's folder holds no weights of a vision tower")
    if partial.choice and not partial.why_unmodelled and not partial.choice.candidate.vision:
        if tower_breaks_tiles(partial):
            return policy(
                True,
                f"vLLM {partial.engine.version} cannot quantise the vision tower while it loads:"
                " its rows are no multiple of Marlin's tiles",
            )
        return policy(True, "with the vision tower loaded the context would be cut short")
    return None


def limit_mm_per_prompt(partial: PartialPlan) -> Setting | None:
    """Without videos where vLLM's start would encode one as long as the context."""
    choice, tower = partial.choice, partial.model.tower
    if not choice or not tower or partial.why_unmodelled or choice.candidate.videos:
        return None
    with_videos = choice.candidate.but(videos=True, pixels=0)
    tokens = video_tokens(tower, with_videos.context)
    gib = encoding_bytes(partial.model, with_videos) / GIB
    size = f"{tokens} tokens of this context take {gib:.1f} GiB of each card, which the cache gets"
    if tokens <= tower.image_tokens:
        size = "it takes as much as the largest image"
    return policy(
        {"video": 0},
        f"vLLM encodes the longest video before it allocates the cache: {size}; images stay",
    )


def mm_processor_kwargs(partial: PartialPlan) -> Setting | None:
    """Smaller images where encoding the largest takes more than everything else in a step."""
    choice, tower = partial.choice, partial.model.tower
    if not choice or not tower or partial.why_unmodelled or not choice.candidate.pixels:
        return None
    whole = choice.candidate.but(pixels=0)
    gib = encoding_bytes(partial.model, whole) / GIB
    return policy(
        {MAX_PIXELS: choice.candidate.pixels},
        f"vLLM encodes the largest image before it allocates the cache: one of"
        f" {tower.image_tokens} tokens takes {gib:.1f} GiB of each card; larger images are scaled"
        f" down to {SMALLER_TOKENS} tokens",
    )


def smaller_inputs(partial: PartialPlan, base: Candidate) -> Iterator[Candidate]:
    """This base without videos, and with smaller images, where the start takes memory by their size
    and nobody limits them."""
    tower, verbatim = partial.model.tower, partial.verbatim
    if tower is None or not base.vision:
        return
    if LIMITS not in verbatim:
        base = base.but(videos=False)
        yield base
    if PROCESSOR not in verbatim and tower.token_pixels and tower.image_tokens > SMALLER_TOKENS:
        yield base.but(pixels=SMALLER_TOKENS * tower.token_pixels)


def text_only_may_help(partial: PartialPlan) -> bool:
    return "language_model_only" not in partial.verbatim and partial.config.model.text_only is None


def vision_warnings(partial: PartialPlan) -> list[str]:
    """A warning if the policy leaves the vision tower out, with what would bring images back."""
    setting = partial.settings.get("language_model_only")
    ours = chosen_by_policy(partial, "language_model_only")
    if not ours or not setting or not partial.model.size("vision"):
        return []
    model = partial.model
    fewer = model.quantization is None or is_fp8(model, "")  # no common checkpoint has under 4 bits
    smaller = "use a checkpoint quantised to fewer bits, or " if fewer else ""
    return [
        f"images are off: {setting.reason}; to serve them {smaller}set [model] text_only = false"
    ]
