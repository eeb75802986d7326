"""llama.cpp's Log record, in a module that imports little: a separate process finds causes."""

from __future__ import annotations

import re

from caovand.core.engine.log import Log, OwnRows
from caovand.engines.common.logs.refusals import without_refusals
from caovand.engines.common.logs.wrapping import one_text
from caovand.engines.llamacpp.log.cause import MAX_TRACE_LINES, announces_failure, find_cause
from caovand.engines.llamacpp.log.phases import PHASES, read
from caovand.engines.llamacpp.log.signatures import SIGNATURES

_FINGERPRINT = re.compile(
    r"^(?:"
    r"\d{1,6}\.\d\d\.\d{3}\.\d{3} [DIWE] |[\w./-]{0,200}/ggml/src/|(?:lib)?(?:ggml"
    r"|llama)[\w.-]{0,40}"
    r"(?:: |\.so|\()|update_slots : |slot \d{1,4} (?:: |is )"
    r"|(?:srv|slot|que|cmn) {1,6}(?:\w{1,40}|operator\(\)): "
    r"|(?:llm_|load_|print_info|clip_|gguf_|common_|sched_)\w{0,40}: "
    r"|(?:INFO|WARN|ERR|VERB) {1,2}\[ {0,40}\w{1,60}\] .{1,120}\| tid=\""
    r"|error loading model: |(?:unable|failed) to allocate (?:CUDA|ROCm|Vulkan|SYCL|CPU"
    r"|MTL)\w{0,12} "
    r"buffer|(?:GGML|LLAMA)_ASSERT(?:\(|: )|failed to allocate buffer for kv"
    r"|pre-allocated tensor \("
    r"|(?:Caution: |Failed to initialize the context: |.{0,60}validation error for LlamaCpp)"
    r"|.{0,200}?(?:vendor/llama\.cpp|/llama\.cpp/|ggml/src/|ggml[-_]\w{1,20}\.(?:cu|cpp|dir)"
    r"|GGML_\w"
    r"|for llama[-_]cpp[-_]python|[/\\]llama_cpp[/\\]|(?:Including|Adding) CPU backend"
    r"|\bllama\.dir/|node-llama-cpp[/\\]|llama_cpp_server::"
    r"|Could not load Llama model|koboldcpp|\[PYI-\d{1,9}:ERROR\]|\.llamafile\b)"
    r"|\|?(?:common_sampler_init|parse): error (?:initializing|parsing) grammar"
    r"|(?:\w{3} \d\d [\d:]{8} )?ERROR Backend not found backend=\"llama"
    r"|Failed to initialize samplers|Assertion failed: .{1,200}[/\\](?:llama|ggml)"
    r"|.{0,120}error while loading shared libraries: lib(?:llama|mtmd)\b"
    r"|Error: llama\.cpp: |error: (?:invalid|unknown) argument: -|\./llamafile: "
    r"|ggml_metal_init\(\)|(?:ERROR: )?ggml-cuda was compiled"
    r"|Error allocating vulk|building (?:ggml-cuda with nvcc|nvidia compute capability detector)"
    r"|(?:level_zero|opencl) backend failed with error: |got exception: \{\"code\":\d"
    r"|(?:INFO|WARNING|ERROR):(?:hf-to-gguf|gguf[\w.]{0,30}|convert):|\\[CORTEX\\]::"
    r"|(?:main: error: )?draft model vocab|stablelm_model_load: "
    r"|(?:Exception: )?Vocab size mismatch \(model has"
    r"|\{\"error\":\{\"code\":\d{3},\"message\":\""
    r"|(?:Load (?:Text|Image) Model OK: |ImageGen Init - |Welcome to KoboldCpp)"
    r"|vk::(?:Device|Queue|Instance|\w{1,30}Error)\b"
    r"|(?:main|build): (?:build|exiting|server|loading|\d{3,5} )"
    r")"
)
_NAMED = re.compile(
    r"\bllama(?:\.|-|_)cpp\b|\bllama-(?:server|cli)\b|\bllama_model_lo", re.IGNORECASE
)

LOG = Log(
    module=__name__,
    plain=one_text,
    phases=PHASES,
    read=read,
    announces=announces_failure,
    near=MAX_TRACE_LINES,
    listening="http",
    find_cause=without_refusals(find_cause),
    fingerprint=_FINGERPRINT,
    named=_NAMED,
    own_rows=OwnRows(prefix="llama."),
    begins=("llama_server: initializing", "main: starting", "main: build"),
    error=lambda text: f"0.00.000.000 E {text}",
    kinds={row.id: row.kind for row in SIGNATURES},
)
