"""Messages of PyTorch, Transformers, NCCL and the model hub: rows for every engine based on
them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from caovand.core.healing.failure import Failure
from caovand.engines.common.logs.rows import (
    binaries,
    checkpoint,
    flashinfer,
    links,
    packages,
    requests,
    runtime,
)
from caovand.engines.common.logs.signature import MAX_LINE, SERVED, Signature, signature

_FRAME = re.compile(
    r'(?:\s*File "|(?=[\w.~/-]{3,300}\.py", line \d))([^"]+)", line (?P<line>\d+)'
    r"(?:, in (?P<function>\S+))?"
)
"""The beginning of an excerpt's first frame may be cut off."""
_FRAME_WITHIN = re.compile(r'(?<![^ ])File "[^"]{1,300}", line \d{1,7}')
_NAMES_EXCEPTION = re.compile(r"(?:Error|Exception|Exit)\b(?:: |\(|$)")
_RAISES = re.compile(r" {2,20}raise (\w{1,60}(?:Error|Exception))\(f?['\"](.{1,300})['\"]\)$")
MAX_REST = 3  # lines of source and marks after a frame
REFUSES = re.compile(
    r"(?:\w{1,40}\.){0,4}(?:Value|Type|Key|Attribute|Assertion|NotImplemented|Index|Import"
    r"|ModuleNotFound|Validation)Error\b"
)
"""Exceptions with which code that reads arguments and configurations refuses them."""
RAISED = 8  # lines before an exception to search for the frame that raised it
UNSURE: Mapping[str, Failure] = {
    **SERVED,
    **dict.fromkeys(
        ("engine", "load", "drafter", "profile", "compile", "kv", "capture", "warmup"), "unknown"
    ),
}
"""In these phases kernels and models run, and their exceptions may be transient or yield to a
rung."""
ROWS = (
    *runtime.ROWS,
    *flashinfer.ROWS,
    *packages.ROWS,
    *links.ROWS,
    *requests.ROWS,
    # Without tokenizer_config.json Transformers looks for a tokenizer by the model's type
    signature("tokenizer.absent", "cause", "model-missing",
         r"Unrecognized configuration class .{1,200} to build an AutoTokenizer", SERVED),
    signature("engine.transformers", "cause", "bad-arguments",
         r"^AttributeError: .{1,80} has no attribute '?(?P<removed>all_special_tokens_extended)"
         r"|^ImportError: cannot import name '(?P<name>\w{1,80})' from '?transformers\b"
         r"|`rope_scaling` must be a dictionary with two|: assert .factor. in rope_scaling$"
         r"|(?:<class )?'(?P<taken>[\w.-]{1,200})'>?'? is already used by a Transformers "
         r"(?:model|config)"
         r"|data did not match any variant of untagged enum \w{1,60}"
         r"|^ModuleNotFoundError: No module named 'transformers\.\S{1,100}'"
         r"|^AttributeError: '(?:\w{1,60}Config|dict)' object has no attribute "
         r"'(?P<attribute>\w{1,80})'"
         r"|^AttributeError: '?(?P<object>\w{0,60}(?:Tokenizer|Processor)\w{0,20})'?"
         r" (?:object )?has no attribute '?(?P<member>\w{1,80})"
         r"|^TypeError: (?:Received a \w{1,80} for argument \w{1,40}, but a "
         r"|Invalid type of HuggingFace \w{1,40}\. )"
         r"|^AttributeError: property '\w{1,60}' of '\w{1,60}' object has no setter"
         r"|^AttributeError: 'list' object has no attribute 'keys'"
         r"|^KeyError: '(?P<rope>original_max_position_embeddings|rope_(?:type|theta|scaling)"
         r"|(?:low|high)_freq_factor|linear_attention|full_attention)'$"
         r"|Unrecognized configuration class|Failed to import transformers\.", SERVED),
    signature("args.parser", "cause", "bad-arguments",
         r"\bthink_(?:start|end)_token .{1,80}\b(?:must|cannot|not)\b"
         r"|could not locate \w{1,40}(?: \w{1,20}/\w{1,20})? tokens? in the tokenizer"
         r"|\w{1,40} (?:reasoning|tool) parser could not locate", SERVED),
    # KeyError: '<tool_call>'
    signature("args.token", "generic", "bad-arguments",
         r"^KeyError: ['\"]<[\w|/▁-]{1,40}>['\"]$", SERVED),
    signature("model.tokenizer", "cause", "model-missing",
         r"(?:Found 0 files matching the pattern: .{0,20}tokenizer.{0,200})?"
         r"that a (?P<mistral>Mistral tokenizer) is present|Found 0 files matching .{0,30}tokenizer"
         r"|Can't load tokenizer for|instantiate the backend tokenizer|^TypeError: not a string$"
         r"|Converting from Tiktoken failed|[Cc]ouldn't build the (?:fast )?tokenizer"),
    signature("model.type", "cause", "bad-arguments",
         r"^KeyError: '(?P<type>(?:qwen|llama|mistral|ministral|mixtral|pixtral|gemma|phi|deepseek"
         r"|glm|chatglm|intern|llava|minicpm|minimax|falcon|gpt|baichuan|granite|cohere|command"
         r"|olmo"
         r"|nemotron|exaone|hunyuan|ernie|kimi|mimo|smol|jamba|mamba|dbrx|seed"
         r"|step)[\w-]{0,40}?(?:_(?P<part>thinker|talker|vision|audio))?)'$"),
    signature("model.quantization", "cause", "backend-unsupported",
         r"No compressed-tensors compatible scheme|does not support \S{1,40} quantization\b"
         r"|[Uu]nsupported quantization\b"
         r"|(?:quantization|quant_method)(?: (?:scheme|method|type|format))? \S{0,40} ?(?:is )?not "
         r"(?:yet )?supported"),
    signature("model.gguf", "cause", "bad-arguments",
         r"GGUF model with architecture (?P<architecture>\S{1,60}) is not supported"
         r"|^ValueError: Architecture (?P<unread>\S{1,60}) not supported"),
    signature("args.template", "cause", "bad-arguments",
         r"default chat template is no longer allowed|ChatTemplateResolutionError"
         r"|tokenizer\.chat_template is not set", SERVED),
    signature("args.connector", "cause", "bad-arguments",
         r"[Uu]nsupported connector type: (?P<connector>\w{1,80})"
         r"|^AssertionError at \S{1,200}: assert issubclass\(connector_cls, (?P<base>\w{1,60})"),
    # TRL before 0.16 gives vLLM the card after those that train
    signature("args.device", "cause", "bad-arguments",
         r"The requested device for vllm \((?P<device>\S{1,20})\) is not available"),
    signature("args.adapter", "cause", "bad-arguments",
         r"expected target modules in .{1,2000}but received|is unsupported LoRA weight"
         r"|is not a supported LoRA|LoRA modules? .{1,200} (?:is|are) not supported", SERVED),
    signature("args.placeholders", "cause", "bad-arguments",
         r"Attempted to assign .{1,80} multimodal tokens to (?P<placeholders>\d{1,9}) placeholders"
         r"|Expected there to be \d{1,6} prompt (?:updates|placeholders|replacements)"
         r"|Failed to apply prompt replacement for mm_items"
         r"|Mismatch in .{1,20} token count between text and"
         r"|Insufficient multimodal embedding length"
         r"|(?:[Ii]mage|[Vv]ideo|[Aa]udio) features and \w{1,20} tokens do not match", SERVED),
    signature("model.adapter", "cause", "model-missing",
         r"No supported config format found in "
         r"(?=(?P<gated>[\w-][\w.-]{0,90}/[\w.-]{1,90}(?![\w./-]))?)(?P<folder>\S{1,300})"),
    *checkpoint.ROWS,
    signature("model.code", "cause", "bad-arguments",
         r"^ModuleNotFoundError: No module named '(?P<code>transformers_modules[^']{0,200})'"
         r"|requires you to execute the \w{0,30} ?file in that repo"
         r"|contains custom code which must be executed|Please pass the argument "
         r"`trust_remote_code"),
    signature("cuda.assertion", "cause", "launch-failure",
         r": block: \[[\d,]{1,40}\], thread: \[[\d,]{1,40}\] Assertion "
         r".(?P<assertion>.{1,200}?). failed"),
    signature("cuda.forked", "cause", "bad-arguments",
         r"Cannot re-initialize CUDA in forked subprocess"),
    *binaries.ROWS,
    signature("transfer.nixl", "generic", "unknown",
         r"^(?:\w{1,40}\.){0,4}nixl\w{1,40}Error: |^RuntimeError: .{0,200}\bNIXL_ERR_\w{1,40}"),
    signature("sampling.nan", "generic", "engine-died",
         r"NaN in the probability|probability tensor contains either|Detected errors during sampl"),
    signature("kernel.deepgemm", "cause", "backend-unsupported",
         r"^(?!.{0,400}NVCC).{0,200}\bdeep_?gemm[\w./-]{0,200}:\d{1,5}\)"),
    signature("kernel.aiter", "cause", "backend-unsupported",
         r"One of GPU archs of (?P<cards>.{1,80}) is invalid or not supported"),
    signature("torch.operator", "cause", "backend-unsupported",
         r"Could not run '(?P<operator>[\w:.]{1,100})' with arguments from the "
         r"'(?P<backend>\w{1,40})' backend"),
    signature("engine.dtype", "cause", "backend-unsupported",
         r"expected scalar type (?P<wanted>\w{1,20}) but found (?P<found>\w{1,20})"
         r"|^RuntimeError: Expected .{1,80}(?:scalar_type|dtype)\(\) == .{1,80} to be true, but got"
         r"|expected (?:m1|mat1) and (?:m2|mat2) to have the same dtype, but got: "
         r"(?:c10::)?(?P<first>\w{1,20}) != (?:c10::)?(?P<second>\w{1,20})"
         r"|\" not implemented for '(?P<kind>Half|BFloat16|Float8_\w{1,10})'", SERVED),
    # Buffers of CUDA graphs that the cards cannot share
    signature("nccl.custom", "cause", "collective-timeout",
         r"custom_all_reduce\w{0,10}\.cuh:\d{1,5}:? .{0,40}invalid argument"),
    signature("nccl.duplicate", "cause", "bad-arguments", r"Duplicate GPU detected : rank"),
    signature("nccl.network", "cause", "collective-timeout",
         r"(?:^|\b)socket\w{0,40}: (?:Connect|connect|bind)\w{0,10} .{0,120}"
         r"(?:failed|returned \d{1,3} ?\((?P<reason>[^)]{1,60})\))"
         r"|Timed out initializing process group|Proxy Call to rank \d{1,4} failed \("
         r"|The client socket has (?:timed out|failed to connect)|Gloo connect\w{1,20} failed"
         r"|/gloo/transport/tcp/\w{1,20}\.cc:\d{1,5}\]|\bmonitoredBarrier\b"
         r"|Call to (?:connect|bind|recv|ibv_\w{1,40}) .{0,60}failed"
         r"|[Nn]o socket interfaces? found|NET/(?:IB|Socket) : "
         r".{0,100}[Gg]ot completion.{0,40}error"),
)  # fmt: skip
# What Transformers, the hub and a quantization's kernels say, within the rows of an engine.
NO_MODEL = (
    r"(?P<bare>Invalid repository ID or local directory specified)|"
    r"(?P<unnamed>is not a local folder and is not a valid model identifier"
    r"|Incorrect path_or_model_id: |RepositoryNotFoundError"
    r"|The request model: \S{1,200} does not exist!"
    r"|HFValidationError: (?!Repo id must be)|Repo id must use alphanumeric chars)"
    r"|Repo id must be in the form(?: '\w{1,20}' or '[\w/]{1,40}': '(?P<no_folder>[^']{1,400})')?"
    r"|(?P<offline>outgoing traffic has been disabled|OfflineModeIsEnabled"
    r"|offline mode is enabled)"
    r"|RevisionNotFoundError|Found 0 files matching the pattern: "
    r"|does not appear to have (?:a file named|files named)|Error no file named "
    r"|Can't load (?:the )?configuration"
)
NO_TENSOR = r"(?P<misfit>: assert .{0,80}\b(?:loaded_weight|param(?:_data)?)\.(?:shape|size\(\)))"
UNEVEN = (
    r"^AssertionError(?:: \d+ is not divisible by \d+| at \S{1,90}: assert \S+ % \S*tp_size == 0)$"
    r"|is not divisible by\s+(?P<marlin>min_thread_[nk])"
    r"|is not divisible by (?:(?P<block>weight quantization block)|group_size)"
    r"|(?:in|out)put size is not aligned with the quantized weight shape"
)
CHOICE = (
    r"argument (?P<chosen>\S{1,100}): invalid choice: '?(?P<choice>[^' ]{1,80})'? "
    r"\(choose from (?P<choices>[^)]{3,3000})"
)
_REFUSES = (
    r"^[\w.]{0,80}Error: (?=.{0,200}(?:(?:\b(?:not|NOT)|n't) (?:currently |yet )?"
    r"(?:support|implement)"
    r"|\b[Uu]nsupported\b|\b[Oo]nly support|\b[Oo]nly .{1,80} (?:is|are) supported))"
)
_NAMED = (
    r"(?:--[a-z][\w-]{2,40}|[`'\"][a-z]{1,30}(?:_[a-z]{1,30}){1,5}[`'\"]"
    r"|(?<=\b[Ss]et )[a-z]{3,30}(?= ?= ?\S)"
    r"|\b[a-z]{2,30}(?:_[a-z]{1,30}){1,5}(?= ?[=(:] ?['\"]?[\w.-]"
    r"| (?:['\"(]\S{1,60} )?(?:must|should|cannot|has to"
    r"|needs to|can only|is (?:not|set|greater|less|larger|smaller))\b))"
)
"""An option, or a setting with its value or a demand on it."""
_DEMAND = (
    r"\b(?:must|should|cannot|can't|can only|has to|needs? to|not allowed|not valid|[Ii]nvalid"
    r"|[Rr]equires?|required|greater|larger|less|smaller|exceeds?|at (?:least|most)|conflicts?"
    r"|exclusive|[Pp]lease (?:set|use|specify|provide|pass|disable|enable)"
    r"|try (?:to )?\w{2,10}ing)\b"
)
# Exceptions of any program, last in an engine's table: its own rows know some of them better.
ANY_PROGRAM = (
    # A call that the called function does not accept: two packages, or a setting and a release, do
    # not fit
    signature("engine.mismatch", "generic", "bad-arguments",
         r"^(?:TypeError|RuntimeError|ValueError): (?:\[address=\S{1,60}, pid=\d{1,10}\] )?"
         r"(?:(?P<callee>(?:[\w<>]{1,80}\.){0,6}[\w<>]{1,80})\(\) |)"
         r"(?:got an unexpected keyword argument '(?P<argument>[\w-]{1,80})'"
         r"|got multiple values for (?:keyword )?argument '(?P<twice>\w{1,80})'"
         r"|missing \d{1,2} required (?:keyword-only |positional )?arguments?: (?P<lacks>.{1,100})"
         r"|takes .{0,20}\d{1,2} positional arguments? but )"
         r"|^AttributeError: (?:partially initialized )?module '(?P<module>[\w.]{1,100})' has no "
         r"attribute '(?P<attribute>\w{1,80})'"
         r"|^(?:AttributeError|ImportError): type object '(?P<type>[\w.]{1,100})' has no attribute "
         r"'(?P<member>\w{1,80})'"
         r"|^AttributeError: '(?P<holder>(?:\w{0,60}(?:Args|Arguments|Params|Request|Client)"
         r"|(?:OpenAI)?Serving\w{0,40}|\w{0,20}LLM(?:Engine)?|list))' object has no "
         r"attribute '(?P<asked>\w{1,80})"
         r"|^TypeError: Unexpected keyword argument '(?P<unknown>\w{1,80})'", UNSURE),
    # A model's class without something that a setting or a request needs
    signature("feature.model", "generic", "bad-arguments",
         r"^AttributeError: '(?P<model>\w{1,60}(?:For[A-Z]\w{1,60}|Model|LMHead\w{0,20}))' object "
         r"has no attribute '(?P<attribute>[\w.]{1,100})'", UNSURE),
    signature("engine.import", "generic", "bad-arguments",
         r"^(?:ModuleNotFoundError|ImportError|importlib\.metadata\.PackageNotFoundError): "
         r"(?:No module named '(?P<uninstalled>(?!vllm|sgl|torch|_)\w{1,60})(?:\.[\w.]{1,100})?'"
         r"|(?:No package metadata was found for )?(?:The ')?(?P<distribution>[\w-]{1,60})"
         r"(?P<release>[<>=!~][^\s']{1,40})?(?:$|' distribution was not found)"
         r"|(?P<hidden>cannot import name '\w{1,80}' from '(?P<namespace>\w{1,60})' \(unknown loc)"
         r"|(?P<missing>.{1,200}))"
         r"|\b(?P<package>[\w-]{1,60}) with minimum required version \S{1,20} is not installed"
         r"|(?:Failed to load shared library|Shared library with base name) "
         r"'(?P<library>[^']{1,200})'", SERVED),
    # A value that is missing in the model's files, or that another Transformers reads from them
    signature("config.none", "generic", "bad-arguments",
         r"^TypeError: (?:unsupported operand type\(s\) for .{1,12}: .{0,60}'NoneType'"
         r"|'[<>]=?' not supported between instances of .{0,60}'NoneType'"
         r"|expected str, bytes or os\.PathLike object, not NoneType)", UNSURE),
    signature("engine.absent", "generic", "bad-arguments",
         r"^\w{1,60}Error: (?P<missing>.{0,120}\b(?:(?:is|are) not installed"
         r"|(?:must|should|(?:needs?|has|have) to) be installed"
         r"|[Pp]lease (?:pip )?install)\b.{0,100})", UNSURE),
    # Kernels are called after what they multiply and who wrote them
    signature("kernel.named", "generic", "backend-unsupported",
         r"^(?:Runtime|Value|Assertion|Type)Error: (?:Worker failed with error ')?"
         r"(?:.{0,80}[ (])?(?P<kernel>\w{0,40}(?:marlin|\wgemm|gemm\w|cutlass|wna16|machete|exllama"
         r"|flash_attn|flash_mla|causal_conv1d)\w{0,40})", SERVED),
    signature("feature.card", "generic", "backend-unsupported",
         _REFUSES + r"(?=.{0,300}\b(?:GPUs?|devices?|[Cc]apability|Turing|Volta"
         r"|[Ss][Mm][_ ]?\d{1,3}|CUDA|ROCm|HIP|head[_ ]?(?:dim|size)\w*|CPU|platforms?"
         r"|architectures?|Ampere|Hopper|Blackwell|kernels?|backends?)\b)"
         r"|^\w{1,60}Error: .{1,120}\bwas not compiled due to "
         r"|[Ff]ailed to dispatch (?:head|group|page|mask|num|dtype)\w{0,20}\b", SERVED),
    signature("feature.combination", "generic", "bad-arguments",
         _REFUSES + r"|^NotImplementedError(?:: \S| at )", UNSURE),
    # A message that names a setting, and the requirement for it
    signature("args.named", "generic", "bad-arguments",
         rf"^(?:\w{{1,40}}\.){{0,4}}(?:Value|Assertion|Argument|NotImplemented)Error: "
         rf"(?=.{{0,400}}{_DEMAND}).{{0,300}}?(?P<setting>{_NAMED})"
         r"|^\w{1,40}Error: .{0,400}\b[Pp]lease (?:adjust|reduce|lower|increase|raise|disable"
         r"|enable|set) (?P<advised>(?:--)?[a-z]{2,30}(?:[_-][a-z]{1,30}){1,5})\b", UNSURE),
)  # fmt: skip
UNSURE_ROWS = frozenset(row.id for row in ANY_PROGRAM if row.by_phase is UNSURE)
HUB = (
    signature("hub.denied", "cause", "access-denied",
         r"GatedRepoError|You are trying to access a gated repo|Cannot access gated repo"
         r"|^Access to model \S{1,200} is restricted|40[13] Client Error"),
    signature("hub.vocabulary", "cause", "network",
         r"Harmony(?:Error| encoding): error downloading or loading vocab file"),
    signature("hub.network", "cause", "network",
         r"LocalEntryNotFoundError|Max retries exceeded with url(?!: /(?:v\d/(?!models/)|generate"
         r"|api/(?:chat|generate|embed|tags)))|50[0234] Server Error"
         r"|CERTIFICATE_VERIFY_FAILED"
         r"|Temporary failure in name resolution|We couldn't connect to 'https?://"
         r"|^(?:requests|httpx|httpcore|urllib3|aiohttp)\.\S*"
         r"(?:Connect|Timeout|Proxy|RemoteProtocolError|ReadError|ChunkedEncodingError)"
         r"\w*(?:: |$)"),
)  # fmt: skip
_RAW = re.compile(
    r"Cannot access gated repo|Access to model |Error while creating shared memory"
    r"|\[?[EF]\d{4} \d\d:\d\d:\d\d\.\d{3,9} (?:\d{1,10} )?\w{1,60}\.cpp:\d{1,6}\] "
    r"|Call to |Proxy Call to rank |socket\w{1,40}: |Bootstrap : "
    r"|nccl(?:System|Internal|Remote|UnhandledCuda)Error: |Invalid config blocking "
    r"|(?:\S{1,200} )?(?:\[\d{1,4}\] )?(?:\S{1,100} )?NCCL WARN "
    r"|(?:[\w./+:-]{1,200}: )?fatal error: \S|.{0,100}\bfatal error C1083: |- \w{1,40}Error: "
    r"|[\w./+-]{0,200}\bld(?:\.\w{2,4})?: (?:error: )?(?:cannot find -l|unable to find library -l)"
    r"|[^\s:]{1,300}\.so[\w.]{0,20}: (?:undefined symbol|cannot open shared|file too short)"
    r"|.{0,200}Warning: CUDA initialization: |The NVIDIA driver on your system is too old"
    r"|Failed to detect NVIDIA driver|ERROR: No supported GPU"
    r"|[\w./+:\\-]{1,300}\.(?:h|hpp|hh|cuh?|c|cc|cpp|cxx)(?::\d{1,6}:\d{1,6}|\(\d{1,6}\)): error"
    r"|.{1,200}: block: \[[\d,]{1,40}\], thread: \[[\d,]{1,40}\] Assertion "
    r"|(?:[\w./-]{1,100}: )?/[\w./+-]{1,300}\.(?:cpp|cc|h):\d{1,6}: .{0,300}Assertion [`']"
    r"|(?:ERROR:\S{1,60}:)?Could not load bitsandbytes native library"
    r"|.{1,90} with CUDA capability sm_\d{2,3} is not|Failed to load Harmony encoding: "
    r"|This kernel only supports sm_?\d|ERROR : Arch conditional MMA"
    r"|\[sgl_kernel\] CRITICAL|(?:nvcc|ptxas) (?:fatal|error)|Failed to import Triton kernels"
)


def as_raised_by_reader(row: Signature) -> Signature:
    """A row as it applies to an exception from code that handles arguments or model files."""
    return replace(row, by_phase=SERVED) if row.id in UNSURE_ROWS else row


def is_raw(line: str) -> bool:
    """Whether a line is evidence although it begins with no exception's name."""
    return bool(_RAW.match(line)) or packages.is_raw(line) or links.is_raw(line)


def cut_at(lines: Sequence[str]) -> int | None:
    """The index of the last frame of a traceback without its end; None if there is none."""
    frames = [n for n, line in enumerate(lines) if _FRAME_WITHIN.search(line[:MAX_LINE])]
    if not frames:
        return None
    rest = [line for line in lines[frames[-1] + 1 :] if line.strip()]
    ended = len(rest) > MAX_REST or any(_NAMES_EXCEPTION.search(line[:MAX_LINE]) for line in rest)
    return None if ended else frames[-1]


def raised_text(lines: Sequence[str]) -> str:
    """The exception of a log that ends with the source which raises it; "" of any other."""
    *before, last = [line for line in lines if line.strip()][-2:] or [""]
    found = _RAISES.match(last)
    return f"{found[1]}: {found[2]}" if found and before and _FRAME.match(before[0]) else ""


def frame_of(line: str) -> re.Match[str] | None:
    """The file, `line` and `function` of a frame of a traceback."""
    return _FRAME.match(line)


def raised_at(before: Iterable[str]) -> str:
    """Where an exception without a message was raised, and by which code, from the lines before.

    The nearest comes first. "" without a frame among them.
    """
    code = ""
    for line in before:
        if frame := _FRAME.match(line):
            file = "/".join(frame[1].replace("\\", "/").split("/")[-2:])
            return f" at {file}:{frame['line']}: {code}"
        code = line.strip() if line.strip(" ^~") else code
    return ""
