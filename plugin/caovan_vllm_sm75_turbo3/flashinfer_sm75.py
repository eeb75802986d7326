"""vLLM's FlashInfer backend with Turing let in; imported by vLLM when it is chosen."""

from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backends.flashinfer import FlashInferBackend


class Sm75FlashInferBackend(FlashInferBackend):
    @classmethod
    def supports_compute_capability(cls, capability: DeviceCapability) -> bool:
        return capability == DeviceCapability(7, 5) or super().supports_compute_capability(
            capability
        )
