"""`explain`: the right name for what went wrong, on real logs and on logs nobody has seen."""

from __future__ import annotations

import argparse
import json
import re
import statistics
from pathlib import Path

import pytest

from caovand.cli import explain as verb
from caovand.core.healing.failure import FAILURES, Failure, Finding
from caovand.engines.vllm.healing.advice import advise
from caovand.engines.vllm.log.cause import find_cause
from caovand.engines.vllm.log.explain import explain

LOGS = Path(__file__).parents[1] / "samples" / "logs"

# Each log: the failure, the phase it reached, and a piece of the causing line.
EXPECTED = {
    "vllm-0.19.0-a100-gemma4-26b-fp8": (None, "serving", ""),
    "vllm-0.19.0-a100-gpt-oss-20b": (None, "serving", ""),
    "vllm-0.21.0-h200-fail_kill": ("engine-died", "serving", "output_handler failed"),
    "vllm-0.21.0-h200-gmu_high": ("vram-busy", "engine", "cuda:0 (78.77/139.8 GiB)"),
    "vllm-0.21.0-h200-kv_none": ("kv-cache-none", "kv", "No available memory"),
    "vllm-0.21.0-h200-kv_short": ("kv-cache-short", "kv", "length is 175552"),
    "vllm-0.21.0-h200-q27_mtp3": (None, "serving", ""),
    "vllm-0.21.0-h200-tiny_mtp3": (None, "serving", ""),
    "vllm-0.21.0-sm75x2-hang-host-ram": ("start-stall", "compile", "No available shared memory"),
    "vllm-0.21.0-sm75x2-serving-mtp4": (None, "serving", ""),
    "vllm-0.32.0-cpu-dense_compiled": (None, "serving", ""),
    "vllm-0.32.0-cpu-hybrid_mtp": (None, "serving", ""),
    "vllm-0.32.0-cpu-fail_a_kv_small": ("kv-cache-short", "kv", "length is 32640"),
    "vllm-0.32.0-cpu-fail_arch": ("bad-arguments", "resolve", "Qwen99ForCausalLM"),
    "vllm-0.32.0-cpu-fail_awq": ("bad-arguments", "resolve", "config file for awq"),
    "vllm-0.32.0-cpu-fail_b_engine_idle": ("engine-died", "serving", "exited unexpectedly"),
    "vllm-0.32.0-cpu-fail_badconfig": ("model-missing", "resolve", "not a valid JSON"),
    "vllm-0.32.0-cpu-fail_badjson": ("bad-arguments", "resolve", "--speculative-config"),
    "vllm-0.32.0-cpu-fail_f_port": ("port-busy", "resolve", "Address already in use"),
    "vllm-0.32.0-cpu-fail_g_badpath": ("model-missing", "resolve", "LocalEntryNotFoundError"),
    "vllm-0.32.0-cpu-fail_gated": ("network", "resolve", "check your connection"),
    "vllm-0.32.0-cpu-fail_h_badflag": ("bad-arguments", "resolve", "--no-such-flag"),
    "vllm-0.32.0-cpu-fail_json_mtp4": ("engine-died", "serving", "The size of tensor a (7)"),
    "vllm-0.32.0-cpu-fail_kvram": ("host-oom", "load", "requested memory for kv"),
    "vllm-0.32.0-cpu-fail_kvzero": ("kv-cache-none", "kv", "No available memory"),
    "vllm-0.32.0-cpu-fail_mrope": ("engine-died", "serving", "Segfault"),
    "vllm-0.32.0-cpu-fail_mtp_prefix": ("engine-died", "serving", "not subscriptable"),
    "vllm-0.32.0-cpu-fail_noweights": ("model-missing", "load", "Cannot find any model weights"),
    "vllm-0.32.0-cpu-fail_plugin_load": ("plugin-error", "resolve", "cannot load libcaovan"),
    "vllm-0.32.0-cpu-fail_plugin_serve": ("plugin-error", "serving", "cannot run gdn_prefill"),
    "vllm-0.32.0-cpu-fail_toolong": ("bad-arguments", "resolve", "User-specified max_model_len"),
    "vllm-0.32.0-cpu-fail_trunc2": ("model-missing", "load", "SafetensorError"),
    "vllm-0.32.0-cpu-fail_wkill": ("engine-died", "serving", "Worker proc VllmWorker-0 died"),
    "vllm-0.33.0-h100-fail_kill": ("engine-died", "serving", "exited unexpectedly"),
    "vllm-0.33.0-h100-fail_kv_dtype": ("bad-arguments", "resolve", "Invalid kv_cache_dtype"),
    "vllm-0.33.0-h100-hybrid_mtp3": (None, "serving", ""),
    "vllm-0.33.0-h200-fail_device_assert": ("launch-failure", "serving", "index out of bounds"),
    "vllm-0.33.0-h200-fail_illegal_access": ("illegal-access", "serving", "illegal memory access"),
    "vllm-0.33.0-h200-fail_oom_neighbour": ("device-oom-run", "serving", "Process 9282 has 1.40"),
    "vllm-0.33.0-h200-fail_segfault": ("engine-died", "serving", "Segfault"),
}


def text_of(name: str) -> str:
    return (LOGS / f"{name}.log").read_bytes().decode()


def test_every_log_here_has_its_expectation() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_log_is_named_rightly_and_its_line_found(name: str) -> None:
    failure, reached, piece = EXPECTED[name]
    told = explain(text_of(name))
    assert (told.finding.failure if told.finding else None, told.reached) == (failure, reached)
    if told.finding:
        assert piece in told.finding.text
        said = told.finding.text.partition(" [a process vanished")[0]
        assert said[:60] in text_of(name).split("\n")[told.finding.line - 1]
        assert told.advice


@pytest.mark.parametrize("wrapping", ["vllm-1  | ", "2026-11-20T09:00:00.123456Z ",
                                      "Nov 20 09:00:00 host caovan[812]: ",
                                      "2026-11-20T09:00:00.1+00:00 stdout F ",
                                      "2026-11-20T09:00:00.12+01:00 host vllm[812]: ",
                                      "2026-11-20T09:00:00+0100 host vllm[812]: ",
                                      "[12345.678901] host vllm[812]: ", "[pod/vllm-0/vllm] ",
                                      "vllm_api.1.abc123@node1    | "])  # fmt: skip
def test_lines_of_containers_and_of_the_journal_are_understood(wrapping: str) -> None:
    plain = text_of("vllm-0.32.0-cpu-fail_a_kv_small")
    told = explain("\n".join(wrapping + line for line in plain.split("\n")))
    assert told.finding is not None
    assert told.finding.captures["fits"] == "32640"
    assert told.engine_version == "0.32.0"


def test_dockers_own_files_and_line_ends_of_other_systems_are_understood() -> None:
    lines = text_of("vllm-0.32.0-cpu-fail_arch").split("\n")
    stored = [json.dumps({"log": f"\x1b[31m{line}\n", "stream": "stderr"}) for line in lines]
    for text in ("\n".join(lines), "\n".join(stored), "\r\n".join(lines)):
        told = explain(text)
        assert told.engine_version == "0.32.0"
        assert told.finding is not None
        assert (told.finding.failure, told.finding.line) == ("bad-arguments", 52)
    assert explain('{"log": \n{"log":[1]}').finding is None


def test_colours_do_not_hide_a_failure() -> None:
    told = explain("\x1b[31mvllm: error: unrecognized arguments: --x\x1b[0m\n")
    assert told.finding is not None
    assert told.finding.failure == "bad-arguments"


def test_of_several_starts_in_a_log_the_last_one_counts() -> None:
    failed, served = text_of("vllm-0.21.0-h200-kv_none"), text_of("vllm-0.21.0-h200-q27_mtp3")
    assert explain(failed + served).finding is None
    told = explain(served + failed)
    assert told.finding is not None
    assert told.finding.failure == "kv-cache-none"
    assert told.finding.line == served.count("\n") + 75


def test_an_older_log_without_process_names_is_understood() -> None:
    told = explain(
        "INFO 05-27 11:47:41 [loader.py:458] Loading weights took 28.05 seconds\n"
        "INFO 05-27 11:47:41 [gpu_model_runner.py:1347] Model loading took 13.1343 GiB and 28.4 s\n"
        "INFO 05-27 11:47:55 [backends.py:430] Dynamo bytecode transform time: 13.06 s\n"
        "/usr/bin/ld: cannot find -lcuda: No such file or directory\n"
        "ERROR 05-27 11:47:57 [core.py:396] EngineCore failed to start.\n"
        "ERROR 05-27 11:47:57 [core.py:396] Traceback (most recent call last):\n"
        "ERROR 05-27 11:47:57 [core.py:396] torch._inductor.exc.InductorError: CalledProcessError: "
        "Command '['/usr/bin/gcc', '/tmp/m.c', '-O3']' returned non-zero exit status 1.\n"
    )
    assert told.finding is not None
    assert (told.finding.failure, told.finding.phase) == ("jit-toolchain", "compile")


DRAFTS = (
    "(APIServer pid=3) INFO 11-20 09:01:08 [metrics.py:101] SpecDecoding metrics: Mean "
    "acceptance length: 1.00, Accepted throughput: 0.00 tokens/s, Drafted throughput: 87.80 "
    "tokens/s, Accepted: {} tokens, Drafted: 927 tokens, Per-position acceptance rate: 0.000\n"
)


def test_drafts_of_which_nothing_is_accepted_are_a_collapse_if_it_lasts() -> None:
    line = DRAFTS.format(0)
    assert explain(line * 2).finding is None
    told = explain(line * 3)
    assert told.finding is not None
    assert told.finding.failure == "draft-collapse"


def test_drafts_of_which_hardly_any_are_accepted_where_many_were_are_a_collapse_too() -> None:
    good, bad = DRAFTS.format(650), DRAFTS.format(9)
    assert explain(good * 20 + bad * 17).finding is None
    assert explain(good * 20 + bad * 30 + good).finding is None
    told = explain(good * 20 + bad * 18)
    assert told.finding is not None
    assert (told.finding.failure, told.finding.line) == ("draft-collapse", 21)
    assert told.finding.captures == {"intervals": "18"}
    arguments = (
        "(APIServer pid=1) INFO 11-20 10:00:00 [utils.py:240] non-default args: {'model': '/m', "
        "'speculative_config': {'method': 'ngram', 'num_speculative_tokens': 4}}\n"
    )
    assert explain(arguments + good * 20 + bad * 18).finding is None


def test_a_slow_engine_whose_drafts_are_never_accepted_has_collapsed_as_well() -> None:
    """Fewer drafts in an interval than the daemon counts."""
    few = DRAFTS.format(0).replace("927", "40")
    told = explain(few * 3)
    assert told.finding is not None
    assert told.finding.failure == "draft-collapse"


STATS = (
    "(APIServer pid=1) INFO 11-20 10:05:00 [loggers.py:200] Engine 000: Avg prompt throughput: 1.0 "
    "tokens/s, Avg generation throughput: 20.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV "
    "cache usage: 1.0%, Prefix cache hit rate: 0.0%\n"
)
BEAT = (
    "(EngineCore pid=31) INFO 11-20 10:00:00 [shm_broadcast.py:84] No available shared memory "
    "broadcast block found in 60 seconds. This typically happens when\n"
)


@pytest.mark.parametrize("head", [STATS, ""])
def test_the_end_of_a_log_is_of_an_engine_that_served(head: str) -> None:
    core = "(EngineCore pid=31) ERROR 11-20 10:06:00 [core.py:1142] "
    told = explain(
        f"{head}{core}EngineCore encountered a fatal error.\n"
        f"{core}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has\n"
    )
    assert told.finding is not None
    assert told.finding.failure == "device-oom-run"


def test_a_prompt_that_looks_like_a_start_is_none() -> None:
    said = "(APIServer pid=1) INFO 11-20 10:06:00 [logger.py:40] "
    told = explain(
        f"{STATS}{said}Received request: prompt: x\n{said}non-default args: {{'a': 1}}\n"
    )
    assert (told.reached, told.configured) == ("serving", {})


def test_heartbeats_that_work_follows_are_no_hang() -> None:
    told = explain(STATS + BEAT * 3)
    assert told.finding is not None
    assert told.finding.failure == "hang"
    assert explain(STATS + BEAT * 3 + STATS).finding is None


def test_harmless_lines_are_named_as_such() -> None:
    told = explain(text_of("vllm-0.21.0-sm75x2-hang-host-ram"))
    assert told.harmless == {"benign.flash-attention": 2, "benign.shared-memory": 4}


def test_phases_have_times_and_figures_units() -> None:
    told = explain(text_of("vllm-0.21.0-h200-q27_mtp3"))
    seconds = {phase.phase: phase.seconds for phase in told.phases}
    assert seconds["compile"] == 101
    assert told.figures["kv_gib"] == 57.59
    assert told.configured["gpu_memory_utilization"] == 0.8


def test_secrets_in_arguments_are_hidden() -> None:
    told = explain(
        "(APIServer pid=1) INFO 11-20 09:00:00 [utils.py:1] non-default args: "
        "{'api_key': ['hunter2'], 'hf_token': 'x', 'max_num_batched_tokens': 8192, "
        "'redis': {'password': 4711, 'port': 6379}}\n"
    )
    assert told.configured == {
        "api_key": "(hidden)", "hf_token": "(hidden)", "max_num_batched_tokens": 8192,
        "redis": {"password": "(hidden)", "port": 6379},
    }  # fmt: skip


def test_secrets_inside_of_arguments_and_in_the_causing_line_are_hidden() -> None:
    told = explain(
        "(APIServer pid=1) INFO 11-20 09:13:00 [utils.py:240] non-default args: {'model': '/m', "
        "'kv_transfer_config': {'kv_connector_extra_config': {'redis_password': 'hunter2'}}, "
        "'extra': [{'aws_secret_access_key': 'hunter2'}], 'text': '{\"api_key\": \"hunter2\"}', "
        "'url': 'https://user:hunter2@hub/x', 'token_limit': 'long'}\n"
        "(APIServer pid=1) ERROR 11-20 09:13:02 [x.py:1] GatedRepoError: 401 Client Error for url "
        "https://user:hunter2@hub/x Authorization: Bearer hunter2hunter2 --hf-token hunter2 "
        "{'api_key': 'hunter2'} max_num_batched_tokens: 8192\n"
    )
    shown = json.dumps(verb.as_json(told, "vllm")) + "\n".join(verb.page(told, "vLLM"))
    assert "hunter2" not in shown
    assert "max_num_batched_tokens: 8192" in shown
    assert told.configured["model"] == "/m"
    assert told.finding is not None
    assert told.finding.failure == "access-denied"


def window(tps: float, running: int = 1) -> str:
    return (
        "(APIServer pid=3) INFO 11-20 09:00:00 [loggers.py:271] Engine 000: Avg prompt throughput:"
        f" 1.0 tokens/s, Avg generation throughput: {tps} tokens/s, Running: {running} reqs,"
        " Waiting: 0 reqs, GPU KV cache usage: 0.1%, Prefix cache hit rate: 0.0%"
    )


def test_rates_are_those_of_busy_windows_and_not_of_the_first() -> None:
    told = explain("\n".join(window(tps) for tps in (1.9, 0.0, 20.0, 18.0, 0.0, 23.0, 0.0)))
    assert told.figures["generation_tps"] == 19.0
    assert told.figures["generation_best_tps"] == 23.0
    page = "\n".join(verb.page(told, "vLLM"))
    assert re.search(r"generation while busy +19.0 tokens/s\n +peak generation +23.0", page)
    assert "generation_best_tps" not in explain(window(0.0)).figures


@pytest.mark.parametrize("path", sorted(LOGS.glob("*serv*.log")) + sorted(LOGS.glob("*a100*.log")))
def test_every_figure_of_a_window_is_the_usual_one_of_the_log(path: Path) -> None:
    text = path.read_text(encoding="utf-8", errors="replace")
    names = {
        "generation_tps": r"Avg generation throughput: ([\d.]+)",
        "prompt_tps": r"Avg prompt throughput: ([\d.]+)",
        "acceptance_length": r"Mean acceptance length: ([\d.]+)",
    }
    for name, pattern in names.items():
        busy = [float(n) for n in re.findall(pattern, text) if float(n) > 0]
        usual = statistics.median(busy) if busy else 0.0
        assert explain(text).figures.get(name, 0.0) == pytest.approx(usual, abs=0.01)


@pytest.mark.parametrize(
    "message",
    [
        "Using 'pin_memory=False' as WSL is detected. This may slow down the performance.",
        "Using 'pin_memory=False' as WSL is detected and the WSL2 kernel version is below 4.19.",
        "We must use the `spawn` multiprocessing start method. Reasons: WSL is detected and NVML is"
        " not compatible with fork",
    ],
)
def test_a_log_that_says_wsl_is_of_wsl(message: str) -> None:
    line = f"(EngineCore pid=5) WARNING 11-20 09:00:00 [interface.py:1180] {message}"
    assert explain(line).figures["machine"] == "WSL"
    assert "WSL" in "\n".join(verb.page(explain(line), "vLLM"))
    prompt = f"(APIServer pid=3) INFO 11-20 09:00:00 [request_logger.py:56] prompt: '{message}'"
    assert "machine" not in explain(prompt).figures


@pytest.mark.parametrize("failure", FAILURES)
def test_there_is_advice_for_every_failure_also_without_figures(failure: Failure) -> None:
    assert advise(Finding(failure, ""), {})


@pytest.mark.parametrize(
    ("line", "phase", "first"),
    [
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file", "resolve",
         "libcudart of CUDA 12 is missing"),
        ("AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'", "load",
         "The engine's installation is incomplete: its compiled operator rms_norm is missing."),
        ("ModuleNotFoundError: No module named 'vllm._C'", "resolve",
         "The engine's compiled module vllm._C is missing"),
        ("pynvml.NVMLError_Unknown: Unknown Error", "resolve", "The driver denies this process"),
        ("ZeroDivisionError: integer modulo by zero", "load", "The model cannot be split this way"),
        ("json.decoder.JSONDecodeError: Extra data: line 2 column 1 (char 9)", "resolve",
         "A JSON file of the model is broken"),
    ],
)  # fmt: skip
def test_the_advice_names_what_is_broken(line: str, phase: str, first: str) -> None:
    finding = find_cause([line], phase)
    assert finding is not None
    assert advise(finding, {})[0].startswith(first)


# -- the verb -------------------------------------------------------------------------------


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    verb.arguments(parser)
    return verb.run(parser.parse_args(words))


def test_json_has_the_fields_programs_are_promised(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(LOGS / "vllm-0.21.0-h200-kv_short.log"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["engine_version"] == "0.21.0"
    assert (told["failure"], told["reached"], told["line"]) == ("kv-cache-short", "kv", 74)
    assert told["captures"]["fits"] == "175552"
    assert told["phases"][0] == {"phase": "resolve", "seconds": 14.0}
    assert told["advice"][0].startswith("Set max_model_len = 175552")
    assert told["figures"]["weights_gib"] == 51.02
    answer = told["answer"]
    assert (answer["certainty"], answer["heals"]) == ("certain", "yes")
    assert answer["changes"][0] == {
        "key": "max_model_len", "option": "--max-model-len", "value": 175552,
        "does": "shorten the context",
    }  # fmt: skip


def test_json_of_a_log_that_served_has_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    run(str(LOGS / "vllm-0.32.0-cpu-hybrid_mtp.log"), "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["failure"], told["line"], told["advice"]) == (None, None, [])
    assert told["answer"] is None


def test_the_page_for_people_begins_with_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    run(str(LOGS / "vllm-0.21.0-h200-gmu_high.log"))
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == "vLLM 0.21.0, model /models/tiny35"
    assert lines[1] == "vram-busy in phase engine"
    assert lines[2].startswith("  line 57: ValueError: Free memory on device cuda:0")
    assert lines[3] == "  how sure  certain"
    assert lines[6:8] == [
        "What to do",
        "  1. Another process uses memory: 78.77 of 139.8 GiB are free, 125.82 GiB are needed.",
    ]
    remedy = lines[lines.index("Remedy") + 1 :]
    assert "gpu_memory_utilization in caovan.toml, --gpu-memory-utilization 0.559" in remedy[0]
    assert remedy[1].startswith("  by itself yes: the same plan again, up to 3 times; then GPU")
    assert "vllm-project/vllm#20305, https://github.com/vllm-project/vllm/issues/20305" in remedy[2]
