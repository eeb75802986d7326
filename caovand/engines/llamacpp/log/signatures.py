"""Texts that llama-server and its libraries print when they fail: one row per text.

`tests/samples/llamacpp` has real lines for each row, and lines it must not match. Host failures
were provoked with build b11434; CUDA failures are from public reports.

Order matters within a line: the first matching row wins. Between lines, `cause.py` decides.
"""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.healing.failure import Failure
from caovand.engines.common.logs.rows import (
    building,
    cuda,
    exits,
    ggml,
    ggml_families,
    host,
    kernel,
    network,
    python,
    requests,
)
from caovand.engines.common.logs.signature import Signature, signature

_SERVED: Mapping[str, Failure] = {"serving": "device-oom-run", "http": "device-oom-run"}
_ROOM: Mapping[str, Failure] = {
    "kv": "kv-cache-none", "drafter": "kv-cache-none", "warmup": "device-oom-capture", **_SERVED,
}  # fmt: skip

SIGNATURES: tuple[Signature, ...] = (
    *host.ROWS,
    *ggml.ROWS,
    *building.ROWS,
    *exits.ROWS,
    # Memory of a card
    signature("llama.cache.long", "cause", "kv-cache-none",
         r"allocating (?P<mib>(?:1[6-9]|[2-9]\d|\d{3})\d{3}(?:\.\d+)?) MiB on device "
         r"\d+: cudaMalloc failed: out of mem.{0,200}kv cache"),
    signature("llama.cuda.cache", "cause", "kv-cache-none",
         r"failed to allocate " + cuda.BUFFER
         + r"(?: of size \d{1,18}.{0,200}buffer)? for (?:kv|rs) cache"
         r"|Device memory allocation of size \d{1,18} failed.{0,200}buffer for (?:kv|rs) cache"
         r"|allocating (?P<mib>[\d.]+) MiB on device \d+: cudaMalloc failed: out of mem.{0,200}"
         r"(?:kv|rs) cache"),
    signature("llama.node.context", "cause", "kv-cache-none",
         r"InsufficientMemoryError: A context size of (?:(?P<context>\d{1,9}) with "
         r"(?P<sequences>\d{1,4}) sequences|(?P<alone>\d{1,9})) is too large"),
    signature("llama.cuda.oom", "generic", "device-oom-load",
         cuda.NO_MEMORY, _ROOM),
    signature("llama.metal.oom", "cause", "device-oom-load", cuda.NO_MEMORY_OF_METAL, _ROOM),
    signature("llama.cuda.weights", "cause", "device-oom-load",
         r"not enough GPU memory to load the model|unable to allocate backend buffer"
         r"|Error allocating (?:vulkan )?memory"
         r"|(?:unable to allocate|alloc_tensor_range: failed to allocate) " + cuda.BUFFER),
    signature("llama.cuda.compute", "cause", "device-oom-capture",
         r"failed to allocate " + cuda.BUFFER
         + r" of size (?P<bytes>(?P<large>[3-9]\d{9}(?!\d)|\d{11,18})?\d{0,18})"),
    # Memory of the host
    signature("llama.ram.cache", "cause", "host-oom",
         r"(?:insufficient memory \(attempted to allocate +(?P<mib>[\d.]+) MB\)"
         r"|failed to allocate buffer of size (?P<bytes>\d{1,18})).{0,200}buffer for kv cache"),
    signature("llama.ram", "cause", "host-oom",
         r"insufficient memory \(attempted to allocate +(?P<mib>[\d.]+) MB\)"),
    signature("llama.cache.unplaced", "generic", "host-oom",
         r"failed to allocate (?:\w{1,20} )?buffer for (?:kv|rs) cache"),
    signature("llama.ram.buffer", "generic", "host-oom",
         ggml.RAM + r"|failed to allocate buffer of size"),
    signature("llama.ram.bad-alloc", "cause", "host-oom",
         r"std::bad_alloc|mmap failed: Cannot allocate memory|[Cc]annot allocate memory"
         r"|ErrorOutOfHostMemory|bad allocation"),
    signature("llama.threads", "cause", "host-oom",
         r"what\(\):  Resource temporarily unavailable"),
    # The card
    *kernel.CARD_LOST,
    *cuda.STATES,
    signature("llama.cuda.absent", "cause", "gpu-absent",
         cuda.ABSENT),
    signature("llama.metal", "cause", "backend-unsupported", cuda.METAL),
    signature("llama.cuda.arch", "cause", "backend-unsupported",
         cuda.NO_KERNEL),
    signature("llama.cuda.illegal", "cause", "illegal-access",
         cuda.ILLEGAL),
    signature("llama.cuda.peer", "cause", "launch-failure",
         r"peer access (?:is not supported between|has not been enabled|is already enabled)"),
    signature("llama.cuda.launch", "cause", "launch-failure",
         cuda.LAUNCH),
    signature("llama.cuda.other", "generic", "launch-failure", cuda.OTHER),
    *kernel.OF_PROGRAM,
    # The model
    signature("llama.file.missing", "cause", "model-missing",
         r"failed to open GGUF file '(?P<path>[^']{1,400})' \((?:errno )?No such file"
         r"|failed to open (?P<absent>[^\s':]{1,400}): No such file"
         r"|failed to open '(?P<named>[^']{1,400})': 'No such file"
         r"|failed to open (?:GGUF file )?'(?P<unopened>[^']{1,400})'$"
         r"|FileNotFoundError: .{1,60}: '(?P<file>[^']{1,400})'"),
    signature("llama.file.closed", "cause", "access-denied",
         r"failed to open GGUF file '(?P<path>[^']{1,400})' \(Permission denied"),
    signature("llama.file.header", "cause", "model-missing",
         r"failed to read (?:magic|header|key-value pairs|tensor info|version)"
         r"|duplicate key|has invalid (?:offset|type|number)|bad GGUF|failed to read value"),
    *ggml.FILE[:-1],
    signature("llama.model.architecture", "cause", "bad-arguments",
         ggml.ARCHITECTURE),
    signature("llama.model.tokenizer", "cause", "bad-arguments",
         r"unknown (?:pre-tokenizer type|tokenizer): '(?P<tokenizer>[^']{0,100})'"
         r"|error loading model vocabulary"),
    signature("llama.model.lora", "cause", "bad-arguments",
         r"failed to load lora adapter '(?P<path>[^']{1,400})'"),
    ggml.FILE[-1],
    # Drafting
    signature("llama.draft.context", "cause", "backend-unsupported",
         r"failed to create MTP context"),
    signature("llama.draft.missing", "cause", "model-missing",
         r"failed to load draft model, '(?P<path>[^']{1,400})'"),
    signature("llama.draft.vocabulary", "consequence", "bad-arguments",
         r"is not compatible with the target model"
         r"|draft model (?:vocab|bos|eos|special).{0,40}must.{0,20}match"),
    # The cache
    signature("llama.cache.split", "cause", "backend-unsupported",
         r"K cache type (?P<type>\w{1,20}) with block size \d+ does not divide"),
    # Options
    signature("llama.args", "cause", "bad-arguments",
         r"^(?:error: |(?=Invalid|Unknown))(?:(?:[Ii]nvalid|[Uu]nknown)|invalid parameter for) "
         r"argument: "
         r"(?:(?P<shell>(?:/(?:usr/)?bin/)?(?:ba|da)?sh)$"
         r"|(?P<command>serve|(?:[\w./-]{0,100}/)?llama-server)$"
         r"|(?P<option>[^\s\"'.,]{1,200}))|: (?P<named>--?\w[\w-]{0,40}) unknown argument"),
    # The next option was taken for the value of this one
    signature("llama.args.valueless", "cause", "bad-arguments",
         r"^error while handling argument \"(?P<option>[^\"]{1,100})\": (?:"
         r".{0,60}\bvalue for .{1,60}: '(?P<swallowed>--?[a-z][\w-]{1,60})'"
         r"|(?P<without>expected value for argument))"),
    signature("llama.args.value", "cause", "bad-arguments",
         r"^error while handling argument \"(?P<option>[^\"]{1,100})\": (?P<why>.{0,300})"),
    signature("llama.args.env", "cause", "bad-arguments",
         r"^error while handling environment variable \"(?P<option>[^\"]{1,100})\""),
    signature("llama.args.other", "consequence", "bad-arguments",
         r"^error: (?=.{0,200}(?:invalid|unknown|is required|must be|not supported|unrecognized"
         r"|does not exist))(?P<why>.{1,300})"),
    signature("llama.args.override", "cause", "bad-arguments",
         r"malformed KV override"),
    signature("llama.args.tls", "cause", "bad-arguments",
         r"the server is built without SSL support"),
    # The server
    signature("llama.port", "cause", "port-busy",
         r"couldn't bind (?:HTTP )?(?:to )?server socket[,:] hostname[:=] ?"
         r"(?:(?P<host>0\.0\.0\.0|127\.[\d.]{1,11}|localhost|::1?)|(?P<address>[^\s,]{1,200})),? "
         r"port[:=] ?(?P<port>\d+)"),
    signature("llama.threads.pool", "cause", "host-oom", r"threadpool create failed"),
    signature("llama.download.tls", "cause", "bad-arguments",
         r"HTTPS is not supported|'https' scheme is not supported"),
    signature("llama.download.folder", "cause", "access-denied",
         r"Failed to find \$HOME directory|Failed to determine HF cache directory"
         r"|failed to create cache directory"),
    signature("llama.models", "cause", "bad-arguments",
         r"(?:failed to initialize router models: )?number of models to load on startup "
         r"\((?P<startup>\d{1,4})\) exceeds models_max"
         r"|failed to open server preset file"
         r"|model name is missing from the request"
         r"|failed to (?:spawn server instance|get a port number|load models on startup"
         r"|initialize router models)|proxy error: "),
    signature("llama.mcp", "generic", "bad-arguments",
         r"failed to (?:open|parse) MCP config|MCP (?:'[^']{1,100}': failed|starting failed"
         r"|warmup: f)"),
    signature("llama.request.parse", "cause", "bad-arguments",
         r"Failed to parse input at pos (?P<position>\d{1,9})"),
    signature("llama.request.embeddings", "cause", "bad-arguments",
         r"[Ss]erver does not support embeddings"),
    signature("llama.request.key", "cause", "access-denied", r"Invalid API Key"
         r"|authentication_error"),
    signature("llama.request.early", "generic", "start-stall",
         r"\"message\": ?\"Loading model\""),
    signature("llama.download", "cause", "model-missing",
         r"(?:failed to (?:download|get|resolve)|[Dd]ownload(?: of)?) .{0,200}(?:404|not found)"
         r"|file '(?P<placed>(?:/|[A-Z]:)[^']{1,300})' not found in repository"
         r"|file '(?P<file>[^']{1,300})' not found in repository|status: 404"
         r"|\bGET failed \(404\)"
         r"|required file is not available in cache"),
    signature("llama.download.denied", "cause", "access-denied",
         r"(?<!unauthorized \()status(?: code)?: 40[13]\b|\bGET failed \(40[13]\)"),
    *network.ROWS,
    # Ends
    signature("ggml.assertion", "generic", "engine-died",
         r"^(?P<place>[\w./\\:~+-]{1,200}\.(?:cpp|c|cu|cuh|h|hpp):\d+): (?:GGML_ASSERT|fatal error|"
         r"GGML_ABORT|CUDA error)|^(?:GGML|LLAMA)_ASSERT(?:: (?P<path>\S{1,300}:\d{1,6}): |\()"
         r"|: Assertion [`'].{1,300}' failed|: failed assertion [`'].{1,300}"
         r"|^Assertion failed: .{1,200}, file (?P<source>.{1,200}), line \d"),
    *ggml_families.ROWS,
    *ggml.ENDS,
    *requests.OF_LLAMA,
    signature("llama.python.cards", "cause", "bad-arguments",
         r"Attempt to split tensors that exceed maximum supported devices"
         r"|[Nn]ot compiled with GPU offload support"),
    signature("llama.health", "consequence", "start-stall",
         r"[Hh]ealth ?check .{0,80}timed out"),
    signature("llama.quantize", "cause", "bad-arguments",
         r"failed to quantize: (?:(?P<stream>basic_ios::clear: iostream error)"
         r"|Bad layer \d{1,4} for tensor (?P<tensor>[\w.]{1,100}))"),
    signature("llama.convert.tokenizer", "cause", "model-missing",
         r"[Mm]issing \S{0,300}tokenizer\.(?:model|json)|File not found: \S{0,300}tokenizer\."
         r"(?:model|json)|Cannot find Llama BPE tokenizer"),
    signature("llama.convert.quantized", "cause", "bad-arguments",
         r"Can not map tensor '(?P<quantized>[^']{1,200}\.(?:qweight|qzeros|g_idx|weight_packed"
         r"|weight_scale\w{0,8}|absmax|SCB|quant_\w{1,20}))'"),
    signature("llama.convert", "cause", "bad-arguments",
         r"BPE pre-tokenizer was not recognized|type object 'MODEL_ARCH' has no attribute"
         r"|'GGUFWriter' object has no attribute|module 'gguf[\w.]{0,20}' has no attribute"
         r"|^(?:KeyError: )'?(?:I8|BF16|F8_\w{3,6}|architectures)'"
         r"|Can not map tensor '(?P<tensor>[^']{1,200})'"
         r"|(?:Architecture|Model) [\"'`]?(?P<architecture>\w{1,100})[\"'`]? (?:is )?not supported"
         r"|GGUF conversion does not yet support converting model types of "
         r"[\"'`](?P<kind>\w{1,100})"),
    signature("llama.backend.missing", "cause", "engine-unusable",
         r"Could not load engine|Default engine variant for|llama-server\S{0,10} not found"
         r"|[Bb]ackend not found:? (?:backend=)?\"?llama"),
    signature("llama.kobold.image", "consequence", "model-missing",
         r"KCPP SD Failed|Image generation failed to setup|Could not load image model"
         r"|Load Image Model OK: False"),
    signature("llama.kobold.screen", "cause", "bad-arguments",
         r"GUI failed to start: Reason: (?P<why>.{1,120})"),
    signature("llama.python.path", "cause", "model-missing",
         r"Model path does not exist: (?P<path>.{1,300}?)(?: \(type=value_error\))?$"),
    # The name tells what the message hides
    signature("llama.python.ggml", "cause", "model-missing",
         r"(?:Failed to load model from file|Could not load Llama model from path): "
         r"(?P<path>[^\s,]{0,250}(?:\bggml-|\.ggml)[^\s,]{0,80}\.bin)\b"),
    signature("llama.python.load", "consequence", "model-missing",
         r"Failed to load model from file: (?P<path>.{1,300})"
         r"|Could not load (?:Llama model from path|text model): (?P<named>.{1,300})"
         r"|Load Text Model OK: False"),
    # Releases before 0.2.24 raise nothing else
    signature("llama.python.unread", "generic", "model-missing",
         r"^(?:-{1,3}> \d{1,5})? {0,12}assert self\.(?:model|ctx) is not None"),
    signature("llama.gpt4all", "consequence", "model-missing",
         r"Could not load model due to invalid format for (?P<file>\S{1,200}\.(?:gguf|bin))"),
    signature("llama.python.context", "cause", "bad-arguments",
         r"could not broadcast input array from shape \(\d{1,9},\) into shape \(0,\)"),
    signature("llama.python.handler", "cause", "bad-arguments",
         r"Invalid chat handler: (?P<handler>[\w.-]{1,60}) \(valid formats"),
    # FastAPI checks a server's own answer
    signature("llama.python.answer", "generic", "bad-arguments",
         r"fastapi\.exceptions\.ResponseValidationError: (?P<count>\d{1,4}) validation"),
    signature("llama.python.decode", "generic", "kv-cache-short",
         r"RuntimeError: llama_decode returned (?:(?P<full>1)|(?P<code>-\d{1,3}))$"),
    signature("llama.python.unmade", "consequence", "host-oom",
         r"ValueError: Failed to create llama_context"),
    signature("llama.kobold.unpacked", "cause", "unknown",
         r"PYI-\d{1,9}:ERROR\] (?:Could not create temporary|Failed to extract)"
         r"|Failed to execute script .{1,80}No space left on device"),
    # Windows runs no program above 4 GiB
    signature("llama.llamafile.large", "cause", "engine-unusable",
         r"\.llamafile(?:\.exe)?\b.{0,300}"
         r"(?:not a valid (?:application|Win32)|can't run on your PC|无法运行)"),
    signature("llama.python.package", "cause", "bad-arguments",
         r"No module named ['\"](?P<module>llama_cpp\w{0,40})\b"
         r"|'NoneType' object has no attribute '(?P<attribute>Llama(?:Cache)?)'"),
    # Windows names the library itself where one that it needs is missing
    signature("llama.python.windows", "cause", "bad-arguments",
         r"Could not find module '(?P<library>[^']{1,300}\.dll)' \(or one of its dependencies\)"),
    signature("llama.python.library", "cause", "bad-arguments",
         r"(?:Failed to load shared library|Shared library with base name|Could not find module) "
         r"'(?P<library>[^']{1,300})'"),
    signature("llama.load", "wrapper", "unknown",
         r"exiting due to (?:model loading error|HTTP server error)"
         r"|failed to initialize HTTP server"),
    signature("llama.download.other", "generic", "network",
         r"failed to download model: |[Dd]ownload failed: |Docker Model download failed"
         r"|Failed to get Docker (?:manifest|registry token)|failed to resolve commit for"),
    signature("llama.request.refused", "generic", "bad-arguments",
         r"\"code\": ?4\d\d,.{0,20}\"message\": ?\"(?P<why>[^\"]{1,300})"),
    signature("llama.proxied", "consequence", "unknown",
         r"http client error: (?P<why>.{1,200})"),
    signature("llama.supervised", "consequence", "engine-died",
         r"llama-server <\w{1,30}> exited with status code (?P<status>-?\d{1,3})"),
    signature("llama.router", "wrapper", "unknown", r"failed to notify router server: "),
    signature("llama.unloaded", "wrapper", "unknown",
         r"error: unable to load model|failed to load model\b"
         r"|failed to create[_ ]context with model"),
    *python.ANY_PROGRAM,
)  # fmt: skip
BY_ID: Mapping[str, Signature] = {row.id: row for row in SIGNATURES}
HARMLESS: tuple[Signature, ...] = (
    signature("llama.benign.mlock", "benign", "unknown",
         r"failed to mlock \d+-byte buffer"),
    signature("llama.benign.cors", "benign", "unknown",
         r"no API key is set and CORS allows all origins"),
    signature("llama.benign.draft", "benign", "unknown",
         r"failed to initialize speculative decoding context|the target and draft vocabs are not"),
    signature("llama.benign.unused", "benign", "unknown", r"model has unused tensor"),
    signature("llama.benign.template", "benign", "unknown",
         r"failed to parse chat template \(defaulting to chatml\)"
         r"(?!.{0,20} Failed to parse number: '\.')"),
)  # fmt: skip
"""Texts that look like a failure, after which llama-server serves anyway."""
