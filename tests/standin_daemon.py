"""The configuration and model of a daemon that runs the stand-in engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.daemon_process import ROOT
from tests.ports import free_port

ENGINE = ROOT / "tests/standin/engine.py"


GATED_DELTA = {
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}  # fmt: skip


def make_model(folder: Path, *, hybrid: bool = False) -> Path:
    """Create a model folder that the planner accepts, with an MTP head and without real weights.

    With the recurrent states of a `hybrid`, the policy chooses no drafting on the CPU build.
    """
    folder.mkdir()
    config = {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "dtype": "bfloat16",
        "max_position_embeddings": 4096, "mtp_num_hidden_layers": 1,
    }  # fmt: skip
    if hybrid:
        config |= GATED_DELTA
    (folder / "config.json").write_text(json.dumps(config))
    header = {"mtp.fc.weight": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(4)
    (folder / "model.safetensors").write_bytes(data)
    return folder


def configuration(model: Path, orders: dict[str, Any] | None = None, **more: str) -> str:
    """A configuration for the stand-in; `more` adds lines to its sections."""
    env = json.dumps(json.dumps(orders or {}))
    sections = {
        "model": f'path = "{model}"\nmax_model_len = 2048',
        "server": f"port = {free_port()}",
        "engine": f'python = "{ENGINE}"\nenv = {{ STANDIN = {env} }}',
        "watch": "shutdown_timeout_s = 1",
    }
    for name, text in more.items():
        sections[name] = sections.get(name, "") + "\n" + text
    return "\n".join(f"[{name}]\n{text}" for name, text in sections.items())
