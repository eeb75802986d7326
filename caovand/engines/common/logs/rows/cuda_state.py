"""Why CUDA does not start although a driver is there: rows for any engine.

The driver's library answers with a code, and programs print the code or its text. The two are
defined in cuda.h (CUresult).
"""

from __future__ import annotations

from collections.abc import Mapping

from caovand.engines.common.logs.signature import signature

ROWS = (
    # 802
    signature("driver.fabric", "cause", "gpu-absent",
         r"[Ss]ystem not yet initialized|\b(?:init failure|[Ee]rror|cuInit err):? 802\b"
         r"|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady"),
    # 803 and 804: Error 803: system has unsupported display driver / cuda driver combination
    signature("driver.compat", "cause", "gpu-absent",
         r"system has unsupported display driver|forward compatibility was attempted on non"
         r"|\bError 80[34]: |CUDA_ERROR_(?:SYSTEM_DRIVER_MISMATCH|COMPAT_NOT_SUPPORTED_ON_DEVICE)"
         r"|cudaError(?:SystemDriverMismatch|CompatNotSupportedOnDevice)"),
    # 800
    signature("driver.denied", "cause", "gpu-absent",
         r"\b(?:context|init failure|[Ee]rror|cuInit err):? 800\b|CUDA_ERROR_NOT_PERMITTED"
         r"|cudaErrorNotPermitted"),
    # 34
    signature("driver.stub", "cause", "gpu-absent",
         r"CUDA driver is a stub library|CUDA_ERROR_STUB_LIBRARY|cudaErrorStubLibrary"),
    # 304: CUDA error 304 at ggml-cuda.cu:5065: OS call failed or operation not supported on this
    # OS. PyTorch also says so of a call that only needs more rights than the ones before.
    signature("driver.system", "cause", "gpu-absent",
         r"(?<!CUDA error: )OS call failed or operation not supported|CUDA_ERROR_OPERATING_SYSTEM"
         r"|cudaErrorOperatingSystem", {"serving": "launch-failure"}),
    # 35
    signature("driver.insufficient", "cause", "gpu-absent",
         r"CUDA driver version is insufficient|cudaErrorInsufficientDriver"
         r"|\bCUDA error:? 35\b"),
    # 3: ggml_cuda_init: failed to initialize CUDA: initialization error
    signature("driver.start", "cause", "gpu-absent",
         r"failed to initialize CUDA: initialization error|CUDA_ERROR_NOT_INITIALIZED"
         r"|CUDA driver initialization failed, you might not have a CUDA gpu"),
)  # fmt: skip
_STARTS = (
    "nvidia-smi may work nevertheless, as it does not use the module nvidia_uvm. Reload that (sudo "
    "rmmod nvidia_uvm && sudo modprobe nvidia_uvm) or reboot, and look at `sudo dmesg | grep -i "
    "nvrm`; in a container or virtual machine check that /dev/nvidia-uvm is passed. If it stays, "
    "with drivers of 570 and newer the usual fault is heterogeneous memory (HMM): put `options "
    "nvidia_uvm uvm_disable_hmm=1` into /etc/modprobe.d/uvm.conf, and reboot."
)
COMPAT = (
    "The libcuda.so.1 that was loaded does not fit the driver in the kernel. In images it is "
    "usually the one of cuda-compat, which only cards for data centres support, and only newer "
    "than the driver: remove its folder (/usr/local/cuda/compat) from LD_LIBRARY_PATH and "
    "/etc/ld.so.conf.d, or update the host's driver to the image's CUDA release. `ldconfig -p | "
    "grep libcuda` shows what is found.",
    "Without such a folder, kernel module and libraries of the driver are of different releases: "
    "reboot after an update of the driver, and start containers anew.",
)
SYSTEM = (
    "The kernel refused a call of the driver's library (CUDA_ERROR_OPERATING_SYSTEM). In a "
    "container it lacks a device or a right: pass all of /dev/nvidia* with nvidia-uvm (--gpus "
    "all), and try --security-opt seccomp=unconfined or a newer Docker. Otherwise reload the "
    "module (sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm) or reboot; `sudo dmesg | grep -i "
    "nvrm` shows more."
)
INSUFFICIENT = (
    "The host's NVIDIA driver is older than the CUDA release that this program was built for: "
    "update the driver, or install a build or image for an older CUDA. The table of `nvidia-smi` "
    "shows the newest CUDA that the driver supports; a CUDA toolkit (nvcc) does not change it. If "
    "that is new enough, the program does not find the driver's libcuda.so.1: start a container "
    "with its cards (--gpus all), and see `ldconfig -p | grep libcuda`."
)
START = "The driver's library refuses to start CUDA (CUDA_ERROR_NOT_INITIALIZED). " + _STARTS
ADVICE: Mapping[str, tuple[str, ...]] = {
    "driver.fabric": (
        "CUDA cannot start the cards (802) before their NVSwitches are set up: install "
        "nvidia-fabricmanager of exactly the driver's release on the host, start it (sudo "
        "systemctl enable --now nvidia-fabricmanager), and check that `nvidia-smi -q` shows Fabric "
        "State: Completed. In a virtual machine that is up to its host.",
    ),
    "driver.compat": COMPAT,
    "driver.denied": (
        "The kernel denies this process the card (CUDA_ERROR_NOT_PERMITTED, 800). A container "
        "loses its right to the devices when systemd reloads on the host: restart it. So that it "
        'keeps the right, set "exec-opts": ["native.cgroupdriver=cgroupfs"] in Docker\'s '
        "daemon.json, or pass each device by name (--device /dev/nvidia0 --device /dev/nvidiactl "
        "--device /dev/nvidia-uvm).",
    ),
    "driver.stub": (
        "The libcuda.so.1 that was loaded is the toolkit's stub, which is only for linking: remove "
        "the folder `stubs` of the CUDA toolkit from LD_LIBRARY_PATH and /etc/ld.so.conf.d; the "
        "driver's own library must be found.",
    ),
    "driver.insufficient": (INSUFFICIENT,),
    "driver.system": (SYSTEM,),
    "driver.start": (START,),
}
"""Sentences by row."""
