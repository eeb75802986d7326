"""A process that vanished is no evidence against a plan: the texts of each release's own source.

In 0.33 both monitors and both texts read as in 0.32 (vllm-project/vllm, v1/engine/core_client.py).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import LadderRules, decide
from caovand.core.plan import Plan, Setting
from caovand.engines.ollama.log import cause as ollama
from caovand.engines.sglang.log import cause as sglang
from caovand.engines.vllm.healing.cures import HEALING
from caovand.engines.vllm.log.cause import find_cause
from caovand.engines.vllm.log.explain import explain
from tests.engines.releases import RELEASES, ROOT, source_of

READY = "(APIServer pid=3) INFO:     Application startup complete."
LOADING = "(EngineCore pid=5) INFO 11-20 08:59:00 [gpu_model_runner.py:1] Starting to load model m"
DRAFTS = Plan("m", {"speculative_config": Setting({"method": "mtp"}, "policy", "")}, {})
LEVELS = {"warning_once": "WARNING", "error": "ERROR", "exception": "ERROR"}
# What reports a lost process: the file, the function, and the process that runs it.
REPORTERS = [
    ("v1/engine/core_client.py", "monitor_engine_cores", "APIServer"),
    ("v1/engine/async_llm.py", "output_handler", "APIServer"),
    ("v1/executor/multiproc_executor.py", "monitor_workers", "EngineCore"),
    ("v1/executor/ray_executor_v2.py", "monitor_workers", "EngineCore"),
    ("v1/utils.py", "wait_for_completion_or_failure", "APIServer"),
]
NEVER_ALONE = ("RayWorkerMonitor", "Exception occurred while running", "Received KeyboardInterrupt")


def words(node: ast.expr) -> str:
    """A text of the source, with 1 for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(words, node.values))
    return str(node.value).replace("%s", "1") if isinstance(node, ast.Constant) else "1"


def reported(folder: Path) -> Iterator[tuple[str, str]]:
    """What each reporter prints and the line of the log that this becomes."""
    for file, function, process in REPORTERS:
        tree = ast.parse((folder / file).read_text(encoding="utf-8"))
        bodies = [
            node
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function
        ]
        assert bodies, f"{file} has no {function}"
        for call in (node for body in bodies for node in ast.walk(body)):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            if isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS:
                level, text = LEVELS[call.func.attr], words(call.args[0])
            elif isinstance(call.func, ast.Name) and call.func.id == "RuntimeError":
                level, text = "ERROR", f"RuntimeError: {words(call.args[0])}"
            else:
                continue
            if not text.startswith(NEVER_ALONE):
                name = Path(file).name
                yield text, f"({process} pid=3) {level} 11-20 09:00:00 [{name}:1] {text}"


def is_excused(finding: Finding | None) -> None:
    """It is named as a lost process, and three in a row leave the plan as it is."""
    assert finding is not None
    assert (finding.failure, finding.kind) == ("engine-died", "killed"), finding
    assert "a process vanished silently" in finding.text
    for repeats in (1, 2, 3):
        assert decide(DRAFTS, finding, repeats, LadderRules(HEALING)).verdict == "again"


@pytest.mark.parametrize("release", RELEASES)
def test_each_text_of_a_release_for_a_lost_process_excuses_the_plan(release: str) -> None:
    lines = dict(reported(source_of(release)))
    assert len(lines) >= 5
    for line in lines.values():
        is_excused(find_cause([LOADING, READY, re.sub(r"(exit code:?) 1", r"\1 -9", line)]))


@pytest.mark.parametrize("release", ["0.21.0-h200", "0.33.0-h100"])
def test_a_core_that_is_killed_is_excused_and_said_to_have_vanished(release: str) -> None:
    log = ROOT / f"tests/samples/logs/vllm-{release}-fail_kill.log"
    is_excused(find_cause(log.read_text(encoding="utf-8").splitlines()))


def test_an_actor_of_ray_that_vanished_is_excused_and_one_that_failed_is_not() -> None:
    raised = "ray.exceptions.ActorDiedError: The actor died {} this task."
    is_excused(find_cause([READY, raised.format("unexpectedly before finishing")]))
    failed = find_cause([READY, raised.format("because of an error raised in its creation task,")])
    assert failed is not None
    assert not failed.maybe_killed


@pytest.mark.parametrize("status", ["{}", "{'EngineCore': -9}", "{'EngineCore': 0}"])
def test_a_core_that_is_killed_while_it_starts_is_excused(status: str) -> None:
    failed = f"RuntimeError: Engine core initialization failed. Failed core proc(s): {status}"
    is_excused(find_cause([LOADING, failed], "load"))


@pytest.mark.parametrize(("status", "short"), [(-9, True), (1, False)])
def test_advice_on_a_core_that_sigkill_ends_while_it_starts_names_the_host_s_memory(
    status: int, short: bool
) -> None:
    failed = "RuntimeError: Engine core initialization failed. Failed core proc(s): "
    advice = explain(f"{LOADING}\n{failed}{{'EngineCore': {status}}}\n").advice
    assert ("dmesg" in advice[0]) == short


@pytest.mark.parametrize(
    "lines",
    [
        [READY, "(EngineCore pid=5) ERROR 11-20 09:00:00 [core.py:1] EngineCore encountered a "
         "fatal error.", "{lost}"],
        [READY, "{lost}", "(EngineCore pid=5) ERROR 11-20 09:00:00 [core.py:1] EngineCore "
         "encountered a fatal error."],
        [LOADING, "RuntimeError: Engine core initialization failed. Failed core proc(s): "
         "{{'EngineCore': 1}}"],
        # Only the end of a log: the core may have printed anything before.
        ["RuntimeError: Engine core initialization failed. Failed core proc(s): {{}}"],
    ],
)  # fmt: skip
def test_a_core_that_reports_its_end_or_leaves_a_status_is_not_excused(lines: list[str]) -> None:
    lost = "(APIServer pid=3) ERROR 11-20 09:00:00 [async_llm.py:1] AsyncLLM output_handler failed."
    finding = find_cause([line.format(lost=lost) for line in lines], "load")
    assert finding is not None
    assert not finding.maybe_killed
    assert "vanished" not in finding.text


@pytest.mark.long
def test_each_text_of_sglang_for_a_lost_process_excuses_the_plan() -> None:
    folder = ROOT / ".caovan/sglang-0.5.17/sglang/srt"
    if not folder.is_dir():
        pytest.skip("no SGLang 0.5.17: `make sglang-0.5.17` brings it")
    files = ("utils/watchdog.py", "entrypoints/engine.py")
    trees = [ast.parse((folder / file).read_text(encoding="utf-8")) for file in files]
    texts = [
        words(node) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
    ]
    lost = [text for text in texts if re.search(r"exit code:? 1", text) and "1" in text]
    assert len(lost) == 2
    for text in lost:
        killed = re.sub(r"(exit code:?) 1", r"\1 -9", text)
        for line in (f"[2026-11-24 04:47:05] {killed}", f"RuntimeError: {killed}"):
            is_excused(sglang.find_cause([line]))


def test_a_killed_scheduler_of_sglang_is_excused_and_one_that_crashed_is_not() -> None:
    line = "[2026-11-24 04:47:05] Subprocess scheduler_0 (pid=9) crashed with exit code {}. Trig"
    for code in (-9, -15):
        is_excused(sglang.find_cause([line.format(code)]))
    for code in (-11, 1, -95):
        crashed = sglang.find_cause([line.format(code)])
        assert crashed is not None
        assert not crashed.maybe_killed


def test_a_runner_of_ollama_is_excused_when_it_is_killed_after_it_was_loaded() -> None:
    at = "time=2025-12-03T10:00:02.000Z level=ERROR source="
    ends = (
        f'{at}server.go:9 msg="llama runner terminated" error="signal: killed"',
        f'{at}sched.go:9 msg="x" error="llama runner process no longer running: signal: killed"',
    )
    for line in ends:
        is_excused(ollama.find_cause([line], "serving"))
        loading = ollama.find_cause([line], "load")
        assert loading is not None
        assert loading.failure == "host-oom"
