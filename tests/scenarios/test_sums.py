"""The whole daemon over a stand-in whose two fake cards compute wrong all-reduces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.daemon_process import ROOT, daemon
from tests.scenarios import test_supervision
from tests.scenarios.test_supervision import configuration

model = test_supervision.model
DRIVERS = ROOT / "tests/standin/drivers"
TENSOR_PARALLEL = "tensor_parallel_size = 2"


def two_cards(folder: Path) -> dict[str, str]:
    """The environment of a daemon with two pretended cards."""
    (folder / "gpus.json").write_text(json.dumps({"cards": 2}))
    told = {"STANDIN_BUILD": "cuda", "PYTHONPATH": f"{DRIVERS}:{ROOT}"}
    return {**told, "STANDIN_GPUS": str(folder / "gpus.json")}


@pytest.mark.parametrize(
    ("verdict", "failure"),
    [
        ("wrong", "allreduce-wrong"),
        pytest.param("hung", "allreduce-hung", marks=pytest.mark.long),
    ],
)
def test_no_engine_starts_over_cards_that_sum_wrongly_until_a_rung_makes_them_right(
    model: Path, tmp_path: Path, verdict: str, failure: str
) -> None:
    sums = {"verdict": verdict, "by": "NCCL", "text": "3 sums", "unless": "NCCL_P2P_DISABLE"}
    config = configuration(model, {"sums": sums}, policy=TENSOR_PARALLEL)
    with daemon(config, two_cards(tmp_path)) as one:
        status = one.until_state("SERVING")
        assert status["last_failure"]["failure"] == failure
        assert status["last_failure"]["phase"] == "launch"
        assert len(one.spawned()) == 1
        assert "NCCL peer-to-peer off" in " ".join(one.events())
        assert failure in one.ctl("incidents").stdout
        assert "all-reduce over 2 cards is correct" in " ".join(one.events())
        cards = ("--config", str(one.config_path), "--json")
        told = one.ctl("doctor", *cards)
        assert told.stdout, told.stderr
        checks = json.loads(told.stdout)["checks"]
        assert [
            c["verdict"] for c in checks if "all-reduce over the plan's cards" in c["text"]
        ] == ["WARN"]
        assert one.stop() == 0
        one.start()
        one.until_state("SERVING")
        told = " ".join(one.events())
        assert "NCCL over 2 cards" in told  # it was not degraded for long enough
        assert "all-reduce over 2 cards is correct" not in told  # the degraded plan's is known


@pytest.mark.long
def test_what_could_not_be_checked_is_reported_and_starts(model: Path, tmp_path: Path) -> None:
    sums = {"verdict": "unclear", "by": "", "text": "no torch"}
    config = configuration(model, {"sums": sums}, policy=TENSOR_PARALLEL)
    with daemon(config, two_cards(tmp_path)) as one:
        assert one.until_state("SERVING")["last_failure"] is None
        assert "cannot check all-reduce over 2 cards: no torch" in " ".join(one.events())
