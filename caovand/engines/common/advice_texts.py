"""What advice says of each failure, and of the texts that any engine's log may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.healing.failure import Failure
from caovand.engines.common import raised, toolchain

Sentences = Mapping[Any, tuple[str, ...]]  # a sentence with an unknown {name} is left out
GENERAL: Mapping[Failure, tuple[str, ...]] = {
    "bad-arguments": ("A setting is refused, and starting again cannot help: the line names it.",),
    "device-oom-load": (
        "The weights do not fit the card: use a smaller quantization, or check with nvidia-smi "
        "what else uses it.",
    ),
    "kv-cache-none": ("No memory is left on the card for the cache.",),
    "device-oom-capture": ("The card has no memory left for the buffers of a step.",),
    "device-oom-run": ("A step needed more memory than the card has left.",),
    "illegal-access": (
        "A kernel accessed invalid memory. Lowering memory shares does not help.",
        "Check the kernel log for Xid lines: journalctl -k | grep -i xid",
        "If it began with a new release of the engine, install the older release.",
    ),
    "launch-failure": (
        "A kernel could not be launched.",
        "Check the kernel log for Xid lines: journalctl -k | grep -i xid",
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
        "The engine is not installed, or must not or cannot be run: `caovanctl doctor` names the "
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
    "network": ("The model hub could not be reached: check the network.",),
    "access-denied": ("Let the engine's user read the file and the folders above it.",),
    "port-busy": ("Another program listens on the port: `ss -ltnp` names it.",),
    "engine-died": ("The engine ended by itself, or something killed it; the line shows how.",),
    "unknown": (
        "No known cause matches this log; the line shows where the failure began. Search "
        "the engine's issues for its words, and report the log.",
    ),
}
SPECIAL: Mapping[str, tuple[str, ...]] = {
    **raised.ADVICE,
    **toolchain.ADVICE,
    "disk.full": ("The disk is full: free some space, then start again.",),
    "sandbox.families": (
        "A sandbox forbids a kind of socket. In a systemd unit, let RestrictAddressFamilies= name "
        "AF_UNIX AF_INET AF_INET6 AF_NETLINK; on a kernel without IPv6, bind to an IPv4 address.",
    ),
    "engine.transformers": (
        "{object} has no {member}: the installed Transformers does not fit this release of the "
        "engine, or an object was passed where the engine takes a name or a path.",
        "The installed Transformers does not fit this release of the engine: install the "
        "version that the engine's package asks for, or a newer release of the engine.",
    ),
    "model.code": (
        "The model has code of its own, which is not allowed, or which some processes cannot "
        "import: pass --trust-remote-code if you trust it, keep dots out of the folder's name, and "
        "let all nodes share HF_MODULES_CACHE.",
    ),
    "cuda.assertion": (
        "A kernel found an index outside its table ({assertion}): a position, a token or a cache "
        "slot is out of range. Keep max_model_len within the model's own limit (and what "
        "rope_scaling in hf_overrides makes of it), and check that the tokenizer has no more "
        "tokens than the model; otherwise it is a fault of the release.",
    ),
    "pod.probe": (
        "The kubelet killed the container because its {probe} probe failed: loading takes longer "
        "than the probe waits. Add a startupProbe on /health with a failureThreshold that covers "
        "download and load.",
    ),
    "pod.ended": (
        "The container was ended by a signal (137 is SIGKILL: the memory limit, or a failed "
        "liveness probe): `kubectl describe pod` and `kubectl logs --previous` tell which.",
    ),
    "cuda.forked": (
        "CUDA was used before the worker processes were forked: set "
        "VLLM_WORKER_MULTIPROC_METHOD=spawn, or do not touch CUDA before the engine starts.",
    ),
    "engine.libc": (
        "The engine's packages were built for another system ({symbols} is missing): use a release "
        "built for this distribution, or a container.",
        "Packages of the engine were built for another NumPy, cuDNN or C library: reinstall it in "
        "an environment of its own.",
    ),
    "nccl.duplicate": (
        "Two ranks use the same card: give each rank its own in CUDA_VISIBLE_DEVICES.",
    ),
    "nccl.network": (
        "The ranks cannot reach each other: name the network's interface in NCCL_SOCKET_IFNAME and "
        "GLOO_SOCKET_IFNAME, open the firewall between the nodes, and try NCCL_IB_DISABLE=1.",
    ),
    "hub.denied": (
        "The hub refuses the model: accept its licence there and set HF_TOKEN; a model already "
        "downloaded needs HF_HUB_OFFLINE=1 or its local path.",
    ),
    "args.parser": (
        "The reasoning or tool parser does not fit the model's tokenizer: leave "
        "--reasoning-parser and --tool-call-parser out, or choose those that the model's page "
        "names; another release of the engine may know this model.",
    ),
    "model.tokenizer": (
        "The model's folder has no tokenizer that can be read. For a Mistral model add tekken.json "
        "or tokenizer.model.v3, or read it as Transformers does (--tokenizer-mode auto "
        "--config-format hf --load-format auto); otherwise download tokenizer.json and "
        "tokenizer_config.json, name another tokenizer with --tokenizer, and install sentencepiece "
        "and tiktoken.",
    ),
    "model.quantization": (
        "The engine has no kernels for this checkpoint's quantization: choose another quantization "
        "of the model, a newer release, or another engine.",
    ),
    "model.gguf": (
        "The engine cannot read GGUF files of the architecture {architecture}: use the model's own "
        "checkpoint (safetensors), a newer release, or llama.cpp.",
        "The installed Transformers cannot read GGUF files of the architecture {unread}: use the "
        "model's own checkpoint (safetensors), a newer release, or llama.cpp.",
    ),
    "args.adapter": (
        "The adapter (LoRA) does not fit: it has weights for parts of the model that the engine "
        "takes none for (the line names them). Merge it into its base model, or train it without "
        "those modules; check that adapter_config.json names this base model.",
    ),
    "args.placeholders": (
        "The prompt has another number of image, video or audio placeholders than the media that "
        "came with it: let the model's own chat template insert them, and put none into the text. "
        "If every request fails, Transformers and the engine do not fit each other.",
    ),
    "model.adapter": (
        "{folder} has no config.json that the engine reads. If it is an adapter (LoRA): name its "
        "base model, and pass the adapter with --enable-lora and --lora-modules. Otherwise "
        "download the model again, with config.json or params.json.",
    ),
    "model.tensor": (
        "The checkpoint has the tensor {tensor}, which this release's code for the model does not "
        "know: its quantization is not supported for this architecture, config.json belongs to "
        "another checkpoint, or the release is too old.",
        "The checkpoint has {parameter}, which this release's code for the model does not know: "
        "config.json belongs to another checkpoint, an adapter is not merged, or the release is "
        "too old.",
        "The files are readable, so fetching them again does not help: check that config.json and "
        "the weights are of one model, and try a newer release or another quantization.",
    ),
    "container.files": (
        "The image holds files of the NVIDIA driver itself ({path}), and the container's runtime "
        "must put the host's there: build the image without the driver's packages (nvidia-*, "
        "libnvidia-*), and let it have the CUDA toolkit alone.",
    ),
    "driver.old": (
        "A library asks the driver for {symbol}, which only newer drivers have.",
        "The driver is older than the CUDA release that the engine was built with: update the "
        "NVIDIA driver, or use a build for an older CUDA.",
    ),
    "container.gpu": (
        "The container's runtime could not give it a card: let `nvidia-smi` work on the host, "
        "install the NVIDIA Container Toolkit, run `sudo nvidia-ctk runtime configure "
        "--runtime=docker`, and restart Docker.",
    ),
    "container.failed": (
        "The container was not started: the line says why. Correct its options, image or volumes.",
    ),
    "nvml.argument": (
        "NVML does not know the card that is asked for: CUDA_VISIBLE_DEVICES names one that is not "
        "here (in a container cards count from 0), or a MIG device without its UUID (nvidia-smi "
        "-L).",
    ),
    "feature.model": (
        "This release's code for {model} has no {attribute}: a setting or a request asks what it "
        "does not do (the task, an adapter, drafts, a split, a quantization), or the release is "
        "too old. Leave that out, or install a newer release.",
    ),
    "nvml.unknown": (
        "The driver denies this process the card. In a container that happens after `systemctl "
        "daemon-reload` on the host: restart the container, with each /dev/nvidia* device passed "
        "by name.",
        "Outside a container run nvidia-smi; if it reports the same, reboot.",
    ),
    "model.architecture": (
        "This release of the engine does not know the model's architecture: use a newer release, "
        "or another model.",
    ),
    "engine.dtype": (
        "A kernel wants {wanted} and got {found}: leave --dtype out, so that the engine takes the "
        "model's own type, or choose another one. Otherwise the engine has no kernel for this "
        "model, card and quantization together.",
        "A kernel does not take this type of data: leave --dtype out, or choose another one "
        "(bfloat16, half). Otherwise the engine has no kernel for this model, card and "
        "quantization together.",
    ),
    "engine.mismatch": (
        "{callee} does not know the argument {argument}: it is no setting of this release, or two "
        "packages of the installation do not fit each other. Leave it out, or install the engine "
        "again in an environment of its own.",
        "{callee} is called without {lacks}: two packages of the installation do not fit each "
        "other. Install the engine again, in an environment of its own.",
        "{module} has no {attribute}: two packages of the installation do not fit each other. "
        "Install the engine again, in an environment of its own.",
        "Two packages of the installation do not fit each other, or a setting and this release: "
        "starting again cannot help.",
    ),
    "args.named": ("A setting is refused: {setting}. The line has the engine's reason.",),
    "gpu.uuid": (
        "This release reads CUDA_VISIBLE_DEVICES as numbers, and it names {device}: set the card's "
        "index there, hand a MIG slice to a container alone (docker --gpus 'device=0:0'), or "
        "install a newer release.",
    ),
    "gpu.busy": (
        "Another process has the card for itself, or the card is not in a state to take one: "
        "check with nvidia-smi what uses it, that its compute mode is Default (sudo nvidia-smi -c "
        "0), and what CUDA_VISIBLE_DEVICES names.",
    ),
    "gpu.peer": (
        "The cards cannot read each other's memory: set NCCL_P2P_DISABLE=1, and turn custom "
        "all-reduce off (--disable-custom-all-reduce).",
    ),
    "args.split": (
        "The model cannot be split this way: lower tensor_parallel_size to a divisor of its heads "
        "and of its quantized blocks.",
    ),
    "host.library": (
        "The library {library} is missing or damaged: install the engine again with all files of "
        "its release, or name the library's folder in LD_LIBRARY_PATH.",
    ),
    "torch.operator": (
        "The installed package has no {operator} for {backend}: install its build for this card "
        "and for the installed PyTorch.",
    ),
    "engine.import": (
        "The engine's environment does not fit it: {missing}. Install the engine again, in an "
        "environment of its own.",
        "The engine needs a newer {package}: install the release that its package asks for.",
        "The library {library} of the engine is missing, or needs another one: install the engine "
        "again, and the CUDA libraries that it was built for.",
    ),
    "engine.absent": (
        "The engine's environment lacks something: {missing}. Install it into that environment.",
    ),
    "feature.combination": (
        "The engine does not support this combination: leave out what the line names, or install "
        "a release that supports it.",
    ),
    "cache.fp8": (
        "This card has no 8-bit floating point (it needs compute capability 8.9): store the "
        "cache in 16 bits, or choose a model that is not quantized to FP8.",
    ),
    "ggml.split": (
        "--split-mode tensor cannot split this model: set --split-mode layer, or leave it out.",
    ),
    "ggml.attention": (
        "ggml has no flash-attention kernel for this model's head sizes, cache type or card: set "
        "--flash-attn off (Ollama: OLLAMA_FLASH_ATTENTION=0) with a cache of f16, and "
        "--split-mode layer where tensors are split.",
    ),
    "nvrm.init": (
        "The driver cannot start the card: power the machine off and on. If that does not help, "
        "install another driver release, update the firmware, and check the card's seat, power "
        "and, in a virtual machine, how it is passed through.",
    ),
    "driver.mismatch": (
        "The kernel runs another release of the NVIDIA driver than the installed libraries: reboot "
        "after the update, or install kernel module and libraries of one release.",
    ),
    "nvml.mismatch": (
        "The driver in the kernel does not answer, or is another release than the installed "
        "libraries: reboot after an update; if that does not help, reinstall the driver.",
    ),
    "driver.nouveau": (
        "The nouveau driver holds the card: blacklist it (blacklist nouveau, options nouveau "
        "modeset=0 in /etc/modprobe.d), rebuild the initramfs, and reboot.",
    ),
    "driver.unsupported": (
        "This driver does not support the card: the newest cards need the open kernel modules, "
        "old ones a legacy release. Install the flavour and release that NVIDIA lists for it.",
    ),
    "driver.unsigned": (
        "Secure Boot rejects the driver's kernel module: sign it and enrol the key (sudo mokutil "
        "--import /var/lib/shim-signed/mok/MOK.der, then reboot), or disable Secure Boot.",
    ),
    "driver.module": (
        "The driver's kernel module does not load: install the headers of the running kernel, "
        "rebuild it (sudo dkms autoinstall) or reinstall the driver, and reboot.",
    ),
    "nvswitch.fatal": (
        "An NVSwitch reported a fatal fault: restart nvidia-fabricmanager, or reboot; if it comes "
        "back, have the baseboard checked.",
    ),
    "pcie.link": (
        "A PCIe link failed: check the card's seat, riser or cable and its power, lower the slot's "
        "PCIe generation in the firmware, and reboot.",
    ),
    "amd.fault": (
        "A kernel accessed invalid memory of the AMD card: update driver and ROCm, and use a build "
        "for exactly this card (without HSA_OVERRIDE_GFX_VERSION).",
    ),
    "amd.reset": (
        "The AMD card hung and its driver reset it: restart the engine; update kernel, firmware "
        "and ROCm, and use smaller batches. If the reset failed, reboot.",
    ),
    "host.disk": (
        "The kernel reports a fault of a disk or file system: `journalctl -k` and smartctl name "
        "it.",
    ),
    "host.machine": ("The machine itself failed: check its memory, processor and cooling.",),
    "signal.instruction": (
        "The build uses instructions that this processor lacks (AVX, AVX2 or AVX-512): install a "
        "build for it.",
    ),
    "host.instruction": (
        "The build uses instructions that this processor lacks (AVX, AVX2 or AVX-512): install a "
        "build for it.",
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
    "net.certificate": (
        "A certificate is not trusted, as behind a proxy that inspects traffic: add its authority "
        "to the system's (update-ca-certificates), and restart the server.",
    ),
    "net.failed": (
        "A download failed: check the network, DNS, and HTTPS_PROXY of the server (for a service, "
        "in its unit). What is downloaded already is kept: try again.",
    ),
    "ggml.operation": (
        "A backend has no implementation of an operation of this model: install a newer release "
        "or another backend's build, or keep the layers off the card (-ngl 0).",
    ),
    "ggml.backend": (
        "A backend's library does not fit the program: remove it, and install one release's files "
        "only.",
    ),
    "ggml.rpc": (
        "A node that runs rpc-server does not answer, or crashed: start it again, with the same "
        "release of llama.cpp on all nodes.",
    ),
    "llama.model.split": (
        "The parts of a split GGUF file are not all there, or do not belong together: download "
        "all of one release, and name the first part.",
    ),
    "llama.model.projector": (
        "The multimodal projector (mmproj) is missing, damaged, or newer than this release: "
        "download it with its model, or install a newer release.",
    ),
    "llama.model.unpaired": (
        "The projector (mmproj) belongs to another model: use the one published with the model.",
    ),
    "llama.model.version": (
        "The file's format is too old, too new, or not GGUF: download a current GGUF file.",
    ),
    "llama.model.type": (
        "The file has tensors in a quantization that this release does not know: install a newer "
        "release, or download another quantization.",
    ),
    "pcie.fatal": (
        "The PCIe link of a card failed: check its seat, riser or cable, and lower the slot's "
        "PCIe generation in the firmware; reboot to get the card back.",
    ),
}
"""Sentences by signature, for every engine."""
