"""Errors that the sources of llama.cpp, Ollama and the container tools have are explained."""

from __future__ import annotations

import pytest

from caovand.engines.writer import explain_log

_LLAMA = "0.00.010.603 E "
_OLLAMA = "Error: 500 Internal Server Error: "
_CLI = "docker: Error response from daemon: OCI runtime create failed: nvidia-container-cli: "
TEXTS = [
    # llama.cpp
    ("srv  send_error: task id = 1, error: input (900 tokens) is too large to process. increase "
     "the physical batch size (current batch size: 512)", "llama.request.batch", "--ubatch-size"),
    ('{"error":{"code":401,"message":"Invalid API Key","type":"authentication_error"}}',
     "llama.request.key", "--api-key"),
    ('{"error":{"code":400,"message":"no role","type":"invalid_request_error"}}',
     "llama.request.refused", "no role"),
    ('{"error":{"message":"Loading model","type":"unavailable_error","code":503}}',
     "llama.request.early", "/health"),
    (_LLAMA + "common_download: HTTPS is not supported. Please rebuild with one of:",
     "llama.download.tls", "OPENSSL"),
    (_LLAMA + "fs_cache: Failed to find $HOME directory", "llama.download.folder", "LLAMA_CACHE"),
    (_LLAMA + "srv  load_models: failed to load models on startup: x", "llama.models", "preset"),
    (_LLAMA + "srv  init: MCP 'files': failed to start: x", "llama.mcp", "command"),
    (_LLAMA + "set_threads: threadpool create failed : n_threads 64", "llama.threads.pool",
     "ulimit -u"),
    ("llama_model_load: error loading model: CLIP cannot be used as main model, use it with "
     "--mmproj instead", "llama.model.clip", "--mmproj"),
    ("llama_model_load: error loading model: make_cpu_buft_list: no CPU backend found",
     "ggml.backend.none", "libggml-cpu"),
    ("llama_model_load: error loading model: cannot find tokenizer vocab in model file",
     "llama.model.converted", "current file"),
    ("error: invalid argument: /app/llama-server", "llama.args", "entrypoint is llama-server"),
    ("error: invalid argument: --no-such", "llama.args", "refused --no-such"),
    ("  what():  stoi", "ggml.what", "stoi"),
    ("terminate called after throwing an instance of 'std::runtime_error'\n"
     "  what():  Invalid diff: 'ab' not found at start of 'a'", "ggml.parser", "--jinja"),
    ("Error: Unknown (built-in) filter 'tojson' for type Undefined in the template",
     "ggml.template", "newer release"),
    ("Error: Unknown (built-in) filter 'items' for type String", "ggml.template.items",
     "string of JSON"),
    ("Error: Callee is not a function: got Undefined (hint: 'items')", "ggml.template.items",
     "string of JSON"),
    # Ollama
    (_OLLAMA + "sample: logits sum to NaN, check model output", "ollama.numbers",
     "FLASH_ATTENTION"),
    (_OLLAMA + "this model only supports one image while more than one image requested",
     "ollama.request.image", "one image"),
    (_OLLAMA + "llama-server returned invalid tool call arguments for \"f\": unexpected end",
     "ollama.tool-call", "num_ctx"),
    (_OLLAMA + "x requires sign in", "ollama.cloud", "signin"),
    (_OLLAMA + "this model requires MLX support, but the MLX runtime is not available",
     "ollama.mlx", "Apple"),
    ("Error: 400 Bad Request: raw mode does not support template, system, or context",
     "ollama.family.refused", "request"),
    ("Error: insecure protocol http\npulling manifest", "ollama.plain", "--insecure"),
    ("2023/11/19 12:07:13 llama.go:438: error starting llama runner: timed out waiting for llama "
     "runner to start\n2023/11/19 12:07:14 llama.go:430: signal: killed", "ollama.slow.killed",
     "memory"),
    # Containers
    (_CLI + "container error: cgroup subsystem devices not found: unknown", "container.cgroup",
     "no-cgroups"),
    (_CLI + "ldcache error: open failed: /sbin/ldconfig.real: no such file", "container.ldconfig",
     "config.toml"),
    (_CLI + "device error: 3: unknown device: unknown", "container.device", "nvidia-smi -L"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "signature", "advice"), TEXTS, ids=lambda text: text[-40:])
def test_a_text_of_the_sources_has_its_cause_and_advice(
    text: str, signature: str, advice: str
) -> None:
    found = explain_log(text + "\n")
    assert found is not None
    assert found[1].finding is not None
    assert found[1].finding.signature == signature
    assert advice in "\n".join(found[1].advice)
