"""Failures of a real llama-server are named by their first cause, and answered by the ladder.

The logs in `tests/samples/llamacpp` were caused with the real program (see its README).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.healing.failure import FAILURES
from caovand.core.healing.ladder import REACTIONS
from caovand.engines.llamacpp.engine import ENGINE
from caovand.engines.llamacpp.healing.advice import advise
from caovand.engines.llamacpp.log.cause import announces_failure, find_cause
from caovand.engines.llamacpp.log.explain import explain
from caovand.engines.llamacpp.log.line import take_apart
from caovand.engines.llamacpp.log.signatures import BY_ID, SIGNATURES

SAMPLES = Path(__file__).parents[2] / "samples" / "llamacpp"
CAUSED = [
    ("assertion", "engine-died", "ggml.assertion", "load"),
    ("bad-hyperparameter", "model-missing", "llama.model.shape", "load"),
    ("bad-override", "bad-arguments", "llama.args.value", "resolve"),
    ("bad-value", "bad-arguments", "llama.args.value", "resolve"),
    ("broken-template", "bad-arguments", "llama.model.template", "resolve"),
    ("cache-block", "backend-unsupported", "llama.cache.split", "load"),
    ("cut-short", "model-missing", "llama.file.cut", "load"),
    ("folder", "model-missing", "llama.file.header", "load"),
    ("header-cut", "model-missing", "llama.file.header", "load"),
    ("missing", "model-missing", "llama.file.missing", "load"),
    ("missing-draft-model", "model-missing", "llama.file.missing", "warmup"),
    ("missing-key", "model-missing", "llama.model.key", "load"),
    ("missing-key-file", "bad-arguments", "llama.args.value", "resolve"),
    ("missing-lora", "bad-arguments", "llama.model.lora", "load"),
    ("missing-part", "model-missing", "llama.file.missing", "load"),
    ("missing-projector", "model-missing", "llama.file.missing", "load"),
    ("missing-template", "bad-arguments", "llama.args.value", "resolve"),
    ("missing-tensor", "model-missing", "llama.model.tensor", "load"),
    ("no-memory-cache", "host-oom", "llama.ram.cache", "kv"),
    ("no-memory-compute", "host-oom", "llama.ram", "kv"),
    ("no-memory-mmap", "host-oom", "llama.ram.bad-alloc", "load"),
    ("no-memory-weights", "host-oom", "llama.ram", "load"),
    ("no-merges", "bad-arguments", "llama.model.tokenizer", "load"),
    ("no-mtp-head", "backend-unsupported", "llama.draft.context", "drafter"),
    ("no-permission", "access-denied", "llama.file.closed", "load"),
    ("no-such-address", "port-busy", "llama.port", "resolve"),
    ("no-such-device", "gpu-absent", "llama.cuda.absent", "resolve"),
    ("no-threads", "host-oom", "llama.threads", "serving"),
    ("no-tls", "bad-arguments", "llama.args.tls", "resolve"),
    ("port-taken", "port-busy", "llama.port", "resolve"),
    ("quantised-without-flash", "backend-unsupported", "llama.cache.flash", "load"),
    ("unknown-architecture", "bad-arguments", "llama.model.architecture", "load"),
    ("unknown-cache-type", "bad-arguments", "llama.args.value", "resolve"),
    ("unknown-drafting", "bad-arguments", "llama.args.value", "resolve"),
    ("unknown-option", "bad-arguments", "llama.args", "resolve"),
    ("unknown-tokenizer", "bad-arguments", "llama.model.tokenizer", "load"),
    ("wrong-heads", "model-missing", "llama.model.shape", "load"),
    ("wrong-magic", "model-missing", "llama.file.magic", "load"),
    ("wrong-shape", "model-missing", "llama.model.shape", "load"),
    ("zeros", "model-missing", "llama.file.magic", "load"),
]
PUBLIC = [
    ("cuda-no-memory-cache", "kv-cache-none", "llama.cuda.cache", "resolve"),
    ("cuda-no-memory-compute", "device-oom-capture", "llama.cuda.compute", "resolve"),
    ("cuda-illegal-access", "illegal-access", "llama.cuda.illegal", "resolve"),
    ("cuda-illegal-access-raw", "illegal-access", "llama.cuda.illegal", "resolve"),
    ("cuda-no-kernel", "backend-unsupported", "llama.cuda.arch", "resolve"),
]
HARMLESS = ["draft-vocabulary", "mlock-denied", "public/cuda-retried"]


def log(name: str) -> str:
    return (SAMPLES / f"{name}.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "failure", "signature", "phase"),
    [*CAUSED, *((f"public/{name}", *rest) for name, *rest in PUBLIC)],
)
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


def test_every_caused_log_is_expected() -> None:
    assert {path.stem for path in SAMPLES.glob("*.log")} == {
        *(name for name, *_ in CAUSED), "draft-vocabulary", "mlock-denied", "start",
    }  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_a_server_that_came_up_has_no_failure(name: str) -> None:
    found = explain(log(name))
    assert found.finding is None
    assert found.reached == "serving"


@pytest.mark.parametrize(("name", "failure", "signature", "phase"), CAUSED)
def test_a_failure_has_rungs_unless_only_a_person_can_help(
    name: str, failure: str, signature: str, phase: str
) -> None:
    finding = find_cause(log(name).splitlines(), "resolve")
    assert finding is not None
    rungs = ENGINE.healing.rungs_for(finding)
    assert bool(rungs) == (REACTIONS[finding.failure].kind not in ("fatal", "hold", "retry"))


def test_the_captures_of_a_cause_are_read() -> None:
    def captures(name: str) -> dict[str, str]:
        found = find_cause(log(name).splitlines(), "resolve")
        assert found is not None
        return dict(found.captures)

    assert captures("missing")["path"] == "f/none.gguf"
    assert captures("no-memory-cache")["mib"] == "31252.00"
    assert captures("port-taken") == {"host": "127.0.0.1", "port": "8774"}
    assert captures("no-such-address") == {"address": "10.9.9.9", "port": "8773"}
    assert captures("unknown-architecture") == {"architecture": "llamb"}
    assert captures("unknown-option") == {"option": "--no-such-flag"}


@pytest.mark.parametrize(("name", "_failure", "signature", "_phase"), CAUSED)
def test_what_a_client_sent_is_no_failure(
    name: str, _failure: str, signature: str, _phase: str
) -> None:
    """While it serves, only a crash is the engine's; nothing at another level ever is."""
    for line in log(name).splitlines():
        message = take_apart(line).message
        for level in "DIW":
            quoted = f"0.01.000.000 {level} srv  operator(): {message}"
            assert find_cause([quoted], "load") is None
        if not BY_ID[signature].pattern.search(message):
            continue
        served = [
            "0.00.100.000 I srv  llama_server: listening on http://127.0.0.1:8080",
            f"0.01.000.000 E srv    send_error: {message}",
        ]
        assert find_cause(served, "serving") is None


def test_an_engine_that_lives_has_failed_only_if_it_says_so() -> None:
    lines = log("missing").splitlines()
    assert find_cause(lines[:-1], "load", alive=True) is None
    assert find_cause(lines, "load", alive=True) is not None
    assert [announces_failure(line) for line in lines].count(True) == 1


def test_a_template_that_it_can_do_without_is_not_why_a_start_failed() -> None:
    text = "common_chat_templates_init: failed to parse chat template (defaulting to chatml): "
    lines = [f"{text}Expected closing block tag at row 19, column 49:"]
    assert find_cause(lines, "load", alive=True) is None
    text = "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 900.00 MiB on device 0: "
    found = find_cause([*lines, f"{text}cudaMalloc failed: out of memory"], "load")
    assert found is not None
    assert found.failure.startswith("device-oom")


def test_a_cache_that_memory_cannot_hold_is_a_context_too_long() -> None:
    lines = [
        "llama_new_context_with_model: n_ctx      = 1048576",
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 137438953504",
        "llama_kv_cache_init: failed to allocate buffer for kv cache",
    ]
    found = find_cause(lines, "load")
    assert found is not None
    assert (found.signature, found.line) == ("llama.ram.cache", 2)
    advice = " ".join(advise(found))
    assert advice.index("shorten the context first") < advice.index("1048576 tokens")
    assert "Close other programs" not in advice


def test_a_cache_that_a_card_cannot_hold_shows_its_context() -> None:
    lines = [
        "llama_context: n_ctx         = 163840",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB on device 0: cudaMalloc"
        " failed: out of memory",
        "llama_kv_cache_init: failed to allocate buffer for kv cache",
    ]
    found = find_cause(lines, "load")
    assert found is not None
    assert any("163840 tokens" in text for text in advise(found))


def test_rows_have_unique_ids_and_known_failures() -> None:
    assert len(BY_ID) == len(SIGNATURES)
    assert {row.failure for row in SIGNATURES} <= set(FAILURES)


@given(st.lists(st.text(max_size=80), max_size=20), st.sampled_from(["", "load", "serving"]))
def test_any_lines_are_read(lines: list[str], phase: str) -> None:
    found = find_cause(lines, phase)
    if found is not None:
        advise(found)
    explain("\n".join(lines))


@pytest.mark.parametrize("cache", ["kv", "rs"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_card_s_buffer_is_for_the_cache_that_a_later_line_names(cache: str, first: int) -> None:
    lines = [
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1024.00 MiB on device 0: "
        "cudaMalloc failed: out of memory",
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 1073741824",
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for "
        f"{cache} cache",
    ][first:]
    found = find_cause(lines, "load")
    assert found is not None
    assert (found.failure, found.signature) == ("kv-cache-none", "llama.cuda.cache")
