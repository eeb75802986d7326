"""Who sets the drafting depth where the mode does not, told before there is a plan."""

from __future__ import annotations

from typing import Any

import pytest

from caovand.core.config.parser import parse
from caovand.engines.vllm.planning.speculation import overruling
from tests.core.machines import plan

DRAFT = '{"method": "mtp", "num_speculative_tokens": 7}'
OWN_MODE = '{"caovan_mode": "stable"}'


@pytest.mark.parametrize(
    ("sections", "auto_spec", "by"),
    [
        ({}, None, ""),
        ({}, "  ", ""),
        ({"policy": {"mode": "stable"}}, None, ""),
        ({"policy": {"mtp": 2}}, None, "[policy] mtp is 2"),
        ({"policy": {"mtp": 2}}, "5", "CAOVAN_AUTO_SPEC is 5"),
        ({"engine": {"env": {"CAOVAN_AUTO_SPEC": "5"}}}, None, "CAOVAN_AUTO_SPEC is 5"),
        (
            {"engine": {"extra_args": ["--speculative-config", DRAFT]}, "policy": {"mtp": 2}},
            "5",
            "--speculative-config is among [engine] extra_args",
        ),
        (
            {"engine": {"extra_args": ["--additional-config", OWN_MODE]}},
            None,
            "caovan_mode of --additional-config is stable",
        ),
    ],
)
def test_what_overrules_a_mode_is_what_the_plan_goes_by(
    sections: dict[str, Any], auto_spec: str | None, by: str
) -> None:
    environ = {} if auto_spec is None else {"CAOVAN_AUTO_SPEC": auto_spec}
    assert overruling(parse(sections), environ) == by
    depths = {plan(how={"environ": environ, "mode": m}, **sections).mtp for m in ("auto", "fast")}
    assert (len(depths) == 1) == bool(by)


def test_newer_flags_for_parts_of_it_overrule_too() -> None:
    config = parse({"engine": {"extra_args": ["--spec-tokens", "2"]}})
    assert overruling(config, {}) == "--spec-tokens is among [engine] extra_args"
