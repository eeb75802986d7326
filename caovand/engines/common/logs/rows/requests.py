"""What engines in Python refuse of requests, templates and tasks: rows for their tables."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.engines.common.logs.signature import signature

ROWS = (
    signature("args.tools", "cause", "bad-arguments",
         r"tool choice requires --enable-auto-tool-choice|--enable-auto-tool-choice requires"),
    signature("args.media", "cause", "bad-arguments",
         r"You set (?P<media>\w{1,20})=(?P<allowed>\d{1,4}).{0,60}--limit-mm-per-prompt"
         r"|[Aa]t most (?P<most>\d{1,4}) (?P<kind>\w{1,20})\(s\) may be provided"
         r"|(?P<items>\w{1,20}) items? .{0,60}exceeds? .{0,40}limit.mm.per.prompt"),
    signature("args.roles", "cause", "bad-arguments",
         r"[Cc]onversation roles must alternate|[Ss]ystem role (?:is )?not supported"
         r"|[Oo]nly user(?:, tool)? and assistant roles are supported"
         r"|Error in applying chat template|[Ss]ystem message must be at the beginning"),
    signature("args.runner", "cause", "bad-arguments",
         r"Model Runner V2 (?:supports|does not|doesn't|requires|is not)\b"
         r"|V2 model runner does not"),
    signature("model.head", "cause", "bad-arguments",
         r"not initialized from checkpoint: \{[^}]{0,200}'(?:\w{1,40}\.){0,4}"
         r"(?P<head>(?:score|classifier|classification_head|dense)(?:\.\w{1,20}){0,2}\.(?:weight|bias))'"),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "args.tools": (
        "The client lets the model choose tools, and the server was started without that: start it "
        "with --enable-auto-tool-choice and the --tool-call-parser that the model's page names, or "
        "let the client send no tools (or tool_choice none).",
    ),
    "args.media": (
        "A prompt holds more {media} items than the server allows ({allowed}): start it with a "
        "larger --limit-mm-per-prompt, or send fewer.",
        "A prompt may hold {most} {kind} items: start the server with a larger "
        "--limit-mm-per-prompt, or send fewer.",
        "A prompt holds more {items} items than --limit-mm-per-prompt allows: raise it, or send "
        "fewer.",
    ),
    "args.roles": (
        "The model's chat template refuses the messages: it wants user and assistant in turn, and "
        "often no system role, or one system message at the beginning. Let the client send them "
        "so, or pass another template with --chat-template.",
    ),
    "args.runner": (
        "vLLM's newer model runner (V2) does not do this: set VLLM_USE_V2_MODEL_RUNNER=0, or "
        "install a release whose runner does.",
    ),
    "model.head": (
        "The checkpoint has no {head}, which a model that classifies or scores needs: it is a "
        "generative one. For rerankers made of one (Qwen3-Reranker) pass --hf-overrides with the "
        "architecture ...ForSequenceClassification, classifier_from_token and "
        "is_original_qwen3_reranker, as the model's page says; otherwise leave --convert and "
        "--runner pooling out.",
    ),
}
"""Sentences by row; one with an unknown {name} is left out."""
