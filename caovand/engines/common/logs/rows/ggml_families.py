"""Classes of errors in llama.cpp's libraries, by their words: rows after the precise ones.

Its sources have some 500 error messages. For most of them only the class matters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.engines.common.logs.signature import signature

_FILE = r"[\w./\\:~+ -]{1,300}\.(?:cpp|cc|c|cu|cuh|h|hpp|m|mm):\d{1,6}: "
"""The prefix of an abort; compilers add a column to the line number."""
_RAW = re.compile(
    _FILE + r"|(?:decode|encode|init|init_batch|find_slot|prepare|process_ubatch|graph_compute"
    r"|output_reserve|state_\w{1,30}|apply|update|restore|reserve|build_graph|tokenize|add_text"
    r"|set_\w{1,40}|create_\w{1,40}|operator\(\)|parse_\w{1,40}|load_\w{1,40}|~\w{1,40}): "
)
ROWS = (
    signature("family.metal", "cause", "backend-unsupported",
         r"failed to (?:create command queue|create Metal library"
         r"|compile pipeline|create pipeline state|create library)|error compiling source"
         r"|incompatible pipeline"),
    signature("family.backend", "cause", "bad-arguments",
         r"backend not found"
         r"|failed to initialize backend from |ggml_backend_init returned NULL"),
    signature("family.device", "cause", "gpu-absent",
         r"Invalid Vulkan device index|invalid value for main_gpu"
         r"|ggml_cuda_\w{1,40}: invalid device"
         r"|^(?:error: )?Device not found"
         r"|failed to initialize \"?(?:CUDA|ROCm|Vulkan|SYCL|MTL|Metal|OpenCL)\w{0,4}\"? backend"),
    signature("family.override", "cause", "bad-arguments",
         r"invalid (?:boolean value|type) for KV override"),
    signature("family.adapter", "cause", "bad-arguments",
         r"control vectors?\b.{0,60}(?:not match|failed|passed)|failed to apply lora adapter"
         r"|failed to load control vector|direction tensor|LoRA arch mismatch"),
    signature("family.header", "cause", "model-missing",
         r"encountered (?:length_error|bad_alloc) (?:error )?while reading|number of (?:tensors"
         r"|key value pairs) is|invalid GGUF type|alignment \d{1,12} is not a power"
         r"|tensor '.{1,100}' "
         r"(?:dimension|has offset|size overflow|has invalid data)|failed to read tensor data"
         r"|array length \d{1,20} for key|string length \d{1,20} exceeds"
         r"|tensor name \d{1,9} is too long"
         r"|found tensors with invalid data|[Ii]nvalid gguf (?:element )?type for"
         r"|failed to seek to beginning of data|duplicate tensor name|failed to create tensors$"),
    signature("family.image", "cause", "bad-arguments",
         r"does not support (?:vision|audio|image|non-vision) input|number of bitmaps \(\d"
         r"|does not support multimodal"),
    signature("family.projector", "cause", "model-missing",
         r"clip\w{0,40}: .{0,40}(?:unable to find tensor|failed to (?:open|load)|unsupported)"
         r"|don't support projector with"
         r"|unable to find tensor [\w.]{1,80}$"),
    signature("family.vocabulary", "cause", "model-missing", r"[Vv]ocab size mismatch"),
    signature("family.commands", "consequence", "launch-failure",
         r"command buffer \d{1,4} failed with status"),
    signature("family.full", "consequence", "kv-cache-short",
         r"failed to find (?:a slot|a memory slot|available cells|free space)"
         r"|not enough cells in kv cache|n_tokens = \d{1,9} > size"),
    signature("family.batch", "generic", "bad-arguments",
         r"invalid (?:token\[\d|seq_id|logits id|embeddings id)|inconsistent sequence positions"
         r"|positions are (?:not continuous|decreasing)|n_seq_max|n_tokens == 0"
         r"|pooling type is not set|session file|invalid slot save file|Unable to (?:save"
         r"|restore) slot|Invalid slot ID"
         r"|sequence state|(?:mismatched|incompatible) (?:key|value|layer|r|s|V|GQA|K) \w"
         r"|n_batch and n_ubatch cannot|coupled sequences"),
    signature("family.grammar", "generic", "bad-arguments",
         r"number of (?:repetitions|rules) .{0,80}exceeds sane defaults|unsupported grammar"
         r"|JSON schema conversion failed|failed to parse grammar"
         r"|llguidance .{0,60}not enabled"),
    # Buffers for a computation were of a fixed size
    signature("family.pool", "cause", "device-oom-capture",
         r"not enough space in the (?:context's memory pool|scratch memory)"
         r"|ggml_allocr_alloc: not enough space in the buffer"),
    signature("family.memory", "consequence", "device-oom-capture",
         r"^(?!.{0,200}pinned).{0,300}(?:failed to allocate|could not reserve) (?:graph|compute"
         r"|output|space|context|HBM"
         r"|buffer"
         r"|\d)|not enough space in the (?:buffer|context)|failed to reserve (?:memory|graph)"
         r"|(?:posix_memalign|vm_allocate|calloc|mmap) failed|\(attempted to allocate"
         r"|preallocation size is too large"),
    signature("family.operation", "generic", "backend-unsupported",
         rf"^{_FILE}.{{0,200}}(?:[Uu]nsupported|not (?:supported|implemented)|doesn't support"
         r"|[Oo]nly support|head size)|op not supported|op = \w{1,40} not implemented"
         r"|Shared memory size too small for matrix|^(?:error: )?Unsupported device"),
    signature("family.computing", "consequence", "launch-failure",
         r"failed to compute graph, compute status|Compute error\.|failed to (?:encode image"
         r"|decode mtmd chunk"
         r"|process mtmd chunk|encode mtmd batch|process speculative batch|decode draft batch)"
         r"|Error OP [A-Z_]{3,40}"
         r"|sched_graph_compute(?:_async)? failed with error"
         r"|ggml_\w{1,20}_compute_forward: \w{1,40} failed|compute failed while preparing"
         r"|failed to (?:decode|encode), ret = -[2-9]|llama_decode(?:\(\))? (?:failed|returned -)"),
    signature("family.abort", "generic", "engine-died",
         rf"^(?P<place>{_FILE[:-2]}): "
         r"(?!(?:fatal )?error: |warning: |note: )(?P<why>\S.{0,200})"
         r"|^ggml_backend_sched_\w{1,40}: unexpected "),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "family.backend": (
        "A backend's library is missing or does not match the program: install one release's files "
        "only, with all of its libraries in the program's folder.",
    ),
    "family.device": (
        "The requested card does not exist: `llama-server --list-devices` lists those that the "
        "program sees; correct --main-gpu, --device and *_VISIBLE_DEVICES.",
    ),
    "family.override": ("--override-kv must have the form KEY=TYPE:VALUE.",),
    "family.adapter": (
        "An adapter or control vector does not fit the model: use one made for exactly this model.",
    ),
    "family.header": (
        "The file's header is broken, truncated, or newer than this release: download it again, or "
        "install a newer release.",
    ),
    "family.image": (
        "The model, or the server as it was started, does not accept such input: start it with "
        "--mmproj and the projector published with a model that takes images or audio, in a "
        "release that knows the model.",
    ),
    "family.projector": (
        "The multimodal projector (mmproj) is missing, damaged, or newer than this release: "
        "download it with its model, or install a newer release.",
    ),
    "family.vocabulary": (
        "The model and its tokenizer count different tokens: convert it again with the tokenizer "
        "files published with it and all added tokens, by a current release.",
    ),
    "family.full": (
        "Requests did not fit the cache: raise --ctx-size, or serve fewer at once (--parallel).",
    ),
    "family.batch": (
        "The program that calls llama.cpp passes an invalid argument: a token, sequence or saved "
        "state of another model or context. Update the program, or raise --parallel where the line "
        "names n_seq_max.",
    ),
    "family.grammar": (
        "The grammar or JSON schema of the request is not supported: simplify it, or install a "
        "newer release.",
    ),
    "family.pool": (
        "This release (of 2023) computed the size of a buffer too small for this model or batch; "
        "no memory is missing. Install a newer release of llama.cpp or of the program around it, "
        "with the model as GGUF. Until then lower --batch-size (n_batch, at most 512), or shorten "
        "the prompt.",
    ),
    "family.memory": (
        "Memory is short, on the card or in the machine: shorten the context (--ctx-size), lower "
        "--batch-size and --ubatch-size, keep fewer layers on the card, or use a file of fewer "
        "bits.",
    ),
    "family.operation": (
        "This backend cannot compute an operation of the model: install a newer release, or use "
        "another backend's build, or keep the layers off the card (-ngl 0).",
    ),
    "family.computing": (
        "A computation failed; a line before this one may say why. Update driver and engine, and "
        "try another backend's build, a smaller --ubatch-size or --flash-attn off.",
    ),
    "family.abort": (
        "The engine stopped itself at {place}: search its issues for this text; a newer or older "
        "release, or another backend's build, may not have the problem.",
    ),
}
"""Sentences by row; one with an unknown {name} is left out."""


def is_raw(line: str) -> bool:
    """Whether a line without a level begins like these texts."""
    return bool(_RAW.match(line))
