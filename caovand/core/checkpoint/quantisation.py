"""Read how a checkpoint's weights are quantised (quantization_config of config.json)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from caovand.core.checkpoint.tensors import DIGITS
from caovand.core.checkpoint.values import first_count, require_count, table_value, text_value
from caovand.core.facts.inventory import Gptq
from caovand.core.facts.packed import Packed

UNQUANTISED_BITS = 16
BITS = {
    "mxfp4": 4, "gpt_oss_mxfp4": 4, "modelopt_fp4": 4, "awq": 4, "gptq": 4, "fp_quant": 4,
    "fp8": 8, "fbgemm_fp8": 8, "modelopt": 8, "modelopt_mxfp8": 8, "experts_int8": 8,
}  # fmt: skip
"""Bits per weight by method, for configurations that omit them."""
SCALES = {"mxfp4": (8, 32), "gpt_oss_mxfp4": (8, 32), "modelopt_fp4": (8, 16)}
"""Bits of a scale and weights per scale, for methods that fix both."""
ZERO_BITS = {"awq": 4, "gptq": 4}
"""Bits of a group's zero point. AWQ has none if "zero_point" is false; GPTQ always has one."""
SPARED = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules")
PARTS = {
    "attention": re.compile("attn"),
    "shared experts": re.compile("shared_expert(?!_gate)"),
    "MLP": re.compile(r"mlp(?!\W*(experts|shared_expert|gate(?!_|\w)|router))"),
}
"""Parts of a layer that a list of unquantised modules may name; routers are never quantised."""
EXPERTS = re.compile(r"(?<!shared_)experts\b")
EVERY = "re:"
"""Prefix of patterns in compressed-tensors' `ignore`; without it, an entry names one module."""
WHOLE_LAYER = re.compile(r"\blayers\.(\d{1,4})\.?$")
MAX_LAYERS = 10_000
FLOATS = ("BF16", "F16", "F32")
QUANTISED = ("proj.weight", "qweight", "weight_packed", "weight_scale", "weight_scale_inv")
"""Suffixes of the names of weights, and of tensors that only quantised weights have."""
LEFT_OUT = "-:"
"""Prefix of keys in GPTQ's `dynamic` that name unquantised modules; others change how modules are
stored."""


@dataclass(frozen=True)
class Quantisation:
    """The storage of weights: `bits` per weight include its share of scale and zero; 16 for floats.

    `group_size` quantised weights of one output share a scale; in block fp8, `block_size` outputs
    do as well. 0 means unknown. `spared` lists the PARTS that some layers keep as floats.
    """

    method: str | None = None
    group_size: int = 0
    block_size: int = 0
    bits: float = UNQUANTISED_BITS
    spared: frozenset[str] = frozenset()


def read_quantisation(
    config: Mapping[str, Any], dense_size: int = 0, dense_first: int = 0
) -> Quantisation:
    """Parse a quantisation table; an empty one means unquantised.

    `dense_first` is how many layers begin a mixture of experts, with dense MLPs of `dense_size`.
    """
    if not config:
        return Quantisation()
    inner = config.get("quantization")  # ModelOpt's format in a separate file
    config = {**config, **inner} if isinstance(inner, Mapping) else config
    method, (block, group) = _method(config), _groups(config)
    spared = _spared_layers(config)
    broken = dense_size % group if group and not block else 0  # a group is never cut short
    if broken or _names_first_layers(config, dense_first):
        spared |= {"MLP"}
    return Quantisation(method, group, block, _bits(config, method, group), spared)


def _method(config: Mapping[str, Any]) -> str:
    """The method by vLLM's name; for ModelOpt the algorithm decides."""
    name = text_value(config, "quant_method").lower()
    if not name and text_value(table_value(config, "producer"), "name") == "modelopt":
        name = "modelopt"
    if not name.startswith("modelopt"):
        return name or "unknown"
    algorithm = text_value(config, "quant_algo").upper()
    if "FP4" in algorithm:
        return "modelopt_fp4"
    return {"MXFP8": "modelopt_mxfp8", "MIXED_PRECISION": "modelopt_mixed"}.get(algorithm, name)


def _weights(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Tables that describe weights; compressed-tensors has one per group of layers."""
    nested = config.get("config_groups")
    groups = nested.values() if isinstance(nested, Mapping) else ()
    return [table_value(group, "weights") for group in groups if isinstance(group, Mapping)]


def _groups(config: Mapping[str, Any]) -> tuple[int, int]:
    """Outputs and inputs that share a scale: both for block fp8, otherwise only inputs."""
    tables = (config, *_weights(config))
    for table in tables:
        for name in ("weight_block_size", "block_structure"):
            block = table.get(name)
            if isinstance(block, list) and len(block) == len(("outputs", "inputs")):
                return require_count(name, block[0]), require_count(name, block[1])
    return 0, max(first_count(table, "group_size", "q_group_size") for table in tables)


def _bits(config: Mapping[str, Any], method: str, group: int) -> float:
    stated = [
        first_count(config, "bits", "w_bit"),
        *(first_count(w, "num_bits") for w in _weights(config)),
    ]
    bits = max(stated) or BITS.get(method, UNQUANTISED_BITS)
    if method == "bitsandbytes":
        bits = 4 if config.get("load_in_4bit") else 8
    without = method == "awq" and config.get("zero_point") is False
    zero = 0 if without else ZERO_BITS.get(method, 0)
    scale, shared = SCALES.get(method, (UNQUANTISED_BITS + zero, group))
    return min(bits + (scale / shared if shared else 0), UNQUANTISED_BITS)


def _names(config: Mapping[str, Any]) -> list[str]:
    """The modules that are listed as unquantised."""
    lists = [config.get(name) for name in SPARED]
    names = [name for listed in lists if isinstance(listed, list) for name in listed]
    return [name for name in names if isinstance(name, str)]


def _spared_layers(config: Mapping[str, Any]) -> frozenset[str]:
    names = _names(config)
    return frozenset(
        part for part, mark in PARTS.items() if any(mark.search(name) for name in names)
    )


def _names_first_layers(config: Mapping[str, Any], count: int) -> bool:
    """Whether all of the first layers are listed, whole."""
    whole = {match[1] for name in _names(config) if (match := WHOLE_LAYER.search(name))}
    return count > 0 and {str(number) for number in range(min(count, MAX_LAYERS))} <= whole


def kept_as_floats(tensors: Iterable[tuple[str, str, int]]) -> frozenset[str]:
    """The PARTS that a quantised checkpoint stores only as floats, from (name, type, bytes) of
    every tensor.
    """
    floats, others = set[str](), set[str]()
    kinds = {
        (name.encode(errors="surrogatepass").translate(None, DIGITS), dtype)
        for name, dtype, _ in tensors
    }
    for written, dtype in kinds:
        plain = written.decode(errors="replace")
        kind = floats if dtype in FLOATS and plain.endswith("proj.weight") else others
        if kind is floats or plain.endswith(QUANTISED):
            kind.update(part for part, mark in PARTS.items() if mark.search(plain))
    return frozenset(floats - others)


def read_gptq(config: Mapping[str, Any]) -> Gptq | None:
    """Read GPTQ's own fields: symmetry, order and exceptions; None for another method."""
    if text_value(config, "quant_method").lower() != "gptq":
        return None
    exceptions = table_value(config, "dynamic")
    return Gptq(
        bits=first_count(config, "bits"),
        symmetric=bool(config["sym"]) if "sym" in config else None,
        act_order=config.get("desc_act") is not False,
        mixed=any(not str(name).startswith(LEFT_OUT) for name in exceptions),
    )


def read_packed(config: Mapping[str, Any]) -> Packed | None:
    """Read how compressed-tensors packed the experts, or all layers without any; None for floats
    and for another method."""
    if _method(config) != "compressed-tensors" or any(
        name.startswith(EVERY) and EXPERTS.search(name) for name in _names(config)
    ):
        return None
    nested = config.get("config_groups")
    groups = nested.values() if isinstance(nested, Mapping) else ()
    tables = [group for group in groups if isinstance(group, Mapping)]
    ours = [table for table in tables if EXPERTS.search(str(table.get("targets")))]
    rest = [table for table in tables if "Linear" in str(table.get("targets"))]
    for table in (*ours, *rest):
        weights, inputs = table_value(table, "weights"), table_value(table, "input_activations")
        if weights.get("type") != "int":
            return None
        return Packed(
            bits=first_count(weights, "num_bits"),
            symmetric=weights.get("symmetric") is not False,
            int8_inputs=inputs.get("type") == "int",
        )
    return None


def keeps_fp8_cache(config: Mapping[str, Any]) -> bool:
    """Whether the cache is stored in fp8 with the checkpoint's scales, as ModelOpt and
    compressed-tensors declare it.
    """
    method = _method(config) if config else ""
    if not method.startswith(("modelopt", "compressed-tensors")):
        return False
    for table in (table_value(config, "quantization"), config):
        scheme = table_value(table, "kv_cache_scheme")
        if scheme:
            floats = scheme.get("num_bits") == 8 and scheme.get("type") == "float"
            return floats and scheme.get("dynamic") is not True
        if method.startswith("modelopt") and text_value(table, "kv_cache_quant_algo"):
            return text_value(table, "kv_cache_quant_algo").lower() == "fp8"
    return False
