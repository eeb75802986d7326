"""vLLM general plugin: Gated DeltaNet, attention and logits on tensor cores for Turing (SM75).

vLLM calls `register()` in every process, possibly more than once. Nothing here touches CUDA, and no
failure stops vLLM: it then uses its own kernels, and one log line says why. The exception is
CAOVAN_STATES=required: without the fixes of `states` the engine ends at once, because it was
planned with a prefix cache that would silently corrupt answers.
"""

from __future__ import annotations

import functools
import os
import sys

__version__ = "0.1.0"


@functools.cache
def register() -> None:
    """Entry point of `vllm.general_plugins`; idempotent."""
    from vllm.logger import init_logger

    logger = init_logger("vllm.caovan_sm75")
    deepen_recursion(os.environ.get("CAOVAN_RECURSION_LIMIT", ""))
    try:
        compile_in_parallel(os.environ.get("CAOVAN_COMPILE_THREADS", ""))
    except Exception:
        logger.exception("caovan: torch.compile keeps to one thread")
    fix_states(logger)
    if os.environ.get("CAOVAN_KERNELS") == "off":
        logger.info("caovan: CAOVAN_KERNELS=off; vLLM runs on its own kernels")
        return
    from . import attention, hooks, int8_head, layout

    try:
        attention.offer_flashinfer()
    except Exception:
        logger.exception("caovan: cannot offer FlashInfer attention on SM75 again")
    try:
        layout.offer_kernels()
    except Exception:
        logger.exception("caovan: cannot offer the SM75 kernels to Triton attention")
    try:
        if reason := int8_head.offer():
            logger.info("caovan: cannot offer an int8 lm_head: %s", reason)
    except Exception:
        logger.exception("caovan: cannot offer an int8 lm_head")
    try:
        hooks.bind(*hooks.find())
    except hooks.NoHook as error:
        logger.warning("caovan: cannot plug in the SM75 kernels: %s; vLLM runs on its own", error)
    except Exception:
        logger.exception("caovan: plugging in the SM75 kernels failed; vLLM runs on its own")


def fix_states(logger) -> None:
    """Fix vLLM 0.21's prefix cache, whichever kernels are used.

    Raises RuntimeError if the fixes are required but not possible.
    """
    from . import states

    try:
        reason = states.fix()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    if reason is None:
        logger.info("caovan: hybrids that draft keep right states in the prefix cache")
    elif os.environ.get("CAOVAN_STATES") == "required":
        raise RuntimeError(
            f"caovan: cannot keep states right in the prefix cache while drafting: {reason}; start"
            " with --no-enable-prefix-caching, or draft nothing"
        )
    elif states.is_fixed_release():
        logger.warning(
            "caovan: %s; hybrids that draft may go on from wrong states in the prefix cache", reason
        )


def deepen_recursion(wanted: str) -> None:
    """Allow `wanted` levels of recursion in this process, which torch.compile's tracing needs.

    Never lowers the limit; a text that is not a number is ignored.
    """
    if wanted.isdecimal():
        sys.setrecursionlimit(max(int(wanted), sys.getrecursionlimit()))


def compile_in_parallel(wanted: str) -> None:
    """Let torch.compile use `wanted` threads in this process; texts that are not numbers are
    ignored.

    On import, vLLM sets TORCHINDUCTOR_COMPILE_THREADS to 1, because its workers are daemonic
    processes, which may not have multiprocessing children. They may have a pool that runs as a
    separate program ("subprocess", PyTorch's default since 2.5).
    """
    if not wanted.isdecimal() or int(wanted) < 1:
        return
    from torch._inductor import config

    if config.compile_threads == 1 and config.worker_start_method == "subprocess":
        # The pool's processes end when idle, because later phases need their memory. This also
        # applies to one thread: the setting is part of PyTorch's key for compiled code.
        config.quiesce_async_compile_pool = True
        config.compile_threads = int(wanted)


def counts() -> dict[tuple[str, str], int]:
    """Kernel calls in this process: (layer, "prefill" | "decode" | "verify") -> count.

    ("ChunkGatedDeltaRule", "operator") counts calls of the prefill operator alone, from any layer.
    """
    from .core import counts as calls

    return dict(calls)
