"""Messages of the CUDA and HIP runtimes through PyTorch: rows for engines based on it."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.engines.common.logs.signature import signature

ABSENT = (
    r"No CUDA GPUs are available|no CUDA-capable device is detected|CUDA unknown error"
    r"|cudaErrorUnknown|Found no NVIDIA driver on your system"
    r"|Unexpected error from cudaGetDeviceCount\(\)"
    r"|Error 80[34]: "
    r"|CUDA_ERROR_NO_DEVICE"
    r"|No HIP GPUs are available"
    r"|(?:CUDA|HIP) error: (?:(?P<ordinal>invalid device ordinal)|initialization error)"
    r"|(?P<releases>(?:Driver/library|NVML/RM) version mismatch)"
    r"|Device string must not be empty|CUDA driver initialization failed"
    r"|Failed to detect NVIDIA driver version"
    r"|No supported (?:GPU\(s\)|devices?|accelerators?) (?:was |were )?(?:detected|found)"
    r"|NVMLError_(?:DriverNotLoaded|LibraryNotFound)\b|^RuntimeError: 0 active drivers \(\[\]\)"
)
NO_KERNEL = (
    r"no kernel image is available for execution on the device"
    r"|(?:CUDA|HIP) error: invalid device function|CUDA kernel \w{1,200} has no device code"
    r"|(?P<image>device kernel image is invalid)"
    r"|(?:CUDA|HIP|Triton) [Ee]rror.{0,40}: named symbol not found"
    r"|CUDA_ERROR_(?:NO_BINARY_FOR_GPU|INVALID_IMAGE)|cudaError(?:NoKernelImage|InvalidKernelImage)"
    r"|\brequires (?:gfx\d\w{1,6}|[Ss][Mm]_?\d{2,3}[af]?)\b.{0,60}\bgot\b"
    r"|Assertion [`'].{1,300}\bis only supported on \w{1,40}['\"]{0,2}' failed"
    r"|[Nn]o compatible code objects? found|hipError(?:InvalidImage|NoBinaryForGpu)"
    r"|Unknown GPU architecture: gfx|CUBLAS_STATUS_(?:NOT_SUPPORTED|ARCH_MISMATCH)"
)
STREAM = (
    r"(?P<captured>(?:CUDA|HIP) error: operation (?:not permitted when stream is capturing"
    r"|failed due to a previous error during capture)|cudaErrorStreamCapture\w+)"
)
ROWS = (
    # A kernel prints it before the launch that fails: This kernel only supports sm120.
    signature("kernel.other-card", "cause", "backend-unsupported",
         r"This kernel only supports (?P<only>sm_?\d{2,3}\w{0,6})"
         r"|(?P<conditional>Arch conditional \w{2,8} instruction) used without targeting"),
    # A warning, as of the card of a display; what fails later is its effect
    signature("torch.card", "generic", "backend-unsupported",
         r"^(?P<card>\S.{0,80}) with CUDA capability (?P<capability>sm_\d{2,3}) is not compatible "
         r"with the current PyTorch installation"),
    signature("gpu.busy", "cause", "gpu-absent",
         r"CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable"),
    signature("gpu.uuid", "cause", "bad-arguments",
         r"invalid literal for int\(\) with base 10: '(?P<device>(?:MIG|GPU)-[\w/-]{4,80})"),
    # Ascend's CANN
    signature("npu.group", "cause", "collective-timeout",
         r"call hccl api failed|\bHCCL (?:function )?error\b|\bHccl\w{1,40}\b.{0,80}(?:fail|error)"
         r"|\bEI00\d\d\b"),
    signature("npu.kernels", "cause", "engine-unusable",
         r"\bopp_kernel\b|binary_info_config\.json|\bEZ1001\b"
         r"|No module named 'torch_npu'|lib(?:ascend|hccl|opapi)\w{0,20}\.so.{0,20}: cannot open"),
    signature("npu.absent", "cause", "gpu-absent",
         r"\bdrvErr=|ascend_hal device count|aclrtSetDevice\b.{0,80}(?:fail|error)"
         r"|\bdcmi\b.{0,60}fail"),
    signature("npu.failed", "generic", "launch-failure",
         r"call acl(?:nn\w{1,60}| api) failed|\bai ?core (?:exception|error|timeout)"
         r"|\bvector core (?:exception|error|timeout)|\berror code is 507\d{3}\b"),
    signature("gpu.peer", "cause", "collective-timeout",
         r"peer access is not supported between these two devices"
         r"|peer mapping resources exhausted|CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
         r"|cudaErrorPeerAccessUnsupported"),
)  # fmt: skip
"""Codes that mean the same for each of these engines."""
OLD_DRIVER = (
    "The driver refuses a compiled kernel ({image}): usually it was compiled by a newer CUDA than "
    "the driver supports, as with PyTorch and Triton of CUDA 12 on a driver for CUDA 11. "
    "Compare nvidia-smi's CUDA version with torch.version.cuda: update the host's driver, or "
    "install PyTorch and the engine built for that CUDA."
)
"""Where the driver, not the build, is usually at fault."""
NO_CODE = (
    "A kernel has no code for this card: PyTorch, or a package with kernels of its own, was built "
    "without its compute capability (`python -c 'import torch; print(torch.cuda.get_arch_list())'` "
    "lists PyTorch's). For a new card install builds for a newer CUDA (12.8 for Blackwell) with a "
    "driver for it; for an old card a release that still supports it."
)
_ABSENT = (
    "A rank asked for a card whose number is not there ({ordinal}): the plan has more ranks "
    "(tensor_parallel_size, --tp) than the cards that CUDA_VISIBLE_DEVICES or the container shows "
    "(nvidia-smi -L).",
    "The kernel's part of the driver is of another release than its libraries ({releases}): reboot "
    "after an update.",
    "No usable card was found: run nvidia-smi where the engine runs. If it fails in a container "
    "only, start that with its cards (Docker: --gpus all, with the NVIDIA Container Toolkit; "
    "Kubernetes: resources.limits nvidia.com/gpu and, where the node's default is another, "
    "runtimeClassName: nvidia); after a driver update, reboot; after suspend, reload the kernel "
    "module: sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm",
    "If there is a card, this build of the engine ({platform}) may be for another "
    "machine, as a CUDA wheel is for AMD's or Intel's cards; `python -c 'import torch; "
    "print(torch.version.cuda, torch.version.hip)'` shows for which.",
    "If nvidia-smi shows the card, CUDA_VISIBLE_DEVICES names none that is there, or the installed "
    "PyTorch is a build without CUDA (torch.version.cuda is None).",
)
_LAUNCH = (
    "A check inside a kernel failed ({asserted}): most often an index beyond its table, such as a "
    "token beyond the vocabulary, a position beyond the context, or an expert that is not there. A "
    "line with Assertion and failed before this one names it; with CUDA_LAUNCH_BLOCKING=1 the "
    "traceback shows the call. The driver is not at fault.",
    "CUDA graphs cannot record an operation ({captured}), or an earlier error ended the capture: "
    "the first error before this line is the cause.",
    "A computation on the card failed ({fault}). Update the card's driver; a newer or older "
    "release of the engine may do without. If the card is NVIDIA's, the kernel log of Linux may "
    "name the fault: journalctl -k | grep -i xid",
)
_OTHER = (
    "CUDA or HIP reported {error}. Where that surfaces is not where it arose: with "
    "CUDA_LAUNCH_BLOCKING=1 the traceback ends at the call that failed.",
    "Most probable first: a kernel of this release does not support the model's sizes on this card "
    "(another release, or another backend for the part that the traceback names); the driver is "
    "too old or in a bad state (nvidia-smi; update it, reboot); or the card is faulty: journalctl "
    "-k | grep -i xid",
)
ADVICE: Mapping[str, tuple[str, ...]] = {
    "torch.card": (
        "This build of PyTorch has no kernels for the {card} ({capability}), and whatever computes "
        "on that card fails. If the card is newer than those that the build supports, install "
        "PyTorch and the engine for a newer CUDA (12.8 or newer for sm_100 and sm_120), with a "
        "driver for it, or use an image that is built so; if it is older, a release that still "
        "supports it. If another card shall compute, show the engine that one alone "
        "(CUDA_VISIBLE_DEVICES).",
    ),
    "cuda.other": _OTHER,
    "sglang.cuda": _OTHER,
    "gpu.absent": _ABSENT,
    "sglang.absent": _ABSENT,
    "cuda.launch": _LAUNCH,
    "sglang.launch": _LAUNCH,
    "cublas.failed": (
        "cuBLAS or cuDNN failed, and its code hides the reason. Most probable first: the card has "
        "too little memory left for its workspace (usually NOT_INITIALIZED: see nvidia-smi, lower "
        "gpu_memory_utilization); a library of another CUDA is loaded before PyTorch's own (unset "
        "LD_LIBRARY_PATH); or an earlier kernel failed, which CUDA_LAUNCH_BLOCKING=1 shows.",
    ),
}
"""Sentences by row; one with an unknown {name} is left out."""
