"""Messages of ROCm's libraries about AMD cards: rows for every engine that runs on them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.engines.common.logs.signature import signature

_RAW = re.compile(
    r"rocblaslt (?:error|warning): |hipBLASLt error: |MIOpen(?:\(HIP\))?: Error "
    r"|hsa api call failure at: "
)
ROWS = (
    signature("rocm.groups", "cause", "access-denied",
         r"Radeon card detected, but permissions not set up|add \w{1,5} user account to the render"
         r"|Unable to open /dev/kfd.{0,40}Permission denied|/dev/kfd: [Pp]ermission denied"),
    signature("rocm.info", "cause", "gpu-absent",
         r"hsa api call failure at: \S{0,200}rocminfo"),
    signature("rocm.kernel", "cause", "backend-unsupported",
         r"rocBLAS error: Cannot read .{1,300}? for GPU arch ?: ?"
         r"(?P<integrated>gfx(?:90c|1036)\b)"
         r"|rocBLAS error: Cannot read "
         r"(?:(?:[A-Z]:)?\\.{1,300}? for GPU arch ?: ?(?P<windows>gfx\w{3,8})"
         r"|.{1,300}? for GPU arch ?: ?(?:(?P<rdna2>gfx103[1-6])|(?P<rdna3>gfx11\d[1-3])"
         r"|(?P<arch>gfx\w{3,8})))"
         r"|(?P<text>HIP error: (?:invalid device function|no kernel image|device kernel image is "
         r"invalid)|(?:HIP|ROCm) error.{0,40}: named symbol not found|Unknown GPU architecture: gfx"
         r"|ROCm error: (?:invalid device function|no kernel image|device kernel image is invalid)"
         r"|hipError(?:NoBinaryForGpu|InvalidImage|InvalidDeviceFunction)"
         r"|rocBLAS error: Cannot read .{1,300})"),
    # Where hipBLASLt has nothing for a card, rocBLAS computes instead, if the caller asks it
    signature("rocm.hipblaslt", "generic", "backend-unsupported",
         r"rocblaslt error: (?:Cannot read|Could not load) "
         r"\S{0,300}hipblaslt"
         r"|hipBLASLt error: Heuristic Fetch Failed|hipblasLt is not supported on"),
    signature("rocm.absent", "cause", "gpu-absent",
         r"[Nn]o ROCm-capable device is detected|No HIP GPUs are available"
         r"|Could not initialize Tensile host: No devices found|ROCk module is NOT loaded"
         r"|Unable to open /dev/kfd|/dev/kfd: No such file"
         r"|HSA_STATUS_ERROR_INIT|hsa_init.{0,20}failed"),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "rocm.kernel": (
        "{integrated} is the graphics part of a CPU, for which rocBLAS has no kernels. If "
        "another card is there, let only that one be seen: HIP_VISIBLE_DEVICES with its number "
        "(ROCR_VISIBLE_DEVICES on Linux), or switch the graphics part off in the firmware. Alone "
        "it runs with a build for Vulkan, or on Linux often with HSA_OVERRIDE_GFX_VERSION=10.3.0 "
        "(gfx1036) or 9.0.0 (gfx90c).",
        "The rocBLAS that was loaded has no kernels for {windows}. On Windows "
        "HSA_OVERRIDE_GFX_VERSION has no effect: use a build for Vulkan, or one whose "
        "rocblas\\library folder lists that architecture (a HIP SDK or package made for it).",
        "The rocBLAS that was loaded has no kernels for {rdna2}: set "
        "HSA_OVERRIDE_GFX_VERSION=10.3.0 (on Linux), whose kernels it runs; or use a build for "
        "Vulkan, or a package that lists {rdna2}.",
        "The rocBLAS that was loaded has no kernels for {rdna3}: set "
        "HSA_OVERRIDE_GFX_VERSION=11.0.0 (on Linux), whose kernels it usually runs; or use a build "
        "for Vulkan, or a package that lists {rdna3}.",
        "The rocBLAS that was loaded has no kernels for {arch}, and those of no other architecture "
        "are certain to run on it: install a build, wheel or image that lists {arch} (its folder "
        "rocblas/library has files with that name; for older cards an older release), or a build "
        "for Vulkan.",
        "This build of ROCm's libraries or of the engine has no kernels for the AMD card ({text}): "
        "install a build, wheel or image that lists its architecture (rocminfo | grep gfx), or on "
        "Linux set HSA_OVERRIDE_GFX_VERSION to the nearest supported one (10.3.0 for gfx103x, "
        "11.0.0 for gfx110x); a Vulkan build (llama.cpp, Ollama) needs neither.",
    ),
    "rocm.hipblaslt": (
        "The hipBLASLt that is installed has no kernels for the card; that alone need not end "
        "anything, since rocBLAS can compute instead (ROCBLAS_USE_HIPBLASLT=0, PyTorch: "
        "TORCH_BLAS_PREFER_HIPBLASLT=0). Install a newer release of the engine or of ROCm, which "
        "brings them.",
    ),
    "rocm.groups": (
        "The user may not open the AMD card: add it to the groups render and video (sudo usermod "
        "-aG render,video USER, for a service the unit's user), and log in again or restart the "
        "service. In a container pass /dev/kfd and /dev/dri, and --group-add with the host's "
        "numbers of both groups (rootless Podman: --group-add keep-groups, since the container "
        "has no more rights than the user who starts it).",
    ),
    "rocm.info": (
        "rocminfo could not open the AMD card: if `sudo rocminfo` can, add the user to the groups "
        "render and video (sudo usermod -aG render,video USER) and log in again. If that fails, "
        "too, and worked before, reboot, which frees what the driver (amdgpu) still holds; else "
        "the driver and ROCm's release do not fit, or ROCm has left out the card (older ones run "
        "with Vulkan). In a container pass /dev/kfd and /dev/dri, and the groups of the host.",
    ),
    "rocm.absent": (
        "ROCm sees no AMD card: `rocminfo` must list it for the engine's user. Load the amdgpu "
        "driver, add the user to the groups render and video, correct HIP_VISIBLE_DEVICES and "
        "ROCR_VISIBLE_DEVICES, and pass /dev/kfd and /dev/dri to a container.",
    ),
}
"""Sentences by row."""


def is_raw(line: str) -> bool:
    """Whether a line is printed by one of these libraries."""
    return bool(_RAW.match(line))
