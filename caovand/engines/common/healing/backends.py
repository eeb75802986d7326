"""The backend that drives the failed card (Vulkan, SYCL, ROCm, Metal), and advice on its failures.

The general advice is about CUDA, so CUDA counts as no backend of its own: "".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from caovand.core.healing.failure import Failure, Finding

DRIVEN_BY = "driven_by"
"""Name of a capture: the backend according to other lines of the log than the finding's."""
_FOUND = re.compile(
    r".{0,60}?(?:(?P<vulkan>ggml_vulkan: Found [1-9])|found [1-9]\d? (?P<name>ROCm|CUDA|SYCL) dev"
    r"|using device (?P<device>Vulkan|SYCL|ROCm|CUDA)\d)"
)
"""ggml's report of the cards that it found, at its start."""
_WORDS: Mapping[str, re.Pattern[str]] = {
    "Vulkan": re.compile(r"\bvk::|\bggml_vulkan\b|\bVulkan\d?\b|ErrorDeviceLost|DeviceLostError"),
    "SYCL": re.compile(r"\bSYCL\b|\bggml[-_]sycl\b|\b(?:UR_RESULT|PI)_ERROR_|CHECK_TRY_ERROR"),
    "ROCm": re.compile(r"\bROCm\b|\bHIP error|\bhipError|\bHSA_STATUS|by GPU node"),
    "Metal": re.compile(r"kIO\w{2,6}CommandBuffer|\bggml_metal\w"),
}
"""Words in a failure's line that only one backend prints."""
_CRASHED: tuple[Failure, ...] = ("illegal-access", "launch-failure", "gpu-lost")
_ON_CRASH: Mapping[str, tuple[str, ...]] = {
    "Vulkan": (
        "The card stopped working for Vulkan: its driver reset it, or the release demands more "
        "than it can do; these lines do not show which. Keep fewer layers on it (--gpu-layers), "
        "lower --ubatch-size (256), "
        "update its driver (Mesa, AMD, Intel or NVIDIA), and try an older or newer release; the "
        "log of the kernel or of Windows names a reset.",
    ),
    "SYCL": (
        "The SYCL backend, which drives Intel's cards, reported an error: its device, often the "
        "CPU's own graphics, or its driver does not support the operation. Exclude that "
        "device (--device), use the build for Vulkan or for the CPU, or update Intel's "
        "driver and oneAPI.",
    ),
    "ROCm": (
        "A kernel failed on the AMD card: check that this build of ROCm supports it (rocminfo, "
        "HSA_OVERRIDE_GFX_VERSION), update driver and ROCm, or use another backend's build; "
        "`journalctl -k | grep -i amdgpu` shows a reset.",
    ),
    "Metal": (
        "Metal aborted a computation: shorten the context, lower --ubatch-size, or keep fewer "
        "layers on the card (--gpu-layers); then try another release.",
    ),
}
_FULL = (
    "The card has too little free memory for weights, cache and buffers together, or one "
    "allocation exceeds what its driver gives at once: use a GGUF file quantised to fewer bits, "
    "keep fewer layers on the card, and check what else uses it (rocm-smi, radeontop, or the "
    "system's task manager). A CPU's own graphics get more memory by a setting of the firmware.",
)
_UNSEEN_BY_SYCL = (
    "SYCL sees no card of Intel: `sycl-ls` (and `clinfo`) must list it. On Linux install "
    "intel-opencl-icd and the level-zero packages, source /opt/intel/oneapi/setvars.sh, and add "
    "the user to the groups render and video; in a container pass /dev/dri. On Windows install "
    "Intel's own driver, and remove Microsoft's OpenCL, OpenGL and Vulkan Compatibility Pack. The "
    "build for Vulkan needs none of oneAPI.",
)
ADVICE: Mapping[tuple[str, str], tuple[str, ...]] = {
    (failure, backend): texts for failure in _CRASHED for backend, texts in _ON_CRASH.items()
} | {
    ("backend-unsupported", "SYCL"): _ON_CRASH["SYCL"],
    ("llama.cuda.arch", "SYCL"): _ON_CRASH["SYCL"],
    ("llama.cuda.absent", "SYCL"): _UNSEEN_BY_SYCL,
    **{("llama.cuda.oom", backend): _FULL for backend in ("Vulkan", "SYCL", "ROCm")},
}
"""Sentences by (failure or signature, backend)."""


def backend_in_log(lines: Sequence[str]) -> str:
    """The backend of the cards that ggml found, by its log."""
    names = [found[found.lastgroup or 0] for line in lines if (found := _FOUND.match(line[:200]))]
    names = ["Vulkan" if name.startswith("ggml_vulkan") else name for name in names]
    return names[0] if names and "CUDA" not in names else ""


def backend_of(finding: Finding) -> str:
    """The backend of the card that failed: by its line, else by the rest of its log."""
    named = (name for name, words in _WORDS.items() if words.search(finding.text))
    return next(named, str(finding.captures.get(DRIVEN_BY, "")))
