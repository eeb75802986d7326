"""Tables of sines and cosines, against the buffers that vLLM 0.21.0 registered or its source."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.checkpoint.config_json import describe
from caovand.core.checkpoint.rope import table_elements

LINEAR = {"rope_type": "linear", "factor": 8.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
MROPE = {"mrope_section": [11, 11, 10]}


@pytest.mark.parametrize(
    ("positions", "head", "more", "elements"),
    [
        (32768, 128, {}, 32768 * 128),
        (131072, 128, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072 * 128),
        (131072, 256, {"rope_scaling": LINEAR}, 1048576 * 256),
        (8192, 128, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 16384 * 128),
        (8192, 128, {"rope_scaling": {"type": "dynamic", "alpha": 1000.0}}, 8192 * 128),
        (131072, 128, {"rope_scaling": YARN}, 131072 * 128),
        (32768, 128, {"rope_parameters": {"rope_type": "default", **MROPE}}, 4 * 32768 * 128),
        (32768, 128, {"rope_scaling": {**YARN, **MROPE}}, 4 * 131072 * 128),
        (
            131072, 96,
            {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096},
            135168 * 96,
        ),
        (32768, 128, {"partial_rotary_factor": 0.5}, 32768 * 64),
        (262144, 256, {"rope_parameters": {"partial_rotary_factor": 0.25}}, 262144 * 64),
        (40960, 128, {"model_type": "gpt_oss"}, 2 * 40960 * 128),  # float32
        (163840, 128, {"qk_rope_head_dim": 64}, 163840 * 64),
    ],
)  # fmt: skip
def test_a_table_is_as_long_as_vllm_makes_it(
    positions: int, head: int, more: dict[str, Any], elements: int
) -> None:
    assert table_elements({"max_position_embeddings": positions, **more}, head) == elements


def test_gemma_3_has_a_table_of_each_kind_512_and_64_mib() -> None:
    as_published = {
        "max_position_embeddings": 131072, "rope_scaling": LINEAR, "rope_local_base_freq": 10000,
    }  # fmt: skip
    by_layer = {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default"}}
    later = {"max_position_embeddings": 131072, "rope_parameters": by_layer}
    for text in (as_published, later):
        assert table_elements(text, 256) * 2 == (512 + 64) << 20


def test_layers_that_scale_alike_share_a_table() -> None:
    alike = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e6}}
    text = {"max_position_embeddings": 1024, "rope_parameters": alike}
    assert table_elements(text, 64) == 1024 * 64
    assert table_elements(text, 64, 128) == 1024 * (64 + 128)  # heads of two widths


@given(
    factor=st.floats(1, 64),
    positions=st.integers(1, 1 << 20),
    kind=st.sampled_from(["linear", "yarn"]),
)
def test_a_table_covers_every_position_a_request_may_reach(
    factor: float, positions: int, kind: str
) -> None:
    card = describe(
        {
            "architectures": ["A"], "hidden_size": 64, "num_attention_heads": 1,
            "num_hidden_layers": 1, "max_position_embeddings": positions,
            "rope_scaling": {"rope_type": kind, "factor": factor},
        }
    )  # fmt: skip
    assert card.rope_elements >= (card.max_model_len - 1) * card.head_dim
