"""On the CPU build weights and cache share the machine's memory."""

from __future__ import annotations

from dataclasses import replace

from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Inventory
from caovand.engines.vllm.planning.decisions import forecast
from tests.core.machines import CPU, HOST, TINY_HYBRID, inventory, plan, weights


def forecast_of(machine: Inventory, **engine: object) -> MemoryEstimate:
    found = forecast(plan(machine, policy={"mtp": 3}, engine=engine), machine)
    assert found is not None
    return found


def machine(gib: float, available_mib: int) -> Inventory:
    model = replace(TINY_HYBRID, weights=weights(layers=gib))
    return inventory(model, (), CPU, replace(HOST, available_mib=available_mib))


def test_weights_and_cache_must_fit_what_is_available() -> None:
    found = forecast_of(machine(20, 60000))
    assert found.fits
    assert (found.lack, found.advice) == ("", ())
    short = forecast_of(machine(20, 20600))
    assert not short.fits
    assert short.lack.startswith("20.03 GiB of weights and ")
    assert "20.12 GiB of available RAM" in short.lack
    assert short.advice[0].startswith("stop other programs: ")


def test_the_advice_is_what_would_help() -> None:
    cache = forecast_of(machine(20, 60000))
    least = 20600 + cache.needed_mib
    assert (
        "is enough for one full-length request"
        in forecast_of(machine(20, int(least + 40))).advice[1]
    )
    assert "shorter max_model_len" in forecast_of(machine(20, 20600)).advice[1]
    assert "quantised" in forecast_of(machine(20, 10000)).advice[1]


def test_the_older_variable_sets_the_cache_of_a_cpu_build() -> None:
    found = forecast_of(machine(1, 60000), env={"VLLM_CPU_KVCACHE_SPACE": "4"})
    assert found.kv_mib == 4096
    assert not forecast_of(machine(1, 4000), env={"VLLM_CPU_KVCACHE_SPACE": "4"}).fits
    same = forecast_of(machine(1, 60000), env={"VLLM_CPU_KVCACHE_SPACE": ""})
    assert same == forecast_of(machine(1, 60000))


def test_a_plan_warns_of_memory_that_is_short() -> None:
    warnings = plan(machine(20, 1000)).warnings
    assert any(text.startswith("it does not fit: 20.03 GiB of weights") for text in warnings)
