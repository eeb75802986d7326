"""Failures of Ollama are named by their first cause, from lines that people have published."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.healing.failure import FAILURES
from caovand.core.healing.ladder import REACTIONS
from caovand.engines.ollama.engine import ENGINE
from caovand.engines.ollama.healing.advice import advise
from caovand.engines.ollama.log.cause import announces_failure, find_cause
from caovand.engines.ollama.log.explain import explain
from caovand.engines.ollama.log.phases import PHASES, read
from caovand.engines.ollama.log.signatures import BY_ID, HARMLESS, SIGNATURES

NAMES = tuple(phase.name for phase in PHASES)
SAMPLES = Path(__file__).parents[2] / "samples" / "ollama"
PUBLIC = [
    ("cuda-illegal-access", "illegal-access", "ollama.cuda.illegal", "serving"),
    ("cuda-illegal-access-load", "illegal-access", "ollama.cuda.illegal", "resolve"),
    ("cuda-no-kernel", "backend-unsupported", "ollama.cuda.arch", "resolve"),
    ("cuda-no-memory-cache", "kv-cache-none", "ollama.cuda.cache", "resolve"),
    ("cuda-no-memory-weights", "device-oom-load", "ollama.cuda.weights", "load"),
    ("no-merges", "model-missing", "ollama.model.vocabulary", "load"),
    ("no-permission", "access-denied", "ollama.access.made", "resolve"),
    ("no-permission-models", "access-denied", "ollama.access.home", "resolve"),
    ("no-space", "unknown", "disk.full", "resolve"),
    ("port-taken", "port-busy", "ollama.port", "resolve"),
    ("runner-killed", "host-oom", "ollama.ram.killed", "load"),
    ("runner-timeout", "start-stall", "ollama.slow", "load"),
    ("too-little-memory", "host-oom", "ollama.ram", "resolve"),
    ("too-little-memory-old", "host-oom", "ollama.ram", "resolve"),
    ("unknown-architecture", "bad-arguments", "ollama.model.architecture", "resolve"),
    ("unknown-architecture-old", "bad-arguments", "ollama.model.architecture", "resolve"),
]
SERVED = ("cuda-no-memory-retried", "serving-processor")


def log(name: str) -> str:
    return (SAMPLES / f"{name}.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "failure", "signature", "phase"), PUBLIC)
def test_a_failure_is_named_by_its_cause(
    name: str, failure: str, signature: str, phase: str
) -> None:
    found = explain(log(name))
    assert found.finding is not None
    assert (found.finding.failure, found.finding.signature, found.finding.phase) == (
        failure, signature, phase,
    )  # fmt: skip
    assert found.advice
    assert found.finding.line > 0
    if REACTIONS[found.finding.failure].kind == "rung":
        assert ENGINE.healing.rungs_for(found.finding)


def test_every_sample_is_expected_and_has_a_source() -> None:
    names = {path.stem for path in SAMPLES.glob("*.log")}
    assert names == {*(name for name, *_ in PUBLIC), *SERVED, "serving"}
    sources = (SAMPLES / "README.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}.log`" not in sources] == []


@pytest.mark.parametrize("name", SERVED)
def test_a_server_that_came_up_has_no_failure(name: str) -> None:
    found = explain(log(name))
    assert (found.finding, found.reached) == (None, "serving")


def test_what_looks_like_a_failure_is_counted_as_harmless() -> None:
    assert explain(log("serving")).harmless == {"ollama.no-gpu": 1}


def test_a_prompt_that_was_cut_is_named_though_the_server_served() -> None:
    found = explain(log("serving"))
    assert found.reached == "serving"
    assert found.finding is not None
    assert found.finding.signature == "ollama.context-cut"
    assert found.finding.captures == {"limit": "2048", "prompt": "5065"}
    assert find_cause(log("serving").splitlines(), "serving", alive=True) is None


def test_captures_are_read() -> None:
    def captures(name: str) -> dict[str, str]:
        found = find_cause(log(name).splitlines(), "resolve")
        assert found is not None
        return dict(found.captures)

    assert captures("port-taken") == {"host": "127.0.0.1", "port": "11434"}
    assert captures("too-little-memory") == {"wanted": "1.9 GiB", "free": "1.4 GiB"}
    assert captures("no-permission")["path"] == "/var/lib/ollama"
    assert captures("unknown-architecture") == {"architecture": "pangu-embedded"}


def test_phases_and_figures_are_read() -> None:
    lines = log("serving-processor").splitlines()
    marks = [mark for mark, _ in map(read, lines) if mark is not None and mark.phase]
    assert {mark.phase for mark in marks} == {"resolve", "http", "load"} <= set(NAMES)
    assert [mark.phase for mark in marks if mark.progress == 1.0] == ["http", "load"]
    found = explain(log("serving-processor"))
    assert found.engine_version == "0.17.0"
    assert found.figures == {
        "compute": "cpu", "layers": 49, "gpu_layers": 0, "weights_CPU_mib": 10342.4,
        "kv_CPU_mib": 1536.0, "compute_CPU_mib": 96.0, "load_s": 132.84,
    }  # fmt: skip
    assert [phase.phase for phase in found.phases] == ["resolve", "http", "load"]
    assert found.phases[2].seconds == pytest.approx(133.039, abs=0.1)


def test_what_a_client_or_a_prompt_says_is_no_failure() -> None:
    text = log("port-taken").strip().removeprefix("Error: ")
    access = f'[GIN] 2026/02/21 - 12:10:32 | 404 | 1ms | 127.0.0.1 | GET "/{text}"'
    quoted = f'time=2026-02-21T12:10:32Z level=INFO source=routes.go:1 msg="chat: {text}"'
    assert find_cause([access, quoted, text], "serving") is None


def test_an_engine_that_lives_has_failed_only_if_it_says_so() -> None:
    lines = log("unknown-architecture").splitlines()
    assert find_cause(lines[:2], "load", alive=True) is None
    assert find_cause(lines, "load", alive=True) is not None
    assert [announces_failure(line) for line in lines] == [False, False, True, False]


DRIVER = (
    'time=2025-01-28T17:02:55Z level=WARN source=gpu.go:623 msg="unknown error initializing cuda '
    'driver library /usr/lib/libcuda.so.550.144.03: cuda driver library init failure: 999. see"'
)
LOADED = (
    'time=2025-01-28T17:03:55Z level=INFO source=server.go:596 msg="llama runner started in 1.00 s"'
)


def test_what_a_library_prints_without_a_newline_is_read_apart_from_the_loggers_line() -> None:
    """Both have their say: the library's code, and a failure that the logger reports."""
    denied = "cuda driver library failed to get device context 800"
    for logged in (DRIVER, "time=2024-09-24T00:41:06.577Z without a level"):
        found = find_cause([denied + logged], "http")
        assert found is not None
        assert (found.signature, found.text) == ("driver.denied", denied)
    assert announces_failure(f"cuda driver library found (1){DRIVER}")
    quoted = f'level=INFO source=x.go:1 msg="{denied.replace("800", "46")}" at={DRIVER}'
    assert find_cause([quoted], "http") is None


def test_a_server_that_serves_without_its_cards_has_failed_and_says_so() -> None:
    """Also after a model was loaded, on the processor; the daemon hears it while it lives."""
    assert announces_failure(DRIVER)
    for lines in ([DRIVER], [DRIVER, LOADED]):
        found = find_cause(lines, "http", alive=True)
        assert found is not None
        assert (found.failure, found.captures["code"]) == ("gpu-absent", "999")
    assert "nvidia_uvm" in advise(found)[0]
    absent = DRIVER.replace("WARN", "INFO").replace("unknown error initializing", "no devices in")
    assert not announces_failure(absent)
    assert find_cause([absent], "http") is None


NO_CARD = (
    "time=2024-03-12T18:18:19Z level=INFO source=gpu.go:377 "
    'msg="no compatible GPUs were discovered"'
)
EXPECTED = (
    'time=2024-03-12T18:18:19Z level=INFO source=routes.go:1 msg="server config" env="map[{}]"'
)


def test_a_card_that_somebody_expects_and_nobody_uses_is_explained() -> None:
    """Only in a log read afterwards, and only if the log shows that there is or should be one."""
    lines = [EXPECTED.format("HSA_OVERRIDE_GFX_VERSION:10.3.0"), NO_CARD, LOADED]
    found = explain("\n".join(lines)).finding
    assert found is not None
    assert (found.failure, found.signature, found.line) == ("gpu-absent", "ollama.cards.unused", 2)
    assert "--gpus all" in advise(found)[0]
    assert find_cause(lines, "http") is None, "the engine lives, and serves"
    lines[0] = EXPECTED.format("HSA_OVERRIDE_GFX_VERSION: OLLAMA_DEBUG:false")
    assert explain("\n".join(lines)).finding is None, "a machine without a card"


@pytest.mark.parametrize("text", ["context deadline exceeded", "EOF", "unexpected EOF"])
def test_the_network_ends_a_pull_only(text: str) -> None:
    pull = find_cause(["pulling manifest", f"Error: {text}"], "resolve")
    assert pull is not None
    assert pull.failure == "network"
    other = find_cause([">>> hello", f"Error: {text}"], "resolve")
    assert other is None or other.failure != "network"


def test_rows_have_unique_ids_and_known_failures() -> None:
    assert len({*BY_ID, *(row.id for row in HARMLESS)}) == len(SIGNATURES) + len(HARMLESS)
    assert {row.failure for row in SIGNATURES} <= set(FAILURES)


@given(st.lists(st.text(max_size=80), max_size=20), st.sampled_from(["", "load", "serving"]))
def test_any_lines_are_read(lines: list[str], phase: str) -> None:
    found = find_cause(lines, phase)
    if found is not None:
        advise(found)
    explain("\n".join(lines))


def test_a_failed_pull_counts_until_something_else_is_asked() -> None:
    failed = (
        'time=2025-09-28T07:53:40Z level=INFO source=images.go:755 msg="request failed: Get '
        '\\"https://registry.ollama.ai/v2/x\\": read tcp 10.0.0.3:5->10.0.0.4:443: read: '
        'connection reset by peer"'
    )
    pull, chat = (
        f'[GIN] 2025/09/28 - 07:53:40 | 200 |  2ms |  127.0.0.1 | POST     "/api/{call}"'
        for call in ("pull", "chat")
    )
    found = explain(f"{pull}\n{failed}\n{pull}\n").finding
    assert found is not None
    assert (found.failure, found.signature, found.line) == ("network", "net.failed", 2)
    assert explain(f"{failed}\n{chat}\n").finding is None


def test_an_allocation_is_for_what_the_line_after_it_names() -> None:
    lines = [
        'time=2025-05-28T10:37:31.017+08:00 level=INFO source=server.go:628 msg="waiting for llama '
        'runner to start responding"',
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 36864.00 MiB on device 0: "
        "cudaMalloc failed: out of memory",
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 38654705664",
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv "
        "cache",
    ]
    for count, signature in ((4, "ollama.cuda.cache"), (3, "ollama.cuda.weights")):
        found = explain("\n".join(lines[:count])).finding
        assert found is not None
        assert found.signature == signature
