"""Storing a degraded plan, and when it is not used again."""

from __future__ import annotations

from dataclasses import make_dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.config.key import key
from caovand.core.config.parser import parse
from caovand.core.config.schema import Config, PolicySection
from caovand.core.facts.inventory import Gpu, Node
from caovand.core.facts.occupancy import NOTABLE_MIB, used_by_card
from caovand.core.healing import degraded
from caovand.core.healing.failure import FAILURES, Failure, Finding
from caovand.core.healing.ladder import LadderRules, decide, worth_remembering
from caovand.core.plan import Plan
from caovand.engines.vllm.healing.cures import HEALING
from caovand.engines.vllm.planning.planner import make_plan
from tests.core.machines import inventory, turing
from tests.core.machines import plan as planned

EMPTY = turing(2)
OF_A_CARD = {
    "device-oom-load", "kv-cache-none", "kv-cache-short", "device-oom-capture", "device-oom-run",
    "sampler-oom",
}  # fmt: skip


def beside(mib: int, gpus: tuple[Gpu, ...] = EMPTY) -> tuple[Gpu, ...]:
    """The cards with this much of the second in other hands."""
    return (gpus[0], replace(gpus[1], free_mib=gpus[1].free_mib - mib))


def lowered(failure: Failure, cards: tuple[Gpu, ...], plan: Plan | None = None) -> Plan | None:
    """The plan after this failure, with the cards as they were when it was made."""
    told = {"free": "12.9", "total": "22.0", "path": "x"}
    finding = Finding(failure, "said so", "serving", told, "a.row")
    plan = planned(inventory(gpus=EMPTY)) if plan is None else plan
    return decide(plan, finding, 99, LadderRules(HEALING, others_mib=used_by_card(cards))).plan


def taken_up(plan: Plan, cards: tuple[Gpu, ...]) -> bool:
    """Whether the next start with such cards begins with this plan, which served stably."""
    document = degraded.to_document(plan, "mark", "auto")
    kept = degraded.from_document(document, "mark", "auto", used_by_card(cards), HEALING)
    return worth_remembering(plan) and kept is not None


@pytest.mark.parametrize("failure", sorted(set(FAILURES) - {"vram-busy"}))
def test_only_what_was_lowered_for_want_of_memory_is_forgotten_when_there_is_more(
    failure: Failure,
) -> None:
    plan = lowered(failure, beside(3000))
    if plan is None:
        return  # it has no rungs
    assert taken_up(plan, beside(3000))
    assert taken_up(plan, EMPTY) == (failure not in OF_A_CARD)


def test_a_share_of_what_others_left_is_planned_anew_each_time() -> None:
    plan = lowered("vram-busy", beside(9000))
    assert plan is not None
    assert not taken_up(plan, beside(9000))


def test_a_plan_that_is_too_large_for_an_empty_card_stays_lowered() -> None:
    plan = lowered("kv-cache-short", EMPTY)
    assert plan is not None
    assert taken_up(plan, EMPTY)
    assert taken_up(plan, beside(3000))


@given(st.integers(0, 20_000), st.integers(0, 20_000))
def test_it_is_taken_up_unless_notably_less_is_in_use(then: int, now: int) -> None:
    plan = lowered("kv-cache-none", beside(then))
    assert plan is not None
    assert taken_up(plan, beside(now)) == (then - now < NOTABLE_MIB)


def test_later_steps_for_other_reasons_do_not_hide_what_others_had() -> None:
    first = lowered("kv-cache-short", beside(3000))
    second = lowered("illegal-access", EMPTY, first)
    third = lowered("kv-cache-none", beside(1000), second)
    assert third is not None
    assert len(third.rungs) == 3
    assert not taken_up(third, beside(1000))


def test_the_plan_made_from_it_still_knows_what_others_had() -> None:
    """It may serve stably and be kept again, or take further steps."""
    machine = inventory(gpus=beside(3000))
    full = make_plan(parse({}), machine)
    short = lowered("kv-cache-short", machine.gpus, full)
    assert short is not None
    document = degraded.to_document(short, "mark", "auto")
    kept = degraded.from_document(document, "mark", "auto", used_by_card(machine.gpus), HEALING)
    again = make_plan(parse({}), machine, remembered=kept)
    assert again.rungs == short.rungs
    assert again.identity == short.identity
    assert not taken_up(again, EMPTY)


def test_the_steps_of_a_living_engine_stay_whatever_others_have_freed() -> None:
    plan = lowered("kv-cache-short", beside(3000))
    assert plan is not None
    document = degraded.to_document(plan, "mark", "auto")
    assert degraded.from_document(document, "mark", "auto", None, HEALING) is not None


@pytest.mark.parametrize("odd", [{"x": 1}, {"0": "much"}, [1], 7, None])
def test_a_file_that_is_not_ours_is_no_plan(odd: object) -> None:
    plan = lowered("kv-cache-short", beside(3000))
    assert plan is not None
    document = {**degraded.to_document(plan, "mark", "auto"), "others_mib": odd}
    assert degraded.from_document(document, "mark", "auto", {}, HEALING) is None


def test_a_plan_kept_by_an_earlier_version_is_taken_up() -> None:
    plan = lowered("kv-cache-short", EMPTY)
    assert plan is not None
    document = degraded.to_document(plan, "mark", "auto")
    del document["others_mib"]
    assert (
        degraded.from_document(document, "mark", "auto", used_by_card(EMPTY), HEALING) is not None
    )


def test_a_kept_reason_has_one_prefix_whatever_an_earlier_version_wrote() -> None:
    plan = lowered("kv-cache-short", EMPTY)
    assert plan is not None
    document = degraded.to_document(plan, "mark", "auto")
    before, today = (f"{word} from the last plan that served: " for word in ("kept", "restored"))
    for prefixes in ("", before, today, today + before, before + today + today):
        kept = degraded.from_document(
            {
                **document,
                "settings": {
                    name: [value, prefixes + reason]
                    for name, (value, reason) in document["settings"].items()
                },
            },
            "mark", "auto", None, HEALING,
        )  # fmt: skip
        assert kept is not None
        assert {
            name: setting.reason for name, setting in degraded.kept_steps(kept.settings).items()
        } == {name: today + reason for name, (_, reason) in document["settings"].items()}
    assert document["settings"]


def test_parts_of_a_card_are_looked_at_together() -> None:
    parts = tuple(replace(EMPTY[0], free_mib=mib, uuid=f"MIG-{mib}") for mib in (20_000, 9_000))
    assert used_by_card(parts) == {0: EMPTY[0].total_mib - 9_000}


def test_a_degraded_plan_is_for_the_cards_of_all_nodes() -> None:
    alone = inventory(gpus=EMPTY)

    def mark(*others: Node) -> str:
        return degraded.fingerprint(parse({}), replace(alone, others=others))

    assert mark() == degraded.fingerprint(parse({}), alone)
    assert len({mark(), mark(Node("n2", EMPTY)), mark(Node("n2", EMPTY[:1]))}) == 3
    assert mark(Node("n2", EMPTY)) == mark(Node("renamed", EMPTY))
    two = (EMPTY[0], replace(EMPTY[0], name="another"))
    assert mark(Node("n2", two)) == mark(Node("n2", two[::-1])), "the freest is offered first"
    assert mark(Node("n2", two[:1])) != mark(Node("n2", two[1:]))


def test_only_keys_that_were_changed_count() -> None:
    """A key that a later version adds, at its default, keeps every degraded plan."""

    def mark(config: Config) -> str:
        return degraded.fingerprint(config, inventory(gpus=EMPTY))

    added = ("added", float, key(7.0, "A key of a later version."))
    later = make_dataclass("Later", [added], bases=(PolicySection,), frozen=True)
    assert mark(Config(policy=later())) == mark(Config())
    assert mark(Config(policy=later(added=8.0))) != mark(Config())
    assert mark(parse({"policy": {"workload": "long"}})) != mark(Config())
    assert mark(parse({"policy": {"workload": "chat"}})) == mark(Config())
    tunes = {"tune": "apply", "tune_quiet_s": 60, "mode": "stable"}
    assert mark(parse({"policy": tunes})) == mark(Config())


def test_an_upgrade_from_before_formats_keeps_the_degraded_plan_once() -> None:
    """Its fingerprint cannot be compared; the plan is kept with a new one when it has served."""
    plan = lowered("kv-cache-short", EMPTY)
    assert plan is not None
    document = degraded.to_document(plan, "made otherwise", "auto")
    assert degraded.from_document(document, "mark", "auto", used_by_card(EMPTY), HEALING) is None
    del document["format"]
    assert degraded.well_formed(document, HEALING)
    kept = degraded.from_document(document, "mark", "auto", used_by_card(EMPTY), HEALING)
    assert kept is not None
    assert degraded.to_document(kept, "mark", "auto")["format"] == degraded.FORMAT


def test_how_a_fingerprint_is_made_changes_with_the_format_only() -> None:
    """Another value here forgets every degraded plan at the upgrade: raise `degraded.FORMAT`."""
    typed = parse({"policy": {"workload": "long"}, "model": {"max_model_len": 4096}})
    marks = [degraded.fingerprint(one, inventory(gpus=EMPTY)) for one in (Config(), typed)]
    assert (degraded.FORMAT, *marks) == (2, "b124451ab0f68265", "176226654531c248")
