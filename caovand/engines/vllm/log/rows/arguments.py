"""Arguments that vLLM refuses, and missing parts of an installation."""

from __future__ import annotations

from caovand.engines.common.logs.rows import python
from caovand.engines.common.logs.signature import SERVED, Signature, signature
from caovand.engines.vllm.log.rows.by_phase import LISTENING, SPLITTING

ROWS: tuple[Signature, ...] = (
    *python.ROWS,
    # Arguments that vLLM refuses
    signature("args.cli", "cause", "bad-arguments",
         r"^(?:(?:vllm|vllm serve|(?:api_server|main)\.py(?: serve)?|\S{0,40}vllm\S{0,40}): error: "
         # of a program with vLLM's arguments, as python -m dynamo.vllm
         r"|__main__\.py: error: (?=unrecognized arguments: --(?:disable-log-requests|swap-space"
         r"|enable-reasoning|guided-decoding-backend|speculative-model|num-s\w{8,10}-\w{4,8}) ?)"
         r"|error: (?=argument |unrecognized arguments: |the following arguments ))"
         r"(?:argument (?:subparser|\{[\w,-]{1,200}\}): invalid choice: '(?P<command>[^']{1,200})'|"
         + python.CHOICE +
         r"|argument (?P<json>\S+): Value (?P<raw>.{1,80}?) cannot be converted to <function "
         r"loads"
         r"|argument (?P<argument>\S+): |unrecognized arguments: "
         r"(?:(?<=^api_server\.py: error: unrecognized arguments: )(?P<demo>--(?:api-key"
         r"|served-model-name|chat-template|response-role|allowed-(?:origins|methods|headers)"
         r"|allow-credentials))(?!\S)"
         r"|(?P<positional>[^\s-]\S{0,200})|(?P<unknown>\S+))"
         r"|the following arguments are required: (?P<required>\S.{0,80}))?"),
    signature("args.v1", "cause", "bad-arguments",
         r"VLLM_USE_V1=1 is not supported with (?P<what>.{1,100}[^.\s])"),
    signature("args.length", "cause", "bad-arguments",
         r"User-specified max_model_len \((?P<len>\d+)\) is greater than the derived "
         r"max_model_len \(\w+=(?P<longest>\d+)"),
    signature("args.split", "cause", "bad-arguments",
         r"number of GPUs per node is not divisible by|(?<!\d)(?P<heads>\d{1,9})\) must be "
         r"divisible by tensor parallel size"
         r"|^AssertionError: assert [\w.]{1,80} % group_size == 0"
         r"|" + python.UNEVEN),
    signature("args.match-unit", "cause", "bad-arguments",
         r"Invalid prefix_match_unit=(?P<unit>\d{1,9})"),
    # A text that names an argument that is too small, and how large it must be
    signature("args.raise", "cause", "bad-arguments",
         r"\b(?P<wanted>\d{1,9})\)? is (?:greater|larger) than (?P<argument>max_\w{1,40})"),
    # A text that names an argument and its limit
    signature("args.limit", "cause", "bad-arguments",
         r"(?:[Ll]ower|[Rr]educe|[Dd]ecrease|[Ll]imit|[Ss]et) [`'\"]?(?:--)?"
         r"(?P<argument>[a-z][a-z_-]{3,40})"
         r"[`'\"]? to (?:at most|no more than|<=|less than or equal to) (?P<most>\d{1,9})"),
    signature("drafts.vocabulary", "cause", "bad-arguments",
         r"^AssertionError at \S{1,200}: assert all\(vocab_sizes\[0\] == vocab_size"
         r"|Target and draft model should have the same vocabulary size\.?(?: Target model "
         r"vocab_size=(?P<target>\d{1,9})\. Draft model vocab_size=(?P<drafts>\d{1,9}))?"),
    signature("drafts.interface", "cause", "bad-arguments",
         r"Model does not support (?P<kind>EAGLE-?3?|Eagle3?) interface"),
    signature("args.uneven", "generic", "unknown",
         r"^ZeroDivisionError: "
         r"|^(?:ValueError|AssertionError|RuntimeError): .{0,300}\bdivisible by\b"
         r"|^AssertionError at \S{1,200}: assert [\w.]{1,80} % [\w.]{1,80} == 0$", SPLITTING),
    signature("args.combination", "cause", "bad-arguments",
         r"Unsupported speculative method|The supplied chat template string"
         r"|invalid (?:tool call|reasoning) parser: (?P<parser>[\w.-]{1,60})"
         r"|(?:does not|doesn't) support (?:LoRA|pipeline parallel)|[Pp]ipeline parallelism is "
         r"not supported"
         r"|block_size \(\d+\) must be <= max_num_batched_tokens"
         r"|max_num_batched_tokens \(\d+\) is smaller than max_model_len"),
    signature("args.lora", "cause", "bad-arguments",
         r"\bLoRA is not enabled\b|lora_request .{0,300}but LoRA is not enabled", SERVED),
    signature("args.async", "cause", "bad-arguments",
         r"\bPP\+async expects\b|\b[Aa]sync(?:hronous)?[ _-]scheduling (?:is |does )?"
         r"(?:currently )?not (?:yet )?(?:support|compatible)"),
    signature("args.address", "generic", "unknown",
         r"\[Errno 99\]|^socket\.gaierror: ", LISTENING),
    signature("engine.package", "cause", "bad-arguments",
         r"^ModuleNotFoundError: No module named '(?P<module>bitsandbytes|gguf|compressed_tensors"
         r"|torchao|gptqmodel|auto_gptq|timm|open_clip|sentencepiece|tiktoken|mistral_common|av"
         r"|librosa|soundfile|runai_model_streamer|tensorizer)\b"
         r"|^ImportError: Please install (?P<package>[\w.\[\]-]{1,60}(?: and "
         r"[\w.\[\]<>=-]{1,60}\w)?)"),
    signature("adapter.failed", "consequence", "bad-arguments",
         r"^RuntimeError: Loading lora (?P<adapter>\S{1,300}) failed$", SERVED),
    signature("engine.broken", "cause", "bad-arguments",
         r"^ImportError: cannot import name '(?P<name>\w{1,80})' from "
         r"(?:partially initialized module )?'vllm\b"
         r"|'_OpNamespace' '(?:_\w{0,30}|vllm)' object has no attribute "
         r"'(?:(?P<awq>awq_\w{1,50})|(?P<operator>\w{1,60}))'"
         r"|^ModuleNotFoundError: No module named '(?P<part>vllm\.\w{0,30}_C\w{0,20})'", SERVED),
    signature("engine.unlinked", "consequence", "bad-arguments",
         r"^Failed to import from vllm\._\w{1,20} with ImportError\(['\"]"
         r"(?P<library>[^\s:]{1,200}): "
         r"(?:undefined symbol|cannot open shared)"
         r"|^Failed to import Triton kernels\b.{0,200}Error: (?P<reason>.{1,200})", SERVED),
    # Its code could not be imported: the reason is in the lines before
    signature("model.uninspected", "generic", "bad-arguments",
         r"CalledProcessError: .{1,200}vllm\.model_executor\.models\.registry|Model architectures "
         r"\['(?=(?P<hears>(?:Voxtral|Whisper|Ultravox|Granite ?Speech|Qwen2?\w{0,6}Audio|MiniCPMO"
         r"|Phi4MM)\w{0,60})?)(?=(?P<speaks>\w{1,40}(?:TTS|ImagePipeline|Talker)\w{0,60})?)"
         r"(?P<architecture>[^']{0,200})'.{0,400}\] failed to be inspected"),
    signature("model.architecture", "cause", "bad-arguments",
         r"Model architectures \['(?P<architecture>[^']{0,200})'.{0,400}\] are not supported"
         r"|Cannot find model module\. '(?P<unlisted>\w{1,80})' is not a registered model"
         r"|\b(?:(?P<body>\w{1,80}Model)|(?P<absent>\w{1,80})) has no vLLM implementation and the "
         r"Transformers|The Transformers implementation of (?P<unfit>\w{1,80}) is not compatible"),
)  # fmt: skip
