"""What the operator's verbatim flags must not say: what vLLM would refuse after a minute's import,
and what would be read behind the planner's back. They are never corrected, only refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.plan import Unplannable
from caovand.engines.vllm.planning.flag_table import WANTED
from caovand.engines.vllm.planning.spelling import option


def check(given: Mapping[str, Any]) -> None:
    """Raise Unplannable for the first flag that cannot be used."""
    if "config" in given:
        raise Unplannable(
            f"cannot plan with --config {given['config']}: only vLLM reads that file, so what is "
            "planned here would overrule it unseen; write its keys as flags instead "
            "(`port: 8000` is --port 8000), in [engine] extra_args or behind the model"
        )
    for name, wanted in WANTED.items():
        if name in given and not wanted.accepts(given[name]):
            raise Unplannable(
                f"cannot use {option(name)} {given[name]!r}: it is {wanted.fact}; write"
                f" {wanted.remedy}, or leave it out"
            )
