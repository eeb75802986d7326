"""Turn a plan into the command line and environment of `vllm serve`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from caovand.core.engine.planning import Command
from caovand.core.facts.inventory import EngineInfo
from caovand.core.plan import Plan
from caovand.engines.vllm import kernels, nodes
from caovand.engines.vllm.flags import command_line, spelling

SERVE = ("-m", "vllm.entrypoints.cli.main", "serve")
MERGED_FLAG = "additional_config"
"""The only flag of ours that is merged with the operator's; any other flag of ours yields to the
operator's.
"""
ROOT = "VLLM_CACHE_ROOT"
INSPECTED = "modelinfos"
"""vLLM's folder in ROOT for the capabilities of model classes. To find them it imports itself in a
separate process, once each for the model and the drafter."""


def build(plan: Plan, engine: EngineInfo, cache: str | None = None) -> Command:
    """The command line: ours first, then the operator's verbatim flags, secret ones by environment.

    Flags that this engine's parser does not accept are omitted. Below `cache` there is one folder
    of caches for each `cache_key`, next to those that plans share.
    """
    argv = [engine.python, *SERVE, plan.model]
    ray = nodes.uses_ray(plan)
    for name, setting in plan.settings.items():
        if name in plan.verbatim and name != MERGED_FLAG:
            continue
        if ray and name in nodes.MULTI_NODE_FLAGS:
            continue
        argv += _to_words(name, setting.value, engine)
    secrets, verbatim = command_line.carry_secrets(
        command_line.read(plan.extra_args, engine.flags, engine.switches)
    )
    argv += command_line.without(verbatim, MERGED_FLAG if plan.value(MERGED_FLAG) else None)
    if ray:
        argv = nodes.launch_command(plan, argv)
    environment = PurePath(engine.python).parent.parent
    env = {
        **{name: str(value) for name, value in plan.variables.items() if value is not None},
        **secrets,
    }
    links: tuple[tuple[str, str], ...] = ()
    if cache is not None:
        own = caches(plan, engine, Path(cache))
        env = {**own, **env}
        if env[ROOT] == own[ROOT]:
            inspected = Path(cache) / INSPECTED / environment_key(engine)
            links = ((f"{own[ROOT]}/{INSPECTED}", str(inspected)),)
    if dict(engine.kernels).get(plan.device):
        env = {kernels.FOLDER: str(environment / kernels.PLACE / plan.device), **env}
    shown = (argv[0], *command_line.redact(argv[1:]))
    return Command(tuple(argv), env, shown, "CAOVAN_RECURSION_LIMIT" in plan.env, links)


def _to_words(name: str, value: Any, engine: EngineInfo) -> list[str]:
    option = spelling.option(name)
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
    CAOVAN_CACHE if a cache is stale: another folder is safe, a deletion might not be.
    """
    name = plan.model.rstrip("/").rpartition("/")[2] or "model"
    return _key_of_cache(f"{engine.version}-{_device(plan, engine)}-{name}-mtp{plan.mtp}", plan)


def flashinfer_key(plan: Plan, engine: EngineInfo) -> str:
    """A folder name for FlashInfer's compiled kernels, which depend on neither model nor depth.

    nvcc needs a minute or more for each: another drafting depth, or a rung, must not rebuild them.
    Ninja's files there refer to the engine's folder, so each folder has its own: once an engine is
    removed, its compiler and headers no longer exist.
    """
    releases = f"{engine.flashinfer}-torch{engine.torch}-cuda{engine.cuda}"
    environment = PurePath(engine.python).parent.parent.name or engine.version
    return f"{environment}-{releases}-{_device(plan, engine)}"


def kernels_key(plan: Plan, engine: EngineInfo) -> str:
    """A folder name for kernels whose compiler finds them by a hash of their source and its own.

    They include the results of autotuning, which are valid for these cards.
    """
    return _key_of_cache(f"torch{engine.torch}-{_device(plan, engine)}", plan)


def environment_key(engine: EngineInfo) -> str:
    """A folder name for caches that depend on the engine's environment alone.

    vLLM recognises an inspected class by a hash of its module, not of the modules that it inherits
    from: neither another release nor a modified environment may share it.
    """
    return f"{engine.version}-{engine.build}-{zlib.crc32(engine.python.encode()):08x}"


def _device(plan: Plan, engine: EngineInfo) -> str:
    return plan.device or engine.build


def _key_of_cache(key: str, plan: Plan) -> str:
    return f"{key}-{plan.env['CAOVAN_CACHE'].value}" if "CAOVAN_CACHE" in plan.env else key


def caches(plan: Plan, engine: EngineInfo, folder: Path) -> dict[str, str]:
    """Variables that point all compiled code into `folder`."""
    own, by_source = folder / cache_key(plan, engine), kernels_key(plan, engine)
    return {
        ROOT: str(own / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton" / by_source),
        "DG_JIT_CACHE_DIR": str(folder / "deep_gemm" / by_source),
        "CUDA_CACHE_PATH": str(folder / "cuda" / by_source),
        "TVM_FFI_CACHE_DIR": str(folder / "tvm-ffi" / by_source),
        "FLASHINFER_WORKSPACE_BASE": str(folder / "flashinfer" / flashinfer_key(plan, engine)),
    }
