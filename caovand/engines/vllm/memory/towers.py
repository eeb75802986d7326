"""Memory of a vision tower while vLLM encodes the largest input that a request may have.

vLLM does that before it allocates the cache, whoever sizes it (`profile_run`). Of most models the
largest input is an image. For the families below it is a video as long as the context, encoded in
one pass: Qwen2.5-VL's takes 15 GiB with 114,688 tokens. The rules were read from vLLM 0.21 and
0.33, `get_num_frames_with_most_features` and `get_dummy_mm_data` of each model.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import NamedTuple

from caovand.core.facts.inventory import ModelCard
from caovand.core.facts.vision import VisionTower
from caovand.engines.vllm.memory.candidate import Candidate


class Family(NamedTuple):
    """Widths that a kind of tower keeps per patch at its peak and in an MLP, and its longest video.

    `streams` are vectors as wide as the hidden size, `inners` as wide as the MLP. A video is at
    most `units` times as long as its first frames, and at most `tokens` long; it leaves the context
    room for this many `images`.
    """

    streams: int
    inners: int
    units: float = inf
    tokens: float = inf
    images: int = 0


GATED, PLAIN = (5, 3), (3, 2)
FAMILIES = {
    "qwen2_vl": Family(*PLAIN, units=7),
    "qwen2_5_vl": Family(*GATED, units=7),
    "qwen2_5_omni": Family(*GATED, units=7),
    "glm4v": Family(*GATED, tokens=30_000, images=1),
    "glm4v_moe": Family(*GATED, tokens=30_000, images=1),
    "internvl_chat": Family(*PLAIN),
}
"""By config.json's type. Two frames of Qwen's and GLM's videos have the tokens of one image; vLLM
takes at most 14 frames of Qwen's."""


def limit_images(tower: VisionTower, pixels: int) -> VisionTower:
    """The tower as --mm-processor-kwargs limits its images; `pixels` is 0 without a limit."""
    if not pixels or not tower.token_pixels:
        return tower
    tokens = max(pixels // tower.token_pixels, 1)
    return replace(tower, image_tokens=tokens, frame_tokens=tokens)


def video_tokens(tower: VisionTower, context: int) -> int:
    """The tokens of the longest video that vLLM encodes at the start with this context."""
    family = FAMILIES[tower.family]
    room = context - family.images * tower.image_tokens
    units = min(max(room // tower.frame_tokens, 1), family.units)
    return int(min(units * tower.frame_tokens, max(family.tokens, tower.image_tokens)))


def encoded_tokens(tower: VisionTower, candidate: Candidate) -> int:
    """Tokens of what vLLM encodes at once at the start: its largest input, as often as it fits in a
    step."""
    video = video_tokens(tower, candidate.context) if candidate.videos else 0
    largest = max(video, tower.image_tokens)
    return max(candidate.batch_tokens // largest, 1) * largest


def encoding_bytes(model: ModelCard, candidate: Candidate) -> float:
    """The peak of encoding on one rank, without weights; 0 for a model of no known family."""
    if model.tower is None or not candidate.vision or not candidate.first:
        return 0.0
    tower = limit_images(model.tower, candidate.pixels)
    family = FAMILIES[tower.family]
    patch = family.inners * tower.inner_size / candidate.tensor_parallel
    patch += family.streams * tower.hidden_size + tower.pixels
    return encoded_tokens(tower, candidate) * tower.patches * patch * candidate.activation
