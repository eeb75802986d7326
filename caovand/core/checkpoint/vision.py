"""Read the shape of a vision tower from config.json and preprocessor_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.checkpoint.text_config import text_config
from caovand.core.checkpoint.values import first_count, table_value, text_value
from caovand.core.facts.vision import VisionTower

TOWER_CONFIG_KEYS = ("vision_config", "audio_config", "visual", "vision_tower_cfg")
QWEN, GLM = ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni"), ("glm4v", "glm4v_moe")
WITH_VIDEOS = ("qwen2", "qwen3", "qwen3_moe", "gpt_oss")
"""Types of the language models with which InternVL reads videos."""
MAX_PIXELS, COLOURS = "max_pixels", 3
QWEN_PIXELS, GLM_PIXELS = 12_845_056, 9_633_792
"""Pixels of the largest image in the published preprocessor_config.json of Qwen2-VL, Qwen2.5-VL and
GLM-4.1V; GLM counts those of two frames."""
TILES = 12
"""Tiles of InternVL's largest image, besides its thumbnail."""


def has_tower(config: Mapping[str, Any]) -> bool:
    """Whether the model has an image or audio tower."""
    return any(config.get(name) for name in TOWER_CONFIG_KEYS)


def vision_tower(
    config: Mapping[str, Any], processor: Mapping[str, Any] | None = None
) -> VisionTower | None:
    """The tower of a model whose videos may be as long as its context; None for other models.

    `processor` is preprocessor_config.json. Raises BadConfig.
    """
    family = text_value(config, "model_type")
    if family == "internvl_chat":
        return _tiled_tower(family, config)
    if family not in (*QWEN, *GLM):
        return None
    thinker = table_value(config, "thinker_config")
    vision, read = table_value(thinker or config, "vision_config"), processor or {}
    hidden = first_count(vision, "embed_dim") or first_count(vision, "hidden_size")
    inner = first_count(vision, "intermediate_size")
    if family in GLM:  # the other width is that of the projection to the language model
        inner = first_count(vision, "out_hidden_size")
    if not inner:
        inner = hidden * (first_count(vision, "mlp_ratio") or 4)
    patch, frames = first_count(vision, "patch_size"), first_count(vision, "temporal_patch_size")
    patch, frames = patch or 14, frames or 2
    merged = (first_count(vision, "spatial_merge_size") or 2) ** 2
    token = patch**2 * merged * (frames if family in GLM else 1)
    usual = GLM_PIXELS if family in GLM else QWEN_PIXELS
    asked = first_count(read, MAX_PIXELS) or first_count(table_value(read, "size"), "longest_edge")
    image = max((asked or usual) // token, 1)
    values = COLOURS * frames * patch**2
    pixels = 0 if family in GLM else token  # GLM's processor has no max_pixels
    return VisionTower(family, hidden, inner, values, merged, image, image, pixels)


def _tiled_tower(family: str, config: Mapping[str, Any]) -> VisionTower | None:
    """InternVL's tower: an image is divided into tiles of one size, a video has one per frame."""
    if text_config(config).get("model_type") not in WITH_VIDEOS:
        return None
    vision = table_value(config, "vision_config")
    hidden = first_count(vision, "hidden_size")
    inner, patch = first_count(vision, "intermediate_size"), first_count(vision, "patch_size") or 14
    patches = ((first_count(vision, "image_size") or 448) // patch) ** 2
    ratio = config.get("downsample_ratio")
    merged = round(ratio**-2) if isinstance(ratio, float) and 0.1 < ratio <= 1 else 4
    tile = max(patches // merged, 1)
    tiles = (first_count(config, "max_dynamic_patch") or TILES) + 1
    return VisionTower(family, hidden, inner, COLOURS * patch**2, merged, tiles * tile, tile)
