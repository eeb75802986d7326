"""A start without a platform is a start without a card, if the log shows nothing else."""

from __future__ import annotations

import pytest

from caovand.engines.vllm.log.explain import explain

ALONE = "INFO 04-01 18:01:58 [__init__.py:243] No platform detected, vLLM is running on "
ALONE += "UnspecifiedPlatform"
STARTED = "INFO 04-01 18:02:08 [api_server.py:1043] vLLM API server version 0.8.5.post1"
REFUSED = "ValueError: Unknown model type: x"


def test_a_log_that_ends_after_it_has_no_card() -> None:
    finding = explain(f"{ALONE}\n{STARTED}\n").finding
    assert finding is not None
    assert (finding.failure, finding.signature, finding.line) == ("gpu-absent", "gpu.absent", 1)


@pytest.mark.parametrize(
    "later",
    [
        "INFO 04-01 18:02:09 [gpu_model_runner.py:1] Starting to load model m",
        "INFO:     Application startup complete.",
        "INFO 04-01 18:02:09 [launcher.py:1] Shutdown initiated",
    ],
)
def test_a_start_that_goes_on_or_is_stopped_has_no_failure(later: str) -> None:
    """Ray's driver needs no card: its workers have them."""
    assert explain(f"{ALONE}\n{STARTED}\n{later}\n").finding is None


def test_a_failure_that_the_log_shows_counts_instead() -> None:
    finding = explain(f"{ALONE}\n{STARTED}\n{REFUSED}\n").finding
    assert finding is not None
    assert finding.line == 3
