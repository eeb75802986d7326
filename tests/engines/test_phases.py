"""What vLLM's log says of a start: phases, progress, figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from caovand.core.health.observation import LogMark
from caovand.engines.vllm.log.phases import PHASES, ROWS, phase_of, read_figures

NAMES = tuple(phase.name for phase in PHASES)
GDN = "Gated DeltaNet"
LOGS = Path(__file__).parents[1] / "samples" / "logs"


def lines_of(name: str) -> list[str]:
    text = (LOGS / name).read_text(encoding="utf-8")
    return text.replace("\r", "\n").split("\n")


def phases_in(name: str) -> list[str]:
    """Phases in the order of their first mark."""
    marks = [phase_of(line) for line in lines_of(name)]
    return list(dict.fromkeys(mark.phase for mark in marks if mark and mark.phase))


def figures_in(name: str) -> dict[str, object]:
    """Figures of a whole log, the first of a name kept."""
    seen: dict[str, object] = {}
    for line in lines_of(name):
        for key, value in read_figures(line).items():
            seen.setdefault(key, value)
    return seen


def test_every_phase_a_row_names_is_in_the_order() -> None:
    assert {row.phase for row in ROWS} - {None} == set(NAMES)


def test_a_whole_start_on_a_gpu_goes_through_every_phase() -> None:
    assert phases_in("vllm-0.21.0-h200-q27_mtp3.log") == [
        "resolve", "engine", "load", "drafter", "profile", "compile", "kv", "capture", "warmup",
        "http",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("log", "last"),
    [
        ("vllm-0.19.0-a100-gpt-oss-20b.log", "http"),
        ("vllm-0.21.0-h200-gmu_high.log", "engine"),
        ("vllm-0.21.0-h200-kv_none.log", "kv"),
        ("vllm-0.21.0-h200-kv_short.log", "kv"),
        ("vllm-0.32.0-cpu-dense_compiled.log", "http"),
        ("vllm-0.32.0-cpu-fail_a_kv_small.log", "kv"),
        ("vllm-0.32.0-cpu-fail_f_port.log", "resolve"),
        ("vllm-0.32.0-cpu-hybrid_mtp.log", "http"),
    ],
)
def test_each_log_ends_in_the_phase_it_reached(log: str, last: str) -> None:
    assert phases_in(log)[-1] == last


def test_figures_of_a_gpu_start_are_those_in_the_log() -> None:
    found = figures_in("vllm-0.21.0-h200-q27_mtp3.log")
    assert found["version"] == "0.21.0"
    assert found["max_model_len"] == 16384
    assert found["weights_gib"] == 51.02
    assert found["kv_gib"] == 57.59
    assert found["kv_tokens"] == 635699
    assert found["concurrency"] == 38.8
    assert found["graph_gib"] == 0.06
    assert found["compile_s"] == 43.4


def test_figures_of_0_33_on_a_gpu_are_those_in_the_log() -> None:
    found = figures_in("vllm-0.33.0-h100-hybrid_mtp3.log")
    assert (found["version"], found["gdn_kernels"]) == ("0.33.0", "SM75")
    assert (found["kv_gib"], found["kv_tokens"], found["concurrency"]) == (73.92, 4291895, 130.98)
    assert (found["weights_gib"], found["graph_gib"]) == (2.6, 0.23)
    assert (found["compile_s"], found["dynamo_s"]) == (20.31, 3.05)


def test_a_log_names_the_kernels_of_the_plugin_or_why_they_are_not_used() -> None:
    assert figures_in("vllm-0.21.0-h200-fail_kill.log")["gdn_kernels"] == "SM75"
    refused = "vLLM's own kernels: activations are bfloat16; use --dtype half"
    for verb in ("stays on", "goes back to"):
        line = f"(EngineCore pid=9) INFO 11-25 20:24:35 [replacements.py:104] caovan: {GDN} {verb}"
        found = read_figures(f"{line} {refused}")
        assert found == {"kernels_refusal": "activations are bfloat16; use --dtype half"}


def test_a_log_names_caovans_attention() -> None:
    line = "(EngineCore pid=9) INFO 11-27 00:24:35 [triton_sm75.py:90] caovan: attention"
    runs = f"{line} runs on the SM75 kernels (cache int4_per_token_head, read and written)"
    assert read_figures(runs) == {"attention_kernels": "SM75"}


def test_a_log_names_the_type_of_the_lm_head_or_why_it_stays_in_16_bits() -> None:
    line = "(EngineCore pid=9) INFO 11-27 04:24:35 [head_layer.py:80] caovan: the lm_head"
    assert read_figures(f"{line} is int8 on the SM75 kernel (248320 x 5120)") == {"lm_head": "int8"}
    refused = read_figures(f"{line} stays in 16 bits: LoRA adapters can change it (--enable-lora)")
    assert refused == {"kernels_refusal": "LoRA adapters can change it (--enable-lora)"}
    failed = read_figures(f"{line} kernel failed, torch multiplies: cannot launch lm_head")
    assert failed == {"kernels_refusal": "cannot launch lm_head"}
    for why in ("the GPU is SM90, which runs", "its weights are shared with the embedding"):
        assert read_figures(f"{line} stays in 16 bits: {why}") == {}


def test_newer_versions_and_the_cpu_build_say_cache_size_and_concurrency_in_one_line() -> None:
    found = figures_in("vllm-0.32.0-cpu-dense_compiled.log")
    assert (found["version"], found["kv_tokens"], found["concurrency"]) == ("0.32.0", 2097152, 1024)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0", {"nccl_0_1": "Socket/0"}),
        (
            "Channel 03 : 3[b1000] -> 4[18000] [send] via NET/IB/0/GDRDMA",
            {"nccl_3_4": "IB/0/GDRDMA"},
        ),
        ("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0", {}),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", {}),
        ("Using network Socket", {}),
    ],
)
def test_nccl_names_what_it_uses_between_nodes(text: str, found: dict[str, str]) -> None:
    line = f"(Worker_TP0 pid=7) gpu1:7:19 [0] NCCL INFO {text}"
    assert read_figures(line) == found


@pytest.mark.parametrize(
    ("worker", "stage"),
    [
        ("Worker_PP1", 1),
        ("Worker_PP12_TP0", 12),
        ("Worker_DP0_PP1_TP3_EP3", 1),
        ("Worker_TP1", None),
    ],
)
def test_a_stage_reports_its_own_memory(worker: str, stage: int | None) -> None:
    found = read_figures(
        f"({worker} pid=4028) INFO 11-25 13:40:24 [gpu_model_runner.py:4959] "
        "Model loading took 4.32 GiB memory and 0.977299 seconds"
    )
    staged = {} if stage is None else {f"stage_{stage}_weights_gib": 4.32}
    assert found == {"weights_gib": 4.32, "load_s": 0.977299, **staged}


def test_a_bar_that_repeats_itself_on_one_line_counts_where_it_ended() -> None:
    line = (
        "(EngineCore pid=3547) Capturing CUDA graphs (decode, FULL):   0%|          | 0/8 "
        "[00:00<?, ?it/s]Capturing CUDA graphs (decode, FULL):  75%|#######   | 6/8 [00:02<00:00]"
    )
    assert phase_of(line) == LogMark("capture", "graph 6 of 8", 0.75)


def test_loaded_shards_are_progress_inside_the_phase() -> None:
    line = "Loading safetensors checkpoint shards:  36% Completed | 5/14 [01:18<02:23, 15.97s/it]"
    assert phase_of(line) == LogMark("load", "shard 5 of 14", 5 / 14)


def test_a_download_is_progress_of_whichever_phase_runs() -> None:
    line = "model-00003-of-00014.safetensors:  12%|#2        | 500M/4.00G [00:10<01:20, 44.0MB/s]"
    assert phase_of(line) == LogMark(None, '"model-00003-of-00014.safetensors" 12 %', 0.12)


def test_waiting_for_shared_memory_is_a_heartbeat_and_no_progress() -> None:
    marks = [phase_of(line) for line in lines_of("vllm-0.21.0-sm75x2-hang-host-ram.log")]
    assert [mark for mark in marks if mark][-4:] == [
        LogMark(None, "a process waits for another", heartbeat=True)
    ] * 4


def test_kernels_compiled_while_serving_are_told_apart() -> None:
    marks = [phase_of(line) for line in lines_of("vllm-0.21.0-h200-q27_mtp3.log")]
    assert sum(mark.jit for mark in marks if mark) == 8


@pytest.mark.parametrize(
    "line",
    [
        "",
        '(APIServer pid=1) INFO:     127.0.0.1:4 - "GET /health HTTP/1.1" 200 OK',
        "(APIServer pid=1) INFO 11-20 09:01:08 [logger.py:9] Received request cmpl-1: prompt: "
        "'Loading drafter model... Application startup complete.'",
        "(EngineCore pid=1) INFO 11-20 09:01:08 [x.py:9] Usingfoo",
    ],
)
def test_other_lines_say_nothing_of_the_start(line: str) -> None:
    assert phase_of(line) is None


def test_a_process_on_another_machine_is_taken_off_like_any() -> None:
    line = "(RayWorkerWrapper pid=9, ip=10.0.0.2) Loading drafter model..."
    assert phase_of(line) == phase_of("Loading drafter model...")
