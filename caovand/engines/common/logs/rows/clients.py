"""Messages of a server's clients, and of a server about their requests: rows for every engine's
table. They never end a server, so they count only if nothing else is found, and never as the cause
of its end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.core.healing.failure import Failure
from caovand.engines.common.logs.signature import signature

_LATER: Mapping[str, Failure] = {"serving": "unknown"}
_API = r"(?:chat/)?completions|embeddings|models"
_RAW = re.compile(
    r"(?:\([A-Za-z]{1,20} pid=\d{1,10}\) )?INFO: {1,8}\S{3,60} - \"[A-Z]{3,7} /"
    r"|.{0,80}HTTP Request: [A-Z]{3,7} https?://|.{0,200}Error code: 40[14] - \{"
    r"|.{0,120}Ollama call failed with status code 404|\{\"(?:object|error)\":"
    r"|(?:openai|litellm)\.\w{1,40}Error: "
)
ROWS = (
    signature("client.model", "consequence", "bad-arguments",
         r"[Tt]he model `(?P<asked>[^`]{1,300})` does not exist", _LATER),
    # "POST /v1/load_lora_adapter HTTP/1.1" 404 Not Found, or of a client:
    # HTTP Request: POST http://gpu:8000/v1/load_lora_adapter "HTTP/1.1 404 Not Found"
    signature("client.switch", "consequence", "bad-arguments",
         r"(?:\"[A-Z]{3,7} |HTTP Request: [A-Z]{3,7} https?://[^\s/]{1,100})"
         r"(?P<route>(?P<lora>/v1/(?:un)?load_lora_adapter)"
         r"|(?P<dev>/(?:sleep|wake_up|is_sleeping|collective_rpc|reset_prefix_cache|pause|resume))"
         r"|(?P<profile>/(?:start|stop)_profile)|(?P<metrics>/metrics)|(?P<slots>/slots))"
         r"(?:\?\S{0,200})? \"?HTTP/[\d.]{1,3}\"? (?:404|501)\b", _LATER),
    signature("client.path", "consequence", "bad-arguments",
         rf"\"[A-Z]{{3,7}} (?P<path>/(?:{_API}))(?:\?\S{{0,200}})? HTTP/[\d.]{{1,3}}\" 404\b"
         rf"|HTTP Request: [A-Z]{{3,7}} https?://[^\s/]{{1,100}}(?P<asked>/(?:{_API}))"
         r" \"HTTP/[\d.]{1,3} 404\b"
         rf"|Invalid URL \([A-Z]{{3,7}} (?P<other>/(?:{_API}))\)"
         r"|(?P<ollama>Ollama call failed with status code 404)(?!\W{1,3}\w)", _LATER),
    # HTTP Request: POST http://host:11434/api/embeddings "HTTP/1.1 500 Internal Server Error"
    signature("client.failed", "consequence", "engine-died",
         r"HTTP Request: POST https?://[^\s/]{1,100}(?P<route>/(?:api/(?P<embedding>embed\w{0,8})"
         r"|api/(?:chat|generate)|v1/(?:chat/)?(?:completions|embeddings))) "
         r"\"HTTP/[\d.]{1,3} 50[0-4]\b", _LATER),
    signature("client.key", "consequence", "access-denied",
         r"\"[A-Z]{3,7} /v1/\S{1,100} HTTP/[\d.]{1,3}\" 401\b"
         r"|openai\.AuthenticationError: Error code: 401", _LATER),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "client.switch": (
        "The server has the route {route} only with a switch, which it was started without.",
        "{lora} needs VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in vLLM's environment and "
        "--enable-lora.",
        "{dev} needs VLLM_SERVER_DEV_MODE=1 in vLLM's environment (sleeping also "
        "--enable-sleep-mode); do not let strangers reach such a server.",
        "{profile} needs VLLM_TORCH_PROFILER_DIR or --profiler-config.",
        "{metrics} needs --enable-metrics of SGLang, --metrics of llama-server.",
        "{slots} needs --slots of llama-server, and is that of one model, not of a router.",
    ),
    "client.model": (
        "The client asks for {asked}, and the server serves the model by another name: its path or "
        "repository as the server was started with, or what --served-model-name says. GET "
        "/v1/models lists the names; let the client use one, or set --served-model-name.",
    ),
    "client.path": (
        "The client asks for {path}, where the server has no such route: let its base URL end in "
        "/v1 (http://HOST:PORT/v1).",
        "The client asks for {asked}, where the server has no such route: let its base URL end in "
        "/v1 (http://HOST:PORT/v1).",
        "The client asks for {other}, where the server has no such route: let its base URL end in "
        "/v1 (http://HOST:PORT/v1).",
        "Something answers, and knows no such path ({ollama}): the client adds /api/generate "
        "itself, so its base URL must end after the port (http://localhost:11434, without /api or "
        "/v1). If it does, pull the model that the client names on that server (`ollama list`).",
    ),
    "client.failed": (
        "The server failed at {embedding}: usually a text is longer than the embedding model's "
        "context (512 tokens for many; let the client cut shorter pieces, its chunk size, or take "
        "a model with a longer context), or its runner ended for lack of memory.",
        "The server answered {route} with an error of its own, and only its own log says why "
        "(Ollama: `journalctl -u ollama -e`, `docker logs`, server.log): explain that.",
    ),
    "client.key": (
        "The server wants a key and the client sends none or another one: let the client send the "
        "one that --api-key or VLLM_API_KEY of the server names (Authorization: Bearer KEY), or "
        "start the server without; such a variable may be set in a profile unnoticed.",
    ),
}  # fmt: skip
"""Sentences by row; one with an unknown {name} is left out."""


def is_raw(line: str) -> bool:
    """Whether a line is of a client, or of a server about a request."""
    return bool(_RAW.match(line))
