"""Texts that Ollama, its runners and their libraries print when they fail: one row per text.

`tests/samples/ollama` has published lines for each row, and lines it must not match.

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
)
from caovand.engines.common.logs.signature import Signature, signature
from caovand.engines.ollama.log import cards

_ROOM: Mapping[str, Failure] = {"kv": "kv-cache-none", "serving": "device-oom-run"}

SIGNATURES: tuple[Signature, ...] = (
    *host.ROWS,
    *ggml.ROWS,
    *building.ROWS,
    *exits.ROWS,
    # Memory
    signature("ollama.ram", "cause", "host-oom",
         r"model requires more system memory \((?P<wanted>[\d.]+ \w{1,5})\) than is available "
         r"\((?P<free>[\d.]+ \w{1,5})\)"
         r"|requested model \((?P<size>[\d.]+ \w{1,5})\) is too large for this system"),
    signature("ollama.ram.buffer", "generic", "host-oom", ggml.RAM),
    signature("ollama.ram.windows", "cause", "host-oom",
         r"paging file is too small|exit status 0xc00000(?:17|12d)\b"
         r"|model request too large for system"),
    # While a model loads, the OOM killer does that; later anything may
    signature("ollama.ram.killed", "cause", "host-oom",
         r"llama[ -](?:runner|server) (?:process (?:has terminated|no longer running): |terminated"
         r".{0,40}\berror=\"?)(?P<silent>signal: kill)", {"serving": "engine-died"}),
    signature("ollama.cuda.cache", "cause", "kv-cache-none",
         r"failed to allocate buffer for kv cache"
         r"|failed to allocate " + cuda.BUFFER + r" for kv cache"),
    signature("ollama.cuda.weights", "cause", "device-oom-load",
         r"unable to allocate backend buffer|alloc_tensor_range: failed to allocate"
         r"|unable to allocate " + cuda.BUFFER + r"|memory layout cannot be allocated"
         r"|llama-server reported out-of-memory during startup"),
    signature("ollama.cuda.compute", "cause", "device-oom-capture",
         r"failed to allocate compute buffers|graph_reserve: failed to allocate|failed to allocate "
         + cuda.BUFFER + r" of size (?P<bytes>\d+)"),
    signature("ollama.cuda.oom", "generic", "device-oom-load",
         cuda.NO_MEMORY + r"|cudaMalloc failed: out of memory", _ROOM),
    signature("ollama.metal.oom", "cause", "device-oom-load", cuda.NO_MEMORY_OF_METAL, _ROOM),
    # The card
    *cards.ROWS,
    *kernel.CARD_LOST,
    *cuda.STATES,
    signature("ollama.cuda.absent", "cause", "gpu-absent", cuda.ABSENT),
    signature("llama.metal", "cause", "backend-unsupported", cuda.METAL),
    signature("ollama.cuda.arch", "cause", "backend-unsupported", cuda.NO_KERNEL),
    signature("ollama.cuda.illegal", "cause", "illegal-access", cuda.ILLEGAL),
    signature("ollama.cuda.launch", "cause", "launch-failure", cuda.LAUNCH),
    signature("ollama.cuda.other", "generic", "launch-failure", cuda.OTHER),
    *kernel.OF_PROGRAM,
    # The model
    *ggml.FILE[:-1],
    signature("ollama.model.architecture", "cause", "bad-arguments",
         ggml.ARCHITECTURE),
    signature("ollama.model.newer", "cause", "bad-arguments",
         r"(?P<newer>requires a newer version of Ollama|not supported by your version of Ollama"
         r"|pull model manifest: 412|\bError: invalid version$)"),
    signature("ollama.model.unknown", "cause", "model-missing",
         r"pull model manifest: (?P<why>model not found|file does not exist)"
         r"|model ['\"\\]{0,3}(?P<name>[\w.:/-]{1,200}?)['\"\\]{0,3} not found"
         r"|no model found|invalid model (?:name|reference)"
         r"|404 (?:Client Error: )?Not Found'? for url:? '?http\S{1,100}:11434/(?:api|v1)/"),
    # Error: digest mismatch, file must be downloaded again: want sha256:8de9, got sha256:e3b0
    signature("ollama.digest", "cause", "network",
         r"digest mismatch, file must be downloaded again: want .{10,90}, got "
         r"(?:sha256:(?P<empty>e3b0c44298fc)|(?P<got>sha256:\w{12}))"),
    signature("ollama.model.damaged", "cause", "model-missing",
         r"digest mismatch|split GGUF .{0,200}(?:missing|invalid|duplicate|does not match)"
         r"|offset\+size .{0,60}exceeds file size|error decoding ggml"
         r"|couldn't (?:open|stat) (?:model file|projector file|blob)|blob \".{1,100}\" not found"
         r"|config \".{1,100}\" not found in manifest|no projector tensors found"
         r"|this model may be incompatible with your version"),
    signature("ollama.sharded", "cause", "bad-arguments",
         r"contains sharded GGUF|sharded GGUF.{0,60}not supported"),
    # Since 0.5.5 clients send fields that older servers do not know, and the other way round
    signature("ollama.create", "cause", "bad-arguments",
         r"(?P<server>path or Modelfile are required)|(?P<client>neither 'from' or 'files' was "
         r"specified)"),
    signature("ollama.import", "cause", "bad-arguments",
         r"error converting from safetensors|(?:unsupported|unknown) architecture"
         r"(?: \"(?P<architecture>\w{1,100})\"|$)|unsupported content type: unknown"
         r"|^(?:Error: )?unknown type$"
         r"|Models based on '(?P<based>[^']{1,100})' are not yet supported"),
    signature("ollama.model.unsupported", "cause", "bad-arguments",
         r"(?:unsupported|unknown) architecture|unsupported (?:content type|model format)"),
    signature("ollama.capability", "cause", "bad-arguments",
         r"(?<!server )does not support (?:(?P<write>chat|generate)|(?P<what>completion|embedding"
         r"|tools|thinking|vision|insert|image|think))s?\b"
         r"|(?P<embedding>embedding models do not support chat)"),
    signature("ollama.template", "cause", "bad-arguments",
         r"template: .{0,60}:\d{1,6}: function \\?\"(?P<function>\w{1,40})\\?\" not defined"
         r"|template: .{0,80}: executing .{0,200}error calling (?P<called>\w{1,40})"),
    # FROM: command not found; 'FROM' is not recognized as an internal or external command
    signature("ollama.modelfile.typed", "cause", "bad-arguments",
         r"(?P<word>FROM): (?:command )?not found|^['‘](?P<typed>FROM)['’] "),
    signature("ollama.modelfile", "cause", "bad-arguments",
         r"no FROM line|(?P<words>command must be one of)|no Modelfile or safetensors files found"
         r"|unknown parameter '(?P<parameter>[^']{1,60})'|invalid (?:int|float|bool) value"
         r"|template: .{0,60}:\d{1,6}: |template error: |no matching template found"
         r"|undefined (?:template specified|branch|action in template)|chat template prompt error"
         r"|failed to parse Modelfile|specified Modelfile wasn't found"),
    # panic: interface conversion: interface {} is nil, not *ggml.array[string]
    signature("ollama.model.metadata", "cause", "model-missing",
         r"interface conversion: interface \{\} is nil, not \*?(?:ggml\.)?(?P<kind>\w{1,20})"),
    signature("ollama.model.vocabulary", "cause", "model-missing",
         r"error loading model ?vocabulary: (?P<why>.{1,200})"),
    ggml.FILE[-1],
    signature("ollama.model.unloadable", "generic", "model-missing",
         r"unable to load model: (?P<path>[^\s\"]{1,400})"),
    # The registry
    signature("ollama.hub.denied", "cause", "access-denied",
         r"pull model manifest: (?:40[13]|unauthorized|access denied)|\bunauthorized: "
         r"|status code:? 40[13]"),
    # LangChain's words for what a proxy answers in place of the server
    signature("ollama.gateway", "cause", "network",
         r"Ollama call failed with status code (?P<status>50[234])\b"
         r"(?!.{0,40}(?:llama|model|runner))"),
    signature("ollama.hub.failed", "cause", "network",
         r"pull model manifest: (?:429|5\d\d)"
         r"|^(?:Error: )?50[0234]: (?!.{0,60}(?:llama|model|runner))"),
    signature("ollama.address", "cause", "bad-arguments",
         r"listen tcp (?P<host>\S{0,100}):(?P<port>\d{1,5}): bind: (?:cannot assign requested addr"
         r"|.{0,60}address is not valid)"
         r"|(?P<form>listen tcp:? lookup tcp\S{0,60}: unknown port"
         r"|listen tcp:? address \S{1,100}: (?:too many colons|missing port|invalid port))"
         r"|listen tcp:? lookup (?P<asked>\S{1,200}): no such host"
         r"|dial tcp:? lookup (?P<named>(?:0\.0\.0\.0|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|https?)"
         r"[^\s\w.]\S{0,100}): no such host"),
    *network.ROWS,
    # A client's last lines of a pull; while a model loads, the server's words are others
    signature("ollama.pull.ended", "cause", "network",
         r"^Error: (?:context deadline exceeded|(?:unexpected )?EOF|read tcp [^\s]{3,60}->\S{3,60}:"
         r" .{1,120}|http2: client connection \w{1,10}|local error: tls: .{1,60})$"),
    # The machine
    signature("disk.full", "cause", "unknown",
         r"(?:(?:write|open|mkdir|create) (?P<path>\S{1,300}): )?no space left on device"
         r"|There is not enough space on the disk"),
    signature("ollama.runner.missing", "cause", "engine-unusable",
         r"fork/exec \S{1,300}: (?:no such file|exec format|.{0,80}cannot find the)"
         r"|llama-server binary not found|unable to locate llm library|no runners? (?:found"
         r"|available)|error starting (?:runner|llama-server): |could not locate ollama app"
         r"|Unable to load dynamic (?:server )?library"),
    # Releases before 0.5.8 unpack their runners there at each start
    signature("ollama.runner.unpacked", "cause", "access-denied",
         r"open (?P<path>/(?:tmp|var/tmp)/ollama\d{1,12}/\S{1,200}?): ?permission denied"),
    # A container's user without a home of its own: HOME is /, or still root's
    signature("ollama.access.root", "cause", "access-denied",
         r"(?:open|mkdir|stat|lstat) (?P<path>(?P<home>/(?:root(?=/))?)/?\.ollama(?:/\S{0,200}?)?)"
         r": ?permission denied"),
    # A unit with ProtectHome= is refused what its user may read
    signature("ollama.access.home", "cause", "access-denied",
         r"(?:open|mkdir|stat|lstat|remove|rename|chmod|unlinkat) "
         r"(?P<path>/(?:home|run/user)(?:/\S{1,300}?)?): ?(?:permission denied|read-only file)"),
    signature("ollama.access.made", "cause", "access-denied",
         r"(?:mkdir|remove|rename|chmod|unlinkat) (?P<path>\S{1,300}?): ?permission denied"),
    signature("ollama.access", "cause", "access-denied",
         r"(?:open|mkdir|stat|lstat|remove|rename|chmod|fork/exec|unlinkat) (?P<path>\S{1,300}?): ?"
         r"(?:permission denied|operation not permitted|read-only file system|Access is denied)"
         r"|exit status (?P<windows>0xc0000022)"
         r"|status: Permission denied \[(?P<library>[^\]]{1,300})\]"),
    signature("ollama.path", "cause", "bad-arguments",
         r"(?:open|mkdir|stat|lstat) (?P<path>\S{1,300}?): (?:not a directory|file exists)"),
    signature("ollama.file", "consequence", "model-missing",
         r"^Error: (?:open|stat|lstat) (?P<path>[^\s=]{1,300}): (?:file does not exist|no such file"
         r"|The system cannot find)"),
    signature("ollama.home", "cause", "access-denied", r"\$HOME is not defined"),
    signature("ollama.port", "cause", "port-busy",
         r"listen tcp (?P<host>\S{0,100}):(?P<port>\d{1,5}): bind: "
         r"(?!permission denied|.{0,80}forbidden)"),
    signature("ollama.port.reserved", "cause", "access-denied",
         r"listen tcp (?P<host>\S{0,100}):(?P<port>\d{1,5}): bind: .{0,80}forbidden"),
    signature("ollama.request.context", "cause", "bad-arguments",
         r"input length exceeds (?:the |maximum )?context length|Error: context length exceeded"
         r"|prompt is longer than the context length"),
    signature("ollama.request.image", "cause", "bad-arguments",
         r"only supports one image while more than one|image URLs are not currently supported"
         r"|invalid image (?:input|data|index|type: (?P<type>[\w/.+-]{3,40}))"
         r"|(?:decode|encode) WebP image|[Ff]ailed to (?:load|decode|process) image"
         r"|unable to decode image"),
    signature("ollama.tool-call", "cause", "bad-arguments",
         r"invalid tool call arguments|failed to parse function call arguments"
         r"|error parsing tool call|failed to parse tool call|XML syntax error"),
    signature("ollama.numbers", "cause", "answers-degenerate",
         r"(?P<numbers>logits sum to NaN|contains NaN or Inf|unsupported value: [+-]?(?:NaN|Inf)"
         r"|invalid logits(?! id)|failed to sample token)"),
    signature("ollama.cloud", "cause", "access-denied",
         r"requires sign in|to be signed in to Ollama|^Error: 401 Unauthorized$|plan upgrade requ"
         r"|requires a subscription|not (?:currently )?signed in|account unavailable"
         r"|remote inference is unavailable|cannot run this remote model"
         r"|cloud (?:is )?disabled|couldn't verify sign-in|not authorized to push"
         r"|(?:weekly|hourly|session|usage) limit reached|you've reached your .{0,20}usage limit"),
    signature("ollama.plain", "cause", "bad-arguments", r"insecure protocol http"),
    signature("ollama.mlx.mixed", "cause", "engine-unusable",
         r"CHECK failed: mlx_\w{1,60}|Failed to load MLX dynamic library symbols"),
    signature("ollama.mlx", "cause", "backend-unsupported",
         r"requires MLX support|MLX (?:runtime|library) .{0,40}not (?:available|found)"
         r"|failed to (?:load|initialize) MLX"),
    *ggml_families.ROWS,
    # Ends
    signature("ollama.assertion", "cause", "engine-died",
         r"process (?:has terminated|no longer running): (?:exit status \w{1,12}:? |-1 )?"
         r"(?:error:)?GGML_ASSERT\((?P<check>.{1,160})\) failed"),
    signature("ollama.instruction", "cause", "backend-unsupported",
         r"signal: illegal instruction|exit status 0xc000001d"),
    signature("ollama.library", "cause", "engine-died", r"exit status 0xc0000(?:135|139|07b)"),
    # exit status 0xc0000409; Exception 0xc0000005 0x8 0x7ff8993acb12
    signature("ollama.windows", "consequence", "engine-died",
         r"(?:exit status |^Exception )0xc0000(?P<code>409|005|374|094|0fd)\b"),
    # The server itself ends a runner that takes too long, and the kernel one that takes too much
    signature("ollama.slow.killed", "cause", "host-oom", r"llama\.go:\d{1,6}: signal: killed"),
    # A request's context is canceled when its client leaves
    signature("ollama.client.gone", "consequence", "start-stall",
         r"client connection closed before (?:server|llama-server) finished loading"
         r"|timed out waiting for (?:llama[ -](?:runner|server)|server) to start: context cancel"),
    signature("ollama.slow", "generic", "start-stall",
         r"timed out waiting for (?:llama[ -](?:runner|server)|server) to start"),
    *ggml.ENDS,
    signature("ollama.crash", "consequence", "engine-died",
         r"^(?:SIG[A-Z]{3,5}: |panic: |signal arrived during |fatal error: "
         r"|goroutine \d{1,9} (?:gp=|\[)|runtime\.goexit\(|created by \S{1,200} in goroutine \d"
         r"|github\.com/ollama/\S{1,200}\()"),
    signature("ollama.reason", "wrapper", "unknown",
         r"process (?:has terminated|no longer running): (?:exit status \w{1,12}:? |-1 )?"
         r"(?:error|llama_)"),
    signature("ollama.runner", "wrapper", "engine-died",
         r"model runner has unexpectedly stopped"
         r"|llama[ -](?:runner|server) process (?:has terminated|no longer running)"
         r"|^Error: (?:llama runner exited|failed to start a llama)"
         r"|llama[ -](?:runner|server) (?:terminated|stopped with error)"
         r"|(?:NewLlamaServer|Load) failed|error loading llama server|llama-server error: "
         r"|an error was encountered while running the model"
         r"|(?:post predict|do load request|(?P<embedding>do embedding request)"
         r"|POST predict)(?: error=|: ).{1,200}"
         r"(?:: EOF|connection reset|forcibly closed)"),
    # Post "http://127.0.0.1:11434/api/chat": read tcp 127.0.0.1:62078->127.0.0.1:11434: wsarecv
    signature("ollama.client.cut", "consequence", "engine-died",
         r"Post \\?\"http://(?:127\.0\.0\.1|localhost|\[::1\]|0\.0\.0\.0):\d{1,5}/api/"
         r"(?P<call>chat|generate|embed\w{0,8})\\?\": (?:EOF|read tcp)"),
    signature("ollama.client", "consequence", "engine-died",
         r"could not connect to (?:a running )?[Oo]llama|[Oo]llama server not responding"
         r"|(?:Post|Head|Get) \\?\"http://(?:127\.0\.0\.1|localhost|\[::1\]|0\.0\.0\.0):\d{1,5}/"
         r"(?:api/\w{1,20})?\\?\": (?:EOF|dial tcp|read tcp)"),
    signature("ollama.app", "consequence", "engine-died",
         r"server crash \d{1,6} - exit code (?P<crash>32212\d{5})"
         r"|(?P<status>server crash \d{1,6} - exit code \d{1,10}|failed to restart server)"),
    signature("ollama.http", "consequence", "unknown",
         r"Ollama: 50\d, message='"),
    signature("ollama.origin", "cause", "access-denied",
         r"[Oo]llama.{0,80}\b403 Forbidden|:11434/\S{0,60}' from origin '(?P<origin>[^']{1,100})' "
         r"has been blocked by CORS"),
    signature("ollama.canceled", "generic", "start-stall",
         r"[Oo]llama.{0,100}context (?:canceled|deadline exceeded)"),
    # JSON has no Infinity, which a model's config.json may hold
    signature("ollama.create.infinite", "cause", "bad-arguments",
         r"^Error: invalid character 'I' (?:looking for beginning of value$|in numeric literal$)"),
    signature("ollama.answer", "cause", "network",
         r"invalid character '[^']{1,4}' (?:looking for beginning|after top-level|in literal)"
         r"|unexpected end of JSON input"),
    # Classes of what the server, its client and the conversion refuse
    signature("ollama.family.file", "generic", "model-missing",
         r"\b(?:GGUF|gguf)\b.{0,80}(?:invalid|exceeds|overflow|not in|length|pattern|shards|failed)"
         r"|failed to read tensor|tensor \S{1,100} (?:size|offset|elements|dimensions)\b"
         r"|^(?:Error: .{0,30}: )?(?:tensor \S{1,100} not found|unsupported (?:alignment|version"
         r"|(?:file )?type|tensor dimensions)\b)|improper type for '|parameter count overflow"
         r"|error reading GGUF item"
         r"|architecture not set|no longer compatible with your version of Ollama"),
    signature("ollama.family.import", "generic", "bad-arguments",
         r"unknown (?:tokenizer format|data type|storage type)|could not parse tokenizer merges"
         r"|fp8 (?:scale|block|tensor)|invalid chat_template|llama-quantize|no files provided to"
         r"|quantization is only supported for|not in GGUF format|insecure path: |empty split GGUF"
         r"|file path must be relative|DRAFT|draft (?:model|quantization)|neither 'from' or 'files'"
         r"|no base model was found|only one adapter|adapter"),
    signature("ollama.family.context", "generic", "bad-arguments",
         r"exceeds maximum context length"),
    signature("ollama.parallel", "cause", "bad-arguments",
         r"(?:models?|mllama) (?:do|does)(?:n't| not) support parallel requests"),
    signature("ollama.family.busy", "generic", "bad-arguments",
         r"maximum pending requests exceeded|no slots available after"),
    signature("ollama.family.download", "generic", "network",
         r"pull model manifest: |^(?:Error: .{0,40})?http status \d{3}|part stalled"
         r"|maximum redirects exceeded|unexpected status code|unexpected http status"),
    signature("ollama.family.refused", "generic", "bad-arguments",
         r"^(?:Error: )?(?:\d{3} [A-Z][\w ]{1,30}: )?(?:option|invalid|unknown|unsupported|missing"
         r"|message role|name|source|destination|requires|think) .{0,200}"
         r"|must be (?:one of|a |an |of type|between)|raw mode does not support"
         r"|exceeds maximum limit|require input text|requires an interactive terminal|only one of '"
         r"|^(?:Error: )?400 Bad Request: "),
    signature("ollama.silent", "consequence", "unknown",
         r"something went wrong, please see the ollama server logs"),
    signature("ollama.error", "wrapper", "unknown",
         r"^(?:transferring context {1,3})?Error: (?P<why>.{1,300})"),
)  # fmt: skip
BY_ID: Mapping[str, Signature] = {row.id: row for row in SIGNATURES}
HARMLESS: tuple[Signature, ...] = (
    signature("ollama.amd", "benign", "unknown", r"ollama recommends running the https://www\.amd"),
    signature("ollama.no-gpu", "benign", "unknown", r"no compatible GPUs were discovered"),
    signature("ollama.truncated", "benign", "unknown",
         r"^input length exceeds (?:the )?context length"),
    signature("ollama.unloaded", "benign", "unknown",
         r"finished request signal received after model unloaded"),
    signature("ollama.flash", "benign", "unknown",
         r"flash attention enabled but not supported by (?:model|gpu)"),
)  # fmt: skip
"""Texts after which Ollama serves anyway."""
