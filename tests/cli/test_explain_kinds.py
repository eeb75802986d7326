"""`caovanctl explain` detects which engine wrote a log, and says so if it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from caovand.cli.main import main
from caovand.engines import writer
from caovand.engines.common.logs.whole_log import lines_of
from caovand.engines.common.logs.wrapping import join_wrapped
from caovand.engines.writer import explain_log

FULL = """Warning: client version is 0.15.4
Error: write /usr/share/ollama/.ollama/models/blobs/sha256-partial: no space left on device
"""
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
PROMPT = (
    "(APIServer pid=1) INFO 11-20 09:00:00 [logger.py:40] prompt: 'File \"/x/sglang/srt/a.py\"'"
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"(Worker_TP0 pid=7) ERROR 11-20 09:00:00 [x.py:1] {OOM}", "vllm"),
        (f"ERROR 11-20 09:00:00 engine.py:366] {OOM}", "vllm"),
        (f'{PROMPT}\n(EngineCore pid=7) ERROR 11-20 09:00:00 [x.py:1] {OOM}', "vllm"),
        (f"[2025-03-12 10:12:44 TP0] Scheduler hit an exception: Traceback\n{OOM}", "sglang"),
        ('  File "/sgl-workspace/sglang/python/sglang/srt/x.py", line 7, in f\n' + OOM, "sglang"),
        ("/build/llama-server-cuda_v13/ggml/src/ggml-cuda/x.cu:1: CUDA error", "ollama"),
        ("llama_a: x\nllama_b: x\ntime=2025-01-28 level=INFO source=x.go:22 msg=x", "ollama"),
        ("0.41.568.358 E CUDA error: an illegal memory access was encountered", "llamacpp"),
        ("[46009] /x/ggml/src/ggml-cuda/fattn.cu:579: fatal error", "llamacpp"),
        ("[ 1843.3] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", "host"),
        ("arch ollama[115]: llama_model_load: error loading model: x", "ollama"),
        ("ollama-1  | CUDA error: out of memory", "ollama"),
        # No line of any engine: a text that one alone knows decides, what several know does not.
        ("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (856).", "vllm"),
        (OOM, ""),
        # What any program may print identifies none, nor does what is known by its form alone.
        ("Error: open config.json: file does not exist", ""),
        ("Segmentation fault (core dumped)", ""),
        ("[    1.5] amdgpu 0000:c2:00.0: ring gfx_0.0.0 timeout, signaled seq=1", "host"),
        ("nvidia-container-cli: initialization error: nvml error: driver not loaded", ""),
        ("ValueError: something that nobody knows", ""),
    ],
)  # fmt: skip
def test_the_writer_is_known_by_its_lines(text: str, name: str) -> None:
    found = explain_log(text)
    assert found is not None
    assert found[0].name == name


def test_where_the_engine_is_not_certain_only_general_advice_is_given() -> None:
    found = explain_log(OOM)
    assert found is not None
    assert found[1].finding is not None
    assert found[1].finding.failure == "device-oom-load"
    assert found[1].advice
    assert "in this order" not in " ".join(found[1].advice)


def test_what_nobody_knows_is_unknown_and_blames_nothing() -> None:
    line = "RuntimeError: something that nobody knows"
    running = "(EngineCore pid=7) ERROR 11-20 09:00:00 [core.py:1] ValueError: what nobody knows"
    for text in (line, running):
        found = explain_log(text)
        assert found is not None
        assert found[1].finding is not None
        assert found[1].finding.failure == "unknown"
        assert "No known cause matches" in found[1].advice[0]
        assert "in this order" not in " ".join(found[1].advice)


@pytest.mark.parametrize("text", ["", "root:x:0:0:root:/root:/bin/bash\n", "[part]\nkey = 1\n"])
def test_what_is_no_log_is_called_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    assert main(["explain", str(file)]) == 1
    said = capsys.readouterr()
    assert "is neither an engine's log nor" in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("NVRM: loading NVIDIA UNIX Open Kernel Module", ["Kernel and driver", "no known failure"]),
        ("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off", ["Kernel and driver", "gpu-lost"]),
        (OOM, ["Engine not certain", "device-oom-load"]),
        (FULL, ["Ollama 0.15.4 (client)", "disk.full"]),
    ],
)
def test_a_page_claims_no_version_of_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, first: list[str]
) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    assert main(["explain", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == first


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("12:07 | x /opt/vllm/v1/engine/core.py went wrong", "vllm"),
        ("12:07 | x /opt/sglang/srt/server.py went wrong", "sglang"),
        ('http://10.0.0.2:3138 "GET http://0.0.0.0:25600/get_model_info HTTP/1.1" 403 3', "sglang"),
    ],
)
def test_files_and_routes_of_an_engine_show_whose_log_it_is(text: str, name: str) -> None:
    found = explain_log(text)
    assert found is not None
    assert found[0].name == name


ABORTED = "#1  0x00007735c815572d in ggml_abort () from /opt/libggml-base.so.0"


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("", "no earlier line names a known cause"),
        ("ollama: something that could not be done", "a cause may be in line 1: ollama: something"),
    ],
)
def test_an_end_without_a_known_cause_names_the_line_that_sounds_like_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, why: str
) -> None:
    file = tmp_path / "file"
    file.write_text(f"{before}\nggml_load: x\n{ABORTED}\n")
    assert main(["explain", str(file)]) == 0
    assert why in capsys.readouterr().out


def test_where_nothing_is_known_the_last_alarming_line_is_named() -> None:
    found = explain_log(
        "ggml_load: x\nggml_load: the frobnicator failed, token=hf_abcdefghijklmnop"
    )
    assert found is not None
    assert found[1].finding is None
    assert found[1].advice[0].startswith("Line 2 sounds like an error")
    assert "hf_abcdefghijklmnop" not in found[1].advice[0]


@pytest.mark.parametrize(
    ("lines", "runtime"),
    [
        (
            "ggml_vulkan: Found 1 Vulkan devices:\nllama_x: error: vk::Queue: ErrorDeviceLost",
            "Vulkan",
        ),
        ("SYCL error: CHECK_TRY_ERROR(x): Exception caught in this line of code.", "SYCL"),
        ("ggml_cuda_init: found 1 ROCm devices:\nROCm error: unspecified launch failure", "AMD"),
        ("ggml_cuda_init: found 1 CUDA devices:\nCUDA error: unspecified launch failure", "xid"),
    ],
)
def test_advice_about_a_crashed_card_is_for_what_drives_it(lines: str, runtime: str) -> None:
    found = explain_log(lines)
    assert found is not None
    advice = " ".join(found[1].advice)
    assert runtime in advice
    assert ("xid" in advice) == (runtime == "xid")


def test_a_variable_or_library_in_the_line_is_named() -> None:
    line = "ERROR 11-20 09:00:00 [x.py:1] ValueError: VLLM_FROBNICATE is broken, see libfrob.so.3"
    found = explain_log(line)
    assert found is not None
    assert "The line names VLLM_FROBNICATE, libfrob.so.3." in found[1].advice


def test_a_log_without_a_failure_is_split_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "(EngineCore pid=7) INFO 11-20 09:00:00 [core.py:1] Starting to load model /m..."
    split: list[str] = []

    def counted(text: str) -> list[str]:
        split.append(text)
        return lines_of(text)

    monkeypatch.setattr(writer, "lines_of", counted)
    assert explain_log(text) is not None
    assert split[0] == text
    assert len(split) == len(set(split))


def test_values_alone_on_the_next_line_belong_to_the_message() -> None:
    text = f"(EngineCore pid=7) [autoscaler] Error: x\n{' ' * 20}{{'GPU': 1.0}}\nend"
    assert join_wrapped(text).split("\n")[:2] == [
        "(EngineCore pid=7) [autoscaler] Error: x {'GPU': 1.0}", "",
    ]  # fmt: skip


def test_a_word_broken_at_the_edge_is_joined() -> None:
    full = [
        "a" * 100,
        "b" * 100,
        "c" * 100,
        "nvidia-container-cli: unsatisfied condi".rjust(100, "d"),
    ]
    assert "unsatisfied condition: cuda" in join_wrapped("\n".join([*full, "tion: cuda >= 9.0"]))
