"""What a person can do about a failure, in sentences with the figures that are known."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.failure import Failure, Finding
from caovand.core.rungs import BLOCK

Figures = Mapping[str, float | int | str]

# One row a failure. A sentence with a {name} that is not known is left out.
_GENERAL: Mapping[Failure, tuple[str, ...]] = {
    "device-oom-load": (
        "The weights do not fit: use a smaller quantization, more GPUs (tensor_parallel_size), or "
        "no MTP draft model (mtp = 0).",
        "Look with nvidia-smi whether another process holds memory of the card.",
    ),
    "kv-cache-none": (
        "Nothing is left for the KV cache: raise gpu_memory_utilization.",
        "If it is at its limit: lower max_num_batched_tokens, the MTP depth, or run without CUDA "
        "graphs (cuda_graphs = \"none\").",
    ),
    "kv-cache-short": (
        "Set max_model_len = {context}: that is what fits into the {have} GiB there are.",
        "For the whole context of {len} tokens {need} GiB are needed: raise gpu_memory_utilization "
        "or use a smaller kv_cache_dtype.",
        "A lower MTP depth and fewer batch tokens leave room for a longer context too.",
    ),
    "vram-busy": (
        "Something else holds memory: {free} of {total} GiB are free and {wanted} GiB are wanted.",
        "End the other process (nvidia-smi names it) and start again; nothing in the configuration "
        "is wrong.",
        "If it has to stay, lower gpu_memory_utilization to what is free.",
    ),
    "device-oom-capture": (
        "Lower gpu_memory_utilization by 0.02 to 0.03: memory for CUDA graphs and activations is "
        "outside its share.",
        "Then fewer capture sizes, a lower max_num_batched_tokens, a lower MTP depth.",
    ),
    "device-oom-run": (
        "Lower gpu_memory_utilization by 0.03, then max_num_batched_tokens: the peak of a step did "
        "not fit beside the KV cache.",
    ),
    "sampler-oom": (
        "Lower max_num_seqs: sampling was warmed up with {requests} requests at once.",
        "Then lower gpu_memory_utilization.",
    ),
    "illegal-access": (
        "A kernel touched memory it must not. With MTP above 3, go to 3, then turn MTP off.",
        "Then cuda_graphs = \"piecewise\", then \"none\". Lowering memory shares does not help.",
        "Look for Xid lines in the kernel log: journalctl -k | grep -i xid",
    ),
    "launch-failure": (
        "A kernel could not be run. Turn off caovan's kernels (plugin = false), then MTP, then "
        "CUDA graphs, one after the other.",
        "Look for Xid lines in the kernel log: journalctl -k | grep -i xid",
    ),
    "collective-timeout": (
        "One GPU stopped answering the others: start again once.",
        "If it comes back, set NCCL_P2P_DISABLE=1 in [engine] env and disable_custom_all_reduce.",
    ),
    "gpu-lost": (
        "The driver lost a GPU. Only a reboot brings it back; check power supply, cables, riser "
        "and temperature.",
    ),
    "gpu-absent": (
        "No usable GPU was found: run nvidia-smi. After a driver update reboot; after suspend, "
        "reload the kernel module nvidia_uvm.",
    ),
    "host-oom": (
        "The machine ran out of memory: close other programs, add swap, or lower what is kept in "
        "host memory (KV cache of the CPU build, CPU offload).",
    ),
    "compile-cache-stale": (
        "The compile cache does not belong to these settings: delete torch_compile_cache once.",
        "If it comes back, set VLLM_DISABLE_COMPILE_CACHE=1.",
    ),
    "shared-memory-limit": (
        "A kernel needs {required} bytes of shared memory; this card has {limit}.",
        "No memory setting helps: choose another attention or GDN backend.",
    ),
    "jit-toolchain": (
        "A kernel must be built here and the tools are missing: install gcc, ninja and the CUDA "
        "toolkit that fits the driver, and set CUDA_HOME.",
        "Or avoid it: VLLM_USE_FLASHINFER_SAMPLER=0 and another attention backend.",
    ),
    "backend-unsupported": (
        "This card cannot run what was asked for: use dtype = \"half\", kv_cache_dtype = \"auto\", "
        "another attention backend, or a model in another quantization.",
    ),
    "bad-arguments": (
        "vLLM refused its arguments; starting again cannot help. Correct what the line names.",
    ),
    "model-missing": (
        "Check [model] path: the folder must hold config.json, the tokenizer and all weights; "
        "download again what is missing or broken.",
    ),
    "network": (
        "The model hub could not be reached: check the network, or download the model once and set "
        "HF_HUB_OFFLINE=1.",
    ),
    "access-denied": (
        "Permission is missing: for a folder, let the engine's user read it; for a hub model, set "
        "HF_TOKEN and accept the model's licence.",
    ),
    "port-busy": (
        "Another program listens on the port: `ss -ltnp` names it. End it or change [server] port.",
    ),
    "plugin-error": (
        "A plugin failed. vLLM runs without it: set plugin = false, or leave its name out of "
        "VLLM_PLUGINS.",
    ),
    "compile-failed": (
        "torch.compile failed: run without it (cuda_graphs = \"none\"), or with a fresh compile "
        "cache.",
    ),
    "engine-died": (
        "The engine process ended while it served; the line says with what. vLLM then exits "
        "with status 0, so that a supervisor that looks at the status alone does nothing.",
        "If it comes back, turn MTP off, then prefix caching, then CUDA graphs.",
        "A process of it ended with {fault}: start the same plan again first.",
    ),
    "start-stall": (
        "The start stopped getting further after {waited_s} s of waiting for another process.",
        "Look at free memory and swap of the host, and at the disk: a start needs both.",
    ),
    "hang": (
        "A process of the engine stopped answering: end the whole process group and start again.",
        "If it comes back: MTP 3, then off, then cuda_graphs = \"piecewise\"; with several cards "
        "NCCL_P2P_DISABLE=1 in [engine] env.",
    ),
    "draft-collapse": (
        "Drafts are made and none is accepted, which only costs time: start again, then "
        "cuda_graphs = \"piecewise\", then mtp = 0.",
    ),
    "unknown": (
        "No signature knows this failure; the line is where it began. Please report the log.",
    ),
}  # fmt: skip

# What a signature knows better than its failure.
_SPECIAL: Mapping[str, tuple[str, ...]] = {
    "args.length": (
        "Set max_model_len to at most {longest}, which is what the model was made for.",
    ),
    "model.architecture": (
        "This vLLM does not know the model's architecture: use a newer engine or another model.",
    ),
    "gpu.count": (
        "{found} GPUs are there and {wanted} are wanted: a card is missing (nvidia-smi), or "
        "tensor_parallel_size is too high.",
    ),
    "ram.kv": (
        "The KV cache wants {wanted} GiB of host memory and {free} are free: lower it "
        "(kv_cache_memory_bytes, VLLM_CPU_KVCACHE_SPACE).",
    ),
    "cuda.arch": (
        "The engine's CUDA code does not run here: update the NVIDIA driver, or use an engine "
        "that was built for this card and driver.",
    ),
    "build.killed": (
        "A compiler was killed while it built a kernel: the host's memory did not hold so many at "
        'once. Set MAX_JOBS = "2", then "1", in [engine] env; what is built is kept.',
        "Or close other programs, or add swap.",
    ),
    "nvml.unknown": (
        "The driver does not let this process at the card. In a container that happens after "
        "`systemctl daemon-reload` on the host: start the container anew, with the devices "
        "/dev/nvidia* given to it by name.",
        "Outside of one run nvidia-smi; where it says the same, reboot.",
    ),
    "disk.full": ("The disk is full: make room, then start again.",),
    "disk.error": (
        "The disk or the network share does not give the data: `journalctl -k` says more. Check "
        "the drive (smartctl) or mount the share anew.",
    ),
    "oom.kv.tokens": (
        "Set max_model_len = {context}: that is what fits.",
        "For the whole context of {len} tokens raise gpu_memory_utilization or use a smaller "
        "kv_cache_dtype.",
    ),
    "args.split": (
        "The model cannot be split so: lower tensor_parallel_size to one that divides its heads, "
        "and its quantized blocks.",
    ),
    "args.address": ("This machine has no such address to listen on: correct [server] host.",),
    "engine.package": (
        "The engine lacks the package {module}: install it into the engine's environment, or use "
        "a model that does not need it.",
        "The engine lacks the package {package}: install it into the engine's environment, or use "
        "a model that does not need it.",
    ),
    "engine.broken": (
        "The engine's installation is not whole: {library} is missing, or belongs to another "
        "PyTorch or CUDA.",
        "The engine's installation is not whole: its compiled operator {operator} is missing.",
        "The engine's installation is not whole: its module {part} is missing.",
        "Install the engine anew: `caovanctl engine verify` names what differs, `caovanctl engine "
        "install` puts it right.",
    ),
    "args.uneven": (
        "The model cannot be split so: lower tensor_parallel_size to one that divides its heads "
        "and sizes, key-value heads included, and check that none of them is 0 in config.json.",
    ),
    "model.json": (
        "A JSON file of the model is broken (config.json, the tokenizer's, the index of the "
        "weights): the traceback names it; download it again.",
    ),
    "watchdog.dump": (
        "vLLM's own watchdog saw no step end and wrote all stacks to {dump}: end the whole process "
        "group and start again.",
    ),
}

# What the traceback of a failure went through comes first.
_BLAMED: Mapping[str, str] = {
    "plugin": "It happened in a plugin: set plugin = false first.",
    "drafter": "It happened while drafting: set mtp = 0 first.",
    "prefix-cache": "It happened in prefix caching: pass --no-enable-prefix-caching first.",
    "weights": "The weights do not fit config.json: are both of the same model and revision?",
}


def advise(finding: Finding, figures: Figures) -> list[str]:
    """Sentences on what to do, the most promising first."""
    known = {**figures, **finding.captures}
    if "fits" in finding.captures:
        known["context"] = usable_context(finding.captures["fits"])
    sentences = _SPECIAL.get(finding.signature) or _GENERAL[finding.failure]
    advice = [text for text in (_fill(sentence, known) for sentence in sentences) if text]
    blamed = _BLAMED.get(finding.captures.get("component", ""))
    if blamed and finding.failure != "plugin-error":
        advice.insert(0, blamed)
    if finding.failure == "start-stall" and _host_is_short(figures):
        advice.insert(
            0,
            f"The checkpoint has {figures['checkpoint_gib']} GiB and only "
            f"{figures['available_ram_gib']} GiB of host memory were free: reading it drives the "
            "host into swap.",
        )
    return advice


def usable_context(fits: str) -> int:
    """The longest context that fits, as a whole number of blocks."""
    return int(fits) // BLOCK * BLOCK


def _fill(sentence: str, known: Figures) -> str:
    try:
        return sentence.format_map(known)
    except KeyError:
        return ""


def _host_is_short(figures: Figures) -> bool:
    free, needed = figures.get("available_ram_gib"), figures.get("checkpoint_gib")
    return isinstance(free, float) and isinstance(needed, float) and free < needed
