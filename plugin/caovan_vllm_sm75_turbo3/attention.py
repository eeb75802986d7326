"""FlashInfer attention on SM75 for vLLM 0.33, which stopped offering it there.

Nothing here imports FlashInfer, because that initialises CUDA.
"""

from __future__ import annotations

from . import dispatch
from .versions import release


def refusal() -> str | None:
    """The reason why FlashInfer is not offered again; None if it is.

    Asks NVML, not CUDA, about the first card, by which vLLM chooses the backend for all cards.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        return dispatch.not_cuda(current_platform.device_type)
    capability = current_platform.get_device_capability()
    found = None if capability is None else (capability.major, capability.minor)
    return dispatch.flashinfer_refusal(found, release("vllm"), release("flashinfer-python"))


def offer_flashinfer() -> str | None:
    """Let vLLM choose FlashInfer on SM75 again; return why not, or None on success.

    vLLM's configuration, which may disable it, is not known yet: the backend itself checks it.
    """
    reason = refusal()
    if reason is None:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        register_backend(
            AttentionBackendEnum.FLASHINFER, f"{__package__}.flashinfer_sm75.Sm75FlashInferBackend"
        )
    return reason
