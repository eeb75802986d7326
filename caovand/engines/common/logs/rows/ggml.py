"""Messages of ggml, which llama.cpp and Ollama's runners share: rows for both tables."""

from __future__ import annotations

import re

from caovand.engines.common.logs.signature import signature

# Before b6900 no line of llama.cpp has a level.
_RAW = re.compile(
    r"(?:llama\.cpp: )?[Ff]ailed to initialize the context: |LLAMA_SPLIT_MODE"
    r"|(?:ggml|gguf|llama|llm|clip|common|load|alloc|sched|mtmd)_?\w{0,60}: |terminate called |  "
    r"what\(\): "
    r"|(?:CUDA|ROCm|SYCL|MUSA|HIP|rocBLAS|hipBLAS) error|Native API (?:failed|returns)"
    r"|(?:level_zero|opencl|cuda|hip) backend failed with error: "
    r"|libc\+\+abi: terminating|error: Uncaught SIG|#\d{1,3} {1,3}(?:0x[\da-f]{4,16} in )?\w"
    r"|(?:Memory access fault|HW Exception) by GPU|\"?hipErrorNoBinaryForGpu|get_\w{1,60}: "
    r"|(?:Exception caught|terminating) |-\[\w{1,80} |\"?llama\.cpp error: "
    r"|(?:unable|failed) to allocate (?:\w{2,20} )?buffer|cudaMalloc failed: "
    r"|error: Insufficient Memory|(?:Error: )?vk::|Unable to find code object|No kernel named"
    r"|\[(?:create_node|graph_compute)\] |stablelm_model_load: |Can't allocate \d|mtmd_\w{1,60}: "
    r"|key not found in model: |No device of requested type"
    r"|  (?:current device|in function|cuda\w{1,60}\()|error loading model"
    r"|model: done_getting_tensors: "
    r"|(?:srv|main|slot|que) {1,6}\w{1,40}: |main: |[\w./\\:~+-]{1,300}\.(?:cpp|c|cu|cuh|h|hpp"
    r"|m):\d+: |(?:GGML|LLAMA)_ASSERT(?:: |\()|Caution: pre-allocated |Error allocating "
    r"|LLAMA ERROR: |pre-allocated tensor \("
    r"|[\w./-]{1,100}: [\w./\\+-]{1,300}:\d{1,6}: .{1,300}: Assertion [`']"
    r"|Processing Prompt .{1,80}(?:CUDA|ROCm) error: |\[Inferior \d"
)
RAM = (
    r"failed to allocate (?:CPU|\w{1,10}_Host)\w{0,20} buffer (?:of size (?P<bytes>\d+)"
    r"|for (?:kv|rs) cache)|unable to allocate (?:CPU|\w{1,10}_Host)\w{0,20} buffer"
)
"""A buffer in host memory; pinned ones carry a card's name."""
ARCHITECTURE = (
    r"unknown model architecture: '(?:(?P<image>(?:flux\d?|sd[123]|sdxl|wan|lumina2|qwen_image"
    r"|hidream|ltxv|hyvid|cosmos|aura|chroma|z_image|omnigen|mochi)(?:_\w{1,20})?)"
    r"|(?P<speech>parler-tts|kokoro|dia|csm|whisper|f5-tts)|(?P<nameless>(?='))|(?P<architecture>[^']{1,100}))'"
)
"""The model's architecture; GGUF files of image models carry names of ComfyUI and others."""
ROWS = (
    signature("ggml.split", "cause", "backend-unsupported",
         r"GGML_ASSERT\(.{0,200}\bGGML_BACKEND_SPLIT_AXIS_\w+"
         r"|SPLIT_MODE_TENSOR.{0,60}(?:not implemented|requires)|unsupported mul_mat split states"
         r"|ggml-backend-meta\.cpp:\d{1,6}: GGML_ASSERT\("),
    signature("llama.cache.flash", "cause", "backend-unsupported",
         r"quantized V cache (?:requires flash_attn|was requested, but this requires Flash)"
         r"|V cache quantization requires flash_attn"),
    signature("ggml.attention", "cause", "backend-unsupported",
         r"\bfattn[\w-]{0,40}\.cuh?:\d+: (?:fatal error|GGML_ABORT)"),
    # The scheduler found no device that runs an operation on a tensor placed where it cannot be
    signature("ggml.operation", "cause", "backend-unsupported",
         r"pre-allocated tensor \((?P<tensor>.{1,200}?)\) in a buffer \((?P<buffer>[^)]{1,60})\)"
         r" that cannot run the operation|unsupported op[: ]|unsupported types: dst: "
         r"|failed to find a compatible buffer type for tensor"),
    signature("ggml.backend", "cause", "bad-arguments",
         r"failed to initialize backend from (?P<library>\S{1,300}): incompatible API version"
         r"|failed to load (?P<file>\S{1,300}libggml\S{1,60}): "
         r"|load_backend: failed to load (?P<dll>.{1,200}\.dll)"),
    signature("ggml.backend.none", "cause", "engine-unusable",
         r"no CPU backend found|no backends are loaded|failed to initialize CPU backend"),
    # A number may begin with a point in Jinja, and {{ .System }} is Go's
    signature("ggml.template.go", "cause", "bad-arguments",
         r"Failed to parse number: '\.'"),
    signature("ggml.template.items", "cause", "bad-arguments",
         r"[Ff]ilter:? ?['\"\\]{0,3}(?:items|dictsort)['\"\\]{0,3} for type String"
         r"|Callee is not a function: got Undef\w{1,10} \(hint: ['\"\\]{0,3}(?:items|keys)\b"),
    signature("ggml.template", "cause", "bad-arguments",
         r"(?P<lacks>(?:Value|Object) is not callable: null|Callee is not a function: got Undef\w*"
         r"|Unknown (?:method|filter|test|\(built-in\) filter):? .{1,60}|Undefined filter: .{1,40}"
         r"|Unknown argument .{1,40} for function \w{1,40})"),
    signature("ggml.parser", "cause", "engine-died",
         r"what\(\):  (?P<why>Invalid diff: .{1,80}"
         r"|.{0,60}\bnot found at (?:start|end) of .{1,80})"),
    signature("ggml.context", "cause", "host-oom",
         r"GGML_ASSERT\((?:ctx->)?mem_buffer != NULL\)|GGML_ASSERT: \S{1,300}: ctx->mem_buffer !="
         r"|GGML_ASSERT.{0,300}\"failed to allocate buffer\""
         r"|GGML_ALIGNED_MALLOC: insufficient memory|posix_memalign failed with error 12"),
    signature("ggml.rpc", "cause", "node-lost",
         r"Remote RPC server crashed|[Ff]ailed to connect to (?P<node>[\d.]{0,15}:\d{4,5})"
         r"|\[(?:create_node|graph_compute)\] (?:invalid|failed)"
         r"|RPC server.{0,60}(?:unreachable|not responding)"),
)  # fmt: skip
ENDS = (
    # The text of the exception that ended it
    signature("ggml.what", "generic", "engine-died", r"^ {0,2}what\(\):  (?P<why>\S.{0,200})"),
    signature("ggml.exception", "consequence", "engine-died",
         r"^terminate called (?:after throwing an instance of '(?P<exception>[^']{1,100})'"
         r"|(?P<nameless>without))"
         r"|^libc\+\+abi: terminating (?:due to|with) uncaught exception(?: of type "
         r"(?P<type>\w{1,40}(?:::\w{1,60}){0,6}))?"),
    # A debugger's or ggml's own backtrace, and how llamafile reports a signal
    signature("ggml.aborted", "consequence", "engine-died",
         r"^\[Inferior \d{1,3} \(process"
         r"|^#\d{1,3} {1,3}(?:0x[\da-f]{4,16} in )?(?P<function>ggml_abort|ggml_print_backtrace"
         r"|__GI_abort|abort|__pthread_kill_implementation|raise)\b"
         r"|^error: Uncaught (?P<signal>SIG[A-Z]{3,5})\b"),
)  # fmt: skip
"""A program that aborted: its earlier message is the reason, this one is not."""
FILE = (
    signature("llama.file.cut", "cause", "model-missing",
         r"tensor '(?P<tensor>[^']{1,200})' data is not within the file bounds"
         r"|unexpectedly reached end of file|read error: "),
    signature("llama.model.key", "cause", "model-missing",
         r"key not found in model: (?P<key>[\w.]{1,200})"),
    signature("llama.model.tensor", "cause", "model-missing",
         r"tensor '(?:(?P<weightless>token_embd\.weight)|(?P<tensor>[^']{1,200}))' not found"
         r"|missing tensor '(?P<missing>[^']{1,200})'"
         r"|tensor '(?P<gone>[^']{1,200})' is missing from model"),
    signature("llama.model.converted", "cause", "model-missing",
         r"cannot find tokenizer vocab in model file|architecture requires MLA"
         r"|model requires '\w{1,40}' in GGUF metadata|found tensors with invalid data"),
    signature("llama.model.clip", "cause", "bad-arguments",
         r"CLIP cannot be used as main model"),
    signature("llama.model.split", "cause", "model-missing",
         r"invalid split file(?: name)?: (?P<misnamed>\S.{0,300})"
         r"|(?P<later>illegal split file: \d{1,5}|model must be loaded with the first split)"
         r"|(?P<parts>invalid split (?:file|count)|missing key .{1,60} in GGUF split)"
         r"|failed to load GGUF split from (?P<path>.{1,300})"),
    # load_hparams: unknown projector type: gemma4uv
    signature("llama.model.projector.type", "cause", "bad-arguments",
         r"(?:[Uu]nknown|unsupported) projector type"),
    signature("llama.model.projector", "cause", "model-missing",
         r"failed to load multimodal model, '(?P<path>[^']{1,400})'"
         r"|failed to load CLIP model from (?P<clip>\S{1,300}?)\.? "
         r"|[Uu]nable to find tensor (?:v|mm|a)\."
         r"|failed to load vision model"),
    signature("llama.model.unpaired", "cause", "bad-arguments",
         r"mismatch between (?:text model|vision and audio)"),
    signature("llama.model.template", "cause", "bad-arguments",
         r"failed to initialize chat template|the supplied chat template is not supported"
         r"|^(?:  )?what\(\):  .{0,300}\bat row \d{1,6}, column \d{1,6}:"
         r"|failed to apply chat template|[Cc]hat template parsing error"
         r"|Template application failed: |this custom template is not supported"),
    signature("llama.model.type", "cause", "model-missing",
         r"has invalid ggml type (?P<type>\d{1,6})|(?:invalid|unknown) ggml type (?P<kind>\d{1,6})"
         r"|of type (?P<number>\d{1,6}) \(\w{1,20}\) is not supported"
         r"|unsupported quantization type|is of type \d{1,6} which is not supported"),
    signature("llama.model.shape", "cause", "model-missing",
         r"tensor '(?P<tensor>[^']{1,200})' has wrong (?:shape|size)"
         r"|error loading model hyperparameters: "
         r"|wrong number of tensors;(?: expected (?P<expected>\d+), got (?P<got>\d+)|$)"
         r"|unknown tensor '(?P<unknown>[^']{0,200})' in model file"
         r"|invalid model: tensor '(?P<twice>[^']{1,200})' is duplicated"),
    # The first four bytes of a file, as a number or as characters
    signature("llama.file.magic", "cause", "model-missing",
         r"(?:(?:invalid|bad) magic(?: number| characters:?)? \[?(?:got )?(?:0x)?'?"
         r"|unknown \(magic, version\) combination: )"
         r"(?:(?P<gguf>46554747)|(?P<old>67676a74|67676d66|67676d6c|67676c61|tjgg|fmgg|lmgg|algg)"
         r"|(?P<pointer>73726576|vers)|(?P<zip>0?4034b50|PK)"
         r"|(?P<page>4f44213c|6d74683c|4d54483c|72746e45|61766e49|7265227b|<!DO|<!do|<htm|<HTM|Entr|Inva"
         r"|\{\"er)|(?P<zeros>00000000)|(?P<magic>[^'\s]{0,16}))"),
    signature("llama.model.version", "cause", "model-missing",
         r"(?P<first>GGUFv1) is no longer supported"
         r"|this GGUF file is version (?P<newer>\d{1,9}) but"
         r"|this GGUF file version (?P<swapped>\d{1,12}) is extremely large"
         r"|(?P<other>GGUF version \d{1,10} is (?:extremely|larger)|unknown \(?(?:magic|version)"
         r"|bad file magic|invalid file magic|unsupported (?:model|file) (?:format|version)"
         r"|invalid model file)"),
    signature("llama.model.other", "generic", "model-missing",
         r"error loading model: (?P<why>\S.{1,300})"),
)  # fmt: skip
"""Faults that the loader finds in a model's file; Ollama's server repeats them."""


def is_raw(line: str) -> bool:
    """Whether a line without a level begins like one of its libraries."""
    return bool(_RAW.match(line))
