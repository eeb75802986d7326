"""Advice on each failure, and on messages that any engine's log may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.healing.failure import Failure
from caovand.engines.common.healing import advice_ggml, advice_host, stages
from caovand.engines.common.logs.rows import (
    binaries,
    building,
    checkpoint,
    clients,
    container,
    cuda_state,
    desktop,
    exits,
    files,
    flashinfer,
    ggml_families,
    kernel,
    kernel_owners,
    links,
    loader,
    model_types,
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
    toolkit,
    unreached,
)

_ILLEGAL = (
    "A kernel accessed invalid memory. Lowering memory shares does not help.",
    "If the card is NVIDIA's, the kernel log of Linux may name the fault: journalctl -k "
    "| grep -i xid",
    "If it began with a new release of the engine, install the older release.",
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
    "illegal-access": _ILLEGAL,
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
    **advice_host.SPECIAL,
    **binaries.ADVICE,
    **building.ADVICE,
    **checkpoint.ADVICE,
    **container.ADVICE,
    **cuda_state.ADVICE,
    **desktop.ADVICE,
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
    **toolkit.ADVICE,
    **unreached.ADVICE,
    **links.ADVICE,
    **loader.ADVICE,
    **model_types.ADVICE,
    **network.ADVICE,
    **packages.ADVICE,
    **python_advice.ADVICE,
    "disk.full": ("The disk is full: free some space, then start again.",),
    "request.refused": (
        "The server refused a request with the status {status}, and went on: the line says why. "
        "Correct what the client sends, or the option that it needs of the server.",
    ),
    "request.answered": (
        "The server answered its last requests with 404: it serves no model by the name that the "
        "client sends, or this release has no route {absent}. GET /v1/models lists the "
        "names; let the client send one of them, or set --served-model-name.",
        "The server answered its last requests with {refused}: the client sends what it does not "
        "accept (a missing or unknown field, a value of the wrong type or a prompt that is too "
        "long). The body of the answer says which; print it in the client.",
        "The server, or a proxy before it, answered its last requests with {forbidden}: the client "
        "may not use it. Check the origins and hosts that it allows, and the proxy's rules.",
        "The server answered its last requests with {broken}, and these lines do not say why: see "
        "the traceback before them in the whole log, and the body of the answer.",
    ),
    "sandbox.families": (
        "A sandbox forbids a kind of socket. In a systemd unit, let RestrictAddressFamilies= "
        "include AF_UNIX AF_INET AF_INET6 AF_NETLINK; on a kernel without IPv6, bind to an IPv4 "
        "address.",
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
    "cuda.illegal": (
        "It happened where vLLM adds up the cards' results by its own kernel ({reduce}): let NCCL "
        "do it (--disable-custom-all-reduce). If the fault then shows elsewhere, another kernel "
        "caused it.",
        *_ILLEGAL,
    ),
    "args.split": (
        "Marlin's kernels compute in blocks ({marlin}) that the layer's part on one card does not "
        "fill: load the checkpoint without them (--quantization awq for AWQ, gptq for GPTQ), or, "
        "if it is split over cards, over fewer.",
        "A layer's part on one card is not made of whole blocks ({block}): if it is of experts, "
        "keep these whole (--enable-expert-parallel; SGLang: --ep with the number of --tp), "
        "otherwise split over fewer cards.",
        "The model cannot be split this way: lower tensor_parallel_size (--tp) to a divisor of its "
        "heads, those of an image encoder included, and of its quantized blocks.",
    ),
    "host.library": (
        *exits.OWNERS,
        "The library {library} is missing or damaged: install the engine again with all files of "
        "its release, or add the library's folder to LD_LIBRARY_PATH.",
        "{file} found a library of another release or program, which lacks {symbol}: `ldd {file}` "
        "shows which one of each name it takes. Remove the copies that do not belong to it, such "
        "as libllama.so and libggml of another installation in /usr/local/lib or LD_LIBRARY_PATH "
        "(sudo ldconfig afterwards), or put its own folder first in LD_LIBRARY_PATH.",
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
    "signal.core": (
        "The process crashed in native code ({signal}), and the first frames after this line name "
        "the library: NCCL's point to the links between the cards (NCCL_DEBUG=INFO, another "
        "release of NCCL), a driver's to the driver, ggml's and PyTorch's to the "
        "release of the engine.",
    ),
    "signal.instruction": (exits.INSTRUCTION,),
}
"""Sentences by signature, for every engine."""
