"""Cut a log at the words with which engines and their libraries begin a message.

For logs in which nothing is found as printed: another program's prefix, an HTTP client's exception,
a body in JSON, a list or quote of Markdown, a title that names the error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from caovand.engines.common.logs.signature import MAX_LINE

MAX_LINES = 5000
"""Maximum lines of a log that is read this way: what people paste, not what a daemon recorded."""
_BEGINS = re.compile(
    r"(?<![^\s\"'`(:>|\]=\\：，。；])(?=(?:time=\d\S{1,40} )?level=[A-Z]{1,8} source=\w"
    r"|\((?:APIServer|EngineCore|Worker)\w{0,20} pid=\d"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
    r"|(?:ggml|gguf|llama|llm|clip|mtmd|common|alloc)_\w{1,60}: "
    r"|ggml-cuda was compiled|get_(?:logits|embeddings)_ith: "
    r"|error loading model|(?:CUDA|ROCm|HIP|SYCL|MUSA) error: |GGML_ASSERT\(|LLAMA_ASSERT: "
    r"|pre-allocated tensor \(|terminate called "
    r"|vk::\w{1,40}::|vk::\w{1,60}: |(?:unable|failed) to allocate (?:\w{2,20} )?buffer"
    r"|cudaMalloc failed: |(?:llama|model)[ -](?:runner|server) (?:process|has|stopped|terminated)"
    r"|model requires more system memory|pull model manifest: |unable to load model: "
    r"|Error: (?=\d{3} |pull|llama|model|unable|max retries|listen tcp|(?:Post|Head|Get) \")"
    r"|(?:[\w.-]{1,40}\.){0,4}[A-Z]\w{0,60}(?:Error|Exception): "
    r"|[Ee]xit(?:ed with)? ?(?:status )?[Cc]ode[:=]? ?-?\d|error: (?:invalid|unknown) argument: "
    r"|Error allocating "
    r"|ggml_metal_init\(\) failed"
    r"|(?<!\w:)[\w./-]{1,100}(?::[\w.-]{1,60})? does not support "
    r"(?:tools|thinking|chat|generate|embed)"
    r"|[Ff]ailed to initialize the context: |LLAMA_SPLIT_MODE|(?:image|audio) input is not supp"
    r"|(?<=\s)Error: (?=[a-z])|The server was not compiled for|Failed to initialize samplers"
    r"|(?:vllm(?: serve)?|sglang(?: serve)?|\w{1,30}\.py): error: (?:argument |unrecognized "
    r"|the following )|OCI runtime |nvidia-container-cli: |NVRM: "
    r"|Error response from daemon: )"
)
_ESCAPED = re.compile(r"\\{1,4}(['\"`/])")
"""Marks that JSON, Python or a shell escaped, once or again."""
_LABELS = re.compile(r"(?:(?:[^\W\d_]|[ ._-]){1,40} ?(?:: |：)){1,3}")
"""Words in any language with a colon, which people and programs put before a message."""
_QUOTED = re.compile(r"`([^`]{16,})`|“([^“”]{16,})”|「([^「」]{16,})」|\"(.{16,})\"|'(.{16,})'")
_SENTENCES = re.compile(r"(?<=[.!?]) +|(?<=[。！？；，：])")
_LOGGED = re.compile(
    r"\d{1,6}\.\d\d\.\d{3}\.\d{3} [DIWE] |(?:time=\S{1,40} )?level=[A-Z]{1,8} source="
    r"|(?:\(\w{1,40} pid=\d{1,10}\) )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d "
)
_LOGGED_AGAIN = re.compile(
    r"(?<=\S) {1,200}(?=(?:\(\w{1,40} pid=\d{1,10}\) )?"
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d )"
)
"""The gap between two records that a terminal copied as one line."""
_ALARMING = re.compile(
    r"(?i:\berr(?:or)?\b|error[=\": ]|\bfail|\bfatal\b|\bcannot\b|\bunable\b|exception|\bcrash)"
    r"|\bnot (?:callable|supported|recognized|found|installed)"
    r"|\b(?:exceeds?|terminated|[Ii]nvalid)\b"
    r"|\bwarning:|_error\b|\bmismatch\b|\b(?:hip|cuda)Error[A-Z]|\b[Uu]nknown (?:argument|option)"
    r"|\b[Cc]ould not\b|\bno (?:display|such)\b|: False\b|\b(?:does not|must)\b|\bEOF\b"
    r"|\b(?:unsupported|missing|denied|refused|killed|can't)\b|\b(?:out of memory|timed out"
    r"|not enough)\b"
)
"""Words that sound like an error."""
_HARMLESS_LEVEL = re.compile(
    r"^\s{0,40}(?:DEBUG|INFO|WARNING|WARN):\s|(?:^|[\s|:)\]])(?:DEBUG|INFO|WARNING|WARN) \d\d-\d\d "
)
"""The level of a line that a logger does not print as an error, whatever stands before it."""
_GOES_ON = re.compile(
    r"\b(?:fallback|[Ff]alling back|[Rr]etrying)\b|\bpip's dependency resolver does not currently"
)
"""Messages of programs that survive a failure."""


def pieces(text: str) -> tuple[str, Sequence[int]]:
    """The pieces of a log, one a line, with the line number of each; "" for a long log.

    A line in the format of an engine's logger stays unchanged.
    """
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        return "", ()
    for place in range(len(lines) - 1, 0, -1):
        if lines[place - 1].rstrip().endswith(":") and lines[place].strip():
            lines[place - 1] = f"{lines[place - 1].rstrip()} {lines[place]}"
    cut: list[str] = []
    numbers: list[int] = []
    for number, line in enumerate(lines, 1):
        if _LOGGED.match(line) or _GOES_ON.search(line[:MAX_LINE]):
            cut += _LOGGED_AGAIN.split(line[:MAX_LINE])
            numbers += [number] * (len(cut) - len(numbers))
            continue
        for part in _ESCAPED.sub(r"\1", line[:MAX_LINE]).split("\\n"):
            fragments = [piece.strip(" `*") for piece in _BEGINS.split(part)]
            cut += [piece for piece in fragments if piece]
            numbers += [number] * (len(cut) - len(numbers))
    return "\n".join(cut), numbers


def messages(text: str) -> tuple[str, Sequence[int]]:
    """What may be an engine's message in what a person wrote, one a line, with its line number:
    what follows a label, and what is quoted; "" for a long log."""
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        return "", ()
    found: list[str] = []
    numbers: list[int] = []
    for number, line in enumerate(lines, 1):
        if is_harmless(line):
            continue
        plain = _ESCAPED.sub(r"\1", line[:MAX_LINE]).strip(" `*>-•")
        labels = _LABELS.match(plain)
        bare = plain[labels.end() :] if labels else plain
        quoted = (match[match.lastindex or 0] for match in _QUOTED.finditer(bare))
        found += [piece for piece in (plain, bare, *quoted, *_SENTENCES.split(bare)[1:]) if piece]
        numbers += [number] * (len(found) - len(numbers))
    return "\n".join(found), numbers


def is_harmless(line: str) -> bool:
    """Whether a line names a level below an error."""
    return bool(_HARMLESS_LEVEL.search(line[:MAX_LINE]))


def is_alarming(line: str) -> bool:
    """Whether a line sounds like an error that ends something."""
    return bool(_ALARMING.search(line[:MAX_LINE])) and not _GOES_ON.search(line[:MAX_LINE])
