"""Commands from vLLM's recipes, its documentation, model cards and reports: caovan interprets each
like vLLM's own parser."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.cli import serve
from caovand.cli.common.errors import CommandError
from caovand.engines.vllm.command import SERVE, build
from caovand.engines.vllm.flags.table import SUCCESSORS
from caovand.engines.vllm.planning.planner import make_plan
from tests.core.machines import ABSENT, inventory, named
from tests.engines.test_real_flags import engine
from tests.real_engine import ENGINE

DRAFTS = '{"method": "qwen3_next_mtp", "num_speculative_tokens": 2}'
COMMANDS = (
    "openai/gpt-oss-20b",
    "openai/gpt-oss-120b --tensor-parallel-size 4 --async-scheduling",
    "--model openai/gpt-oss-20b --port 9000",
    "Qwen/Qwen3-0.6B -tp 1 --trust-remote-code --dtype bfloat16"
    """ -cc '{"pass_config": {"fuse_act_quant": false}, "custom_ops": ["all"]}'""",
    "Qwen/Qwen2.5-3B-Instruct --enable-prefix-caching --enable-chunked-prefill",
    "Qwen/Qwen2.5-0.5B-Instruct --port 8002 --enable-auto-tool-choice --tool-call-parser hermes",
    "Qwen/Qwen2.5-14B-Instruct --api-key sk-1 --port 8000 --host 0.0.0.0 --trust-remote-code",
    "Qwen/Qwen3.5-9B --port 8000 --max-model-len 32768 --dtype auto"
    " --gpu-memory-utilization 0.90 --language-model-only",
    "Qwen/Qwen3-8B --host 127.0.0.1 --max-model-len 9000 --no-enable-prefix-caching"
    " --max-num-batched-tokens 2048 --kv-cache-dtype fp8",
    "Qwen/Qwen2-VL-7B-Instruct --dtype half --tensor-parallel-size 2",
    f"/mnt/weight/Qwen3.6-27B --seed 1024 --max-num-seqs 32 --speculative_config '{DRAFTS}'"
    """ --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY",
    "cudagraph_capture_sizes": [3, 6, 9]}' --additional-config '{"enable_cpu_binding": true}'""",
    "Qwen/Qwen3-235B-A22B-FP8 -tp 8 --enable-expert-parallel --reasoning-parser qwen3"
    " --max-model-len 131072 --gpu-memory-utilization=0.95",
    "lukealonso/MiniMax-M2.7-NVFP4 --port 23333 --served-model-name MM-27 --tensor-parallel-size 2"
    " --reasoning-parser minimax_m2_append_think --disable-custom-all-reduce"
    " --enable_expert_parallel --max-num-seqs 8 --max-model-len 130k",
    "deepseek-ai/DeepSeek-V3 --tensor-parallel-size 1 --data-parallel-size 8"
    " --enable-expert-parallel --all2all-backend deepep_low_latency --enable-eplb --eplb-config"
    """ '{"window_size": 1000, "step_interval": 3000, "num_redundant_experts": 2}'""",
    "deepseek-ai/DeepSeek-V3.2-Exp --port 8004 --data-parallel-size 2 --data-parallel-size-local 1"
    " --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 13389 --tensor-parallel-size 16"
    " --served-model-name deepseek_v3.2 --enable-expert-parallel --max-num-seqs 16",
    "meta-llama/Llama-3.2-1B-Instruct --headless --data-parallel-size 4"
    " --data-parallel-size-local 2 --data-parallel-start-rank 2"
    " --data-parallel-address 10.99.48.128 --data-parallel-rpc-port 13345",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B --tensor-parallel-size 2 --enforce-eager",
    "deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 8 --max-model-len 100000"
    """ --kv-transfer-config '{"kv_connector": "disk-cache", "engine_id": "e1",
    "kv_role": "kv_both", "kv_connector_extra_config": {"disk_cache_path": "/mnt/kv"}}'""",
    "deepseek-ai/DeepSeek-OCR-2 --max-model-len 8192 --no-enable-prefix-caching"
    " --logits_processors vllm.model_executor.models.deepseek_ocr:NGramPerReqLogitsProcessor"
    """ --mm-processor-cache-gb 0 --limit-mm-per-prompt '{"image": 1}'""",
    "zai-org/GLM-4.5-Air --tensor-parallel-size 4 --speculative-config.method mtp"
    " --speculative-config.num_speculative_tokens 1 --tool-call-parser glm45"
    " --reasoning-parser glm45 --enable-auto-tool-choice",
    "moonshotai/Kimi-K2-Instruct --trust-remote-code -tp 8 -pp 2"
    " --distributed-executor-backend ray --tool-call-parser kimi_k2",
    "meta-llama/Llama-405B-Instruct --tensor-parallel-size 16 --pipeline-parallel-size 1",
    "TheBloke/Llama-2-13B-AWQ --quantization awq",
    "mistralai/Mistral-Small-24B --tokenizer-mode mistral --config-format mistral"
    """ --load-format mistral --override-generation-config '{"temperature": 0.15}'""",
    "meta-llama/Llama-3.1-8B-Instruct --enable-lora --max-lora-rank 64 --max-loras 2"
    " --lora-modules adapter_v1=/path/to/v1 adapter_v2=/path/to/v2 --lora-dtype float16",
    "Qwen/Qwen3-Embedding-8B --runner pooling --convert embed --max-model-len 8192",
    "BAAI/bge-reranker-v2-m3 --runner pooling --max-num-batched-tokens 8192",
    "Qwen/Qwen3-Reranker-8B --hf_overrides"
    """ '{"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token":
    ["no", "yes"], "is_original_qwen3_reranker": true}'""",
    "openai/whisper-large-v3 --gpu-memory-utilization 0.4 --allowed-origins '[\"*\"]'",
    "unsloth/Qwen3-0.6B-GGUF:Q4_K_M --tokenizer Qwen/Qwen3-0.6B --kv-cache-memory-bytes 3G",
    "Qwen/Qwen2.5-72B-Instruct --hf-overrides"
    """ '{"rope_parameters": {"rope_type": "yarn", "factor": 4.0,
    "original_max_position_embeddings": 32768}}' --max-model-len 131072""",
)
OLD = (
    """Qwen/Qwen3-8B --rope-scaling '{"rope_type": "yarn", "factor": 4.0}'""",
    "deepseek-ai/DeepSeek-R1 --enable-reasoning --reasoning-parser deepseek_r1 --swap-space 16",
    "BAAI/bge-m3 --task embed",
    "meta-llama/Llama-3.1-8B --enable-lora --lora-extra-vocab-size 256 --num-scheduler-steps 8",
)
READ = """
import contextlib, io, json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

def parsed(words):
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            return vars(make_arg_parser(FlexibleArgumentParser()).parse_args(words))
    except SystemExit:
        return {"refused": told.getvalue()[-300:]}

plain = {name: repr(value) for name, value in parsed([]).items()}
print(json.dumps([
    {name: [str(value), str(theirs.get(name))] for name, value in ours.items()
     if repr(value) != plain.get(name) and repr(value) != repr(theirs.get(name))}
    for ours, theirs in ((parsed(a), parsed(b)) for a, b in json.load(sys.stdin))
]))
"""
MERGED = {"additional_config"}  # ours is merged into the operator's
NAMED = {"model", "model_tag"}  # either names it


def planned(text: str) -> tuple[list[str], list[str], Any]:
    """A command's words, those of the plan, and the plan."""
    words = shlex.split(text)
    real = replace(engine("0.33.0"), version="0.32.0", decodes_sound=True)
    order = serve.read(words, None, real.flags, real.switches)
    model = replace(ABSENT, path=order.config.model.path)
    found = make_plan(order.config, inventory(model, named("H100", 8), real))
    argv = build(found, real, None).argv
    return words, list(argv[1 + len(SERVE) :]), found


@pytest.mark.parametrize("text", COMMANDS)
def test_a_public_command_is_planned(text: str) -> None:
    words, _, found = planned(text)
    assert not [one for one in found.warnings if "refuse to start" in one]
    assert found.model in words


@pytest.mark.parametrize("text", OLD)
def test_an_old_command_is_planned_and_says_what_replaced_its_flags(text: str) -> None:
    words, _, found = planned(text)
    gone = [word[2:].replace("-", "_") for word in words if word.startswith("--")]
    for name in filter(SUCCESSORS.get, gone):
        assert any(one.endswith(SUCCESSORS[name]) for one in found.warnings), name


def test_a_gguf_file_is_served_by_llama_cpp_with_the_same_meaning() -> None:
    words = (
        "/m/Qwen3-0.6B-Q4_K_M.gguf --tokenizer Qwen/Qwen3-0.6B --max-model-len 8k -tp 2 --port 9000"
        " --served-model-name q --max-num-seqs 4 --kv-cache-dtype fp8 --api-key sk-1"
        " --gpu-memory-utilization .9"
    )
    order = serve.read(shlex.split(words))
    config = order.config
    assert (config.engine.kind, config.engine.extra_args) == ("llamacpp", ())
    assert (config.model.served_name, config.model.max_model_len) == ("q", 8000)
    assert (config.server.host, config.server.port) == ("0.0.0.0", 9000)
    policy = config.policy
    assert (policy.tensor_parallel_size, policy.max_num_seqs) == (2, 4)
    assert (policy.kv_cache_dtype, policy.gpu_memory_utilization) == ("q8_0", 0.9)
    assert order.secrets == {"VLLM_API_KEY": "sk-1"}
    assert order.note.startswith("ignored: --tokenizer; ")
    embeds = serve.read(["/m/bge.gguf", "--runner", "pooling"]).config
    assert embeds.engine.extra_args == ("--embeddings",)
    assert embeds.model.served_name == "/m/bge.gguf"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--enable-lora"], "with --enable-lora: llama.cpp, which serves GGUF files, has no"),
        (["--kv-cache-dtype", "nvfp4"], "with --kv-cache-dtype nvfp4: llama.cpp has no such cache"),
        (["--runner", "generate"], "with --runner"),
    ],
)
def test_a_flag_that_llama_cpp_has_nothing_for_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        serve.read(["/m/a.gguf", *words])


@pytest.mark.engine
@pytest.mark.long
def test_vllms_own_parser_reads_the_same_from_the_command_and_from_the_plan(
    tmp_path: Path,
) -> None:
    """All in one process: vLLM takes many seconds to import."""
    file = tmp_path / "serve.yaml"
    file.write_text(
        "model: facebook/opt-12B\nport: 12323\ntensor-parallel-size: 4\nenable-prefix-caching: no\n"
        "speculative-config:\n  method: ngram\n  num_speculative_tokens: 3\n"
        "lora-modules: [a=/a, b=/b]\n"
    )
    pairs = [planned(text)[:2] for text in COMMANDS]
    known = {"--no-enable-prefix-caching"}
    from_file = serve.with_config_file(["--config", str(file), "-tp", "2"], str(ENGINE), known)
    pairs.append((["--config", str(file), "-tp", "2"], planned(shlex.join(from_file))[1]))
    done = subprocess.run(
        [str(ENGINE), "-c", READ], input=json.dumps(pairs), capture_output=True, text=True,
        check=False, env={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    wrong = {
        " ".join(words): different
        for (words, _), one in zip(pairs, found, strict=True)
        if (different := {k: v for k, v in one.items() if k not in MERGED | NAMED | {"api_key"}})
    }
    assert len(found) > 30
    assert wrong == {}
