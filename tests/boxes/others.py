"""The table for engines other than vLLM: what an expert would run on a box, and what is planned.

A row begins with `## ENGINE: MODEL`, and may end with `, batch` or `, long`; llama.cpp and Ollama
serve a GGUF file of four bits of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from textwrap import wrap
from typing import Any

from caovand.core.config.parser import parse
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import EngineInfo, Inventory, ModelCard
from caovand.core.plan import Plan, Unplannable
from caovand.engines.common.gguf.converted import TYPE, convert_sizes
from caovand.engines.registry import engine_of
from tests.boxes.machines import box_with
from tests.boxes.models import model
from tests.boxes.table import WIDTH
from tests.engines.llamacpp.machines import CUDA as LLAMACPP
from tests.engines.sglang.test_planner import REAL as SGLANG

ENGINES: Mapping[str, EngineInfo] = {
    "llamacpp": replace(LLAMACPP, cuda="13.0.96"),
    "ollama": replace(LLAMACPP, executable="/usr/local/bin/ollama", version="0.13.0", cuda="12"),
    "sglang": replace(SGLANG, kernels=(*SGLANG.kernels, ("sm_120", ()))),
}
SHOWN: Mapping[str, tuple[str, ...]] = {
    "llamacpp": (
        "gpu_layers", "tensor_split", "n_cpu_moe", "max_model_len", "parallel", "cache_type_k",
        "batch_size", "ubatch_size", "load_mode", "cache_ram", "unified", "speculative_config",
    ),
    "ollama": (
        "max_model_len", "OLLAMA_NUM_PARALLEL", "OLLAMA_KV_CACHE_TYPE", "OLLAMA_GPU_OVERHEAD",
    ),
    "sglang": (
        "tp_size", "dp_size", "attn_dp_size", "max_model_len", "max_running_requests",
        "mem_fraction_static", "chunked_prefill_size", "kv_cache_dtype", "dtype",
        "cuda_graph_max_bs_decode", "disable_radix_cache", "attention_backend",
        "speculative_config",
    ),
}  # fmt: skip


def planned(row: str, box: str) -> list[str]:
    """The plan of `ENGINE: MODEL` on a box, in a few lines."""
    kind, _, name = row.partition(": ")
    name, _, workload = name.partition(", ")
    engine, machine = engine_of(kind), _machine(kind, name, box)
    config = parse({
        "model": {"path": machine.model.path}, "engine": {"kind": kind},
        "policy": {"workload": workload or "chat"},
    })  # fmt: skip
    try:
        found = engine.planning.make(config, machine)
    except Unplannable as problem:
        return wrap(f"refused: {problem}", WIDTH, subsequent_indent=" " * 10)
    memory, speed = engine.planning.forecast(found, machine), engine.planning.speed(found, machine)
    lines = [_settings(kind, found), _room(memory, speed), *_reasons(found)]
    return [part for line in lines for part in wrap(line, WIDTH, subsequent_indent=" " * 10)]


def _machine(kind: str, name: str, box: str) -> Inventory:
    engine, card = ENGINES[kind], model(name)
    if kind != "sglang":
        card = in_gguf(card)
        engine = engine if box_with(box, card).gpus else replace(engine, build="cpu")
    if kind == "ollama" and card.gguf:  # its files hold a model's vision tower as well
        card = replace(card, gguf=replace(card.gguf, vision=model(name).size("vision")))
    return box_with(box, card, engine)


@cache
def in_gguf(card: ModelCard) -> ModelCard:
    """The model in a GGUF file of four bits."""
    path = f"{card.path}-{TYPE}.gguf"
    return replace(card, path=path, quantization=TYPE, weights=(), gguf=convert_sizes(card))


def _settings(kind: str, found: Plan) -> str:
    values = {name: setting.value for name, setting in found.settings.items()}
    values |= {name: setting.value for name, setting in found.env.items()}
    named = [name for name in SHOWN[kind] if values.get(name) is not None]
    parts = [f"{name} {_plain(values[name])}" for name in named]
    where = f"cards {','.join(found.cards or ())}" if any(found.cards or ()) else "CPU"
    return f"plan:   {where}, {', '.join(parts)}"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['method']} {value['num_speculative_tokens']}"
    return str(value)


def _room(memory: MemoryEstimate, speed: float | None) -> str:
    if memory.fits is None:
        return f"        ?: {memory.reason}"
    fits = "fits" if memory.fits else "does not fit"
    parts = ", ".join(f"{name} {size / 1024:.2f}" for name, size in memory.parts)
    pace = "" if speed is None else f", modelled {speed:.3g} tokens/s"
    return f"        {fits}: GiB of {parts}{pace}"


def _reasons(found: Plan) -> Iterator[str]:
    for name in ("max_model_len", "tp_size"):
        setting = found.settings.get(name)
        if setting and setting.origin == "policy":
            yield f"        {name}: {setting.reason}"
    for warning in found.warnings:
        if warning.startswith("Ollama reports no counters"):
            continue  # with every plan
        yield f"        warning: {warning}"
