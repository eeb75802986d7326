"""vLLM general plugin: Gated DeltaNet, attention and logits on tensor cores for Turing (SM75).

vLLM calls `register()` in every process, perhaps more than once. Nothing here touches CUDA, and
nothing that goes wrong stops vLLM: it then runs on its own kernels, and one log line says why. But
where CAOVAN_STATES is "required", an engine without the fixes of `states` ends at once: it was
planned with a prefix cache that would spoil answers silently.
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
    """Whatever the kernels do: it is vLLM 0.21's own prefix cache that this is about.

    Raises RuntimeError if the fixes are required and not made.
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
    """Allow `wanted` levels of recursion in this process: torch.compile's tracing needs them.

    Never lowers the limit; a text that is not a number is ignored.
    """
    if wanted.isdecimal():
        sys.setrecursionlimit(max(int(wanted), sys.getrecursionlimit()))


def compile_in_parallel(wanted: str) -> None:
    """Let torch.compile in this process use `wanted` threads; other texts are ignored.

    When vLLM is imported it sets TORCHINDUCTOR_COMPILE_THREADS to 1, whatever it was, because its
    workers are daemonic processes, which may have no children of multiprocessing's. A pool that is
    started as a program of its own ("subprocess", PyTorch's default since 2.5) they may have.
    """
    if not wanted.isdecimal() or int(wanted) < 1:
        return
    from torch._inductor import config

    if config.compile_threads == 1 and config.worker_start_method == "subprocess":
        # The pool's processes end when nothing is compiled: what comes next needs their memory.
        # With one thread too, since PyTorch's key of compiled code has this setting in it.
        config.quiesce_async_compile_pool = True
        config.compile_threads = int(wanted)


def counts() -> dict[tuple[str, str], int]:
    """Calls of our kernels in this process: (layer, "prefill" | "decode" | "verify") -> times.

    ("ChunkGatedDeltaRule", "operator") counts calls of the prefill operator alone, of any layer.
    """
    from .core import counts as calls

    return dict(calls)
