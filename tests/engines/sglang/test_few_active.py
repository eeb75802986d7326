"""Drafts of mixtures of experts with few active parameters, whose gain published runs contest."""

from __future__ import annotations

from caovand.core.config.parser import parse
from caovand.core.facts.inventory import EngineInfo, Gpu, Inventory, ModelCard
from caovand.core.plan import Plan
from caovand.engines.sglang.engine import ENGINE
from tests.boxes.models import model
from tests.core.machines import H200, HOST, named

INSTALLED = EngineInfo("/opt/sglang/bin/python", "0.5.23", "2.14.1+cu130", "cuda", cuda="13.0")
FEW = model("Qwen3.5-35B-A3B")
IN_4_BITS = model("Qwen3.5-35B-A3B-AWQ")


def planned(card: ModelCard, gpus: tuple[Gpu, ...], **policy: object) -> Plan:
    machine = Inventory(gpus, HOST, INSTALLED, card)
    document = {"engine": {"kind": "sglang"}, "model": {"path": card.path}, "policy": policy}
    return ENGINE.planning.make(parse(document), machine)


def test_they_draft_one_token_where_that_costs_nothing() -> None:
    made = planned(FEW, H200)
    assert made.mtp == 1
    assert "23 % slower to 27 % faster" in made.settings["speculative_config"].reason
    assert planned(FEW, H200, mode="fast").mtp == 4


def test_they_draft_nothing_where_that_costs_context_or_requests() -> None:
    card = named("RTX 5090")
    made, drafting = planned(IN_4_BITS, card), planned(IN_4_BITS, card, mtp=1)
    context = drafting.value("max_model_len")
    assert (made.mtp, drafting.mtp) == (0, 1)
    assert made.value("max_model_len") > context
    reason = made.settings["speculative_config"].reason
    assert f"a context of {context}" in reason
    assert "23 % slower to 27 % faster" in reason
