"""Advice on messages of the NVIDIA driver, of systemd units and of Kubernetes' pods."""

from __future__ import annotations

from collections.abc import Mapping

SPECIAL: Mapping[str, tuple[str, ...]] = {
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
    "nvml.unread": (
        "A worker met an error of NVML, NVIDIA's library for the cards, and its text was lost on "
        "the way to this process: look for NVMLError in the worker's own log. Usually "
        "CUDA_VISIBLE_DEVICES names a card that the worker does not see, or MIG devices (name them "
        "by UUID, one for each rank).",
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
        "The driver denies this process the card. In a container that never had it: with Docker "
        "as root set no-cgroups = false in /etc/nvidia-container-runtime/config.toml (true is for "
        "rootless ones) and restart Docker. In one that had it and lost it, as after `systemctl "
        "daemon-reload` on the host: restart the container, with each /dev/nvidia* device passed "
        'by name, or with "exec-opts": ["native.cgroupdriver=cgroupfs"] in Docker\'s '
        "daemon.json.",
        "Outside a container run nvidia-smi; if it reports the same, reboot.",
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
        "(RmInitAdapter failed: power, seat, riser or firmware, usually gone after the machine was "
        "off and on; a new card needs the driver's open kernel modules, an old one an older "
        "driver; a virtual machine needs the card passed through).",
    ),
    "nvml.denied": (
        "This user may not open /dev/nvidia*. In a container of Podman, or with SELinux: start it "
        "with --security-opt label=disable, rootless also with --group-add keep-groups, as some "
        "distributions (openSUSE, Gentoo) give the files to the group video only. Outside: add the "
        "user to that group, or set NVreg_DeviceFileMode=0666 for the module nvidia in "
        "/etc/modprobe.d.",
    ),
    "driver.source": (
        "apt does not trust NVIDIA's repository ({key}): fetch its key anew (`curl -fsSL "
        "https://nvidia.github.io/libnvidia-container/gpgkey | sudo gpg --dearmor --yes -o "
        "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg`; for CUDA's install the current "
        "cuda-keyring package), let the .list file in /etc/apt/sources.list.d name it in "
        "signed-by=, delete older files for the same address there, and run `sudo apt update`.",
        "apt knows no package {package}: the repository that has it is not configured, or not for "
        "this distribution. For the container toolkit write the list of NVIDIA's install guide "
        "(libnvidia-container/stable/deb, one for all releases) and its key; for a driver use "
        "the distribution's own name (Ubuntu: `ubuntu-drivers list`; Debian: the components "
        "contrib non-free non-free-firmware); then `sudo apt update` without errors.",
    ),
    "nvml.unloaded": (
        "No driver is loaded in the kernel, usually because this kernel is newer than the last "
        "build of its module: see `lsmod | grep nvidia` and `dkms status`, install the headers of "
        "the running kernel (linux-headers-$(uname -r); kernel-devel), build the module (`sudo "
        "dkms autoinstall`, or install the driver's DKMS package again), and reboot. If it is "
        "built and `sudo modprobe nvidia` refuses it, Secure Boot does (sign it, or switch that "
        "off), or nouveau holds the card. Under WSL only Windows has a driver: update it there.",
    ),
    "nvml.mismatch": (
        "The driver in the kernel does not answer, or is another release than the installed "
        "libraries: reboot after an update; if that does not help, reinstall the driver. Where "
        "nvidia-smi works on the host and not in a container, the container is older than the "
        "update (make it anew), or its image has libraries of a driver, which it must not "
        "(remove libnvidia-* and nvidia-utils from it).",
    ),
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
