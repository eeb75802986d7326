"""Messages of servers that caovan does not run: TensorRT-LLM, text-generation-inference, LMDeploy.
They share libraries with the engines that it runs, and people give their logs to `explain`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.engines.common.logs.signature import signature

_RAW = re.compile(
    r"(?:\S{1,40}  ?(?:ERROR|WARN|INFO) .{0,60})?(?:Shard process was sign"
    r"|Error: Shard|`inputs`)"
    r"|(?:\[[\d/ :-]{8,24}\] ?)?\[TensorRT-LLM\]\[(?:ERROR|WARNING)\]"
    r"|(?:\[[\d/ :-]{8,24}\] ?)?\[TRT\] \[E\]|\[TM\]\[(?:ERROR|FATAL)\]|rpc error: code = "
    r"|.{0,60}\bHealth check of container "
    r"|(?:\d{3}: )?unable to start process: |!!! Health check error: "
    r"|.{0,200}(?:could not load model: rpc error|grpc process not found: "
    r"|backend not found: /|backend not found, install)"
    r"|ape error: |[“\"][^”\"]{1,100}llamafile[”\"] |fatal error: support for --gpu "
    r"|.{0,60}\bkserve ERROR "
    r"|Error: (?:Shard|DownloadError|WebserverFailed|ArgumentValidation)"
)
ROWS = (
    signature("llamafile.map", "cause", "engine-unusable",
         r"ape error: \S{1,300}: prog mmap failed w/ errno (?:(?P<denied>1)$|(?P<errno>\d{1,3}))"
         r"|^[“\"](?P<program>[^”\"]{1,100}llamafile)[”\"] "
         r"(?:cannot be opened because|Not Opened)"),
    signature("llamafile.gpu", "cause", "gpu-absent",
         r"support for --gpu (?P<gpu>\w{1,12}) was explicitly requested, but"),
    # Its vLLM takes as many ranks as there are cards, and divides by that
    signature("kserve.cards", "cause", "gpu-absent",
         r"Failed to start model server: (?P<divided>integer division or modulo by zero)"),
    # text-generation-inference
    signature("tgi.instruction", "cause", "backend-unsupported",
         r"Shard process was signaled to shutdown with signal 4\b"),
    signature("tgi.signal", "consequence", "engine-died",
         r"Shard process was signaled to shutdown with signal "
         r"(?:(?P<silent>9)|(?P<signal>\d{1,2}))\b"),
    signature("tgi.request", "generic", "bad-arguments",
         r"`inputs` (?:tokens \+ `max_new_tokens` must be <=|must have less than) "
         r"(?P<limit>\d{1,9})"),
    signature("tgi.memory", "cause", "device-oom-capture",
         r"Not enough memory to handle (?P<tokens>\d{1,9} prefill|`max_\w{1,30}`)"),
    signature("tgi.sharded", "cause", "bad-arguments",
         r"sharded is not supported for AutoModel|[48]bit quantization is not supported for A"),
    signature("tgi.weight", "generic", "model-missing",
         r"^RuntimeError: weight (?P<weight>[\w.]{1,200}) does not exist"),
    signature("tgi.ended", "consequence", "engine-died",
         r"Error: (?:ShardCannotStart|ShardFailed|WebserverFailed)"),
    # TensorRT-LLM
    signature("trt.memory", "cause", "device-oom-load",
         r"Executor creation failed due to insufficient GPU memory"),
    signature("trt.cache", "cause", "kv-cache-none",
         r"maxTokensInPagedKvCache \((?P<tokens>\d{1,9})\) must be large enough"
         r"|[Nn]ot enough memory for (?:the )?KV cache|free memory is not enough for the KV"),
    signature("trt.plan", "cause", "bad-arguments",
         r"engine plan file is (?:not compatible|generated on an incompatible|using an incompat)"
         r"|Version tag does not match|Serialization assertion .{0,120}failed"
         r"|current GPU compute capability does not match the engine compute"),
    signature("trt.request", "generic", "bad-arguments",
         r"(?:[Pp]rompt|[Ii]nput) length \((?P<length>\d{1,9})\) exceeds (?:the )?max\w* "
         r"|default_max_tokens \(-?\d{1,9}\) (?:should be|must be) greater than 0"),
    signature("trt.other", "generic", "engine-died",
         r"\[TensorRT-LLM\]\[ERROR\] (?:(?:Assertion failed|Encountered an error in \w{1,40}|"
         r"Error occurred|Fatal error)\b.{0,20}?: ?)(?P<why>\S.{1,200})"),
    # LocalAI, whose backends are processes of their own
    signature("localai.absent", "cause", "engine-unusable",
         r"grpc process not found: (?P<path>\S+)|backend not found: (?P<asset>/\S{1,200})"
         r"|(?P<backend>[\w-]{2,40}) backend not found, install it"),
    signature("localai.ended", "consequence", "engine-died",
         r"(?:could not load model: |^)rpc error: code = (?:Unavailable|Canceled|Unknown) desc ?="),
    # RamaLama and llama-swap
    signature("ramalama.waits", "consequence", "start-stall",
         r"Health check of container (?P<container>\S{1,100}) failed, retrying"),
    signature("swap.slow", "cause", "start-stall", r"health check (?:failed|timed out) after \d"),
    signature("swap.path", "cause", "bad-arguments", r"Health check error: status code: 40[45]"),
    signature("swap.ended", "consequence", "engine-died", r"upstream command exited prematurely"),
    # LMDeploy
    signature("lmdeploy.memory", "cause", "kv-cache-none",
         r"No enough gpu memory for runtime|\[TM\]\[(?:ERROR|FATAL)\].{0,200}out of memory"),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "kserve.cards": (
        "KServe's server counts the cards of its pod, found none, and divided by that ({divided}): "
        "request them (resources.limits nvidia.com/gpu in the InferenceService), and see that the "
        "node has the device plugin and, where its default is another, runtimeClassName: nvidia; "
        "nvidia-smi in the pod must show a card.",
    ),
    "llamafile.map": (
        "The system forbids the llamafile to run ({denied}). On macOS its Gatekeeper does: open "
        "System Settings, Privacy & Security, and choose Open Anyway, or run `xattr -d "
        "com.apple.quarantine FILE`, then `sh ./FILE`. On Linux the folder is mounted with noexec, "
        "or SELinux forbids it.",
        "macOS's Gatekeeper forbids {program}: open System Settings, Privacy & Security, and "
        "choose Open Anyway, or run `xattr -d com.apple.quarantine FILE`, then `sh ./FILE`.",
        "The system did not map the llamafile ({errno}), usually for want of addresses, not of "
        "memory: kernels of ARM boards (Raspberry Pi, Rockchip, Jetson) give a process 39 bits. "
        "Use a newer llamafile (-m takes the old file as weights), a kernel with 48 bits "
        "(CONFIG_ARM64_VA_BITS_48, as a distribution's own has), or llama.cpp built there.",
    ),
    "llamafile.gpu": (
        "llamafile made or found no library for --gpu {gpu}; the lines before say why. Update "
        "llamafile; install the card's driver and, to compile the library, its toolkit (nvcc or "
        "hipcc on PATH, CUDA 12 or newer), delete ~/.llamafile, and add --recompile. "
        "Without --gpu it serves on the CPU.",
    ),
    "tgi.instruction": (
        "The build uses instructions that this CPU lacks (signal 4 is an illegal "
        "instruction; usually AVX or AVX2): in a virtual machine pass the host's CPU (CPU "
        "type host), else use another machine or a build for it.",
    ),
    "tgi.signal": (
        "The process of a shard was ended by signal {signal} (11 is invalid memory, 6 an abort of "
        "its own): the lines before may show where; try another release, and --disable-custom-"
        "kernels.",
        "The process of a shard was killed (signal 9), most likely for lack of memory in the "
        "machine or container: give it more, or load a smaller model; `journalctl -k | grep -i "
        "oom` shows it.",
    ),
    "tgi.request": (
        "The request is longer than the server takes ({limit} tokens): raise --max-total-tokens "
        "and --max-input-tokens as far as model and memory allow, or send less.",
    ),
    "tgi.memory": (
        "The card has no room for the batch that the server warms up with: lower "
        "--max-batch-prefill-tokens, --max-input-tokens and --max-total-tokens, spread it over "
        "more cards (--num-shard), or use a smaller quantization.",
    ),
    "tgi.sharded": (
        "The server has no code of its own for this model and falls back to Transformers, which it "
        "can neither split over cards nor quantize: start with --num-shard 1 and without "
        "--quantize, or use a newer release.",
    ),
    "tgi.weight": (
        "The files have no tensor {weight} as this server expects it: --quantize does not fit the "
        "files (or is missing), or the release does not know the model's form: use a newer one.",
    ),
    "tgi.ended": (
        "A shard did not start, and its own error is in the lines before: explain those, too.",
    ),
    "trt.memory": (
        "The card has no room left for what the server needs next to the weights: lower "
        "max_num_tokens, max_batch_size or max_seq_len, kv_cache_config.free_gpu_memory_fraction, "
        "or split the model over more cards (tp_size); the text lists what each part took.",
    ),
    "trt.cache": (
        "The KV cache has no room for one whole sequence: lower max_seq_len, or raise "
        "kv_cache_config.free_gpu_memory_fraction (or max_tokens), or use fewer bits.",
    ),
    "trt.plan": (
        "The compiled engine was built for another card or release of TensorRT: build it again "
        "(trtllm-build) on this card with the release that serves it.",
    ),
    "trt.request": (
        "The request is longer than the engine was built or started for: raise max_input_len, "
        "max_num_tokens or max_seq_len, or send less.",
    ),
    "trt.other": ("TensorRT-LLM stopped for this reason: {why}. Search its issues for that text.",),
    "localai.absent": (
        "LocalAI's images and binaries come without backends (since 3.0): install {backend} first "
        "(`local-ai backends install {backend}`, in a container `docker exec` it, or use the page "
        "Backends), and keep its folder in a volume (/backends), so that it stays.",
        "This image has no backend {asset}: pull a current image, name a backend that is there in "
        "the model's configuration (backend: llama-cpp), or build with it.",
        "This image or build has no backend {path}: install the backend, or name one that is there "
        "in the model's configuration (backend: llama-cpp); a list of tries for other backends may "
        "follow without meaning.",
    ),
    "localai.ended": (
        "LocalAI's backend process ended or refused the model, and the reason is in its own lines: "
        "start LocalAI with DEBUG=true, and explain the lines that begin with `stderr`.",
    ),
    "ramalama.waits": (
        "RamaLama waits for the server in its container, which does not answer: it still loads, or "
        "it ended; `podman logs {container}` (docker logs) has its own lines. Explain those.",
    ),
    "swap.slow": (
        "llama-swap gave up before the model was loaded: raise healthCheckTimeout in its "
        "config.yaml (such as 300), and see the server's own lines for how far it came.",
    ),
    "swap.path": (
        "The server that llama-swap started has no such path for health checks: set checkEndpoint "
        "of the model to one that it has (or to none), and proxy to the port that it listens on.",
    ),
    "swap.ended": (
        "The command that llama-swap started ended before it served: it must stay in the "
        "foreground until it is stopped; the command's own lines say why it ended.",
    ),
    "lmdeploy.memory": (
        "The card has no memory left for LMDeploy's cache or buffers: lower cache_max_entry_count "
        "(--cache-max-entry-count), --session-len or --max-batch-size, or split over more cards "
        "(--tp).",
    ),
}
"""Sentences by row."""


def is_raw(line: str) -> bool:
    """Whether a line is printed by one of these servers."""
    return bool(_RAW.match(line))
