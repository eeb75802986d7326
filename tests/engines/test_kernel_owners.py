"""A package without kernels for the card is named, and only what replaces it is tried."""

from __future__ import annotations

import pytest

from caovand.engines.writer import answer_for, explain_log

FAILED = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
VLLM = "(EngineCore pid=96) "
SGLANG = "[2025-12-24 13:59:19 TP0] Scheduler hit an exception: "


def explained(frame: str, below: str = "", error: str = FAILED) -> tuple[str, str, str]:
    lines = ["Traceback (most recent call last):", f'  File "{frame}", line 9, in call', "    x()"]
    lines += [f'  File "{below}", line 9, in call', "    y()"] if below else []
    found = explain_log("".join(f"{VLLM}{line}\n" for line in [*lines, error]))
    assert found is not None
    assert found[1].finding is not None
    answer = answer_for(found[0], found[1].finding, None)
    return found[1].finding.signature, " ".join(found[1].advice), answer.how


@pytest.mark.parametrize(
    ("frame", "owner"),
    [
        ("/opt/env/lib/python3.12/site-packages/lmcache/v1/gpu_connector.py", "lmcache"),
        ("/workspace/LMCache/lmcache/v1/gpu_connector.py", "lmcache"),
        ("/opt/env/lib/python3.12/site-packages/bitsandbytes/functional.py", "bitsandbytes"),
        ("/opt/env/lib/python3.12/site-packages/mamba_ssm/ops/selective.py", "mamba_ssm"),
        ("/opt/env/lib/python3.12/site-packages/causal_conv1d/interface.py", "causal_conv1d"),
    ],
)
def test_a_package_that_no_backend_replaces_is_named_and_no_plan_tried(
    frame: str, owner: str
) -> None:
    signature, advice, how = explained(frame)
    assert signature == "kernels.package"
    assert f"{owner} has no kernels for this card" in advice
    assert "What helps" not in advice
    assert "attention" not in how


@pytest.mark.parametrize("package", ["flash_attn", "flash_attn_2", "xformers/ops"])
def test_kernels_for_attention_are_replaced_by_another_backend_alone(package: str) -> None:
    frame = f"/opt/env/lib/python3.12/site-packages/{package}/interface.py"
    signature, _, how = explained(frame, "/opt/env/site-packages/torch/_ops.py")
    assert signature == "kernels.attention"
    assert "use another attention backend" in how
    assert "float16" not in how


def test_pytorch_the_engine_and_its_own_kernels_stay_as_they_are() -> None:
    for package in ("torch/nn/modules", "vllm/model_executor/layers", "vllm/vllm_flash_attn"):
        signature, advice, _ = explained(f"/opt/env/lib/python3.12/site-packages/{package}/a.py")
        assert signature == "cuda.arch"
        assert "get_arch_list" in advice


def test_an_image_that_the_driver_refuses_is_the_drivers() -> None:
    signature, _, _ = explained(
        "/opt/env/lib/python3.12/site-packages/lmcache/v1/gpu_connector.py",
        error="RuntimeError: CUDA error: device kernel image is invalid",
    )
    assert signature == "cuda.arch"


def test_sglang_names_the_package_too() -> None:
    frame = "/opt/env/lib/python3.12/site-packages/flashinfer/decode.py"
    found = explain_log(
        f'{SGLANG}Traceback (most recent call last):\n  File "{frame}", line 9, in run\n{FAILED}\n'
    )
    assert found is not None
    assert found[1].finding is not None
    assert found[1].finding.signature == "kernels.flashinfer"
    assert "flashinfer has no kernels" in " ".join(found[1].advice)
