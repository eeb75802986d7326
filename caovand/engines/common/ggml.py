"""Texts of ggml, which llama.cpp and Ollama's runners share: rows for both tables."""

from __future__ import annotations

import re

from caovand.engines.common.signature import signature

# Before b6900 no line of llama.cpp has a level.
_RAW = re.compile(
    r"(?:ggml|gguf|llama|llm|clip|common|load|alloc|sched|mtmd)_?\w{0,60}: |terminate called |  "
    r"what\(\): "
    r"|CUDA error|ROCm error|SYCL error|Native API failed"
    r"|  (?:current device|in function|cuda\w{1,60}\()|error loading model"
    r"|model: done_getting_tensors: "
    r"|(?:srv|main|slot|que) {1,6}\w{1,40}: |main: |[\w./\\:~+-]{1,300}\.(?:cpp|c|cu|cuh|h|hpp"
    r"|m):\d+: |GGML_ASSERT(?:: |\()"
    r"|[\w./-]{1,100}: [\w./\\+-]{1,300}:\d{1,6}: .{1,300}: Assertion [`']"
)
ROWS = (
    signature("ggml.split", "cause", "backend-unsupported",
         r"GGML_ASSERT\(.{0,200}\bGGML_BACKEND_SPLIT_AXIS_\w+"),
    signature("ggml.attention", "cause", "backend-unsupported",
         r"\bfattn[\w-]{0,40}\.cuh?:\d+: (?:fatal error|GGML_ABORT)"),
)  # fmt: skip
FILE = (
    signature("llama.file.cut", "cause", "model-missing",
         r"tensor '(?P<tensor>[^']{1,200})' data is not within the file bounds"
         r"|unexpectedly reached end of file|read error: "),
    signature("llama.model.key", "cause", "model-missing",
         r"key not found in model: (?P<key>[\w.]{1,200})"),
    signature("llama.model.tensor", "cause", "model-missing",
         r"tensor '(?P<tensor>[^']{1,200})' not found|missing tensor '(?P<missing>[^']{1,200})'"
         r"|tensor '(?P<gone>[^']{1,200})' is missing from model"),
    signature("llama.model.shape", "cause", "model-missing",
         r"tensor '(?P<tensor>[^']{1,200})' has wrong shape|error loading model hyperparameters: "
         r"|wrong number of tensors;(?: expected (?P<expected>\d+), got (?P<got>\d+)|$)"),
)  # fmt: skip
"""Faults that the loader finds in a model's file; Ollama's server repeats them."""


def is_raw(line: str) -> bool:
    """Whether a line without a level begins like one of its libraries."""
    return bool(_RAW.match(line))
