"""The model's files, and the hub that they come from."""

from __future__ import annotations

from caovand.engines.common.logs.rows import python
from caovand.engines.common.logs.signature import SERVED, Signature, signature
from caovand.engines.vllm.log.rows.by_phase import READING

ROWS: tuple[Signature, ...] = (
    # The model's files
    # FileNotFoundError: ... 'user/some-lora/adapter_config.json'
    signature("adapter.missing", "cause", "model-missing",
         r"No such file or directory: '(?P<folder>[^']{1,300})/adapter_config\.json'"
         r"|Can't find 'adapter_config\.json' at '(?P<place>[^']{1,300})'"
         r"|No adapter found for (?P<nowhere>[^\s'\"\]]{1,300})", SERVED),
    signature("args.tokenizer", "cause", "bad-arguments",
         r"No tokenizer registered for tokenizer_mode='(?P<mode>[^']{1,60})'"),
    signature("model.config", "cause", "model-missing",
         r"Could not detect config format for no config file found"),
    signature("model.untyped", "cause", "model-missing",
         r"Could not determine model_type for model: (?P<untyped>\S{1,200}[^\s.])"),
    signature("model.missing", "cause", "model-missing",
         r"Cannot find any model weights with|Weight files referenced in index but missing"
         r"|is not a valid JSON file|(?P<unrecognized>Unrecognized model in "
         r"|No model architectures are specified)"
         r"|" + python.NO_MODEL + r"|^FileNotFoundError: .{0,40}No such file or directory: .{0,400}"
         r"(?:\.(?:safetensors|gguf|bin|pth?|jinja)|/(?:tokenizer\w*|\w*config|\S*\.index)\.json)\b"),
    signature("model.json", "generic", "unknown",
         r"^json\.decoder\.JSONDecodeError: "
         r"|^  Value error, [^\[]{0,120}: line \d+ column \d+ \(char \d+\)",
         {**READING, **SERVED}),
    signature("model.broken", "cause", "model-missing",
         r"[Ff]ailed to map GGUF parameters"
         r"|(?P<cut>Error while deserializing header(?:: \w{1,40})?|MetadataIncompleteBuffer"
         r"|SafetensorError(?=: )(?!: Error while des)|PytorchStreamReader failed)"
         r"|" + python.NO_TENSOR +
         r"|^AssertionError: (?P<size>Attempted to load weight \(|Tried to load weights of size )"),
    signature("model.denied", "cause", "access-denied",
         r"^PermissionError: (?!\[Errno 13)|(?:\[Errno 13\]|\(os error 13\))(?: Permission denied)?"
         r"(?:: '(?P<path>[^']{1,300})')?"
         r"|^OSError: PermissionError at (?P<file>\S{1,400}) when downloading"),
    *python.HUB,
    signature("port.busy", "cause", "port-busy",
         r"\[Errno 98\] error while attempting to bind on address \('[^']{1,100}', "
         r"(?P<port>\d{1,5})"
         r"|\[Errno 98\](?:.{0,200}[Aa]ddress already in use| error while attempting to bind)"
         r"|\bEADDRINUSE\b"
         r"|The server socket has failed to (?:listen|bind)"
         r"|ZMQError: Address already in use(?: \(addr='tcp://[^']{1,100}:(?P<own>\d{1,5})')?"),
)  # fmt: skip
CODE_AGAIN = signature("model.code.again", "cause", "bad-arguments",
    next(row for row in python.ROWS if row.id == "model.code").pattern.pattern)  # fmt: skip
"""The same after the model's configuration was read, which needs the permission already."""
