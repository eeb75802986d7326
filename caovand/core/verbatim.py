"""What the operator's verbatim flags must not say: what vLLM would refuse after a minute's import,
and what would be read behind the planner's back. They are never mended, only refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.draft import Unplannable
from caovand.core.flags import count, is_left_to_vllm, option

COUNTS = (
    "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "pipeline_parallel_size",
    "data_parallel_size", "kv_cache_memory_bytes", "num_gpu_blocks_override", "block_size",
)  # fmt: skip


def check(given: Mapping[str, Any]) -> None:
    """Raise Unplannable for the first flag that cannot be used."""
    if "config" in given:
        raise Unplannable(
            f"cannot plan with --config {given['config']}: only vLLM reads that file, so what is "
            "planned here would overrule it unseen; write its keys as flags instead "
            "(`port: 8000` is --port 8000), in [engine] extra_args or behind the model"
        )
    own = given.get("additional_config", {})
    if not isinstance(own, Mapping):
        raise _unusable("additional_config", own, "no JSON object", '\'{"key": "value"}\'')
    context = given.get("max_model_len", 1)
    if count(context) is None and not is_left_to_vllm(context):
        raise _unusable("max_model_len", context, "no number of tokens", "32768, 32k, 32K or auto")
    for name in COUNTS:
        if name in given and count(given[name]) is None:
            raise _unusable(name, given[name], "no count of one or more", "a whole number")
    port = given.get("port", 1)
    if type(port) is not int or not 0 < port < 65536:
        raise _unusable("port", port, "no number from 1 to 65535", "such a number")
    offload = given.get("cpu_offload_gb", 0)
    if not _is_number(offload) or offload < 0:
        raise _unusable("cpu_offload_gb", offload, "no size in GiB", "a number from 0")
    share = given.get("gpu_memory_utilization", 1)
    if not _is_number(share) or not 0 < share <= 1:
        raise _unusable(
            "gpu_memory_utilization", share, "no share of a card's memory", "0.9 or less, above 0"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unusable(name: str, value: Any, fact: str, remedy: str) -> Unplannable:
    return Unplannable(
        f"cannot use {option(name)} {value!r}: it is {fact}; write {remedy}, or leave it out"
    )
