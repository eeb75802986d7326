"""Reading a log with many patterns in turn also takes time in proportion to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from caovand.adapters.log import engine_line
from caovand.adapters.system.kernel_log import without_other_cards
from caovand.core.secrets import hide, hide_in
from caovand.engines.common.logs.rows.kernel import find_in_kernel
from caovand.engines.vllm.log.cause import announces_failure, find_cause
from caovand.engines.vllm.log.explain import explain
from caovand.engines.vllm.log.json_lines import unpack
from caovand.engines.vllm.log.phases import read, read_figures
from caovand.engines.vllm.metrics import parse_metrics

GROWTH = 9.0  # times as long for 4 times the log; 4 is linear, 16 quadratic
QUICK_S = 0.02
ROUNDS = 3
SIZES = (1 << 10, 1 << 13, 1 << 16)
ERROR = "(EngineCore pid=5) ERROR 11-20 09:00:00 [core.py:1140] "
INFO = "(APIServer pid=5) INFO 11-20 09:00:00 [loggers.py:1] "


def lines(form: str) -> Callable[[int], str]:
    """Many lines, each with its number."""
    return lambda size: "".join(f"{form % n}\n" for n in range(size // (len(form) + 5)))


def line(start: str, pump: str) -> Callable[[int], str]:
    return lambda size: start + pump * (size // len(pump))


LOGS: dict[str, Callable[[int], str]] = {
    "near misses": lines(f"{ERROR}CUDA out of %d"),
    "distinct errors": lines(f"{ERROR}%d {'torch_compile' * 60}"),
    "exceptions": lines(f"{ERROR}ValueError: %d"),
    "frames": lines(f'{ERROR}  File "/x/y.py", line %d, in f'),
    "frames and hits": lines(f'{ERROR}  File "/x", line 1, in f\n{ERROR}ValueError: %d'),
    "failed calls": lines(
        "(Worker_TP0 pid=7) ERROR 11-20 09:00:00 [x.py:1] ValueError: x\n"
        f"{ERROR}Invocation of m%d method failed"
    ),
    "wrappers": lines(f"{ERROR}EngineCore failed to start. %d"),
    "generic": lines(f"{ERROR}RuntimeError: CUDA error: %d"),
    "heartbeats": lines(f"{INFO}No available shared memory broadcast block found in 60 s %d"),
    "statistics": lines(
        f"{INFO}Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 "
        "tokens/s, Running: 1 reqs, Waiting: 0 reqs, %d"
    ),
    "processes": lines("(Worker pid=%d) Traceback (most recent call last):"),
    "starts": lines(f"{INFO}non-default args: {{'model': '%d'}}"),
    "requests": lines(
        "INFO: 127.0.0.1 - \"GET /health?'k':'\\\\\\\\\\\\\\\\\\\\ HTTP/1.1\" 200 %d"
    ),
    "drafts": lines(
        f"{INFO}SpecDecoding metrics: Mean acceptance length: 1.0, Accepted: 0 tokens, "
        "Drafted: %d tokens"
    ),
    "JSON": lines('{"levelname": "ERROR", "message": "a\\nb\\nc %d"}'),
    "docker": lines('{"log": "{\\"levelname\\": \\"ERROR\\", \\"message\\": \\"%d\\"}"}'),
    "one line": line(ERROR, "torch_compile"),
    "backslashes": line(ERROR + "'k':'", "\\"),
    "quotes": line(ERROR, "'key':'\\"),
    "escaped quotes": line(ERROR, '\\"key\\": \\"'),
    "nested": line('{"a":', '{"a":'),
    "nested lists": line("", "["),
    "escapes": lambda size: json.dumps({"level": "ERROR", "message": "中" * (size // 6)}),
    "many messages": lambda size: json.dumps({"level": "ERROR", "message": "a\n" * (size // 3)}),
    "arguments": line(f"{INFO}non-default args: ", "{'a':["),
    "long arguments": line(f"{INFO}non-default args: {{", "'a': 1, "),
    "named": line(ERROR, "--api-key password= token: key ["),
    "lists": line(ERROR + "'api_key': [", "'a', "),
    "carriage returns": line("", "\rLoading safetensors checkpoint shards: 1% "),
    "empty": line("", "\n"),
    "colours": line("", "\x1b[1;"),
    "kernel": lines("NVRM: Xid (PCI:0000:01:00): 31, pid=%d, name=x"),
    "metrics": lines('vllm:num_requests_running{a="%d"} 1'),
}
LARGE: dict[str, Callable[[int], str]] = {
    "near misses": LOGS["near misses"],
    "frames, then exceptions": lambda size: (
        LOGS["frames"](size // 2) + LOGS["exceptions"](size // 2)
    ),
    "errors, then failed calls": lambda size: (
        LOGS["near misses"](size // 2) + lines(f"{ERROR}Invocation of m%d method failed")(size // 2)
    ),
    "one line": LOGS["one line"],
}
READERS: dict[str, Callable[[str], object]] = {
    "find_cause": lambda log: find_cause(log.split("\n")),
    "explain": explain,
    "hide": lambda log: hide(log, ("sesame-4711", 'with"quote\\')),
    "hide_in": lambda log: hide_in({"a": [log, {"api_key": log}]}),
    "read": lambda log: [read(text) for one in log.split("\n") for text in unpack(one)],
    "figures": lambda log: [read_figures(one) for one in log.split("\n")],
    "announces": lambda log: [announces_failure(one) for one in log.split("\n")],
    "echo": lambda log: [engine_line("json", "vllm", one) for one in log.split("\n")],
    "find_in_kernel": lambda log: find_in_kernel(log.split("\n"), {1}),
    "without_other_cards": lambda log: without_other_cards(log.split("\n"), ["0:1:0"]),
    "parse_metrics": lambda log: parse_metrics(log, None, 0.0),
}


def took(reader: Callable[[str], object], log: str, rounds: int = 1) -> float:
    """CPU seconds, the best of several times."""
    best = float("inf")
    for _ in range(rounds):
        began = time.thread_time()
        reader(log)
        best = min(best, time.thread_time() - began)
    return best


@pytest.mark.parametrize("kind", LOGS)
@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_time_in_proportion_to_the_log(name: str, kind: str) -> None:
    reader, make = READERS[name], LOGS[kind]
    for size in SIZES:  # what is much worse than linear shows on the small ones
        seconds = took(reader, make(size))
        if seconds < QUICK_S or seconds < GROWTH * took(reader, make(size // 4)):
            continue
        growth = took(reader, make(size), ROUNDS) / took(reader, make(size // 4), ROUNDS)
        assert growth < GROWTH, f"{growth:.1f} times the time for 4 times {size // 4} characters"


@pytest.mark.long
@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize("name", ["find_cause", "explain", "hide"])
def test_a_large_log_is_read(name: str, kind: str) -> None:
    """Tens of thousands of lines, or one of megabytes: what a reader keeps of them adds up."""
    reader, make = READERS[name], LARGE[kind]
    whole, quarter = took(reader, make(3 << 20)), took(reader, make(3 << 18))
    assert whole < 1 or whole < GROWTH * quarter, f"{whole:.1f} s, a quarter {quarter:.1f} s"
