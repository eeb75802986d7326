"""Kernels that an engine compiles on this machine, and what to use where nothing can compile them.

FlashInfer ships its attention, sampler, expert and Gated DeltaNet kernels as source, and runs nvcc
when one is first used. vLLM 0.21 chooses such kernels without looking for nvcc wherever the package
flashinfer-cubin is installed, as our lock file has it; the start then ends at the first of them.
The package flashinfer-jit-cache holds them ready.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from caovand.core.facts.inventory import EngineInfo
from caovand.core.plan import Setting
from caovand.engines.vllm import releases
from caovand.engines.vllm.capabilities import HOPPER
from caovand.engines.vllm.planning.draft import Draft, policy

NO_NVCC = "there is no nvcc to build it"
OWN_TOOLKIT = ("CUDA_HOME", "CUDA_PATH", "PATH")
"""Variables of [engine] env that lead FlashInfer to a toolkit the probe did not see."""
SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
EXPERTS = {
    "": "VLLM_USE_FLASHINFER_MOE_FP16",
    "fp8": "VLLM_USE_FLASHINFER_MOE_FP8",
    "fbgemm_fp8": "VLLM_USE_FLASHINFER_MOE_FP8",
    "modelopt": "VLLM_USE_FLASHINFER_MOE_FP8",
    "compressed-tensors": "VLLM_USE_FLASHINFER_MOE_FP8",
    "modelopt_fp4": "VLLM_USE_FLASHINFER_MOE_FP4",
    "mxfp4": "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16",
}
"""The variable that keeps FlashInfer's kernels from experts, by how these are quantised."""


def lacks_nvcc(engine: EngineInfo) -> bool:
    """Whether FlashInfer's kernels cannot be had: neither ready nor built.

    A saved inventory need not tell of compilers: it is then taken to have one.
    """
    return bool(engine.python_version) and not engine.nvcc and not engine.jit_cache


def lacks_toolkit(engine: EngineInfo, env: Container[str]) -> bool:
    """The same where `env` names the variables of [engine] env, which may lead to a toolkit."""
    return lacks_nvcc(engine) and not any(name in env for name in OWN_TOOLKIT)


def cannot_build(draft: Draft) -> bool:
    """Whether this plan must do without kernels that nvcc builds."""
    return draft.cuda and lacks_toolkit(draft.engine, dict(draft.config.engine.env))


def own_toolkit(draft: Draft) -> Setting | None:
    """CUDA_HOME: one that is inherited may be of another CUDA than the engine's."""
    home = draft.engine.cuda_home
    if not draft.cuda or not home or "CUDA_PATH" in dict(draft.config.engine.env):
        return None
    return policy(home, "the engine's own compiler, of the CUDA that its torch is built for")


def remedy(engine: EngineInfo) -> str:
    """How to get an nvcc that is new enough.

    Ubuntu 22.04 and 24.04 and Debian 12 and 13 package CUDA 11.5, 12.0, 11.8 and 12.4.
    """
    release = (engine.cuda or "").replace(".", "-")
    package = f"cuda-toolkit-{release}" if release else "cuda-toolkit"
    return (
        "install an engine that brings one: sudo caovanctl engine install; or add NVIDIA's apt"
        " repository (https://developer.nvidia.com/cuda-downloads), then: sudo apt install"
        f" {package} (the distribution's own nvidia-cuda-toolkit is too old)"
    )


def sampler(draft: Draft) -> Setting | None:
    """VLLM_USE_FLASHINFER_SAMPLER."""
    if not cannot_build(draft):
        return None
    return policy(
        "0", f"PyTorch samples: FlashInfer's sampler is compiled at the start, and {NO_NVCC}"
    )


def experts(draft: Draft) -> Iterator[tuple[str, Setting]]:
    """The variable that keeps FlashInfer's kernels from experts, where they are not ready.

    Releases without these variables take FlashInfer for experts only where nvcc is, or, on Hopper,
    after Triton.
    """
    newest = max((gpu.compute_capability for gpu in draft.cards), default=(0, 0))
    kind = draft.model.quantization or str(draft.given.get("quantization") or "")
    name = EXPERTS.get(kind.removesuffix("_per_tensor").removesuffix("_per_block"))
    if not draft.cuda or not draft.model.experts or not name or newest < HOPPER:
        return
    if draft.engine.release >= releases.EXPERTS_BY_FLAG or draft.engine.jit_cache:
        return
    if cannot_build(draft):
        reason = f"FlashInfer's expert kernels are compiled at the start, and {NO_NVCC}"
    elif newest[0] == HOPPER[0]:
        reason = (
            "FlashInfer's expert kernels take minutes to compile at the first start; vLLM has"
            " others ready for this card"
        )
    else:
        return
    yield name, policy("0", reason)
