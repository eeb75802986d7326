"""Arguments that another release, or another program, has."""

from __future__ import annotations

import pytest

from caovand.engines.writer import explain_log

SGLANG = "launch_server.py: error: unrecognized arguments: "
VLLM = "vllm: error: unrecognized arguments: "
CALL = "TypeError: EngineArgs.__init__() got an unexpected keyword argument "


@pytest.mark.parametrize(
    ("line", "first"),
    [
        (VLLM + "--disable-log-requests", "vLLM dropped --disable-log-requests"),
        (VLLM + "--no-enable-expert-parallel", "came with a later release"),
        (VLLM + "--mem-fraction-static 0.8", "--gpu-memory-utilization"),
        (VLLM + "--unheard-of", "has no argument --unheard-of"),
        (f"{CALL}'num_scheduler_steps'\nvllm", "dropped num_scheduler_steps"),
        (f"{CALL}'limit_mm_per_prompt'\nvllm", "pip install -U vllm"),
        (SGLANG + "--enable-flashinfer-mla", "--attention-backend flashinfer"),
        (SGLANG + "--max-model-len 4096", "--context-length"),
        (SGLANG + "--max_model_len=4096", "--context-length"),
        (SGLANG + "--unheard-of", "does not know --unheard-of"),
    ],
)
def test_the_advice_names_what_takes_the_arguments_place(line: str, first: str) -> None:
    found = explain_log(line)
    assert found is not None
    assert first in found[1].advice[0]
    assert len([text for text in found[1].advice if "unheard-of" in text]) <= 1


def test_a_package_that_calls_its_own_class_wrongly_is_named() -> None:
    found = explain_log(
        "Traceback (most recent call last):\n"
        '  File "/opt/env/lib/python3.10/site-packages/lighteval/main_vllm.py", line 133, in vllm\n'
        "    model_config = VLLMModelConfig(**arguments)\n"
        "TypeError: VLLMModelConfig.__init__() got an unexpected keyword argument 'gpu_memory'\n"
    )
    assert found is not None
    assert "is of lighteval" in found[1].advice[0]
    assert not any("engine again" in text for text in found[1].advice)


def test_a_build_for_cuda_where_no_card_was_found_is_the_wrong_build() -> None:
    library = "Failed to import from vllm._C with ImportError('libcudart.so.12: cannot open shared "
    lines = (
        "INFO 11-20 18:08:10 [__init__.py:220] No platform detected, vLLM is running on Unspecified"
        f"\nWARNING 11-20 18:08:11 [_custom_ops.py:20] {library}object file: No such file')\n"
    )
    found = explain_log(lines)
    assert found is not None
    assert "This build is for NVIDIA's cards" in found[1].advice[0]
    found = explain_log(lines.partition("\n")[2])
    assert found is not None
    assert "This build is for" not in found[1].advice[0]
