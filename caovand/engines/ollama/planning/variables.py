"""The variables of `ollama serve` that are planned, and how to read them from a plan."""

from __future__ import annotations

from caovand.core.plan import Plan

CONTEXT = "max_model_len"
PARALLEL = "OLLAMA_NUM_PARALLEL"
KEEP_ALIVE = "OLLAMA_KEEP_ALIVE"
FLASH = "OLLAMA_FLASH_ATTENTION"
CACHE_TYPE = "OLLAMA_KV_CACHE_TYPE"
LOADED = "OLLAMA_MAX_LOADED_MODELS"
NO_PRUNE = "OLLAMA_NOPRUNE"
LOAD_TIMEOUT = "OLLAMA_LOAD_TIMEOUT"
OVERHEAD = "OLLAMA_GPU_OVERHEAD"
CARDS = "CUDA_VISIBLE_DEVICES"
NO_CARD = "-1"
CACHE_TYPES = ("f16", "q8_0", "q4_0")
OFF = frozenset({"", "0", "f", "F", "false", "FALSE", "False"})
"""Values that Ollama treats as false."""


def text(plan: Plan, name: str) -> str:
    """A variable's value; "" if it is not set."""
    setting = plan.env.get(name)
    return "" if setting is None or setting.value is None else str(setting.value)


def has_flash(plan: Plan) -> bool:
    """Whether attention runs in one pass (flash attention)."""
    return text(plan, FLASH) not in OFF


def number(plan: Plan, name: str) -> int:
    """A variable's value as a count; 0 for anything else."""
    return parse_count(text(plan, name))


def parse_count(value: str | None) -> int:
    """The count that a variable's value spells; 0 for anything else, which Ollama ignores too."""
    return int(value) if value and value.isascii() and value.isdecimal() else 0
