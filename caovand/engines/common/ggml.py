"""Texts of ggml, which llama.cpp and Ollama's runners share: rows for both tables."""

from __future__ import annotations

import re

from caovand.engines.common.signature import signature

# Before b6900 no line of llama.cpp has a level.
_RAW = re.compile(
    r"(?:ggml|gguf|llama|llm|clip|common|load|alloc|sched|mtmd)_?\w{0,60}: |terminate called |  "
    r"what\(\): "
    r"|CUDA error|ROCm error|  (?:current device|in function|cuda\w{1,60}\()|error loading model"
    r"|(?:srv|main|slot|que) {1,6}\w{1,40}: |main: |[\w./\\:~+-]{1,300}\.(?:cpp|c|cu|cuh|h|hpp"
    r"|m):\d+: |GGML_ASSERT: |[\w./-]{1,100}: [\w./\\+-]{1,300}:\d{1,6}: .{1,300}: Assertion [`']"
)
ROWS = (
    signature("ggml.split", "cause", "backend-unsupported",
         r"GGML_ASSERT\(.{0,200}\bGGML_BACKEND_SPLIT_AXIS_\w+"),
    signature("ggml.attention", "cause", "backend-unsupported",
         r"\bfattn[\w-]{0,40}\.cuh?:\d+: (?:fatal error|GGML_ABORT)"),
)  # fmt: skip


def is_raw(line: str) -> bool:
    """Whether a line without a level begins like one of its libraries."""
    return bool(_RAW.match(line))
