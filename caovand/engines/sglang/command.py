"""Turn a plan into the command line and environment of SGLang's server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from caovand.core.engine.planning import Command
from caovand.core.facts.inventory import EngineInfo
from caovand.core.plan import Plan
from caovand.engines.sglang import options

SERVE = ("-m", "sglang.launch_server")


def build(plan: Plan, engine: EngineInfo, cache: str | None = None) -> Command:
    """The command line: ours first, then the operator's verbatim options, which win.

    Kernels that are compiled at a start are stored below `cache`, separately for each environment
    and kind of card: those of Triton, Inductor, FlashInfer, SGLang itself (through TVM's FFI) and
    DeepGEMM.
    """
    argv = [engine.python, *SERVE, "--model-path", plan.model]
    for name, setting in plan.settings.items():
        if name not in plan.verbatim:
            argv += _to_words(name, setting.value)
    argv += plan.extra_args
    env = {name: str(value) for name, value in plan.variables.items() if value is not None}
    shown = (*argv[:5], *options.redact(argv[5:]))
    return Command(tuple(argv), {**_caches(plan, engine, cache), **env}, shown)


def _to_words(name: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if name == options.DRAFTING:
        return _drafting(value)
    return [options.option(name)] if value is True else [options.option(name), str(value)]


def _drafting(value: Any) -> list[str]:
    """One draft per position: the tokens of a step are the drafts and the token they follow."""
    if not isinstance(value, Mapping):
        return []
    depth = int(value["num_speculative_tokens"])
    return [
        "--speculative-algorithm", str(value["method"]), "--speculative-num-steps", str(depth),
        "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(depth + 1),
    ]  # fmt: skip


def _caches(plan: Plan, engine: EngineInfo, cache: str | None) -> dict[str, str]:
    if cache is None:
        return {}
    environment = PurePath(engine.python).parent.parent.name
    folder = f"{cache}/sglang/{environment}-{engine.version}-torch{engine.torch}-{plan.device}"
    return {
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "FLASHINFER_WORKSPACE_BASE": f"{folder}/flashinfer",
        "TVM_FFI_CACHE_DIR": f"{folder}/tvm-ffi",
        "SGLANG_CACHE_DIR": f"{folder}/sglang",
        "SGLANG_DG_CACHE_DIR": f"{folder}/deep-gemm",
    }
