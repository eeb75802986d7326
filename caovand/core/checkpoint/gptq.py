"""What a GPTQ checkpoint's quantization_config adds to the sizes: signs, order, exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.checkpoint.values import first_count, table_value, text_value
from caovand.core.facts.inventory import Gptq

LEFT_OUT = "-:"
"""Begins a key of `dynamic` for modules left unquantised; other keys store theirs differently."""


def read_gptq(config: Mapping[str, Any]) -> Gptq | None:
    """How these weights were quantised; None if another method did it."""
    if text_value(config, "quant_method").lower() != "gptq":
        return None
    exceptions = table_value(config, "dynamic")
    return Gptq(
        bits=first_count(config, "bits"),
        symmetric=config.get("sym") is True,
        act_order=config.get("desc_act") is not False,
        mixed=any(not str(name).startswith(LEFT_OUT) for name in exceptions),
    )
