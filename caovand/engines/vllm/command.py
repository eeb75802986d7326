"""Turns a plan into the command line and environment of `vllm serve`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from caovand.core.engine import Command
from caovand.core.facts.inventory import EngineInfo
from caovand.core.plan import Plan
from caovand.engines.vllm import kernels
from caovand.engines.vllm.planning import flags

SERVE = ("-m", "vllm.entrypoints.cli.main", "serve")
MERGED = "additional_config"
"""Our one flag that is merged with the operator's; all others yield to it."""


def build(plan: Plan, engine: EngineInfo, cache: str | None = None) -> Command:
    """The command line: ours first, then the operator's verbatim flags, secret ones by environment.

    A flag that this engine's parser does not take is left out. Below `cache` there is one folder of
    caches for each `cache_key`, and FlashInfer's for each `flashinfer_key`.
    """
    argv = [engine.python, *SERVE, plan.model]
    for name, setting in plan.settings.items():
        if name in plan.verbatim and name != MERGED:
            continue
        argv += _words(name, setting.value, engine)
    secrets, verbatim = flags.carried(flags.read(plan.extra_args, engine.flags, engine.switches))
    argv += flags.without(verbatim, MERGED if plan.value(MERGED) else None)
    environment = PurePath(engine.python).parent.parent
    env = {**{name: str(setting.value) for name, setting in plan.env.items()}, **secrets}
    if cache is not None:
        cache_dir = Path(cache)
        built = cache_dir / "flashinfer" / flashinfer_key(plan, engine)
        env = {**caches(cache_dir / cache_key(plan, engine), built), **env}
    if dict(engine.kernels).get(plan.device):
        env = {kernels.FOLDER: str(environment / kernels.PLACE / plan.device), **env}
    shown = (argv[0], *flags.redact(argv[1:]))
    return Command(tuple(argv), env, shown, "CAOVAN_RECURSION_LIMIT" in plan.env)


def _words(name: str, value: Any, engine: EngineInfo) -> list[str]:
    option = flags.option(name)
    if value is False:
        option = "--no-" + option[2:]
    if value is None or (engine.flags and option not in engine.flags):
        return []
    if isinstance(value, bool):
        return [option]
    if isinstance(value, Mapping):
        return [option, json.dumps(value, separators=(",", ":"))]
    if isinstance(value, (list, tuple)):
        return [option, *map(str, value)]
    return [option, str(value)]


def cache_key(plan: Plan, engine: EngineInfo) -> str:
    """A folder name for compiled code that other plans must not use.

    vLLM's own key lacks the drafting depth and the cards' compute capability. The ladder sets
    CAOVAN_CACHE for a stale cache: another folder is safe, a deletion might not be.
    """
    name = plan.model.rstrip("/").rpartition("/")[2] or "model"
    key = f"{engine.vllm}-{plan.device or engine.build}-{name}-mtp{plan.mtp}"
    return f"{key}-{plan.env['CAOVAN_CACHE'].value}" if "CAOVAN_CACHE" in plan.env else key


def flashinfer_key(plan: Plan, engine: EngineInfo) -> str:
    """A folder name for FlashInfer's compiled kernels, which depend on no model and no depth.

    Each takes nvcc a minute or more: another drafting depth, or a rung, must not rebuild them. What
    ninja does there names files of the engine's folder, so each folder has its own: once an engine
    is removed, its compiler and headers are found no more.
    """
    releases = f"{engine.flashinfer}-torch{engine.torch}-cuda{engine.cuda}"
    environment = PurePath(engine.python).parent.parent.name or engine.vllm
    return f"{environment}-{releases}-{plan.device or engine.build}"


def caches(folder: Path, flashinfer: Path) -> dict[str, str]:
    """Variables that point all compiled code into these folders."""
    return {
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "FLASHINFER_WORKSPACE_BASE": str(flashinfer),
        "CUDA_CACHE_PATH": str(folder / "cuda"),
    }
