"""Advice on what llama-server refuses of a request, and on its chat templates."""

from __future__ import annotations

from collections.abc import Mapping

REQUESTS: Mapping[str, tuple[str, ...]] = {
    "llama.request.undecoded": (
        "The server could not decode the file that a client sent: it reads JPEG, PNG, BMP and GIF, "
        "and of audio WAV, MP3 and FLAC, but not WebP, HEIC, AVIF or SVG. Convert it first, and "
        "send its whole content as base64 (as a URL data:image/jpeg;base64,...).",
    ),
    "llama.request.image": (
        "The server of this release takes only texts ({textual}): install a current llama.cpp.",
        "The model was loaded without a projector for images or audio. If it is a text-only model, "
        "which has none (-hf would have downloaded it with the model): send it no image, or use "
        "one with vision. If its page has a file mmproj*.gguf, start the server with --mmproj and "
        "that file, and without --no-mmproj.",
    ),
    "llama.request.context": (
        "llama-cpp-python: the request needs {needed} tokens, and the context has {window} (its "
        "default is only 512 or 2048). Raise n_ctx: Llama(n_ctx=...), --n_ctx of its server or "
        "the variable N_CTX, n_ctx of LangChain's LlamaCpp, context_window of LlamaIndex's; 0 "
        "takes what the model was trained with. Or send less, with a smaller max_tokens.",
        "The request ({asked} tokens) is longer than a slot's context ({slot}): raise --ctx-size, "
        "which all slots share (--parallel), or let the client send less.",
        "The request is longer than a slot's context ({context}): raise --ctx-size, which all "
        "slots share (--parallel), or let the client send less; Ollama: num_ctx.",
    ),
    "llama.request.key": (
        "The server was started with --api-key (or LLAMA_API_KEY): let the client send that key as "
        "`Authorization: Bearer KEY`.",
    ),
    "llama.request.early": (
        "The server was still loading the model when the request came: wait until /health answers "
        "200; a large model takes minutes.",
    ),
    "llama.request.refused": (
        "The server refused a request, and went on: {why}. Correct what the client sends.",
    ),
    "llama.request.parse": (
        "The model wrote something that the parser made from its chat template does not read "
        "(position {position}), usually a tool call: update llama.cpp and the GGUF file (their "
        "templates and parsers change), or set the template that the model's page names "
        "(--chat-template-file). Until then let the client send no tools, or start the server with "
        "--reasoning-format none; a quantization of more bits errs less.",
    ),
    "llama.request.embeddings": (
        "The server was started for texts: start it with --embeddings (and --pooling mean for "
        "models that need it) on an embedding model, or let the client ask another server.",
    ),
    "llama.request.tools": (
        "This server does not take {param}: start llama-server with --jinja, of a newer release "
        "(before b4600 it does not support tools).",
    ),
    "llama.request.batch": (
        "A text for an embedding or a reranking must fit one physical batch: raise --ubatch-size "
        "and --batch-size (such as -ub 8192 -b 8192) as far as the model's own context goes, or "
        "let the client send shorter pieces.",
    ),
    "llama.template.request": (
        "Start llama-server with {option}: without it this release applies simple templates, "
        "which take no tools. Newer releases have it by default (llamafile, RamaLama and others "
        "that wrap the server: update them, or pass it on).",
        "The model's chat template refuses this request: the roles, their order or the tools. Let"
        " the client send one system message, first; or set another template"
        " (--chat-template-file), or use a newer release.",
    ),
    "llama.request.stack": (
        "This release lets its grammar (of a JSON schema or of the tools) meet what the chat "
        "template itself begins the answer with, such as <think>: "
        "install a newer release. Until then switch thinking off for such requests "
        "(--reasoning-budget 0, or chat_template_kwargs with enable_thinking false). The schema is "
        "not at fault.",
    ),
    "llama.request.grammar": (
        "llama.cpp cannot use the grammar, or the grammar that it made from a JSON schema or from "
        "the tools: simplify patterns and repetitions in the schema, pass GBNF to --grammar, or "
        "install a newer release.",
    ),
}
"""Sentences by signature; one with an unknown {name} is left out."""
