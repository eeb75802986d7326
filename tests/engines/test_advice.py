"""Advice: there is some whenever a plan does not fit, and following it gives one that does."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.plan import Plan, Unplannable
from caovand.engines.vllm.flags import command_line
from caovand.engines.vllm.machine.ranks import shape_problem
from caovand.engines.vllm.planning.decisions import forecast
from caovand.engines.vllm.planning.partial_plan import PartialPlan
from caovand.engines.vllm.planning.request import VllmRequest
from tests.boxes.machines import box_with
from tests.boxes.models import model
from tests.core.machines import (
    A100,
    CUDA,
    GPT_OSS,
    H200,
    HOST,
    LLAMA_70B_AWQ,
    QWEN_27B,
    QWEN_27B_AWQ,
    QWEN_27B_MEASURED,
    SMALL_HYBRID,
    cards,
    inventory,
    named,
    plan,
    turing,
    weights,
)
from tests.examples import examples

SMALL = named("RTX 4060")
WORDS = {
    "max_num_seqs": "policy", "kv_cache_dtype": "policy", "gpu_memory_utilization": "policy",
    "tensor_parallel_size": "policy", "max_model_len": "model",
}  # fmt: skip


def followed(text: str, machine: Inventory, sections: dict[str, Any]) -> bool | None:
    """Whether it fits when what the text says is done; None where it names no setting."""
    more = re.match(r"(\d+) such cards", text)
    if more:
        card = max(machine.gpus, key=lambda gpu: gpu.free_mib)
        gpus = tuple(replace(card, index=index) for index in range(int(more[1])))
        machine = replace(machine, gpus=gpus)
    typed = re.findall(r"(\w+) = (\S+)", text)
    flag = re.match(r"(--[a-z-]+) (\S+)", text)
    changed = {name: dict(section) for name, section in sections.items()}
    for name, value in typed:
        number: Any = value.strip('"') if '"' in value else float(value)
        whole = isinstance(number, float) and number.is_integer()
        changed.setdefault(WORDS[name], {})[name] = int(number) if whole else number
    words = list(changed.get("engine", {}).get("extra_args", []))
    if flag and flag[1] in words:
        words[words.index(flag[1]) + 1] = flag[2]
    elif flag:
        words += [flag[1], flag[2]]
    if not typed and not flag:
        return None
    changed["engine"] = {"extra_args": words}
    return forecast(plan(machine, **changed), machine).fits


@st.composite
def crowded(draw: st.DrawFn) -> Inventory:
    """Cards that are too small for most of the models."""
    model = draw(st.sampled_from([QWEN_27B_AWQ, QWEN_27B, GPT_OSS, LLAMA_70B_AWQ, SMALL_HYBRID]))
    kind = draw(st.sampled_from([(7, 5), (8, 9), (9, 0)]))
    gpus = cards(draw(st.integers(1, 3)), "card", kind, draw(st.integers(6000, 60000)))
    ram = draw(st.sampled_from([8192, 65536, 262144]))
    return Inventory(gpus, replace(HOST, ram_mib=ram), CUDA, model)


@examples(40)
@given(
    machine=crowded(),
    policy=st.fixed_dictionaries(
        {},
        optional={
            "gpu_memory_utilization": st.sampled_from([0.3, 0.5, 0.9]),
            "max_num_seqs": st.sampled_from([16, 1024]),
            "max_num_batched_tokens": st.sampled_from([2048, 65536]),
        },
    ),
    context=st.one_of(st.none(), st.sampled_from([2048, 32768, 131072])),
    words=st.sampled_from([[], ["-tp", "8"], ["--max-model-len", "100000"], ["-tp", "1"]]),
)
def test_following_the_advice_gives_a_plan_that_fits(
    machine: Inventory, policy: dict[str, Any], context: int | None, words: list[str]
) -> None:
    sections: dict[str, Any] = {"policy": policy, "engine": {"extra_args": words}}
    if context:
        sections["model"] = {"max_model_len": context}
    try:
        found = plan(machine, **sections)
    except Unplannable:
        return
    if forecast(found, machine).fits:
        assert found.advice == ()
        return
    assert found.advice
    for text in found.advice:
        assert followed(text, machine, sections) in (True, None), text
        split = re.search(r"tensor_parallel_size = (\d+)|--tensor-parallel-size (\d+)", text)
        if split:
            assert not shape_problem(machine.model, int(split[1] or split[2]))


BF16_70B = replace(
    LLAMA_70B_AWQ,
    quantization=None,
    group_size=0,
    dtype="bfloat16",
    weights=weights(layers=127.5, embedding=1.96, head=1.96),
)


def left(text: str, sections: dict[str, Any]) -> dict[str, Any] | None:
    """The configuration without what the text says to leave to the policy; None where nothing."""
    told = re.search(r"leave ([\w, -]+?) (?:to the policy|out)", text)
    if not told:
        return None
    names = [name.strip("- ").replace("-", "_") for name in told[1].split(", ")]
    changed: dict[str, Any] = {
        section: {name: value for name, value in keys.items() if name not in names}
        for section, keys in sections.items()
        if section != "engine"
    }
    words = command_line.read(sections.get("engine", {}).get("extra_args", []))
    kept = [word for flag in words if flag.name not in names for word in flag.words]
    assert (changed, kept) != (sections, words), "nothing of what it names was asked for"
    return {**changed, "engine": {"extra_args": kept}}


@pytest.mark.parametrize(
    "gpus",
    [
        A100,
        SMALL,
        pytest.param(H200, marks=pytest.mark.long),
        pytest.param(cards(4, "NVIDIA A100", (8, 0), 81920), marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("ram_mib", [65536, 524288])
@pytest.mark.parametrize("share", [None, 0.25, 0.5])
@pytest.mark.parametrize("offload", [None, "4", "40", "98"])
def test_what_is_advised_to_be_left_to_the_policy_gives_what_is_promised(
    gpus: tuple[Gpu, ...], ram_mib: int, share: float | None, offload: str | None
) -> None:
    machine = inventory(BF16_70B, gpus, host=replace(HOST, ram_mib=ram_mib, swap_mib=1 << 20))
    sections: dict[str, Any] = {
        "policy": {"gpu_memory_utilization": share} if share else {},
        "engine": {"extra_args": ["--cpu-offload-gb", offload] if offload else []},
    }
    try:
        found = plan(machine, **sections)
        texts = (*found.advice, *found.warnings)
    except Unplannable as refusal:  # for its speed
        texts = (str(refusal),)
    for text in texts:
        assert "None" not in text
        changed = left(text, sections)
        if changed is None:
            continue
        other = plan(machine, **changed)
        assert forecast(other, machine).fits, text
        if "none stay there" in text:
            assert other.value("cpu_offload_gb") is None, text


def test_what_keeps_weights_in_host_memory_for_nothing_is_named_as_a_whole() -> None:
    ample = inventory(BF16_70B, H200, host=replace(HOST, ram_mib=524288))
    both = {"policy": {"gpu_memory_utilization": 0.25}}
    words = {"engine": {"extra_args": ["--cpu-offload-gb", "98"]}}
    stay = "stay in host memory: about"
    (told,) = [text for text in plan(ample, **both, **words).warnings if stay in text]
    assert (
        "; leave gpu_memory_utilization, cpu_offload_gb to the policy and none stay there; ea"
        in (told)
    )
    (told,) = [text for text in plan(ample, **words).warnings if stay in text]
    assert "tokens/s; leave cpu_offload_gb to the policy and none stay there; each step" in (told)


def test_what_serves_weights_in_host_memory_better_comes_before_their_cost() -> None:
    large = inventory(GPT_OSS, named("RTX 3060"))
    (told,) = [text for text in plan(large).warnings if "in host memory" in text]
    speed, better, cost = told.split("; ", 2)
    assert "tokens/s" in speed
    assert "GGUF" in better
    assert cost.startswith("each step waits about")
    assert cost.endswith("GiB are pinned")


def said(machine: Inventory, **sections: Any) -> str:
    return "\n".join(plan(machine, **sections).advice)


def test_a_share_too_small_is_advised_up_to_what_holds_it() -> None:
    typed = {"gpu_memory_utilization": 0.39, "max_num_seqs": 1024}
    text = said(inventory(QWEN_27B, H200), policy=typed, model={"max_model_len": 8192})
    assert "gpu_memory_utilization = 0.43 holds it" in text
    assert "max_num_seqs = 1 instead of 1024" in text
    assert "4-bit checkpoint" in text
    assert "--cpu-offload-gb" in text


def test_the_length_advised_is_what_vllm_would_accept() -> None:
    text = said(
        inventory(QWEN_27B_MEASURED, H200),
        policy={"gpu_memory_utilization": 0.45, "mtp": 3},
        model={"max_model_len": 262144},
        engine={"extra_args": ["--kv-cache-dtype", "auto"]},
    )
    length = int(re.search(r"max_model_len = (\d+)", text)[1])  # type: ignore[index]
    assert length == pytest.approx(175_552, rel=0.06)


def test_a_length_is_not_computed_at_the_share_of_a_longer_one() -> None:
    """A shorter context leaves a smaller reserve, so that more of it fits."""
    machine = inventory(LLAMA_70B_AWQ, cards(2, "card", (8, 9), 24564))
    asked = {"model": {"max_model_len": 131072}}
    length = int(re.search(r"max_model_len = (\d+)", said(machine, **asked))[1])  # type: ignore[index]
    assert length > forecast(plan(machine, **asked), machine).max_model_len


def test_memory_that_others_hold_is_advised_to_be_freed() -> None:
    busy = tuple(replace(gpu, free_mib=16000, users=((42, "python", 6200),)) for gpu in turing(2))
    text = said(inventory(gpus=busy), engine={"extra_args": ["--gpu-memory-utilization", "0.9"]})
    assert "free the cards: python (pid 42) holds 6200 MiB of GPU 0" in text


def test_more_cards_are_advised_where_nothing_else_helps() -> None:
    machine = inventory(LLAMA_70B_AWQ, SMALL, host=replace(HOST, ram_mib=16384))
    assert said(machine) == "8 such cards would hold it: tensor_parallel_size = 8"


def test_there_is_a_word_also_where_nothing_would_do() -> None:
    huge = replace(LLAMA_70B_AWQ, heads=13, kv_heads=13)
    text = said(inventory(huge, SMALL, host=replace(HOST, ram_mib=16384)))
    assert "a smaller model: this one has 37.4 GiB of weights, the cards 8.0 GiB" in text


def test_several_obstacles_are_removed_together() -> None:
    text = said(inventory(), engine={"extra_args": ["-tp", "8", "--dtype", "bfloat16"]})
    assert (
        text == "leave tensor_parallel_size, dtype to the policy: a context of 262144 tokens fits"
    )


def test_a_remedy_is_sized_and_only_what_is_shown_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[Plan] = []
    sized: list[PartialPlan] = []
    write, size = VllmRequest.write, VllmRequest.size

    def noting_write(request: VllmRequest, chosen: PartialPlan) -> Plan:
        written.append(write(request, chosen))
        return written[-1]

    def noting_size(request: VllmRequest) -> PartialPlan:
        sized.append(size(request))
        return sized[-1]

    monkeypatch.setattr(VllmRequest, "write", noting_write)
    monkeypatch.setattr(VllmRequest, "size", noting_size)
    shown = plan(inventory(gpus=turing(1)), model={"max_model_len": 262144}).advice
    assert len(written) == 1 + len(shown)
    assert len(sized) < 12  # the length is computed, and confirmed by two


def test_a_length_beyond_the_models_limit_is_advised_down_to_what_fits() -> None:
    machine = box_with("2080ti-11g-x2", model("Llama-3.1-8B-AWQ"))
    text = said(machine, engine={"extra_args": ["--max-model-len", "262144"]})
    assert "--max-model-len 131072 fits if these change:" in text


def test_no_length_is_advised_where_another_obstacle_stays() -> None:
    """Eight cards are asked for, and there is one: no context cures that."""
    little = replace(HOST, ram_mib=8192)
    for card in (SMALL_HYBRID, QWEN_27B_AWQ, GPT_OSS):
        machine = inventory(card, cards(1, "card", (7, 5), 6000), host=little)
        text = said(machine, model={"max_model_len": 2048}, engine={"extra_args": ["-tp", "8"]})
        assert "max_model_len = " not in text


def test_a_smaller_model_is_no_remedy_where_the_size_is_no_obstacle() -> None:
    """No card before SM80 runs MXFP4."""
    text = said(inventory(GPT_OSS, cards(2, "NVIDIA GeForce RTX 2080 Ti", (7, 5), 22_528)))
    assert "smaller model" not in text
