"""A plan turned into the command line and environment of `vllm serve`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caovand.core import flags
from caovand.core.inventory import EngineInfo
from caovand.core.plan import Plan

SERVE = ("-m", "vllm.entrypoints.cli.main", "serve")
MERGED = "additional_config"
"""The one flag of ours that is merged with the operator's instead of giving way to it."""


@dataclass(frozen=True)
class Command:
    """What to run, what to add to its environment, and whether its stack must be unlimited."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    unlimited_stack: bool = False


def build(plan: Plan, engine: EngineInfo, cache_dir: Path | None = None) -> Command:
    """The command line: ours first, then the operator's verbatim flags, secret ones by environment.

    A flag this engine's parser does not take is left out. Caches go to a folder of their own
    under `cache_dir` for each of `cache_key`, FlashInfer's for each of `flashinfer_key`.
    """
    argv = [engine.python, *SERVE, plan.model]
    for name, setting in plan.settings.items():
        if name in plan.verbatim and name != MERGED:
            continue
        argv += _words(name, setting.value, engine)
    secrets, verbatim = flags.carried(flags.read(plan.extra_args, engine.flags, engine.switches))
    argv += flags.without(verbatim, MERGED if plan.value(MERGED) else None)
    env = {**{name: str(setting.value) for name, setting in plan.env.items()}, **secrets}
    if cache_dir is not None:
        built = cache_dir / "flashinfer" / flashinfer_key(plan, engine)
        env = {**caches(cache_dir / cache_key(plan, engine), built), **env}
    return Command(tuple(argv), env, unlimited_stack="CAOVAN_RECURSION_LIMIT" in plan.env)


def shown(command: Command) -> tuple[str, ...]:
    """The command line as it may be printed, secrets hidden."""
    return command.argv[:1] + flags.redact(command.argv[1:])


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
    """A folder name for compiled code that another plan must not find.

    vLLM's own key leaves out the drafting depth and the cards' compute capability. The ladder
    sets CAOVAN_CACHE where a cache is stale: another folder hurts nobody, a deletion might.
    """
    name = plan.model.rstrip("/").rpartition("/")[2] or "model"
    key = f"{engine.vllm}-{plan.device or engine.build}-{name}-mtp{plan.mtp}"
    return f"{key}-{plan.env['CAOVAN_CACHE'].value}" if "CAOVAN_CACHE" in plan.env else key


def flashinfer_key(plan: Plan, engine: EngineInfo) -> str:
    """A folder name for the kernels that FlashInfer builds, which depend on no model and no depth.

    Each takes nvcc a minute or more: another drafting depth, or a rung, must not build them again.
    """
    releases = f"{engine.flashinfer}-torch{engine.torch}-cuda{engine.cuda}"
    return f"{engine.vllm}-{releases}-{plan.device or engine.build}"


def caches(folder: Path, flashinfer: Path) -> dict[str, str]:
    """Where everything the engine compiles is kept."""
    return {
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "FLASHINFER_WORKSPACE_BASE": str(flashinfer),
        "CUDA_CACHE_PATH": str(folder / "cuda"),
    }
