"""Steps of single rungs: how far each goes, and what keeps it from going there."""

from __future__ import annotations

import pytest

from caovand.core.healing.failure import Finding
from caovand.core.healing.rung import RungStep
from caovand.core.plan import Plan, Setting
from caovand.engines.vllm.healing.cures import HEALING


def step(
    rung: str, taken: tuple[str, ...] = (), text: str = "", **values: int | float | str
) -> RungStep:
    """What this rung does to a plan with these values and rungs; an empty RungStep for nothing."""
    captures = {name: str(values.pop(name)) for name in ("fits", "len") if name in values}
    settings = {name: Setting(value, "policy", "") for name, value in values.items()}
    finding = Finding("kv-cache-short", text, "kv", captures)
    before = tuple(filter(None, map(HEALING.read, taken)))
    return HEALING.by_name[rung].step(Plan("m", settings, {}, taken=before), finding) or RungStep()


@pytest.mark.parametrize(
    ("taken", "fits", "context"),
    [
        ((), 7990, 7984),
        (("context 8000",), 7990, 7000 // 16 * 16),
        (("context 8000",), 6000, 6000),
        (("batch 2048",), 7990, 7984),
    ],
)
def test_a_second_shorter_context_is_shorter_by_an_eighth_at_least(
    taken: tuple[str, ...], fits: int, context: int
) -> None:
    """What vLLM says fits may be off by a block each time: the ladder would take hundreds."""
    found = step("context", taken, max_model_len=8000, fits=fits)
    assert found.settings == {"max_model_len": context}


@pytest.mark.parametrize("before", ["gmu-down 0.838", "share 0.563"])
def test_a_share_that_was_too_much_is_never_raised_again(before: str) -> None:
    raised = {"gpu_memory_utilization": 0.593}
    assert step("gmu-up", gpu_memory_utilization=0.563).settings == raised
    assert step("gmu-up", ("batch 2048",), gpu_memory_utilization=0.563).settings == raised
    assert step("gmu-up", (before,), gpu_memory_utilization=0.563) == RungStep()


@pytest.mark.parametrize(
    ("by", "helps"),
    [
        ("NCCL", ["p2p-off"]),
        ("custom all-reduce", ["all-reduce-off"]),
        ("", ["p2p-off", "all-reduce-off"]),
    ],
)
def test_what_sums_wrongly_is_changed_alone(by: str, helps: list[str]) -> None:
    plan = Plan("m", {"tensor_parallel_size": Setting(2, "policy", "")}, {}, device="sm90")
    finding = Finding("allreduce-wrong", "", "launch", {"by": by})
    rungs = HEALING.rungs_for(finding)
    assert [rung.name for rung in rungs if rung.step(plan, finding)] == helps


ON_TRITON = {"attention_backend": "TRITON_ATTN"}


@pytest.mark.parametrize(
    ("values", "env", "device", "acts"),
    [
        ({"kv_cache_dtype": "int4_per_token_head"}, {}, "1x sm75", True),
        (ON_TRITON, {}, "1x sm75", True),
        (ON_TRITON, {"CAOVAN_ATTENTION": "read"}, "1x sm75", True),
        (ON_TRITON, {"CAOVAN_ATTENTION": "off"}, "1x sm75", False),
        (ON_TRITON, {}, "1x sm90", False),
        (ON_TRITON | {"additional_config": None}, {}, "1x sm75", False),
        ({"kv_cache_dtype": "fp8"}, {}, "1x sm75", False),
    ],
)
def test_attention_goes_back_to_vllms_own_where_the_plugins_may_act(
    values: dict[str, object], env: dict[str, str], device: str, acts: bool
) -> None:
    values = {"additional_config": {"caovan": True}, **values}
    plan = Plan(
        "m",
        {name: Setting(value, "policy", "") for name, value in values.items()},
        {name: Setting(value, "user", "") for name, value in env.items()},
        device=device,
    )
    found = HEALING.by_name["attention-own"].step(plan, Finding("illegal-access", "", "serve"))
    assert (found.env if found else None) == ({"CAOVAN_ATTENTION": "off"} if acts else None)


@pytest.mark.parametrize(
    ("now", "then"),
    [
        ("int4_per_token_head", "int8_per_token_head"),
        ("int8_per_token_head", "auto"),
        ("fp8", "auto"),
        ("auto", None),
    ],
)
def test_a_cache_gets_more_bits_until_it_has_the_models_own(now: str, then: str | None) -> None:
    found = step("kv-dtype-plain", kv_cache_dtype=now)
    assert found.settings.get("kv_cache_dtype") == then


@pytest.mark.parametrize(
    ("replicas", "cards", "together"),
    [(8, 1, 8), (2, 4, 8), (3, 1, 2), (6, 1, 4), (3, 2, 4), (1, 4, None)],
)
def test_replicas_become_one_engine_on_all_their_cards(
    replicas: int, cards: int, together: int | None
) -> None:
    found = step("replicas-off", data_parallel_size=replicas, tensor_parallel_size=cards)
    assert found.settings.get("tensor_parallel_size") == together
    assert found.settings.get("data_parallel_size") is None


def test_replicas_of_a_model_for_texts_become_one_of_them() -> None:
    values = {"data_parallel_size": 3, "tensor_parallel_size": 1}
    settings = {name: Setting(value, "policy", "") for name, value in values.items()}
    texts = Plan("m", settings, {}, task="embed")
    found = HEALING.by_name["replicas-off"].step(texts, Finding("hang", "", "serve"))
    assert found
    assert found.settings == {**values, "data_parallel_size": None, "enable_expert_parallel": None}


def test_a_share_goes_down_less_where_the_caches_size_was_set() -> None:
    """vLLM makes a smaller cache of the same share by itself."""
    share = 0.9
    assert step("gmu-down", gpu_memory_utilization=share).settings == {
        "gpu_memory_utilization": 0.87
    }
    sized = step("gmu-down", gpu_memory_utilization=share, kv_cache_memory_bytes=1 << 30)
    assert sized.settings == {"gpu_memory_utilization": 0.89, "kv_cache_memory_bytes": None}


@pytest.mark.parametrize(("have", "context"), [("9.97", 426_880), ("20.00", 524_288)])
def test_a_context_fits_by_the_figures_of_the_error(have: str, context: int) -> None:
    captures = {"len": "1048576", "need": "24.00", "have": have}
    finding = Finding("kv-cache-short", "", "kv", captures)
    change = HEALING.rungs_for(finding)[0].step(Plan("", {}, {}, device="cuda"), finding)
    assert change is not None
    assert change.settings == {"max_model_len": context}
