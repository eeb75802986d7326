"""Texts with which Ollama says why it does not use a card: the driver, the runtime, the release.

Order matters within a line: the first matching row wins.
"""

from __future__ import annotations

from caovand.engines.common.logs.signature import Signature, signature

ROWS: tuple[Signature, ...] = (
    signature("ollama.driver", "cause", "gpu-absent",
         r"error initializing cuda driver library .{0,200}(?:init failure|device context)[: ]{1,3}"
         r"(?:(?P<symbol>500)|(?P<compat>80[34])|(?P<code>\d{1,4}))\b"
         r"|version mismatch between driver and cuda driver library"
         r"|no nvidia devices detected"
         r"(?: (?:by library |library=)(?P<library>\S{1,200}))?"),
    # Not without memory (2): the following load reports that
    signature("ollama.driver.context", "generic", "gpu-absent",
         r"cuda driver library failed to get device context (?P<code>(?!2\b)\d{1,4})\b"),
    # cuda driver library init failure: 3; cudaSetDevice err: 35; nvml vram init failure: 9, by
    # NVML's own codes
    signature("ollama.runtime", "generic", "gpu-absent",
         r"(?:(?:cudart|cuda|nvcuda)\w{0,10} (?:vram |driver library )?init failure: "
         r"|cudaSetDevice err: |cuInit err: )(?:(?P<state>999|205)|(?P<system>304)|(?P<unready>3)"
         r"|(?P<busy>46)|(?P<fabric>802)|(?P<compat>80[34])|(?P<stub>34)|(?P<old>3[56])"
         r"|(?P<none>100)|(?P<symbol>500)|(?P<code>\d{1,4}))\b"
         r"|nvml\w{0,10} (?:vram )?init failure: (?:(?P<unloaded>9)|(?P<mismatch>18)"
         r"|(?P<lost>15)|(?P<nvml>\d{1,4}))\b"),
    signature("ollama.card.old", "generic", "gpu-absent",
         r"CUDA GPU is too old.{0,60}?(?:[Cc]apability detected: "
         r"(?:(?P<stale>1\.0)|(?P<capability>\d{1,2}\.\d)))?$"),
    signature("ollama.discovery", "generic", "gpu-absent",
         r"failure during .{0,20}GPU discovery|llama-server --list-devices failed"
         r"|(?:cuInit|cuDeviceGetCount|nvmlInit_v2|hipGetDeviceCount|vkCreateInstance"
         r"|vkEnumeratePhysicalDevices(?: count)?) failed: |no amdhip64 runtime DLL found"),
    # A card is there, and the server says why it does not use it
    signature("ollama.card.refused", "generic", "gpu-absent",
         r"amdgpu is not supported \(supported types:\[(?:(?=[^\]]{0,400}\bgfx1030\b)"
         r"[^\]]{1,400}\]\).{0,5}\bgpu_type=(?P<rdna2>gfx103[1-6])\b"
         r"|(?=[^\]]{0,400}\bgfx1100\b)[^\]]{1,400}\]\).{0,5}\bgpu_type=(?P<rdna3>gfx110[1-3])\b"
         r"|(?=[^\]]{0,400}\bgfx1010\b)[^\]]{1,400}\]\).{0,5}\bgpu_type=(?P<rdna1>gfx101[1-3])\b"
         r"|(?P<types>[^\]]{1,400})\]\).{0,5}\bgpu_type=(?P<gfx>gfx\w{3,6}))"
         r"|(?P<library>amdgpu detected, but no compatible rocm library"
         r"|no suitable rocm found)"
         r"|(?P<why>amdgpu (?:is not supported|too old|\[\d+\] .{0,100}not supported)"
         r"|(?:NVIDIA|AMD|nvidia) driver (?:is )?too old"
         r"|dropping ROCm device|CUDA GPU is too old|unable to verify rocm"
         r"|old CUDA driver detected|[Cc]ompute [Cc]apability .{0,40}(?:too old|not supported)"
         r"|ROCm unsupported|[Uu]nable to load (?:cudart|nvcuda|nvml|cuda driver)"
         r"|GPU runner incompatible with host system, CPU does not have \w{1,10}"
         r"|gpu support may not be enabled|detected GPU .{0,80}not supported)"
         r"|(?P<late>GPU discovery watchdog timed out)"),
)  # fmt: skip
