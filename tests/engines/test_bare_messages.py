"""An engine's message is known wherever it stands: alone, after a label in any language, quoted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from caovand.engines.writer import explain_log

LLAMACPP = Path(__file__).parents[1] / "samples/llamacpp"
MESSAGES = {
    "args.cli": "vllm serve: error: argument --tool-call-parser: invalid choice: 'glm45' "
    "(choose from 'hermes', 'mistral')",
    "args.tools": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser '
    "to be set",
    "oom.kv.none": "No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine.",
    "oom.kv.tokens": "The model's max seq len (131072) is larger than the maximum number of tokens "
    "that can be stored in KV cache (41040).",
    "args.length": "User-specified max_model_len (32768) is greater than the derived max_model_len "
    "(max_position_embeddings=8192)",
    "backend.dtype": "Bfloat16 is only supported on GPUs with compute capability of at least 8.0.",
    "args.split": "Total number of attention heads (14) must be divisible by tensor parallel size "
    "(4).",
    "vram.busy": "Free memory on device (20.1/23.6 GiB) on startup is less than desired GPU memory "
    "utilization (0.9, 21.2 GiB).",
    "args.context": "This model's maximum context length is 4096 tokens. However, you requested "
    "5000 tokens",
    "args.template": "As of transformers v4.44, default chat template is no longer allowed",
    "cuda.forked": "Cannot re-initialize CUDA in forked subprocess.",
    "sglang.args.unknown": "launch_server.py: error: unrecognized arguments: --enable-flashmla",
    "sglang.cache": "Not enough memory. Please try to increase --mem-fraction-static.",
    "llama.args": "error: invalid argument: --jinja",
    "llama.model.shape": "wrong number of tensors; expected 292, got 291",
    "llama.template.request": "tools param requires --jinja flag",
    "ollama.ram": "model requires more system memory (5.5 GiB) than is available (3.1 GiB)",
    "ollama.port": "listen tcp 127.0.0.1:11434: bind: address already in use",
    "ollama.capability": "registry.ollama.ai/library/smollm2:360m does not support tools",
    "container.gpu": 'could not select device driver "" with capabilities: [[gpu]]',
}
"""A decisive message of each row."""
FORMS = (
    "{}", "Error: {}", "ERROR: {}", "> {}", "- {}", "Exception: {}", "Fehler: {}", "Erreur : {}",
    "エラー: {}", "报错日志：{}", "报错信息如下: {}", "启动失败，{}",
    "It fails with `{}` here.", "I get “{}” at the start",
)  # fmt: skip


@pytest.mark.parametrize("form", [*FORMS, "json"])
@pytest.mark.parametrize("row", MESSAGES)
def test_a_decisive_message_is_known_wherever_it_stands(row: str, form: str) -> None:
    message = MESSAGES[row]
    text = json.dumps({"error": message}) if form == "json" else form.format(message)
    found = explain_log(f"{text}\n")
    assert found is not None
    assert found[1].finding is not None
    assert found[1].finding.signature == row


def test_a_model_s_architecture_counts_without_the_words_error_loading_model() -> None:
    text = "$ ./granite.llamafile\n\nllamafile 0.9.1\nunknown model architecture: 'granite'\n"
    found = explain_log(text)
    assert found is not None
    assert found[0].name == "llamacpp"
    assert found[1].finding is not None
    assert (found[1].finding.signature, found[1].finding.line) == ("llama.model.architecture", 4)


@pytest.mark.parametrize(
    "prose",
    [
        "The weather is fine: nothing failed, and “nobody knows why it should have”.",
        "Question: how large is the context that a model can have?",
        "注意：模型很大，需要更多显存。",
    ],
)
def test_prose_with_labels_and_quotes_is_no_log(prose: str) -> None:
    assert explain_log(f"{prose}\n") is None


HEALTHY = (
    "(EngineCore pid=1) WARNING 11-20 11:04:47 [vllm.py:725] Model Runner V2 requires Triton; "
    "using the V1 model runner instead.",
    "DEBUG 11-22 18:25:26 [m.py:446] Mxfp4 MoE backend 'A' does not support the deployment "
    "configuration since kernel does not support current device cuda.",
)


@pytest.mark.parametrize("before", ["", "server: ", "- ", "    ", "vllm-7d9f8 vllm "])
@pytest.mark.parametrize("line", HEALTHY)
def test_a_line_below_an_error_is_no_cause_whatever_stands_before_it(
    line: str, before: str
) -> None:
    found = explain_log(f"{before}{line}\n")
    assert found is None or found[1].finding is None


@pytest.mark.parametrize("before", ["", "    ", "pod-1 llama ", "0: "])
def test_a_healthy_log_behind_a_prefix_has_no_cause(before: str) -> None:
    lines = (LLAMACPP / "buffers/falcon-h1.log").read_text().splitlines()
    found = explain_log("".join(f"{before}{line}\n" for line in lines))
    assert found is not None
    assert (found[1].finding, found[1].reached) == (None, "serving")
