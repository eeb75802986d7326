"""How weights are read, and the host or card that lacks the memory for it.

By default vLLM maps each safetensors file: its pages are read once and leave memory again when
others need it, also under a cgroup's limit, so a checkpoint may be far larger than RAM. Only what
reads files into memory of their own is decided or refused here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from caovand.core.facts.inventory import Host, ModelCard
from caovand.core.facts.shortfalls import cannot_map, small_host
from caovand.core.plan import Setting
from caovand.core.problem import Problem
from caovand.core.units import MIB
from caovand.engines.vllm.memory.load_peak import loading_bytes
from caovand.engines.vllm.memory.settings import candidate_of_plan
from caovand.engines.vllm.planning.partial_plan import PartialPlan, PlanOnCards, policy

STREAMED = "runai_streamer"
BUFFER_VARIABLE = "RUNAI_STREAMER_MEMORY_LIMIT"
BUFFER_MIB = 40_000_000_000 >> 20
"""The streamer's buffer in each process unless it is limited, or the checkpoint is smaller."""
MAPPED = (None, "auto", "hf", "safetensors", "mistral")
"""Load formats that obey --safetensors-load-strategy."""


def model_loader_extra_config(partial: PartialPlan) -> Setting | None:
    """A bound for the buffer of a stream that the operator asks for, on a host that lacks the
    memory for its default."""
    if partial.verbatim.get("load_format") != STREAMED:
        return None
    if BUFFER_VARIABLE in dict(partial.config.engine.env):
        return None
    buffers_mib = min(BUFFER_MIB, partial.model.size() >> 20) * len(partial.gpus)
    if buffers_mib <= partial.host.available_mib:
        return None
    return policy(
        {"memory_limit": 0},
        f"the streamer's buffers would take {buffers_mib} MiB of the"
        f" {partial.host.available_mib} MiB of RAM that are available: with 0 each has the size of"
        " the largest tensor",
    )


def lack_of_memory(model: ModelCard, host: Host, load_format: Any = None) -> Problem | None:
    """The memory that loading in this format lacks on this host; None if it lacks none."""
    lack = None if load_format in ("dummy", STREAMED) else small_host(model, host)
    if lack is None or not cannot_map(model, host):
        return lack
    stream = (
        "stream it, which maps nothing: install runai-model-streamer in the engine's environment"
        f" and pass --load-format {STREAMED} in [engine] extra_args"
    )
    return replace(lack, remedy=f"{lack.remedy}; or {stream}")


def whole_files(placed: PlanOnCards) -> Iterator[Problem]:
    """Files that every rank reads into memory of its own, where they do not fit."""
    values, model, host = placed.plan.values, placed.inventory.model, placed.inventory.host
    eager = values.get("safetensors_load_strategy") == "eager"
    formats = (None, "auto", "hf", "pt") if model.pickled else MAPPED
    if values.get("load_format") not in formats or not (eager or model.pickled):
        return
    ranks = max(len(placed.gpus), 1)
    largest_mib = model.largest_file >> 20
    if largest_mib * ranks <= host.ram_mib + host.swap_mib:
        return
    processes = f"{ranks} processes" if ranks > 1 else "the engine"
    fact = (
        f"{processes} would hold the largest file, {largest_mib} MiB, in memory of"
        f" {'their' if ranks > 1 else 'its'} own, and the machine has {host.ram_mib} MiB RAM and"
        f" {host.swap_mib} MiB swap"
    )
    if model.pickled:
        yield Problem("load pickled weights", fact, "get the checkpoint in safetensors files")
    else:
        yield Problem(
            "use --safetensors-load-strategy eager",
            fact,
            "remove it: by default vLLM maps the files",
        )


ON_THE_CARD = "fastsafetensors"
"""The load format that copies each file whole to a card, and from there into the weights."""


def files_on_cards(placed: PlanOnCards) -> Iterator[Problem]:
    """Files that do not fit on a card next to the weights."""
    model, gpus = placed.model, placed.gpus
    if placed.plan.value("load_format") != ON_THE_CARD or not gpus or model.pickled:
        return
    candidate = candidate_of_plan(placed.plan, placed.inventory)
    weights_mib = loading_bytes(model, candidate) / MIB
    largest_mib, least = model.largest_file >> 20, min(gpu.free_mib for gpu in gpus)
    if weights_mib + largest_mib > least:
        yield Problem(
            f"use --load-format {ON_THE_CARD}",
            f"it copies each file to a card, the largest of {largest_mib} MiB next to"
            f" {weights_mib:.0f} MiB of weights, and {least} MiB are free",
            "remove it: by default vLLM maps the files",
        )
