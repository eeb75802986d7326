"""Packages and options that one release has and another lacks, told by their frames and names."""

from __future__ import annotations

import pytest

from caovand.engines.writer import explain_log

CARD = (
    'launch_server.py", line 7, in <module>\n  File "/opt/env/lib/python3.12/site-packages/sglang/'
    'srt/server_args.py", line 480, in __post_init__\n    if gpu_mem < 20 * 1024:\n'
    "TypeError: '<' not supported between instances of 'NoneType' and 'int'\n"
)
INSPECTED = "Value error, Model architectures ['{}'] failed to be inspected. Please check. vllm\n"
FLASH = "/opt/env/lib/{}.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDevi\n"


def advice(text: str) -> str:
    found = explain_log(text)
    assert found is not None
    return "\n".join(found[1].advice)


def test_options_that_depend_on_a_card_without_memory() -> None:
    text = f'Traceback (most recent call last):\n  File "/opt/{CARD}'
    assert "--device cpu" in advice(text)
    assert "--device cpu" not in advice(text.replace("server_args.py", "models/llama.py"))


@pytest.mark.parametrize(
    ("architecture", "part"),
    [
        ("VoxtralForConditionalGeneration", "vllm[audio]"),
        ("WhisperForConditionalGeneration", "vllm[audio]"),
        ("Qwen3TTSForConditionalGeneration", "--omni"),
    ],
)
def test_a_model_that_was_not_inspected_tells_what_it_needs(architecture: str, part: str) -> None:
    assert part in advice(INSPECTED.format(architecture))
    assert part not in advice(INSPECTED.format("LlamaForCausalLM"))


def test_kernels_of_flash_attn_are_named() -> None:
    assert "pip uninstall flash-attn" in advice("ImportError: " + FLASH.format("flash_attn_2_cuda"))
    assert "flash-attn" not in advice("ImportError: " + FLASH.format("_C"))


@pytest.mark.parametrize(("adapter", "named"), [("vllm_rollout", True), ("hf_rollout", False)])
def test_a_trainer_s_adapter_of_an_engine_follows_the_engine_s_release(
    adapter: str, named: bool
) -> None:
    text = advice(
        'Traceback (most recent call last):\n  File "/work/verl/verl/trainer/main.py", line 3, in '
        f"<module>\nImportError: cannot import name 'Rollout' from 'verl.workers.{adapter}' "
        f"(/work/verl/verl/workers/{adapter}/__init__.py)\nvllm\n"
    )
    assert ("releases of vllm" in text) == named


@pytest.mark.parametrize(("option", "dropped"), [("swap-space", True), ("fast", False)])
def test_another_program_that_takes_vllm_s_arguments(option: str, dropped: bool) -> None:
    found = explain_log(f"__main__.py: error: unrecognized arguments: --{option} 4\n")
    assert (found is not None and found[1].finding is not None) == dropped


def test_a_repository_without_configuration_may_be_gated() -> None:
    line = "ValueError: No supported config format found in {}\nvllm\n"
    assert "licence" in advice(line.format("mistralai/Mistral-7B-v0.1"))
    assert "licence" not in advice(line.format("/models/adapter"))


@pytest.mark.parametrize("path", ["/models/Qwen/Qwen-Image", "Qwen/Qwen-Image"])
def test_a_model_that_makes_images_is_named_by_its_folder(path: str) -> None:
    assert f"{path} makes images" in advice(
        f"INFO 03-13 08:55:25 [utils.py:238] non-default args: {{'model': '{path}'}}\nValue error, "
        f"Invalid repository ID or local directory specified: '{path}'.\n"
    )
