"""Requests, templates and tasks that engines in Python refuse: rows for their tables.

A request ends no engine: its rows are consequences, which count only if nothing else is found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from caovand.core.healing.failure import Failure, Finding
from caovand.engines.common.logs.signature import MAX_LINE, signature

_LATER: Mapping[str, Failure] = {"serving": "unknown", "http": "unknown"}
"""A server refuses requests every day: its end, if it comes without a word, has another cause."""
ROWS = (
    signature("args.tools", "consequence", "bad-arguments",
         r"tool choice requires --enable-auto-tool-ch", _LATER),
    # TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser, at the start
    signature("args.tools.parser", "cause", "bad-arguments",
         r"--enable-auto-tool-choice requires"),
    signature("args.media", "consequence", "bad-arguments",
         r"You set (?P<media>\w{1,20})=(?P<allowed>\d{1,4}).{0,60}--limit-mm-per-prompt"
         r"|[Aa]t most (?P<most>\d{1,4}) (?P<kind>\w{1,20})\(s\) may be provided"
         r"|\b(?P<items>[a-z]{3,20}) items? .{0,60}exceeds? .{0,40}limit.mm.per.prompt", _LATER),
    # a(n) image item with length 4200, which exceeds the pre-allocated encoder cache size 3721
    signature("args.encoder", "consequence", "bad-arguments",
         r"\b(?P<sense>\w{3,20}) item with length (?P<length>\d{1,9}), which exceeds the "
         r"pre-allocated encoder cache size (?P<cache>\d{1,9})", _LATER),
    signature("args.processor", "consequence", "bad-arguments",
         r"Failed to apply (?P<processor>\w{1,80}Processor\w{0,20}) on data", _LATER),
    signature("args.context", "consequence", "bad-arguments",
         r"maximum context length is (?P<limit>\d{1,9}) tokens"
         r"|prompt \(total length (?P<total>\d{1,9})\) is too long to fit into the model "
         r"\(context length (?P<holds>\d{1,9})\)"
         r"|max_tokens must be at least 1, got -\d|max_completion_tokens' is too large"
         r"|[Pp]rompt .{0,60}longer than the maximum model length of (?P<most>\d{1,9})"
         r"|Requested token count exceeds the model's maximum context length of "
         r"(?P<longest>\d{1,9}) tokens"
         r"|(?:[Ii]nput|[Pp]rompt) .{0,60}(?:is longer than|exceeds) the model's context length"
         r"(?: \((?P<window>\d{1,9}) tokens)?", _LATER),
    # Input prompt (2501 tokens) is too long and exceeds limit of 2048
    signature("args.prompt", "consequence", "bad-arguments",
         r"Input prompt \((?P<tokens>\d{1,9}) tokens\).{0,40} is too long and exceeds "
         r"(?:limit of (?P<limit>\d{1,9})|(?P<cache>the capacity of block_manager))", _LATER),
    # A KV pool smaller than the model's context
    signature("args.pool", "consequence", "bad-arguments",
         r"Input length \((?P<tokens>\d{1,9}) tokens\) exceeds the maximum allowed length "
         r"\((?P<limit>\d{1,9}) tokens\)", _LATER),
    signature("args.decode", "consequence", "bad-arguments",
         r"LibsndfileError: |cannot identify image file|UnidentifiedImageError|moov atom not found"
         r"|Failed to (?:load|decode|open|fetch) (?:image|audio|video)s?\b"
         r"|Invalid data found when processing input", _LATER),
    signature("args.roles", "consequence", "bad-arguments",
         r"[Cc]onversation roles must alternate|[Ss]ystem role (?:is )?not supported"
         r"|[Oo]nly user(?:, tool)? and assistant roles are supported"
         r"|Error in applying chat template|[Ss]ystem message must be at the beginning", _LATER),
    # What a template's author wrote for messages that it does not take
    signature("args.raised", "consequence", "bad-arguments",
         r"jinja2\.exceptions\.TemplateError: (?:"
         r"(?P<calls>.{0,100}\bsingle tool-calls? at once.{0,40})|(?P<raised>.{3,300}))", _LATER),
    # Mistral's own tokenizer, for which not all of an engine's features are made
    signature("tokenizer.mistral", "cause", "bad-arguments",
         r"^AttributeError: '(?:Mistral|Tekken)Tokenizer' object has no attribute "
         r"'(?P<member>\w{1,60})", _LATER),
    signature("args.field", "consequence", "bad-arguments",
         r"'type': 'missing', 'loc': \('body', '(?P<field>\w{1,40})'\), 'msg': 'Field required'",
         _LATER),
    # The arguments of a call in a client's history are a text, and the template wants an object
    signature("args.arguments", "consequence", "bad-arguments",
         r"Can only get item pairs from a mapping"
         r"|UndefinedError: 'str object' has no attribute '(?:items|keys)'", _LATER),
    # What the answer must follow: a JSON schema, a grammar or a regular expression
    signature("args.grammar", "consequence", "bad-arguments",
         r"(?P<schema>schema contains features not supported by \w{1,20}|[Uu]nsupported (?:JSON )?"
         r"[Ss]chema\b[^'\"]{0,80}|Grammar error: (?:Unknown format|Unimplemented)[^'\"]{0,80})"
         r"|(?P<text>EBNF pars\w{1,3} error.{0,100}|Grammar error: [^'\"]{3,100}"
         r"|Failed to (?:parse|compile|convert) (?:the )?(?:\w{1,20} )?(?:grammar|regex)\b.{0,100})"
         r"|(?P<rejected>grammar rejected tokens|Failed to advance FSM for request)", _LATER),
    # The template's own text, not a message
    signature("args.template.code", "cause", "bad-arguments",
         r"jinja2\.exceptions\.Template(?:Syntax|Assertion|Runtime)Error: (?P<why>.{3,200})"
         r"|jinja2\.exceptions\.UndefinedError: (?P<undefined>.{3,200})", _LATER),
    signature("args.task", "consequence", "bad-arguments",
         r"[Tt]he model does not support (?:(?P<pools>(?:Embeddings?|Pooling|Scor\w{1,5}"
         r"|Rerank\w{0,4}|Classif\w{1,10})(?: \(\w{1,30}\))?)"
         r"|(?P<writes>(?:Chat )?Completions?)|(?P<hears>Transcriptions?|Translations?)"
         r"|(?P<api>.{1,40}?)) API\b", _LATER),
    # 1 validation error for list[function-wrap[__log_extra_fields__()]]: Invalid JSON: EOF while
    # parsing an object, for an answer that must be a tool call
    signature("args.call", "consequence", "bad-arguments",
         r"validation error for list\[function.{0,200}?Invalid JSON: (?P<cut>EOF while parsing)?",
         _LATER),
    signature("args.runner", "cause", "bad-arguments",
         r"Model Runner V2 (?:supports|does not|doesn't|requires|is not)\b"
         r"|V2 model runner does not"),
)  # fmt: skip
OF_LLAMA = (
    signature("llama.request.image", "cause", "bad-arguments",
         r"not compiled for multimodal or the model projector|(?:image"
         r"|audio) input is not supported"
         r"|multimodal is not supported|(?P<textual>Unsupported content part type)", _LATER),
    signature("llama.request.undecoded", "cause", "bad-arguments",
         r"failed to decode (?:image|audio) bytes|Unable to preprocess (?:image|audio)"
         r"|empty audio data", _LATER),
    signature("llama.request.context", "generic", "bad-arguments",
         r"request \((?P<asked>\d{1,9}) tokens\) exceeds the available context size "
         r"\((?P<slot>\d{1,9}) tokens\)"
         r"|(?P<context>exceeds the available context size|exceed_context_size_error"
         r"|Prompt exceeds n_ctx|Context size has been exceeded)"
         r"|[Rr]equested tokens \((?P<needed>\d{1,9})\) exceed context window"
         r" of (?P<window>\d{1,9})", _LATER),
    # minja's form: TEXT at row 290, column 178:\n{{- raise_exception(
    signature("llama.template.raised", "generic", "bad-arguments",
         r"(?:message['\"\\]{1,4}: ?['\"\\]{1,4}|: |^)(?P<raised>[A-Z][^\"{}]{3,300}?) at row "
         r"\d{1,6}, column \d{1,6}:",
         _LATER),
    signature("llama.template.request", "generic", "bad-arguments",
         r"While executing \w{1,40} at line \d|Jinja Exception: (?P<why>.{1,200})"
         r"|[Uu]nable to generate parser for this template"
         r"|\brequires? (?P<option>--jinja)\b|Failed to (?:infer|parse) tool call"
         r"|jinja2?\.exceptions\.\w",
         _LATER),
    signature("llama.request.grammar", "cause", "bad-arguments",
         r"(?:error|failed to) pars(?:ing|e) grammar|error initializing grammar sampler"
         r"|Failed to initialize samplers(?!: Unexpected empty grammar)", _LATER),
    signature("llama.request.stack", "cause", "bad-arguments",
         r"Failed to initialize samplers: Unexpected empty grammar", _LATER),
    signature("llama.request.tools", "cause", "bad-arguments",
         r"Unsupported param: (?P<param>\w{1,40})", _LATER),
    signature("llama.request.batch", "generic", "bad-arguments",
         r"input (?:\((?P<tokens>\d{1,9}) tokens\) )?is too large to process"
         r"|increase the physical batch size|batch size \d{1,9} > maximum allowed batch size",
         _LATER),
)  # fmt: skip
MAX_TEXT = 400  # characters kept of a line
NO_PATH = "args.path"
"""The signature of a path that the server does not have."""
_NOT_FOUND = re.compile(
    r"(?:^|.{0,120} )\"(?:POST|GET) (?P<path>/(?:generate(?:_stream)?|api/(?:chat|generate|tags)"
    r"|(?:chat/)?completions|v1/v1/\S{1,60}|(?:v1/)?chat|embeddings))/? HTTP/[\d.]{1,3}\" 404\b"
)
"""Paths of other servers, or misspelt ones. A 404 of a path that exists is of an unknown model."""


def unknown_path(lines: Sequence[str]) -> Finding | None:
    """The finding of a client that asks for a path of another server; None without one."""
    for number, line in enumerate(lines, 1):
        if found := _NOT_FOUND.match(line[:MAX_LINE]):
            text, named = line.strip()[:MAX_TEXT], found.groupdict()
            return Finding("bad-arguments", text, "serving", named, NO_PATH, number)
    return None


ADVICE: Mapping[str, tuple[str, ...]] = {
    NO_PATH: (
        "The server has no path {path}, and answers 404. vLLM has OpenAI's paths: let the client "
        "use /v1/completions or /v1/chat/completions (a base URL that ends in /v1; /v1/models "
        "lists the models). /generate is a path of the demo server, vllm.entrypoints.api_server, "
        "and /api/chat one of Ollama.",
    ),
    "args.tools": (
        "The client lets the model choose tools, and the server was started without support for "
        "it: start it with --enable-auto-tool-choice and the --tool-call-parser that the model's "
        "page names, or let the client send no tools (or tool_choice none).",
    ),
    "args.tools.parser": (
        "--enable-auto-tool-choice needs --tool-call-parser, too, with the parser that the model's "
        "page names.",
    ),
    "args.encoder": (
        "One {sense} takes {length} tokens, and the encoder's cache has {cache}: let the client "
        "send a smaller one, let the processor make it smaller (max_pixels or size in "
        "--mm-processor-kwargs), or start the server with --max-num-batched-tokens of at least "
        "{length}, by which the cache is sized; --limit-mm-per-prompt counts items, not tokens.",
    ),
    "args.processor": (
        "The model's processor ({processor}) failed on what the request brings; why is in the "
        "traceback in the server's own log. If every request fails, the installed Transformers is "
        "not the release that the model's page or the engine requires; if only this one does, its "
        "image or sound is damaged or too small, or has no placeholder in the prompt.",
    ),
    "args.media": (
        "A prompt has more {media} items than the server allows ({allowed}): start it with a "
        "larger --limit-mm-per-prompt, or send fewer.",
        "The server allows {most} per prompt of the kind {kind}: start it with a larger "
        "--limit-mm-per-prompt, or send fewer.",
        "A prompt has more {items} items than --limit-mm-per-prompt allows: raise it, or send "
        "fewer.",
    ),
    "args.context": (
        "Prompt and answer together are longer than the context that the server was started with "
        "({limit} tokens).",
        "Prompt and answer together are longer than the context that the server was started with "
        "({longest} tokens).",
        "The prompt has {total} tokens with those of its images, and the server was started with a "
        "context of {holds}: raise --max-model-len as far as the model and the memory allow, or "
        "send less text, and fewer or smaller images.",
        "The prompt is longer than the context that the server was started with ({most} tokens).",
        "The prompt is longer than the context that the server was started with ({window} tokens).",
        "Let the client send a shorter prompt and ask for less (max_tokens), or start the server "
        "with a longer context (--max-model-len, --context-length) as far as the model and the "
        "memory allow.",
    ),
    "args.prompt": (
        "The scheduler refused a prompt of {tokens} tokens: its limit is {limit}, the smaller one "
        "of --max-num-batched-tokens and --max-model-len. Raise the one that has this value, or "
        "let long prompts be computed in parts (--enable-chunked-prefill).",
        "A prompt of {tokens} tokens does not fit the KV cache ({cache}): give it more memory "
        "(--gpu-memory-utilization, --kv-cache-dtype fp8), or lower --max-model-len so that such "
        "prompts are refused at once.",
    ),
    "args.pool": (
        "A prompt of {tokens} tokens is longer than the server's limit of {limit}, which is its "
        "context or what its KV cache holds: send less, or start the server with "
        "--allow-auto-truncate, which cuts such prompts.",
        "Where the cache is the limit, give it more memory (a higher --mem-fraction-static, "
        "--kv-cache-dtype fp8_e5m2, more cards). Let clients set max_tokens, and use a newer "
        "SGLang if its scheduler ended on such a prompt.",
    ),
    "args.decode": (
        "An image, audio or video of a request could not be read: it is damaged, in a format that "
        "this server's libraries do not decode, or its URL gave something else (a page, an error, "
        "a login). Send it as base64 in a usual format (PNG, JPEG, WAV, MP4), and let the server "
        "reach the URL.",
    ),
    "args.field": (
        "The request has no {field}, which this release of the server requires: let the client "
        "send it (model: a name that GET /v1/models lists), or use a client that knows the route.",
    ),
    "args.roles": (
        "The model's chat template refuses the messages: it requires user and assistant in turn, "
        "and often no system role, or one system message at the beginning. Let the client send "
        "them so, or pass another template with --chat-template.",
    ),
    "args.raised": (
        'The model\'s chat template refuses the messages that a client sent: "{calls}" Let the '
        "client keep one tool call per message of the assistant (parallel_tool_calls false), and "
        "leave tool_calls out where it is an empty list, which the template takes for several. "
        "Or pass another template with --chat-template.",
        'The model\'s chat template refuses the messages that a client sent: "{raised}" Let the '
        "client, or what stores its history, send them as that requires, or pass another template "
        "with --chat-template. The server goes on.",
    ),
    "tokenizer.mistral": (
        "Something that was asked for (structured outputs, a parser, a task) needs {member}, which "
        "Mistral's own tokenizer does not have in this release: pass --tokenizer-mode auto (with "
        "--config-format hf and --load-format auto, where the repository has Transformers' files), "
        "leave that out, or install a newer release.",
    ),
    "args.arguments": (
        "The chat template wants the arguments of an earlier tool call as an object, and got a "
        "text. OpenAI's form is a text with JSON, which the engine converts: let the client store "
        "valid JSON in arguments ({{}} for none); if it does, install a newer release of the "
        "engine or of the program before it, or pass another template with --chat-template.",
    ),
    "args.grammar": (
        "The backend for structured outputs does not know something in the request's JSON schema "
        "({schema}): simplify the schema (format, pattern and limits of numbers and lengths are "
        "the usual ones; a client's tools have schemas, too), or choose another backend "
        '(--structured-outputs-config \'{{"backend": "guidance"}}\', before 0.12 '
        "--guided-decoding-backend; SGLang: --grammar-backend), or a newer release.",
        "The grammar or regular expression of a request cannot be read ({text}): write it in the "
        "form of the backend in use (xgrammar: GBNF, as llama.cpp's; guidance: Lark), with a rule "
        "called root. Only the request must change.",
        "The answer did not follow the request's schema or grammar ({rejected}), and the request "
        "was ended: such models and settings as drafts, diffusion or a reasoning parser that does "
        "not fit break it. Leave those out, choose another backend for structured outputs, or "
        "install a newer release.",
    ),
    "args.template.code": (
        "The chat template itself is faulty ({why}), so that every chat request fails: correct "
        "chat_template in the model's tokenizer_config.json or chat_template.jinja (that of the "
        "base model is usually sound), or pass such a file with --chat-template. An old jinja2 "
        "refuses what newer templates use: upgrade it.",
        "The chat template reads a field that the messages do not have ({undefined}): let the "
        "client send it, such as content and role in each message, or pass another template with "
        "--chat-template.",
    ),
    "llama.template.raised": (
        'The model\'s chat template refuses the messages that a client sent: "{raised}" Let the '
        "client, or what stores its history, send them as that requires (for reasoning and tool "
        "calls often without one of two fields), or set another template (--chat-template-file); a "
        "newer release may convert them. Neither the model's file nor the server is broken.",
    ),
    "args.task": (
        "The server generates text, and one server does one task: for {pools} start another with a "
        "model made for that (--runner pooling, for a generative one also --convert embed or "
        "classify; before 0.10 --task embed or score), on another port.",
        "The model, or the task that the server was started for, only embeds, scores or "
        "classifies, so that it has no {writes}: let the client use /v1/embeddings, /score or "
        "/rerank, or start a generative model (--runner generate).",
        "{hears} need a speech model, such as Whisper, and this is none.",
        "This model has no {api}: serve one that was made for it.",
    ),
    "args.call": (
        "The answer ended before the tool call in it was complete ({cut}): a request that forces a "
        "call (tool_choice required, or a named tool) fails then. Let the client allow longer "
        "answers (max_tokens; a reasoning model thinks first), or let the model choose "
        "(tool_choice auto).",
        "What the model wrote is not a valid tool call: check that --tool-call-parser is the one "
        "that the model's page names, and let the client try again.",
    ),
    "args.runner": (
        "vLLM's newer model runner (V2) does not support this: set VLLM_USE_V2_MODEL_RUNNER=0, or "
        "install a release whose runner does.",
    ),
}
"""Sentences by row; one with an unknown {name} is left out."""
