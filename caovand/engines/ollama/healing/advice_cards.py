"""Advice for people where Ollama serves without its cards, by signature."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.engines.common.logs.rows import cuda_state

ON_PROCESSOR = (
    "Ollama found no card and serves on the CPU (line {line}). If this machine has a card, "
    "run nvidia-smi (rocminfo for AMD) where the server runs. In a container, pass the card "
    "(--gpus all, with the NVIDIA Container Toolkit on the host; for AMD /dev/kfd, /dev/dri and "
    "the image with rocm), and make the container anew; outside of one, install or update the "
    "driver, and restart Ollama. With OLLAMA_DEBUG=1 its log names the libraries that it tried, "
    "and why each found no card."
)
_COMPAT = "Ollama serves on the CPU (code {compat}). " + " ".join(cuda_state.COMPAT)
_SYMBOL = (
    "CUDA's library and the driver do not fit together (code {symbol}), so Ollama serves on "
    "the CPU. Under WSL update the NVIDIA driver of Windows, run `wsl --update` and `wsl "
    "--shutdown`, and remove the packages of a Linux driver inside it (nvidia-driver-*, "
    "libnvidia-*): nvidia-smi must work in WSL first, then in a container (`docker run --rm "
    "--gpus all ubuntu nvidia-smi`). Elsewhere reboot after an update of the driver."
)
_OVERRIDE = (
    " for the server: Environment= under [Service] in `sudo systemctl edit ollama`, then `sudo "
    "systemctl restart ollama`; in a container -e. It has no effect on Windows: there, or if "
    "the server still uses no card, use a package of ROCm made for the card or a Vulkan build."
)
CARDS: Mapping[str, tuple[str, ...]] = {
    "ollama.driver": (
        _SYMBOL,
        _COMPAT,
        "The driver does not start (code {code}), so Ollama serves on the CPU: reload the "
        "kernel module (sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm) and restart Ollama, or "
        "reboot. This is common after suspend.",
        "The driver's library {library} finds no card: run nvidia-smi; in a virtual machine pass "
        "the card through, in a container let its runtime do so (--gpus all).",
        "In a container: restart it, with each /dev/nvidia* device passed by name.",
    ),
    "ollama.runtime": (
        "CUDA does not start (code {state}), so Ollama serves on the CPU. Usually the "
        "kernel module is in a bad state, as after suspend: reload it (sudo rmmod nvidia_uvm && "
        "sudo modprobe nvidia_uvm), or reboot, then restart Ollama. In a container, restart the "
        "container, and check that it has /dev/nvidia-uvm.",
        "Ollama serves on the CPU (code {unready}). " + cuda_state.START,
        "Ollama serves on the CPU (code {system}). " + cuda_state.SYSTEM,
        "Another process has the card for itself, or the card does not answer (code {busy}): check "
        "with nvidia-smi who uses it and that its compute mode is Default (sudo nvidia-smi -c 0).",
        "Ollama serves on the CPU (code {fabric}). " + cuda_state.ADVICE["driver.fabric"][0],
        _COMPAT,
        "Ollama serves on the CPU (code {stub}). " + cuda_state.ADVICE["driver.stub"][0],
        "The driver is older than Ollama's CUDA library (code {old}): update the driver.",
        "CUDA sees no card (code {none}): run nvidia-smi as Ollama's user, and check "
        "CUDA_VISIBLE_DEVICES.",
        _SYMBOL,
        "CUDA does not start (code {code}), so Ollama serves on the CPU: run nvidia-smi, and "
        "reboot.",
        "The driver's kernel module is not loaded (NVML's code {unloaded}): run nvidia-smi; load "
        "it (sudo modprobe nvidia), or install the driver again after a new kernel.",
        "Kernel module and libraries of the driver are of different releases (NVML's code "
        "{mismatch}): reboot after the update.",
        "The driver lost the card (NVML's code {lost}): reboot, then check its power and seat.",
        "NVML, which reports the cards, does not start (code {nvml}), so Ollama serves on the "
        "processor: run nvidia-smi; reload the driver or reboot.",
    ),
    "ollama.card.old": (
        "Ollama asked an old CUDA library of another program (such as PhysX's cudart64_65.dll), "
        "which takes every newer card for one of capability {stale}: install the current Ollama, "
        "which asks the driver first, and the card's current driver; until then take that "
        "program's folder off PATH.",
        "This release of Ollama considers the card too old (compute capability {capability}), "
        "and serves on the CPU. Releases differ in this: install a newer one (most take 5.0 "
        "and above), or use another card.",
    ),
    "ollama.discovery": (
        "Ollama found no card that its libraries can use, so it serves on the CPU: run "
        "nvidia-smi; update the driver, or install another release of Ollama.",
    ),
    "ollama.card.refused": (
        "{rdna2} runs the kernels of gfx1030, which this ROCm library has: set "
        "HSA_OVERRIDE_GFX_VERSION=10.3.0" + _OVERRIDE,
        "{rdna3} usually runs the kernels of gfx1100, which this ROCm library has: set "
        "HSA_OVERRIDE_GFX_VERSION=11.0.0" + _OVERRIDE,
        "{rdna1} usually runs the kernels of gfx1010, which this ROCm library has: set "
        "HSA_OVERRIDE_GFX_VERSION=10.1.0" + _OVERRIDE,
        "The card is a {gfx}, and the installed ROCm library has kernels only for {types}: it "
        "serves on the CPU. Install an Ollama, or a package of ROCm for it, that has {gfx} "
        "(a build from the sources), or use llama.cpp's Vulkan build. Another driver does not "
        "help, and HSA_OVERRIDE_GFX_VERSION has no family for this card here.",
        "Ollama found the AMD card and no ROCm library for it ({library}), so it serves on the "
        "CPU: install Ollama's own package for ROCm besides (ollama-linux-amd64-rocm, which the "
        "install script fetches; the distribution's ollama-rocm; in a container the tag rocm). "
        "AMD's driver alone does not bring what this release loads, nor a ROCm of another main "
        "version.",
        "Ollama stopped looking for cards ({late}), and serves on the CPU until it is "
        "restarted. The driver was slow to wake the card: keep it awake (`sudo systemctl enable "
        "--now nvidia-persistenced` on the host, in a virtual machine or LXC there, too), start "
        "Ollama after the driver, and run nvidia-smi before.",
        "Ollama found a card but does not use it ({why}), so it serves on the CPU: update "
        "the card's driver, or install the release or ROCm package that supports it.",
    ),
    "ollama.cards.integrated": (
        "Ollama found only graphics in the CPU ({name}), which it leaves out, and no other "
        "card that it can use: it serves on the CPU.",
        "If this machine has an NVIDIA or AMD card, see first why that one is not found: run "
        "nvidia-smi (rocminfo) as Ollama's user, install or update the driver, and read the log "
        "with OLLAMA_DEBUG=1; OLLAMA_LLM_LIBRARY (such as cuda_v13) names one library to try.",
        "If it has none, OLLAMA_IGPU_ENABLE=1 lets Ollama use the integrated one, which may be "
        "slower than the CPU.",
    ),
    "ollama.cards.unused": (
        "This installation has no library for cards ({runners}): install Ollama again whole with "
        "its install script, after the old lib/ollama (in /usr and /usr/local) is removed, or with "
        "the distribution's package for the card (ollama-cuda, ollama-rocm); an own build needs "
        "the toolkit.",
        "Ollama serves on the CPU, though a card was available or expected: run nvidia-smi "
        "or rocminfo as its user, unset *_VISIBLE_DEVICES, and read its log with OLLAMA_DEBUG=1. "
        "In a container pass the card (--gpus all; for AMD /dev/kfd, /dev/dri and the image with "
        "rocm).",
    ),
}
