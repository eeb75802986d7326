"""Advice on each failure, and on messages that any engine's log may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.healing.failure import Failure
from caovand.engines.common.healing import advice_ggml, stages
from caovand.engines.common.logs.rows import (
    binaries,
    building,
    checkpoint,
    clients,
    container,
    cuda_state,
    exits,
    files,
    flashinfer,
    ggml_families,
    kernel,
    kernel_owners,
    links,
    loader,
    network,
    packages,
    python_advice,
    raised,
    requests,
    rocm,
    runtime,
    servers,
    studio,
    system,
    toolchain,
    unreached,
)

Sentences = Mapping[Any, tuple[str, ...]]  # a sentence with an unknown {name} is left out
GENERAL: Mapping[Failure, tuple[str, ...]] = {
    "bad-arguments": (
        "The engine rejects a setting; the line names it. Starting again cannot help.",
    ),
    "device-oom-load": (
        "The weights do not fit the card: use a smaller quantization, or check with nvidia-smi "
        "which other processes use it.",
    ),
    "kv-cache-none": ("No memory is left on the card for the cache.",),
    "device-oom-capture": ("The card has no memory left for the buffers of a step.",),
    "device-oom-run": ("A step needed more memory than the card has left.",),
    "illegal-access": (
        "A kernel accessed invalid memory. Lowering memory shares does not help.",
        "If the card is NVIDIA's, the kernel log of Linux may name the fault: journalctl -k "
        "| grep -i xid",
        "If it began with a new release of the engine, install the older release.",
    ),
    "launch-failure": (
        "A computation on the card failed.",
        "Update the card's driver; a newer or older release of the engine may do without.",
        "If the card is NVIDIA's, the kernel log of Linux may name the fault: journalctl -k "
        "| grep -i xid",
    ),
    "collective-timeout": ("The cards stopped exchanging data: check `nvidia-smi topo -m`.",),
    "gpu-lost": (
        "The driver lost a card. Only a reboot recovers it; check power supply, cables, riser and "
        "temperature.",
    ),
    "gpu-absent": (
        "No usable card was found: run nvidia-smi. After a driver update, reboot; after suspend, "
        "reload the kernel module: sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm",
    ),
    "engine-unusable": (
        "The engine is not installed, or may not or cannot be run: `caovanctl doctor` names the "
        "fault. Install or repair the engine, or correct [engine] python.",
    ),
    "host-oom": ("The machine ran out of memory: close other programs, or add memory or swap.",),
    "shm-full": (
        "/dev/shm is too small for the engine's processes: run the container with --ipc=host or "
        "--shm-size=8g (Kubernetes: an emptyDir of medium Memory at /dev/shm); without a "
        "container, sudo mount -o remount,size=8G /dev/shm",
    ),
    "jit-toolchain": (
        "A kernel must be compiled here: install g++ and gcc, and the CUDA toolkit that fits the "
        "driver.",
    ),
    "backend-unsupported": ("The engine has no kernels for this card and these settings.",),
    "compile-failed": ("torch.compile failed.",),
    "model-missing": ("The model cannot be read: correct its path, or download it again.",),
    "network": (
        "The model hub could not be reached from where the engine runs (in a container or pod: "
        "from inside it): check its network, DNS and HTTPS_PROXY, or set HF_ENDPOINT to a mirror.",
        "Without a way to the hub, download the model elsewhere, mount or copy its folder, pass "
        "the folder's path as the model, and set HF_HUB_OFFLINE=1.",
    ),
    "access-denied": (
        "The engine's user may not use what the line names: it must read a model's files, pass "
        "the folders above them, and write caches and logs. `namei -l` with the path shows the "
        "owner of each folder.",
    ),
    "port-busy": ("Another program listens on the port: `ss -ltnp` names it.",),
    "engine-died": ("The engine ended on its own, or something killed it; the line shows how.",),
    "unknown": (
        "No known cause matches this log; the line shows where the failure began. Search "
        "the engine's issues for its words, and report the log.",
    ),
}
SPECIAL: Mapping[str, tuple[str, ...]] = {
    **advice_ggml.SPECIAL,
    **binaries.ADVICE,
    **building.ADVICE,
    **checkpoint.ADVICE,
    **container.ADVICE,
    **cuda_state.ADVICE,
    **exits.ADVICE,
    **files.ADVICE,
    **flashinfer.ADVICE,
    **kernel.ADVICE,
    **kernel_owners.ADVICE,
    **ggml_families.ADVICE,
    **raised.ADVICE,
    **requests.ADVICE,
    **rocm.ADVICE,
    **runtime.ADVICE,
    **servers.ADVICE,
    **stages.ADVICE,
    **studio.ADVICE,
    **system.ADVICE,
    **clients.ADVICE,
    **toolchain.ADVICE,
    **unreached.ADVICE,
    **links.ADVICE,
    **loader.ADVICE,
    **network.ADVICE,
    **packages.ADVICE,
    **python_advice.ADVICE,
    "ollama.client": (
        "No Ollama server answers: start it (`sudo systemctl start ollama`, or `ollama serve`). If "
        "it was installed or started just before, it ended at once, and its own log says why: "
        "`systemctl status ollama`, `journalctl -u ollama -e` (macOS ~/.ollama/logs/server.log, "
        "Windows %LOCALAPPDATA%\\Ollama\\server.log). " + unreached.IN_CONTAINER,
    ),
    "disk.full": ("The disk is full: free some space, then start again.",),
    "request.refused": (
        "The server refused a request with the status {status}, and went on: the line says why. "
        "Correct what the client sends, or the option that it needs of the server.",
    ),
    "sandbox.families": (
        "A sandbox forbids a kind of socket. In a systemd unit, let RestrictAddressFamilies= "
        "include AF_UNIX AF_INET AF_INET6 AF_NETLINK; on a kernel without IPv6, bind to an IPv4 "
        "address.",
    ),
    "pod.probe": (
        "The kubelet killed the container because its {probe} probe failed: loading takes longer "
        "than the probe waits. Add a startupProbe on /health with a failureThreshold that covers "
        "download and load.",
    ),
    "pod.path": (
        "The probe got the answer {status}: the server runs, but has no such path. Correct path "
        "and port of the probe (vLLM, SGLang and llama.cpp answer /health, Ollama /), or use an "
        "image whose server has it.",
    ),
    "pod.unready": (
        "The {probe} probe had no answer: the engine still loads, or it ended. `kubectl logs` (and "
        "--previous) show which; add a startupProbe that covers download and load.",
    ),
    "pod.restarts": (
        "The container {container} ends again and again: `kubectl logs --previous -c {container}` "
        "has its last lines, and `kubectl describe pod` how it ended.",
    ),
    "pod.ended": (
        "The container was ended by a signal (137 is SIGKILL: the memory limit, or a failed "
        "liveness probe): `kubectl describe pod` and `kubectl logs --previous` show which.",
    ),
    "env.service": (
        "{variable} is {uri}, where the engine expects a number or a name. Kubernetes sets such "
        "variables in every pod for each Service, named after it (a Service vllm makes "
        "VLLM_PORT): rename the Service, set enableServiceLinks: false in the pod, or set or unset "
        "{variable} yourself.",
        "A variable is {number}, where the engine expects a port. Kubernetes sets such "
        "variables for each Service, named after it: rename the Service, or set "
        "enableServiceLinks: false.",
    ),
    "proxy.itself": (
        "The request of the server to itself ({itself}) went through the proxy {proxy}, which "
        "answered {status}: set no_proxy and NO_PROXY to 127.0.0.1,localhost,0.0.0.0 in its "
        "environment, or unset http_proxy there.",
    ),
    "start.itself": (
        "The server waited for itself at {itself} and did not reach it: the lines do not show why. "
        "See whether an http_proxy is set without no_proxy=127.0.0.1,localhost,::1, whether IPv6 "
        "works on this machine's loopback, pass another --host (127.0.0.1), or skip the warm-up "
        "request; if it is a bug of the release, another one helps.",
    ),
    "host.library.other": (
        "{library} is loaded, which is not the release that the program was built for ({version} "
        "is not in it): a library of the machine is found before the program's own. Remove its "
        "folder from LD_LIBRARY_PATH and /etc/ld.so.conf.d, remove links to it, or install that "
        "release; then start again.",
    ),
    "driver.behind": (
        "The host's NVIDIA driver supports CUDA up to {major}.{minor}, and PyTorch was built for "
        "a newer one: update the driver of the host, or use an image or packages built for CUDA "
        "{major}.{minor} or older.",
        "The host's NVIDIA driver supports CUDA only up to {found}.",
        "The number is CUDA's, not the driver's: `nvidia-smi` shows both. A newer CUDA toolkit "
        "does not help.",
    ),
    "container.requirement": (
        "The image requires {condition}, which the host's driver does not meet: update the host's "
        "NVIDIA driver, or use an image made with an older CUDA. For a card that the newer driver "
        "no longer supports only the image helps.",
        "NVIDIA_DISABLE_REQUIRE=1 in the container skips the check alone; the programs in it then "
        "fail by themselves if they use what the driver lacks.",
    ),
    "driver.old": (
        "A library needs the driver's {symbol}, which only newer drivers have.",
        "The driver is older than the CUDA release that the engine was built with: update the "
        "NVIDIA driver, or use a build for an older CUDA.",
    ),
    "driver.ptx": (
        "The build has no kernels made for this card, and the driver cannot compile its PTX: "
        "update the NVIDIA driver first; else use a build for an older CUDA, or one for this card "
        "(CUDA 13 left out Volta and older cards, such as V100 and P40), in LocalAI and others "
        "another or an older variant of the backend.",
    ),
    "nvml.argument": (
        "NVML does not find the requested card: CUDA_VISIBLE_DEVICES names one that is not here "
        "(in a container cards count from 0), or a MIG device without its UUID (nvidia-smi "
        "-L).",
    ),
    "nvml.unsupported": (
        "NVML does not answer a question about the card, as under WSL2 in a forked process or on "
        "vGPUs and Jetson: set VLLM_WORKER_MULTIPROC_METHOD=spawn, update driver and engine, and "
        "leave out what asks for it (power, NVLink, peer access).",
    ),
    "nvml.unknown": (
        "The driver denies this process the card. In a container that happens after `systemctl "
        "daemon-reload` on the host: restart the container, with each /dev/nvidia* device passed "
        'by name, or with "exec-opts": ["native.cgroupdriver=cgroupfs"] in Docker\'s '
        "daemon.json.",
        "Outside a container run nvidia-smi; if it reports the same, reboot.",
    ),
    "model.architecture": (
        "This release of the engine does not support the model's architecture: use a newer "
        "release, or another model.",
    ),
    "gpu.busy": (
        "Another process has the card for itself, or the card is not in a state to take one: check "
        "with nvidia-smi which process uses it, that its compute mode is Default (sudo nvidia-smi "
        "-c 0), and what CUDA_VISIBLE_DEVICES names.",
    ),
    "gpu.peer": (
        "The cards cannot read each other's memory: set NCCL_P2P_DISABLE=1, and turn custom "
        "all-reduce off (--disable-custom-all-reduce).",
    ),
    "args.split": (
        "The model cannot be split this way: lower tensor_parallel_size (--tp) to a divisor of its "
        "heads, those of an image encoder included, and of its quantized blocks.",
    ),
    "host.library": (
        *exits.OWNERS,
        "The library {library} is missing or damaged: install the engine again with all files of "
        "its release, or add the library's folder to LD_LIBRARY_PATH.",
    ),
    **dict.fromkeys(("cuda.arch", "sglang.arch"), (runtime.OLD_DRIVER, runtime.NO_CODE)),
    "weights.fp8": (
        "{kernel}, a kernel of Triton for FP8 weights, needs a card that computes in FP8 (compute "
        "capability 8.9: Ada, Hopper and newer). On Ampere (8.0 to 8.7) vLLM multiplies FP8 "
        "weights by Marlin's kernels: leave out options that choose others (--moe-backend triton, "
        "--linear-backend), set VLLM_TEST_FORCE_FP8_MARLIN=1, or install a newer release, which "
        "has them for more layers.",
        "Where that does not help (other engines, older cards), take another quantization of the "
        "model: AWQ, GPTQ or another of INT4 or INT8.",
    ),
    "cache.fp8": (
        "This card does not compute in 8-bit floating point (it needs compute capability 8.9). If "
        "the cache is in FP8 (--kv-cache-dtype fp8, or the checkpoint's own setting), store it in "
        "16 bits: --kv-cache-dtype auto, or bfloat16 in releases that have it.",
        "If the weights are in FP8, take a newer release (on Ampere vLLM multiplies them by "
        "Marlin's kernels, VLLM_TEST_FORCE_FP8_MARLIN=1), or a model in another quantization: AWQ, "
        "GPTQ or another of INT4 or INT8.",
    ),
    "nvml.blocked": (
        "Windows does not let WSL use the card: install the current NVIDIA driver in Windows (a "
        "card for data centres must run in its WDDM or MCDM mode, not TCC), none in WSL, then "
        "`wsl --update` and `wsl --shutdown`. If it fails in a container only, update Docker and "
        "the NVIDIA Container Toolkit there.",
    ),
    "unit.missing": (
        "This system has no unit {unit}: the program was installed without a service (an archive, "
        "a package of another kind, a container, WSL without systemd). Start it by hand (Ollama: "
        "`ollama serve`), or install it with its own script, which makes the unit.",
    ),
    "unit.absent": (
        "The unit's program did not start: 127 means that it, or a library that it needs, is not "
        "found, 126 that it may not be executed. Run the ExecStart= line by hand as the unit's "
        "user (`ldd` lists what is missing), and install it again.",
    ),
    "nvml.library": (
        "The program nvidia-smi is there, and the driver's libraries are not: install the driver "
        "whole (Debian and Ubuntu: nvidia-driver-*, with libnvidia-compute-* of the same "
        "release). Under WSL only Windows has a driver, whose libraries are in /usr/lib/wsl/lib: "
        "remove the packages inside it, and add that folder to LD_LIBRARY_PATH. In a container "
        "pass the card (--gpus all).",
    ),
    "nvml.none": (
        "The driver is loaded, and no card started: `sudo dmesg | grep -i nvrm` says why "
        "(RmInitAdapter failed: power, seat, riser or firmware, mostly gone after the machine was "
        "off and on; a new card needs the driver's open kernel modules, an old one an older "
        "driver; a virtual machine needs the card passed through).",
    ),
    "nvml.mismatch": (
        "The driver in the kernel does not answer, or is another release than the installed "
        "libraries: reboot after an update; if that does not help, reinstall the driver.",
    ),
    "signal.core": (
        "The process crashed in native code ({signal}), and the first frames after this line name "
        "the library: NCCL's point to the links between the cards (NCCL_DEBUG=INFO, another "
        "release of NCCL), a driver's to the driver, ggml's and PyTorch's to the "
        "release of the engine.",
    ),
    "signal.instruction": (exits.INSTRUCTION,),
    "unit.killed": (
        "The kernel or its supervisor killed it for lack of memory: add memory or swap, or raise "
        "the limit of its container or unit (resources.limits.memory, --memory, MemoryMax).",
    ),
    "unit.program": (
        "systemd cannot execute the unit's program: correct ExecStart=, and its permissions.",
    ),
    "unit.user": (
        "systemd cannot prepare the unit: its User=, Group=, WorkingDirectory= or a mounted folder "
        "does not exist.",
    ),
}
"""Sentences by signature, for every engine."""
