"""Advice says what its line proves: the step, the part or the tool that the text names, no more."""

from __future__ import annotations

import re

import pytest

from caovand.core.healing.failure import Finding
from caovand.engines.common.healing import stages
from caovand.engines.writer import explain_log

VLLM = "(EngineCore_DP0 pid=1) ERROR 11-20 09:13:16 [core.py:708] "
SGLANG = (
    "[2025-01-01 00:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
)
LOADING = VLLM + '  File "/x/vllm/v1/worker/gpu_worker.py", line 9, in load_model\n'
FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 298.00 MiB. GPU 0 has a total "
    "capacity of 23.66 GiB of which 98.25 MiB is free. Including non-PyTorch memory, this process "
    "has {own} GiB memory in use."
)
NO_CODE = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
PLAIN = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 298.00 MiB"

HIDDEN = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.88 GiB. GPU 3 has a total "
    "capacity of 21.96 GiB of which 1.29 GiB is free. Including non-PyTorch memory, this process "
    "has 0 bytes memory in use. Of the allocated memory 19.02 GiB is allocated by PyTorch, and "
    "1.32 GiB is reserved by PyTorch but unallocated."
)
GRAPHS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 42.00 MiB. GPU 0 has a total "
    "capacity of 23.49 GiB of which 55.38 MiB is free. Including non-PyTorch memory, this process "
    "has 22.31 GiB memory in use. Of the allocated memory 21.51 GiB is allocated by PyTorch, with "
    "{pools} allocated in private pools (e.g., CUDA Graphs), and 303.36 MiB is reserved by PyTorch "
    "but unallocated."
)


def advice(text: str) -> str:
    found = explain_log(text)
    assert found is not None
    return "\n".join(found[1].advice)


@pytest.mark.parametrize(
    ("text", "says", "never"),
    [
        (VLLM + PLAIN, "do not show at which step", "weights do not fit"),
        (SGLANG + PLAIN, "do not show at which step", "weights do not fit"),
        (PLAIN, "do not show at which step", "weights do not fit"),
        (LOADING + VLLM + FULL.format(own="23.30"), "weights do not fit", "do not show"),
        (LOADING + VLLM + FULL.format(own="23.30"), "alone uses 23.3 of the", "nvidia-smi|draft "),
        (LOADING.replace("load_model", "create_weights") + VLLM + PLAIN, "weights do not fit",
         "do not show"),
        (VLLM + FULL.format(own="23.30"), "alone uses 23.3 of", "nvidia-smi"),
        (SGLANG + FULL.format(own="23.30"), "alone uses 23.3 of", "nvidia-smi"),
        (VLLM + FULL.format(own="22.30"), "remaining 1.3 GiB: nvidia-smi", "draft tokens"),
        (VLLM + HIDDEN, "alone uses 20.3 of the card's 22.0 GiB", "nvidia-smi"),
        (HIDDEN.replace("Including non-PyTorch memory, this process has 0 bytes memory",
         "Process 3045 has 20.40 GiB memory"), "alone uses 20.3 of the card", "another process"),
        (SGLANG + GRAPHS.format(pools="22.00 MiB"), "CUDA graphs were there", "weights are"),
        (VLLM + GRAPHS.format(pools="20.00 GiB"), "weights are larger", "CUDA graphs were"),
        (VLLM + "Failed to create unquantized linear weights: " + FULL.format(own="23.30")[28:],
         "weights do not fit: by PyTorch", "do not show|another process|draft "),
        (LOADING + VLLM + FULL.format(own="3.53"), "use 20.0 of this card's 23.7", "do not fit"),
        (VLLM + "RuntimeError: CUDA error: invalid device ordinal", "tensor_parallel", "build for"),
        (VLLM + "RuntimeError: CUDA driver version is insufficient", "driver is older", "build of"),
        (VLLM + "RuntimeError: Failed to infer device type", "build without CUDA", "more ranks"),
        (VLLM + "torch.AcceleratorError: CUDA error: invalid argument", "CUDA_LAUNCH_BLOCKING",
         "fit"),
        (SGLANG + "RuntimeError: CUDA error: invalid argument", "CUDA_LAUNCH_BLOCKING", "fit"),
        (VLLM + "ValueError: torch.bfloat16 is not supported for quantization method awq. Su",
         "--dtype", "card does not"),
        (VLLM + "ValueError: The quantization method fp8 is not supported for the current GPU.",
         "card does not support the quantization fp8", "--dtype"),
        (VLLM + "ValueError: Bfloat16 is only supported on GPUs with compute capability of at "
         "least 8.0. Your Tesla T4 GPU", "below 8.0, which", "quantization"),
        (VLLM + NO_CODE, "get_arch_list", "smaller"),
        (SGLANG + NO_CODE, "get_arch_list", "smaller"),
        (SGLANG + "Exception: Capture cuda graph failed: list index out of range", "That is the re",
         "weights"),
        (SGLANG + "RuntimeError: NCCL error: unhandled system error", "NCCL_DEBUG=INFO", "weights"),
        (SGLANG + "RuntimeError: No CUDA GPUs are available", "--gpus all", "more ranks"),
        (VLLM + "RuntimeError: CUDA error: device-side assert triggered", "index", "Update"),
        (SGLANG + "RuntimeError: CUDA error: device-side assert triggered", "index", "Update"),
        (VLLM + "RuntimeError: CUDA error: unspecified launch failure", "driver", "index"),
        (VLLM + "RuntimeError: CUDA error: operation not permitted when stream is capturing",
         "cannot record", "Update"),
        (VLLM + "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCr`",
         "LD_LIBRARY_PATH", "Update"),
        (VLLM + "RuntimeError: Could not find nvcc and default cuda_home", "a tool .* missing",
         "are there"),
        (VLLM + "RuntimeError: Ninja build failed. Ninja output:", "tools are there", "missing"),
        (SGLANG + "RuntimeError: Error building extension 'x'", "tools are there", "is missing"),
        (VLLM + "RuntimeError: `ptxas` failed with error code 255:", "TRITON_PTXAS_PATH",
         "missing"),
        (VLLM + "ValueError: Unrecognized model in /m. Should have a `model_type` key in its "
         "config.json", "adapter", "OWNER/NAME"),
        (VLLM + "OSError: x/y is not a local folder and is not a valid model identifier",
         "OWNER/NAME", "adapter"),
        (VLLM + "OSError: outgoing traffic has been disabled", "HF_HUB_OFFLINE", "OWNER/NAME"),
        (VLLM + "AssertionError: Attempted to load weight (torch.Size([8])) into parameter",
         "fetching it again does not help", "cut off"),
        (VLLM + "safetensors_rust.SafetensorError: Error while deserializing header: x",
         "cut off or damaged", "another shape"),
        ('error while handling argument "--flash-attn": expected value for argument',
         "Pass --flash-attn on", "newer llama.cpp"),
        ('error while handling argument "-c": expected value for argument\nusage:\n-c, --ctx N',
         "without the value", "it takes"),
        ('Error: mkdir /home/me/models: permission denied', "ProtectHome", "^Let "),
        ('Error: mkdir /mnt/models/blobs: permission denied', "own the folder", "ProtectHome"),
        ('Error: open /mnt/models/blobs/sha256-1: permission denied', "read", "ProtectHome"),
        ("0.00.014.789 E common_download_file_single: status code: 401", "HF_TOKEN", "chmod"),
    ],
)  # fmt: skip
def test_advice_says_what_its_line_proves(text: str, says: str, never: str) -> None:
    said = advice(text)
    assert re.search(says, said), said
    assert not re.search(never, said), said


def test_only_the_processes_own_figures_show_that_others_use_the_card() -> None:
    def finding(text: str, failure: str = "device-oom-load") -> Finding:
        return Finding(failure, text, "load", {}, "oom.cuda", 1)  # type: ignore[arg-type]

    full = {"alone": "21.0", "card": "23.7", "rest": "2.6"}
    assert stages.users_of(finding(FULL.format(own="21.00"))) == full
    assert stages.users_of(finding(FULL.format(own="20.00")))["others"] == "3.6"
    assert stages.users_of(finding(PLAIN)) == {}
    assert stages.users_of(finding(FULL.format(own="3.53"), "unknown")) == {}


def test_an_integrated_card_alone_is_named_and_not_praised_as_the_cure() -> None:
    dropped = (
        'level=INFO source=runner.go:405 msg="dropping integrated GPU; to enable, set '
        'OLLAMA_IGPU_ENABLE=1" id=0 library=Vulkan description="Intel(R) Iris(R) Xe Graphics"\n'
    )
    none = 'level=INFO source=routes.go:1 msg="vram-based default context" total_vram="0 B"\n'
    some = none.replace("0 B", "7.5 GiB")
    found = explain_log(dropped + none)
    assert found is not None
    assert found[1].finding is not None
    assert found[1].finding.signature == "ollama.cards.integrated"
    first, second, last = found[1].advice
    assert "Iris" in first
    assert "nvidia-smi" in second
    assert "OLLAMA_IGPU_ENABLE=1" in last
    for text in (dropped + some, none):
        found = explain_log(text)
        assert found is None or found[1].finding is None


def test_a_template_that_raises_blames_the_client_in_the_template_s_own_words() -> None:
    for text in (
        '500:Internal Server Error:{"error":{"code":500,"message":"No two users! at row 2, column '
        "8:\\n {{- raise_exception(",
        VLLM + "jinja2.exceptions.TemplateError: No two users!",
    ):
        said = advice(text)
        assert "No two users!" in said
        assert "client" in said
