"""Reasons and warnings say what is so of this machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.engines.vllm.planning.decisions import forecast
from tests.boxes.machines import BOXES, box_with
from tests.boxes.models import model
from tests.core.machines import GPT_OSS, QWEN_27B_AWQ, cards, inventory, named, plan, turing


def test_linked_cards_are_not_called_unlinked() -> None:
    linked = plan(inventory(QWEN_27B_AWQ, BOXES["2080ti-22g-x2-nvlink"]))
    apart = plan(inventory(QWEN_27B_AWQ, turing(2)))
    name = "disable_custom_all_reduce"
    assert linked.value(name) is apart.value(name) is True
    assert "without full NVLink" in apart.settings[name].reason
    assert "NVLink" not in linked.settings[name].reason


def test_one_card_is_one_card() -> None:
    found = plan(inventory(QWEN_27B_AWQ, named("A100")))
    assert found.settings["tensor_parallel_size"].reason == "one card"


@pytest.mark.parametrize(("card", "told"), [("RTX 3090", False), ("RTX 2080 Ti 11 GB", True)])
def test_a_graph_mode_is_lost_only_to_another_one(card: str, told: bool) -> None:
    words = ["--compilation-config", '{"max_cudagraph_capture_size": 8}']
    small = model("Llama-3.1-8B-AWQ")
    found = plan(inventory(small, named(card)), engine={"extra_args": words})
    assert any("captures its own" in text for text in found.warnings) is told


def test_mxfp4_on_an_old_card_is_sent_to_what_exists() -> None:
    machine = inventory(GPT_OSS, named("T4"))
    (problem,) = forecast(plan(machine), machine).conflicts
    assert problem.remedy == 'use a newer card, or its GGUF with [engine] kind = "llamacpp"'


def test_a_card_that_is_left_out_is_not_told_to_be_left_out() -> None:
    old = replace(cards(1, "Tesla P40", (6, 1), 24576)[0], index=1)
    machine = box_with("3090", model("Llama-3.1-8B"))
    found = plan(replace(machine, gpus=(*machine.gpus, old)))
    (told,) = [text for text in found.warnings if text.startswith("GPU 1")]
    assert told.endswith("no kernels before SM75")
