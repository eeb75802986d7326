"""Advice for people about a failure of llama.cpp, in sentences with the values from its log.

The settings to change come from the ladder's tables, in its order and words.
"""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.healing.failure import Failure
from caovand.engines.common.healing.advice import adviser, key_and_flag
from caovand.engines.common.healing.advice_ggml import OTHER_KINDS
from caovand.engines.llamacpp.healing.advice_python import PYTHON
from caovand.engines.llamacpp.healing.advice_requests import REQUESTS
from caovand.engines.llamacpp.healing.cures import HEALING

_NEWER = (
    "Programs that bring their own llama.cpp (Ollama, LocalAI's backends, llama-cpp-python, LM "
    "Studio, KoboldCpp, llamafile) must be updated themselves; caovan's own: `sudo caovanctl "
    "engine install --kind llamacpp`."
)
_LENGTH = (
    "The log shows a context of {context} tokens. Without an option llama.cpp makes it as long as "
    "the model allows: set -c to what is needed, such as 8192."
)
_WHERE = (
    "where the options stand (the command line, a unit, Compose or the configuration of the "
    "program that starts llama-server; with caovan [engine] extra_args)"
)
_REFUSED = (
    "llama-server refused {option}; starting again cannot help. Correct it " + _WHERE + ". "
    "`llama-server --help` lists what this build takes: install a newer llama.cpp for a newer "
    "option.",
    "This build takes for {option}: {values}. Another value may need a newer llama.cpp.",
)
_BUFFERS = (
    "The card has no memory left for the buffers of a step: keep fewer layers on it (--gpu-layers, "
    "-ngl), or shorten the context."
)
# One row for each failure with its own text; a sentence with an unknown {name} is dropped.
_GENERAL: Mapping[Failure, tuple[str, ...]] = {
    "device-oom-load": (
        "The card has no memory left for the weights: use a GGUF file quantised to fewer bits, "
        "keep fewer layers on the card (--gpu-layers), or see what else uses it.",
    ),
    "device-oom-capture": (_BUFFERS,),
    "host-oom": (
        "The machine has too little free memory for an allocation of {mib} MiB.",
        "Close other programs, add memory, or use a GGUF file quantised to fewer bits.",
    ),
    "backend-unsupported": ("This build or card cannot run these settings.",),
    "bad-arguments": _REFUSED,
    "model-missing": ("Correct [model] path, or download the file again.",),
    "access-denied": ("Let the engine's user read the file (chmod a+r).",),
    "port-busy": (
        "No interface of this machine has the address {address} (a cloud's public address lies "
        "outside of it), or another program listens on port {port} of it: set [server] host to "
        "0.0.0.0 or to an address that `ip addr` shows.",
        "Another program listens on port {port} of {host}: `ss -ltnp` names it. End it, or change "
        "[server] port or host.",
    ),
}  # fmt: skip
_SPECIAL: Mapping[str, tuple[str, ...]] = {
    **PYTHON,
    **REQUESTS,
    "llama.file.missing": (
        "The file {path} is missing: correct its path, or download it with all its parts.",
        "The file {named} is missing: correct its path, or download it. In a container the path "
        "counts inside it: check that the folder is mounted there.",
        "The file {absent} is missing: correct its path, or download it. In a container the path "
        "counts inside it: check that the folder is mounted there.",
        "The file {unopened} cannot be opened: either there is none, so that its path must be "
        "corrected or the download repeated, or the engine's user may not read it.",
        "In a container the path counts inside it: check that the folder is mounted there, and "
        "that the image's user may read the file and enter every folder above it (ls -ln, "
        "chmod -R a+rX, or --user). `cat {unopened} > /dev/null` as that user prints the reason.",
        "The file {file} is missing: correct its path, or download the model with all its files.",
    ),
    "llama.file.cut": (
        "The file is shorter than its header says: a download was interrupted. Download it again.",
    ),
    "llama.file.header": ("The file's header is broken or truncated: download it again.",),
    "llama.model.architecture": (
        *OTHER_KINDS,
        "This llama.cpp is older than the architecture {architecture}, or does not support it: "
        "install a newer release, or use another model. " + _NEWER,
    ),
    "llama.cards.unused": (
        "llama.cpp finds no usable card, ignores --gpu-layers and runs on the CPU. "
        "Either it was built without a backend for the card (build it with -DGGML_CUDA=ON, "
        "-DGGML_VULKAN=ON or -DGGML_HIP=ON, or install such a package), or its backend finds none: "
        "`llama-server --list-devices` shows what it sees.",
    ),
    "llama.cards.unbuilt": (
        "Nothing failed in these lines, but this llama.cpp was built for the CPU alone "
        "(BLAS = 0). For a card install it again with its backend: llama-cpp-python with "
        "`CMAKE_ARGS=-DGGML_CUDA=on pip install --force-reinstall --no-cache-dir llama-cpp-python` "
        "(Windows: set CMAKE_ARGS first; releases before 0.2.77 -DLLAMA_CUBLAS=on), or a prebuilt "
        "wheel for its CUDA; nvcc must be installed for a build. Then BLAS = 1 is shown, and "
        "n_gpu_layers has an effect.",
    ),
    "llama.cuda.oom": (
        "The card has too little free memory for weights, cache and buffers together: use a GGUF"
        " file quantised to fewer bits, or check with nvidia-smi what else uses the card.",
    ),
    "llama.cuda.peer": (
        "The cards cannot copy to each other as this release wants: split by layers (--split-mode "
        "layer), use one card (CUDA_VISIBLE_DEVICES), or build with -DGGML_CUDA_NO_PEER_COPY=ON; a "
        "virtual machine or the firmware's IOMMU often forbids it.",
    ),
    "llama.cuda.compute": (
        "The buffers of one step take {large} bytes, more than the card has left or its driver "
        "gives at once: lower --ubatch-size first (-ub 256 or 128), turn --flash-attn on, and "
        "shorten the context.",
        _BUFFERS,
    ),
    "llama.cache.long": (
        "The cache alone asks for {mib} MiB on one card: the context is far too long for it. "
        "Shorten --ctx-size (llama-cpp-python: n_ctx) first.",
        _LENGTH,
    ),
    "llama.cuda.cache": (
        "The cache takes {mib} MiB, for which the card has no room.",
        "No memory is left on the card for the cache: shorten the context first (-c, --ctx-size; "
        "llama-cpp-python: n_ctx), then keep the cache in eight bits.",
        _LENGTH,
    ),
    "llama.cache.unplaced": (
        "The cache for the context does not fit the memory that it is placed in, a card's or the "
        "machine's: shorten the context first (-c, --ctx-size; llama-cpp-python: n_ctx; LM Studio "
        "and others: the context length in the model's settings), or keep the cache in eight bits.",
        _LENGTH,
    ),
    "llama.ram.cache": (
        "The cache alone asks for {mib} MiB of the machine's memory, which has less: shorten the "
        "context first (-c, --ctx-size; llama-cpp-python: n_ctx).",
        "The cache alone asks for {bytes} bytes of the machine's memory, which has less: shorten "
        "the context first (-c, --ctx-size; llama-cpp-python: n_ctx).",
        _LENGTH,
        "Fewer bits of the weights do not make the cache smaller.",
    ),
    "llama.draft.context": ("The model has no MTP head to draft with: set [policy] mtp = 0.",),
    "llama.args": (
        "llama-server got {shell} as an option: the image's entrypoint is llama-server, and Docker "
        "put a shell before the options. It does that when CMD in the Dockerfile is not a valid "
        "JSON list (a comma is missing, or follows the last element): correct the list. With a "
        "command of your own (`sh -c` in Compose or Kubernetes) set the entrypoint, too.",
        "llama-server got {command} as an option: the image's entrypoint is llama-server already, "
        "so that the command must not come again. Pass the options alone, or set the entrypoint.",
        *_REFUSED,
    ),
    "llama.args.valueless": (
        "{option} needs a value in this release, and none was passed: llama-server took the next "
        "option, {swallowed}, for it.",
        "{option} was passed without the value that it needs in this release ({without}).",
        "Pass {option} {first} (it takes {values}) " + _WHERE + ".",
        "`llama-server --help` names the values. Some options took none in older releases: if "
        "another program passes this one, update that program.",
    ),
    "llama.args.tls": (
        "This llama-server was built without TLS: put a proxy in front of it, or omit the "
        "certificate.",
    ),
    "llama.threads": (
        "The engine may start no more threads: raise its limit (TasksMax of its unit, `ulimit"
        " -u`).",
    ),
    "llama.model.tokenizer": (
        "This llama.cpp cannot use the file's tokenizer: install a newer release, or download a "
        "newer file. " + _NEWER,
    ),
    "llama.model.lora": (
        "The adapter {path} cannot be read: correct --lora in [engine] extra_args.",
    ),
    "llama.args.override": (
        "--override-kv in [engine] extra_args must have the form KEY=TYPE:VALUE.",
    ),
    "llama.cache.full": (
        "Requests did not fit the cache, and failed one by one while the server went on: raise "
        "--ctx-size, or serve fewer at once (--parallel).",
    ),
    "llama.proxied": (
        "The router passed a request to the server of a model, and did not get an answer ({why}). "
        "With TLS (--ssl-key-file, LLAMA_ARG_SSL_KEY_FILE) the servers that it starts expect TLS, "
        "too, and the router speaks plain HTTP to them: serve without TLS, behind a proxy that has "
        "it. Otherwise that server ended or still loads: see its own lines.",
    ),
    "llama.node.context": (
        "node-llama-cpp cannot fit a context of {context} tokens on the card with "
        "{sequences} sequences: ask for fewer sequences (createContext({{sequences: 1}})), a "
        "shorter contextSize ({{max: 4096}} lets it choose), or fewer layers on the card "
        "(gpuLayers), or use a file quantised to fewer bits.",
        "node-llama-cpp cannot fit a context of {alone} tokens on the card: ask for a "
        "shorter contextSize ({{max: 4096}} lets it choose) or fewer layers on the card "
        "(gpuLayers), or use a file quantised to fewer bits; close other programs on the card.",
    ),
    "llama.supervised": (
        "Tabby starts llama-server with --log-disable, which hides why it ended (status {status}): "
        "run the command in the line by hand without that option, and explain what it prints. "
        "Usually the card has too little memory, or Tabby's llama-server is too old for the file.",
    ),
    "llama.router": (
        "The router does not hear from the server that it started: let it listen on 127.0.0.1 or "
        "0.0.0.0 without TLS, and put a proxy in front of it.",
    ),
    "llama.download": (
        "{placed} is a file of this machine, which was looked for in a repository: in a preset "
        "file [USER/MODEL:QUANTIZATION] names a repository of the hub, and a model = in it a file "
        "there. Give the section a name without a slash ([my-model]) to load the file.",
        "The hub has no such repository or file (404), or hides one that is private or gated: "
        "correct the name and the quantization, or set HF_TOKEN to a token with access. A mirror "
        "in HF_ENDPOINT or MODEL_ENDPOINT may lack it: unset that, or name a local file with -m.",
    ),
    "llama.threads.pool": (
        "The engine may start no more threads: raise its limit (TasksMax of its unit, `ulimit -u`, "
        "docker --pids-limit), or lower --threads.",
    ),
    "llama.download.tls": (
        "This build cannot download over HTTPS: download the file yourself (`hf download "
        "OWNER/NAME FILE --local-dir .`) and name it with -m. Or use a build that can: a release's "
        "package, or one of your own with -DLLAMA_OPENSSL=ON (libssl-dev; before b7000 "
        "-DLLAMA_CURL=ON).",
    ),
    "llama.download.denied": (
        "The hub refuses the download (401 or 403): the repository is private or gated, or the "
        "token is wrong. Accept the model's licence on its page, and set HF_TOKEN; without "
        "either, correct the name.",
    ),
    "llama.draft.missing": (
        "The draft model {path} cannot be loaded: correct its path (--model-draft), or download "
        "the file again; the lines before this one have the loader's reason.",
    ),
    "llama.download.folder": (
        "There is no folder for downloads: set HOME, LLAMA_CACHE or HF_HOME to one that the "
        "engine's user can write.",
    ),
    "llama.download.other": (
        "The download of the model failed: the line has the reason. Check network, proxy and the "
        "name of the repository; for a private one set HF_TOKEN.",
    ),
    "llama.models": (
        "{startup} models of the preset file are to be loaded at the start, more than --models-max "
        "allows: raise that as far as memory goes, or write load-on-startup = false for those that "
        "may wait (releases before March 2026 load them all the same).",
        "The router does not reach or start the server of a model: its own lines, before this one, "
        "say why; correct the preset file and --models-max.",
    ),
    "llama.mcp": (
        "A tool server of the MCP configuration cannot be started: correct its command there, or "
        "leave it out.",
    ),
    "llama.quantize": (
        "The quantized file could not be written ({stream}): correct its path (the folder must "
        "exist and be writable), and check the free space of the disk.",
        "The file has one layer more than the model declares ({tensor}, usually a head for "
        "drafts): keep its tensors as they are (--tensor-type with that layer's name), convert "
        "again without it, or use a newer release.",
    ),
    "llama.health": (
        "The server did not answer its supervisor's health check in time: a large model or slow"
        " disk needs a longer time-out; the server's own lines show how far it came.",
    ),
    "llama.model.template": (
        "The chat template is broken: correct [model] chat_template, or remove it.",
    ),
}  # fmt: skip

advise = adviser(_SPECIAL, _GENERAL, HEALING, key_and_flag(HEALING.option))
