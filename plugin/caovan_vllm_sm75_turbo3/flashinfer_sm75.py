"""vLLM's FlashInfer backend with Turing accepted; vLLM imports it when it chooses a backend."""

from vllm.config import get_current_vllm_config_or_none
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backends.flashinfer import FlashInferBackend

from .replacements import logger, wanted_kernels


class Sm75FlashInferBackend(FlashInferBackend):
    @classmethod
    def supports_compute_capability(cls, capability: DeviceCapability) -> bool:
        if super().supports_compute_capability(capability):
            return True
        if capability != DeviceCapability(7, 5):
            return False
        if wanted_kernels(get_current_vllm_config_or_none()) == "off":
            return False
        logger.info_once("caovan: FlashInfer attention is offered on SM75 again")
        return True
