"""Read what GPTQ's quantization_config adds to the sizes: symmetry, order and exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.checkpoint.values import first_count, table_value, text_value
from caovand.core.facts.inventory import Gptq

LEFT_OUT = "-:"
"""Prefix of keys in `dynamic` that name unquantised modules; other keys change how modules are
stored."""


def read_gptq(config: Mapping[str, Any]) -> Gptq | None:
    """How these weights were quantised; None for another method."""
    if text_value(config, "quant_method").lower() != "gptq":
        return None
    exceptions = table_value(config, "dynamic")
    return Gptq(
        bits=first_count(config, "bits"),
        symmetric=config.get("sym") is True,
        act_order=config.get("desc_act") is not False,
        mixed=any(not str(name).startswith(LEFT_OUT) for name in exceptions),
    )
