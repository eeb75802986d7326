"""What LM Studio prints, whose runtimes are builds of llama.cpp and MLX: rows for every engine.

Its application, its server and the clients that it answers quote the same texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.engines.common.logs.signature import signature

_TEXTS = (
    r"model has crashed without additional information|Failed to load LLM engine from path"
    r"|No LM Runtime found|insufficient system resources|Trying to keep the first \d"
    r"|number of tokens to keep from the initial prompt|rendering prompt with jinja template"
    r"|No models loaded\. Please load|Multiple models are loaded|Invalid model identifier"
    r"|Model is unloaded\.|find model of instance reference|Unexpected endpoint or method\. \("
    r"|Failed to load (?:the )?model\b.{0,80}guardrails|Model type \S{1,60} not supported"
    r"|Client disconnected\. Stopping generation"
    r"|\bChannel Error\b|^- Caused By: [TRS]\w{1,9}Error: "
)
_RAW = re.compile(rf".{{0,300}}?(?:{_TEXTS})")
ROWS = (
    signature("studio.crashed", "consequence", "engine-died",
         r"model has crashed without additional information"
         r"(?:.{0,10}Exit code: (?P<status>\w{1,24}))?|^(?:Error: )?Channel Error$"),
    signature("studio.engine", "cause", "engine-unusable",
         r"Failed to load LLM engine from path: (?P<path>.{1,300}?\.node)"),
    signature("studio.runtime", "cause", "engine-unusable",
         r"No LM Runtime found(?: for model format '(?P<format>\w{1,20})')?"),
    signature("studio.memory", "cause", "host-oom", r"insufficient system resources"),
    signature("studio.context", "cause", "bad-arguments",
         r"Trying to keep the first (?P<needed>\d{1,9}) tokens .{0,120}context length of only "
         r"(?P<context>\d{1,9}) tokens"
         r"|(?P<kept>number of tokens to keep from the initial prompt) is greater than the cont"),
    signature("studio.template", "cause", "bad-arguments",
         r"rendering prompt with jinja template: \W{0,4}(?P<why>.{1,160})"),
    signature("studio.model", "cause", "model-missing",
         r"Invalid model identifier \W{0,4}(?P<name>[^\"\\]{1,100})"
         r"|(?P<none>No models loaded\. Please load)|(?P<many>Multiple models are loaded)"),
    # An exception of its own program, whose next line names llmworker.js or index.js
    signature("studio.code", "generic", "engine-died",
         r"^- Caused By: (?P<error>(?:Type|Range|Reference|Syntax)Error: .{1,160})"),
    signature("studio.unloaded", "consequence", "engine-died",
         r"Model is unloaded\.|find model of instance reference"),
    signature("studio.endpoint", "cause", "bad-arguments",
         r"Unexpected endpoint or method\. \((?P<call>[A-Z]{3,7} /[^)]{0,200})\)"),
    signature("studio.client", "consequence", "bad-arguments",
         r"Client disconnected\. Stopping generation"),
    signature("studio.mlx", "cause", "bad-arguments",
         r"Model type (?P<type>[\w.-]{1,60}) not supported\.$"),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "studio.crashed": (
        "LM Studio's runtime crashed, and these lines do not show why. Most probable first: the "
        "runtime's release is at fault (Settings, Runtime: choose the one before, or update it; or "
        "another backend, such as Vulkan in place of CUDA or ROCm, or the CPU), or memory ran out "
        "(lower GPU Offload and Context Length). `lms log stream` and the page Developer show the "
        "runtime's own lines.",
    ),
    "studio.client": (
        "The client closed the connection before the answer was complete, and LM Studio did what "
        "it should: the client's time-out (often 5 or 10 minutes), or its user, ended the request. "
        "Raise that time-out in the client. Or make answers faster: a shorter prompt, a smaller "
        "model, more layers on the card (GPU Offload), a cache that is not quantized.",
    ),
    "studio.engine": (
        "LM Studio's runtime {path} cannot be loaded: it is damaged, or a library that it needs is "
        "missing. In Settings, Runtime, delete it and download it again; install the newest "
        "Visual C++ runtime and the card's newest driver; or choose the runtime for Vulkan or the "
        "CPU.",
    ),
    "studio.runtime": (
        "LM Studio has no runtime for files of the format {format}: download one in Settings, "
        "Runtime (Ctrl+Shift+R): llama.cpp for gguf, MLX for safetensors (only on Macs with "
        "Apple's own CPUs).",
        "LM Studio has no runtime for the model's format: download one in Settings, Runtime.",
    ),
    "studio.memory": (
        "By LM Studio's estimate the model does not fit the free memory: lower Context Length, "
        "choose a quantization of fewer bits or a smaller model, close other programs, or unload "
        "other models. If the estimate is wrong, relax the guardrails (Settings, Hardware).",
    ),
    "studio.context": (
        "The request begins with {needed} tokens that must be kept, and the model was loaded with "
        "a context of {context}: load it again with a larger Context Length (its settings in My "
        "Models keep it), or let the client send less (fewer tools, a shorter system prompt).",
        "The request is longer than the context with which the model was loaded (its {kept}): load "
        "it again with a larger Context Length, or let the client send less.",
    ),
    "studio.template": (
        "The model's prompt template fails in this LM Studio ({why}): update LM Studio and its "
        "runtime, download the model again (its template may be corrected), or set another "
        "template in My Models, the model's settings, Prompt Template. A client's roles and tools "
        "can be what the template refuses.",
    ),
    "studio.model": (
        "LM Studio's server has no model {name}: the client must send an identifier that "
        "`lms ls` or GET /v1/models lists.",
        "No model is loaded ({none}): load one (`lms load`), or switch on just-in-time loading in "
        "the server's settings, and let the client name it.",
        "Several models are loaded ({many}): let the client name one in the field model.",
    ),
    "studio.code": (
        "LM Studio's own program failed ({error}), neither the model nor the card: update the "
        "application and its runtimes (Settings, Runtime: Ctrl+Shift+R), and if that began with an "
        "update, choose the runtime before or another backend, and report it with these lines.",
    ),
    "studio.unloaded": (
        "The model was unloaded while the request ran or waited: it crashed, somebody ejected it, "
        "or its time to live was over. The lines before show which; load it again.",
    ),
    "studio.endpoint": (
        "A client asks for {call}, which LM Studio's server does not have: set the client's base "
        "URL to http://HOST:1234/v1 with the type OpenAI-compatible (not Ollama), without the path "
        "of a single call behind it.",
    ),
    "studio.mlx": (
        "The MLX runtime does not know the model type {type}: update it (LM Studio: Settings, "
        "Runtime; alone: pip install -U mlx-lm), or use a GGUF file of the model with llama.cpp.",
    ),
}
"""Sentences by row."""


def is_raw(line: str) -> bool:
    """Whether a line has one of LM Studio's texts."""
    return bool(_RAW.match(line))
