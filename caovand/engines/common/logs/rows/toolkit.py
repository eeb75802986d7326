"""A CUDA toolkit that compiles kernels here, and is older than the card: rows for vLLM."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from caovand.engines.common.logs.signature import MAX_LINE, signature

TOOLKIT = "jit.toolkit"
"""The row that `picked_up` completes."""
ROWS = (
    signature(TOOLKIT, "cause", "jit-toolchain",
         r"(?P<reported>FlashInfer requires GPUs with sm75 or higher)"
         r"|Unsupported gpu architecture '(?!compute_No )(?P<arch>[\w']{1,40})"
         r"|\brequires (?:a )?CUDA (?:[Tt]oolkit |version )?(?:>= ?)?"
         r"(?P<needed>\d{1,2}(?:\.\d{1,2})?)"),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    TOOLKIT: (
        "Kernels that are compiled here require a CUDA toolkit of release {needed} or newer, "
        "and an older one was picked up.",
        "FlashInfer compiles its kernels with a CUDA toolkit that is older than this card, and "
        "then reports the card as too old ({reported}).",
        "The CUDA toolkit that was picked up is older than this card ({arch}): compute capability "
        "12.0 needs release 12.8, 12.1 and the f-variants 12.9.",
        "The log names the release that was picked up: {toolkit}.",
        "The log names the folder of the toolkit that was picked up: {toolkit_home}.",
        "Install a newer CUDA toolkit, of PyTorch's CUDA release (torch.version.cuda) if that is "
        "new enough, and point CUDA_HOME and PATH to it (CUDA_HOME=/usr/local/cuda-13.0, "
        "PATH=$CUDA_HOME/bin:$PATH; `nvcc --version` shows which one is found): the driver's CUDA "
        "in nvidia-smi does not count. Or do without FlashInfer's sampler: "
        "VLLM_USE_FLASHINFER_SAMPLER=0.",
    ),
}
"""Sentences by row; one with an unknown {name} is left out."""
_PICKED_UP = re.compile(
    r"(?<!\w)CUDA_(?:HOME[=: ]{1,3}['\"]?(?P<toolkit_home>/[\w./+-]{1,200})"
    r"|VERSION[=: ]{1,3}['\"]?(?P<toolkit>\d{1,2}\.\d{1,2}))"
)


def picked_up(lines: Sequence[str]) -> Mapping[str, str]:
    """The folder and the release of the toolkit in use, as far as the log names them."""
    found = (match for line in lines for match in _PICKED_UP.finditer(line[:MAX_LINE]))
    return {match.lastgroup or "": match[match.lastgroup or ""] for match in found}
