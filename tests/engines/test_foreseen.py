"""What a start is known to end in, and the plan that avoids it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.config.parser import parse
from caovand.core.config.schema import Config
from caovand.core.facts.inventory import Inventory
from caovand.core.healing.failure import Foreseen
from caovand.core.healing.foreseen import foresee
from caovand.core.plan import Plan
from caovand.engines.vllm.engine import ENGINE
from caovand.engines.vllm.planning.foreseen import is_clear
from caovand.engines.vllm.sizing.choice import CONTEXT_STEP
from tests.boxes import models as boxes
from tests.boxes.machines import box_with
from tests.core.machines import CUDA, H200, inventory, named

ASKED = 262144
FLAGS = frozenset(
    {"--max-model-len", "--kv-cache-dtype", "--served-model-name", "--swap-space", "-tp"}
)
ON_H200 = inventory(gpus=H200)
LITTLE: dict[str, Any] = {
    "gpu_memory_utilization": 0.17,
    "mtp": 0,
    "kv_cache_dtype": "auto",
    "max_num_seqs": 4,
}
"""What leaves room for a sixth of the context that is asked for."""


def foreknown(
    machine: Inventory = ON_H200, *words: str, model: Any = None, **policy: Any
) -> tuple[Plan, Foreseen | None]:
    """The plan as the daemon would have it, and what is known against it."""
    model = {"path": machine.model.path, **(model or {})}
    config = parse({"model": model, "policy": policy, "engine": {"extra_args": list(words)}})
    return foresee(ENGINE, config, ENGINE.planning.make(config, machine), machine)


def planned(machine: Inventory = ON_H200, *words: str, model: Any = None, **policy: Any) -> Plan:
    return foreknown(machine, *words, model=model, **policy)[0]


def known(
    machine: Inventory = ON_H200, *words: str, model: Any = None, **policy: Any
) -> Foreseen | None:
    return foreknown(machine, *words, model=model, **policy)[1]


def refused(text: str, machine: Inventory, *words: str) -> Foreseen:
    found = known(machine, *words)
    assert found is not None
    assert found.finding.text == text
    return found


def test_a_flag_that_the_release_does_not_have_is_named_as_it_was_typed() -> None:
    asked = inventory(engine=replace(CUDA, flags=FLAGS))
    found = refused(
        "cannot pass --kv-cache-dtyp2: vLLM 0.21.0 has no such flag; use --kv-cache-dtype",
        asked, "--kv-cache-dtyp2", "fp8",
    )  # fmt: skip
    assert (found.finding.failure, found.hold) == ("bad-arguments", False)
    text = "cannot pass --no-such-flag-at-all: vLLM 0.21.0 has no such flag; remove it from"
    refused(f"{text} [engine] extra_args", asked, "--no-such-flag-at-all")
    assert any("has no --no-such-flag-at-all and will" in one for one in planned(
        asked, "--no-such-flag-at-all").warnings)  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["--served-model", "name"],
        ["--max_model_len", "4096"],
        ["-tp", "1"],
        ["-O3"],
        ["--no-swap-space"],  # whether it takes the twin is vLLM's to say
        ["--max-model-len", "4096", "word"],  # perhaps a flag with more values than we know
    ],
    ids=" ".join,
)
def test_what_the_parser_may_take_is_tried(words: list[str]) -> None:
    assert known(inventory(gpus=H200, engine=replace(CUDA, flags=FLAGS)), *words) is None
    assert known(inventory(), "--frobnicate") is None, "an engine that was not asked"


def test_settings_that_cannot_run_are_not_started_and_missing_cards_waited_for() -> None:
    known_types = replace(CUDA, choices=(("--kv-cache-dtype", ("auto", "fp8")),))
    one = inventory(engine=known_types)
    found = known(one, "--kv-cache-dtype", "int3")
    assert found is not None
    assert (found.finding.failure, found.hold) == ("bad-arguments", False)
    assert "cannot use --kv-cache-dtype int3" in found.finding.text
    found = known(ON_H200, "--tensor-parallel-size", "2")
    assert found is not None
    assert (found.finding.failure, found.hold) == ("gpu-absent", True)


def test_a_context_that_does_not_fit_is_shortened_before_any_start() -> None:
    plan, found = foreknown(model={"max_model_len": ASKED}, **LITTLE)
    memory = ENGINE.planning.forecast(plan, ON_H200)
    assert memory.fits
    assert plan.rungs == (f"context {plan.value('max_model_len')}",)
    # A start that compiles had 3 % less cache on an H100 than later ones.
    assert 0.9 < plan.value("max_model_len") / memory.max_model_len < 0.96
    assert plan.settings["max_model_len"].reason == (
        f"context {ASKED} -> {plan.value('max_model_len')}, because of kv-cache-short"
    )
    assert any(text.startswith("as requested, it does not fit: ") for text in plan.warnings)
    assert found is None


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        ([], {"strict": True}),
        ([], {"ladder": ["mtp"]}),
        (["--max-model-len", str(ASKED)], {"pinned": ["gpu_memory_utilization"]}),
    ],
)
def test_where_nothing_may_be_lowered_it_fails_before_any_start(
    words: list[str], policy: dict[str, Any]
) -> None:
    model = {} if words else {"max_model_len": ASKED}
    if words:  # the other rungs are used up
        policy |= {"ladder": ["context"]}
    found = known(ON_H200, *words, model=model, **LITTLE, **policy)
    assert found is not None
    assert (found.finding.failure, found.hold) == ("kv-cache-short", False)
    assert found.finding.text.startswith("cannot start: it does not fit: 3.0 GiB left for the")
    assert "gpu_memory_utilization = 0.27 holds it at no cost" in found.finding.text
    assert "add max_model_len to [policy] pinned" in found.finding.text


def test_a_rung_that_may_do_is_taken_where_none_is_certain_to() -> None:
    """As after a failure: its cache is short by no more than forecasts were off."""
    policy = {**LITTLE, "ladder": ["kv-dtype"]}
    plan, found = foreknown(model={"max_model_len": ASKED // 2}, **policy)
    memory = ENGINE.planning.forecast(plan, ON_H200)
    assert (plan.rungs, memory.fits, is_clear(memory)) == (("kv-dtype fp8",), False, False)
    assert found is None


def test_a_pinned_context_is_tried_whatever_the_forecast_is() -> None:
    plan, found = foreknown(model={"max_model_len": ASKED}, **LITTLE, pinned=["max_model_len"])
    assert (plan.value("max_model_len"), plan.taken) == (ASKED, ())
    assert found is None


def test_no_room_at_all_is_not_tried_and_memory_of_others_is_waited_for() -> None:
    found = known(model={"max_model_len": ASKED}, gpu_memory_utilization=0.1)
    assert found is not None
    assert (found.finding.failure, found.hold) == ("kv-cache-none", False)
    (card,) = named("H100")
    plain: Any = {"model": {"max_model_len": 200000}, "mtp": 0, "kv_cache_dtype": "auto"}
    free = {**plain, "strict": True}
    assert known(inventory(gpus=(card,)), **free) is None
    busy = replace(card, free_mib=25000, users=((4711, "python", 56000),))
    found = known(inventory(gpus=(busy,)), **free)
    assert found is not None
    assert found.hold
    assert "free the cards: python (pid 4711) holds 56000 MiB of GPU 0" in found.finding.text


def test_a_context_that_others_leave_no_room_for_comes_back_once_they_have_left() -> None:
    """Only what is lowered by a rung is tried in full again."""
    (card,) = named("RTX 3090")
    busy = replace(card, free_mib=card.free_mib - 6000, users=((4711, "python", 6000),))
    machine = inventory(boxes.model("Llama-3.1-8B"), (busy,))
    found = replanned(machine, model={"max_model_len": 32768})
    assert found.value("max_model_len") < 32768
    assert found.degraded
    assert found.others_mib


def test_a_plan_is_forecast_once_for_itself_and_what_is_known_against_it() -> None:
    asked = []

    def counted(plan: Plan, machine: Inventory) -> Foreseen | None:
        asked.append(plan)
        return ENGINE.planning.foreseen(plan, machine)

    engine = replace(ENGINE, planning=replace(ENGINE.planning, foreseen=counted))
    config = parse({"model": {"path": ON_H200.model.path}})
    plan = ENGINE.planning.make(config, ON_H200)
    assert foresee(engine, config, plan, ON_H200) == (plan, None)
    assert asked == [plan]


def test_a_forecast_that_may_be_as_wrong_as_it_was_is_tried() -> None:
    """It is short by no more than forecasts were off: vLLM knows, and the ladder is behind it."""
    plan = planned(model={"max_model_len": ASKED}, **LITTLE, pinned=["max_model_len"])
    memory = ENGINE.planning.forecast(plan, ON_H200)
    assert memory.fits is False
    assert is_clear(memory)
    assert not is_clear(replace(memory, kv_mib=memory.needed_mib * 0.96))
    assert not is_clear(replace(memory, kv_mib=memory.needed_mib - memory.weights_mib * 0.08))
    assert is_clear(replace(memory, gpu_memory_utilization=None, kv_mib=memory.needed_mib * 0.94))
    assert not is_clear(replace(memory, lack="RAM that others may free"))
    assert not is_clear(replace(memory, fits=None))


def besides_the_context(plan: Plan) -> dict[str, Any]:
    values = {name: setting.value for name, setting in plan.settings.items()}
    return {n: v for n, v in values.items() if n != "max_model_len" and v is not None}


@pytest.mark.parametrize("policy", [LITTLE, {**LITTLE, "mtp": 3, "max_num_seqs": None}])
def test_the_advised_context_leaves_everything_else_as_it_is_and_no_longer_one_does(
    policy: dict[str, Any],
) -> None:
    """vLLM 0.21 on an H200 was told a length at which the plan itself then drops its drafts."""
    policy = {name: value for name, value in policy.items() if value is not None}
    policy |= {"strict": True}
    plan = planned(model={"max_model_len": ASKED}, **policy)
    (advice,) = (text for text in plan.advice if text.startswith("max_model_len"))
    length = int(advice.split()[2])

    def rest(context: int) -> dict[str, Any] | None:
        """What is planned besides that context, None where it does not fit."""
        other = planned(model={"max_model_len": context}, **policy)
        if not ENGINE.planning.forecast(other, ON_H200).fits:
            return None
        return besides_the_context(other)

    as_it_is, found = besides_the_context(plan), rest(length)
    assert found is not None
    names = sorted({*as_it_is, *found})
    differing = [name for name in names if found.get(name) != as_it_is.get(name)]
    if "as it is" in advice:
        assert not differing
        assert rest(length + CONTEXT_STEP) != as_it_is
    else:
        assert advice.endswith(f"fits if these change: {', '.join(differing)}")
        assert rest(length + CONTEXT_STEP) is None


def replanned(machine: Inventory, *words: str, model: Any, **policy: Any) -> Plan:
    """The plan as the daemon would have it, which plans again for a context that fits."""
    model = {"path": machine.model.path, **model}
    config = parse({"model": model, "policy": policy, "engine": {"extra_args": list(words)}})

    def make(config: Config) -> Plan:
        return ENGINE.planning.make(config, machine)

    return foresee(ENGINE, config, make(config), machine, make)[0]


ON_4090 = box_with("4090", boxes.model("Qwen3-32B-AWQ"))


def test_a_context_that_no_settings_hold_gives_way_to_the_longest_that_some_do() -> None:
    found = replanned(ON_4090, model={"max_model_len": 40960})
    alone = ENGINE.planning.make(parse({"model": {"path": ON_4090.model.path}}), ON_4090)
    context = found.settings["max_model_len"]
    assert alone.value("max_model_len") <= context.value < 40960
    assert context.value > 24576
    assert found.value("kv_cache_dtype") == "fp8"
    assert found.value("enforce_eager") is None
    assert (context.origin, found.rungs) == ("policy", ())
    assert ENGINE.planning.forecast(found, ON_4090).fits
    (text,) = (one for one in found.warnings if "max_model_len = 40960 does not fit" in one)
    assert f"the plan has {context.value}" in text
    assert "tensor_parallel_size = 2" in text


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        ([], {"pinned": ["max_model_len"]}),
        ([], {"strict": True}),
        ([], {"ladder": ["mtp"]}),
        (["--max-model-len", "40960"], {}),
    ],
)
def test_a_context_that_the_operator_insists_on_is_not_planned_again(
    words: list[str], policy: dict[str, Any]
) -> None:
    found = replanned(ON_4090, *words, model={"max_model_len": 40960}, **policy)
    assert found.settings["max_model_len"].origin != "policy"
    assert not any("the plan has" in one for one in found.warnings)


def test_settings_of_the_operator_stand_where_the_context_gives_way() -> None:
    found = replanned(ON_H200, model={"max_model_len": ASKED}, **LITTLE)
    assert found.value("max_num_seqs") == 4
    assert found.value("gpu_memory_utilization") == 0.17
    shortened = planned(model={"max_model_len": ASKED}, **LITTLE)
    assert found.value("max_model_len") >= shortened.value("max_model_len")
