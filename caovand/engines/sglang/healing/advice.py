"""Advice for people about a failure of SGLang, in sentences with the values from its log.

The settings to change come from the ladder's tables, in its order and words.
"""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.healing.failure import Failure
from caovand.engines.common.healing.advice import adviser, key_and_flag
from caovand.engines.common.logs.rows.model_types import NEWER_ENGINE
from caovand.engines.common.logs.rows.python_advice import CHOICE
from caovand.engines.common.logs.rows.toolchain import COMPILER_ADVICE
from caovand.engines.sglang.healing.cures import HEALING

# One row for each failure with its own text; a sentence with an unknown {name} is dropped.
_GENERAL: Mapping[Failure, tuple[str, ...]] = {
    "device-oom-load": (
        "The weights do not fit the cards: an allocation of {wanted} failed.",
        "Use a quantised checkpoint, or split the model over more cards.",
    ),
    "kv-cache-none": (
        "The weights take the whole --mem-fraction-static ({share}): raise it in steps of 0.02, to "
        "0.94 at most.",
        "The share of memory holds the weights, and leaves nothing for the cache: raise "
        "--mem-fraction-static (0.9 leaves room for a step on most cards), or use a smaller "
        "quantization or more cards (--tp).",
    ),
    "kv-cache-short": ("The cache is full, and a request found no room in it.",),
    "device-oom-capture": ("The cards have no memory left for CUDA graphs.",),
    "device-oom-run": ("A step needed more memory than the share leaves free.",),
    "host-oom": ("The machine has too little memory: close other programs, or add memory.",),
    "shared-memory-limit": ("A kernel needs more shared memory than the card has.",),
    "jit-toolchain": ("A kernel must be compiled, and a compiler is missing: install gcc, nvcc.",),
    "backend-unsupported": (
        "SGLang's backends in use have no kernel for this card, model or setting: choose another "
        "one for the part that the line names (--attention-backend triton, --moe-runner-backend "
        'triton), install a newer release, or set [engine] kind = "vllm".',
    ),
    "bad-arguments": (
        "SGLang refused its options: {why}. Correct the command line (with "
        "caovan [engine] extra_args).",
    ),
    "model-missing": ("The model cannot be read: correct [model] path, or download it again.",),
    "access-denied": (
        "Let the engine's user pass the folders above {path}, and read it, or write it if it is a "
        "cache (`namei -l {path}`).",
    ),
    "port-busy": (
        "SGLang needs port {taken} as its {what}, and the process {program} has it: if that is a "
        "server on its own, give one of them other ports (--port, --nccl-port, --dist-init-addr: "
        "SGLang derives the others from them); if it is left over from an earlier start, end it.",
        "Port {taken} ({what}) is taken: `ss -ltnp` names the program. Two servers on a machine "
        "need different --port, --nccl-port and --dist-init-addr.",
        "Another program listens on port {port} of {host}: `ss -ltnp` names it. End it, or change "
        "--port ([server] port).",
        "Port {joined}, over which the ranks find each other, is taken: `ss -ltnp` names the "
        "program (in a container with --network host any of the machine). End it, if it is left "
        "from an earlier start, or choose another one: --nccl-port, or --dist-init-addr HOST:PORT.",
        "A port is taken ({any}): `ss -ltnp` names the program. End it, or choose others (--port, "
        "--nccl-port, --dist-init-addr).",
    ),
    "hang": ("A step did not end within {seconds} s, and SGLang's own watchdog ended it.",),
    "start-stall": ("The start made no progress: its disk may be slow.",),
}
_SPECIAL: Mapping[str, tuple[str, ...]] = {
    "transformers.model": NEWER_ENGINE,
    "oom.unstaged": (
        "The card's memory ran out; these lines do not show at which step. The lines before them "
        'do: "Load weight begin", "Memory pool end", "Capture cuda graph begin", or requests.',
        "Most probable first: another process uses the card (nvidia-smi before the start); the "
        "weights are larger than the cards (a quantised checkpoint, or more of them: --tp); or a "
        "step has too little room (lower --mem-fraction-static, --chunked-prefill-size and "
        "--cuda-graph-max-bs).",
    ),
    "sglang.smem": (
        "A kernel that Triton compiles needs {wanted} bytes of shared memory, more than the card "
        "has. Install a newer release first, which has sizes for more cards. If the traceback "
        "names experts (fused_moe) or a quantization (fp8), or the model has either and there is "
        "no traceback, use another --moe-runner-backend, --fp8-gemm-backend or quantization. If it "
        "names attention (triton_ops), choose kernels that are not Triton's: --attention-backend "
        "flashinfer (AMD: aiter).",
    ),
    "sglang.health": (
        "The scheduler sent nothing for {seconds} s, and the health check gave up: it computes a "
        "long prompt, or it hangs. What it sent last shows which (last_heartbeat {heartbeat}): a "
        "gap of minutes is a hang.",
        "For long prompts let the check wait longer (SGLANG_HEALTH_CHECK_TIMEOUT=60), and compute "
        "them in smaller parts (--chunked-prefill-size 2048). For a hang see the scheduler's own "
        "lines before this one, and where it stands: `py-spy dump --pid` of the process "
        "sglang::scheduler.",
    ),
    "sglang.model.architecture": (
        "Code of models could not be imported, so that SGLang does not know them: {ignored}. Do "
        "what this says first: install the release that it names or lacks, or SGLang again in its "
        "own environment.",
        "This SGLang does not support the architecture {architecture}: install a newer release, or "
        "set"
        ' [engine] kind = "vllm".',
        "Code of other models could not be imported: {others}. If the architecture is among them, "
        "do what this says first.",
    ),
    "sglang.args.unknown": (
        "SGLang's options have dashes where {underscored} has underscores (--enable-metrics, not "
        "--enable_metrics): write it with dashes. If it is refused then, too, this release does "
        "not have it (`python -m sglang.launch_server --help` lists the options).",
        "{passed} is no option of the installed SGLang any more: {instead}.",
        "{foreign} is an option of vLLM; what SGLang has in its place is {ours}.",
        "This release of SGLang does not know {options}: releases add, rename and remove options "
        "(`python -m sglang.launch_server --help` lists them). Correct it on the command line "
        "(with caovan in [engine] extra_args), or install a newer release.",
    ),
    "sglang.killed": (
        "SIGKILL ended a process of SGLang. If nobody sent it, the kernel did because the host's "
        "memory (not the card's) was full, or a container's limit reached, most often while "
        "weights are loaded: `sudo dmesg | grep -i 'killed process'`, and for a container "
        "State.OOMKilled in `docker inspect`, show it.",
        "Give the machine or the container (docker --memory, a pod's limits.memory) more memory or "
        "swap, end other programs, or use a smaller checkpoint.",
    ),
    "sglang.cc": COMPILER_ADVICE,
    "sglang.old": (
        "This card is too old for SGLang, which supports compute capability 7.5 (Turing) and "
        "newer; a V100 has 7.0, a P40 6.1. No option changes that: run the model with llama.cpp "
        "or Ollama (a GGUF file), whose builds for CUDA 12 support such cards, from 7.0 on with an "
        "older vLLM, or use a newer card.",
    ),
    "sglang.args": (
        CHOICE,
        "SGLang refused its options: {why}. Correct the command line (with "
        "caovan [engine] extra_args).",
    ),
    "sglang.graphs": (
        "SGLang failed while it captured CUDA graphs: {why}.",
        "That is the reason; the possible solutions that it prints below are the same for any "
        "reason, and help where memory is short.",
    ),
    "sglang.nccl": (
        "NCCL, over which the cards exchange data, failed or waited in vain: NCCL_DEBUG=INFO names "
        "the reason. Most probable first: another rank ended before, and its own error is further "
        "up in the log; /dev/shm is too small (in a container --ipc=host); peer access does not "
        "work (NCCL_P2P_DISABLE=1; `nvidia-smi topo -m`); or the nodes use different networks "
        "(NCCL_SOCKET_IFNAME).",
    ),
    "sglang.unbalanced": (
        "One card has less free memory than the others: nvidia-smi names the processes that use "
        "it. End them (an earlier start of the engine may be among them), then start again.",
        "If the cards are meant to be used unevenly, set SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0 "
        "(in older releases SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK=1).",
    ),
    "sglang.unbalanced.drafts": (
        "The check of the cards' free memory ran again for the model of the drafts, when the ranks "
        "had loaded unequal parts already: a false alarm if nvidia-smi shows no other process on "
        "the cards. Install a newer SGLang, which checks once, or switch the check off: "
        "SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK=1 (SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0 in "
        "later releases).",
        "If another process does use a card, end it, then start again.",
    ),
    "raised.drafter": (
        "The draft model or the method of speculation does not fit this model and release: remove "
        "--speculative-algorithm and the other --speculative options, or use the drafts that the "
        "model's page names.",
    ),
    "sglang.attention": (
        "The attention backend does not support this model on this card: choose one that the line "
        "lists as supported or required with --attention-backend, or omit the option.",
    ),
    "sglang.modelopt": (
        "The checkpoint is quantized to FP4, and was read as FP8: pass --quantization modelopt_fp4 "
        "(and check quant_algo in hf_quant_config.json), or install a newer release.",
    ),
    "sglang.figure": (
        "SGLang chooses its options by the card's memory, and found none: see nvidia-smi. Without "
        "a card pass --device cpu with --mem-fraction-static 0.8 and --max-total-tokens, or "
        "install a newer release, which has defaults for it.",
    ),
    "sglang.leak": (
        "SGLang counts its cache when it is idle, and found slots ({pool}) that nobody holds or "
        "two hold: a fault of this release, not of the cards' memory. Install a newer one. Until "
        "then SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE=0 makes it a warning, and without drafts, "
        "a hierarchical cache or --disable-radix-cache set it may not happen.",
    ),
    "sglang.drafts.sizes": (
        "It is not set how much to draft, and this release does not choose it by itself: pass all "
        "of --speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens "
        "(such as 3, 1 and 4), or none of them with a newer release.",
    ),
    "sglang.warmup": (
        "The server's own warm-up request was answered with {status}, most likely by a proxy "
        "instead of the server: set no_proxy and NO_PROXY to 127.0.0.1,localhost,0.0.0.0, unset "
        "http_proxy, or pass --skip-server-warmup.",
    ),
    "sglang.unserved": (
        "SGLang's own first request ({pool}) found no server: the process that should answer it "
        "had ended, and its own error stands further up in the log; `Killed` there, or nothing, "
        "points at the host's memory (sudo dmesg | grep -i 'killed process').",
    ),
    "sglang.context": (
        "The context of {wanted} tokens is longer than the model's own limit of {limit}: set"
        " [model] max_model_len to at most that.",
    ),
}

advise = adviser(_SPECIAL, _GENERAL, HEALING, key_and_flag(HEALING.option))
