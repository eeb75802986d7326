"""The plugin's fixes for vLLM 0.21's recurrent states, over stand-ins for vLLM's parts."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from caovan_vllm_sm75_turbo3 import fix_states, states
from hypothesis import given
from hypothesis import strategies as st

BLOCK = 400


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> dict[str, SimpleNamespace]:
    """Modules of vLLM 0.21 whose sources are as known, by name; every name in them is there."""
    modules: dict[str, SimpleNamespace] = {}
    for module, name in states.SOURCES:
        owner = modules.setdefault(module, SimpleNamespace())
        *parents, last = name.split(".")
        for parent in parents:
            if not hasattr(owner, parent):
                setattr(owner, parent, SimpleNamespace())
            owner = getattr(owner, parent)
        setattr(owner, last, lambda: None)
    monkeypatch.setattr(states.importlib, "import_module", modules.__getitem__)
    monkeypatch.setattr(states, "release", lambda _: (0, 21, 0))
    monkeypatch.setattr(states.inspect, "getsource", lambda _: "source")
    known = dict.fromkeys(states.SOURCES, states.digest("source"))
    monkeypatch.setattr(states, "SOURCES", known)
    interface = ModuleType("vllm.v1.kv_cache_interface")
    interface.MambaSpec = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.v1.kv_cache_interface", interface)
    states.fix.cache_clear()
    return modules


def places(modules: dict[str, SimpleNamespace]) -> dict[str, object]:
    """What is where something is replaced."""
    return {
        name: states.functools.reduce(getattr, name.split("."), modules[module])
        for module, name, _ in states.FIXES
    }


def test_everything_is_fixed_in_the_release_it_was_written_for(vllm) -> None:
    before = places(vllm)
    assert states.fix() is None
    after = places(vllm)
    assert all(after[name] is not before[name] for name in before)
    assert all(after[name].__wrapped__ is before[name] for name in before)


def test_what_is_replaced_is_replaced_once(vllm) -> None:
    states.fix()
    once = places(vllm)
    assert states.fix() is None
    assert places(vllm) == once


@pytest.mark.parametrize("changed", [name for _, name in states.SOURCES])
def test_a_changed_source_leaves_everything_as_it_is(vllm, changed, monkeypatch) -> None:
    known = {
        where: digest if where[1] != changed else "another"
        for where, digest in states.SOURCES.items()
    }
    monkeypatch.setattr(states, "SOURCES", known)
    before = places(vllm)
    reason = states.fix()
    assert reason is not None
    assert changed in reason
    assert places(vllm) == before


def test_a_missing_function_leaves_everything_as_it_is(vllm) -> None:
    del vllm[states.COPIES].postprocess_mamba
    reason = states.fix()
    assert reason is not None
    assert "postprocess_mamba" in reason


@pytest.mark.parametrize(
    ("release", "reason"),
    [
        (None, "vLLM is not installed"),
        ((0, 32, 0), "this vLLM keeps the states correct itself"),
        ((0, 33, 1), "this vLLM keeps the states correct itself"),
        ((0, 22, 0), "vLLM 0.22.0 is not supported here, the fix is for 0.21"),
        ((0, 20, 1), "vLLM 0.20.1 is not supported here, the fix is for 0.21"),
    ],
)
def test_other_releases_are_left_alone(vllm, release, reason, monkeypatch) -> None:
    monkeypatch.setattr(states, "release", lambda _: release)
    before = places(vllm)
    assert states.fix() == reason
    assert places(vllm) == before


@pytest.mark.parametrize("wrong", ["another source", "an exception"])
def test_an_engine_that_needs_the_fixes_does_not_start_without_them(
    wrong: str, vllm, monkeypatch
) -> None:
    log = SimpleNamespace(info=print, warning=print)
    monkeypatch.setenv("CAOVAN_STATES", "required")
    fix_states(log)
    states.fix.cache_clear()

    def source(_) -> str:
        if wrong == "an exception":
            raise RuntimeError("no more memory")
        return wrong

    monkeypatch.setattr(states.inspect, "getsource", source)
    why = "RuntimeError: no more" if wrong == "an exception" else "is not vLLM 0.21.0's"
    with pytest.raises(RuntimeError, match=f"{why}.*; start with --no-enable-prefix-caching"):
        fix_states(log)
    monkeypatch.setenv("CAOVAN_STATES", "")
    fix_states(log)


def test_what_is_replaced_is_compared_with_what_is_known() -> None:
    assert {(module, name) for module, name, _ in states.FIXES} <= set(states.SOURCES)


def test_states_are_not_looked_up_for_more_than_attention_has(vllm) -> None:
    attention, mamba = object(), SimpleNamespace()
    coordinator = SimpleNamespace()

    def theirs(self) -> None:
        self.attention_groups = [(attention, [0], None), (mamba, [1, 2], None)]
        self.eagle_attn_group_indices = {0, 1}

    states.make_lookup(theirs)(coordinator)
    assert coordinator.eagle_attn_group_indices == {0}


@given(
    begin=st.integers(0, 4 * BLOCK),
    cached=st.integers(0, 4).map(lambda blocks: blocks * BLOCK),
    tokens=st.integers(1, 3 * BLOCK),
    prompt=st.integers(1, 8 * BLOCK),
    answered=st.integers(0, 5),
)
def test_a_chunk_that_begins_inside_a_block_ends_at_its_border(
    begin: int, cached: int, tokens: int, prompt: int, answered: int
) -> None:
    begin = begin if not cached else 0
    request = SimpleNamespace(
        num_computed_tokens=begin, num_prompt_tokens=prompt, num_tokens=prompt + answered
    )
    scheduler = SimpleNamespace(cache_config=SimpleNamespace(block_size=BLOCK))
    split = states.make_chunk_end(lambda self, request, tokens, local, external: tokens)
    got = split(scheduler, request, tokens, cached)
    start = begin + cached
    assert 1 <= got <= tokens
    if start >= max(prompt, prompt + answered - 1) or start % BLOCK == 0:
        assert got == tokens
    else:
        assert (start + got - 1) // BLOCK == start // BLOCK
        assert got == tokens or (start + got) % BLOCK == 0


def manager(blocks: int, mode: str = "align") -> SimpleNamespace:
    return SimpleNamespace(
        mamba_cache_mode=mode,
        block_size=BLOCK,
        num_speculative_blocks=3,
        _allocated_block_reqs={"request"},
        req_to_blocks={"request": [None] * blocks},
    )


@pytest.mark.parametrize(
    ("tokens", "blocks", "mode", "want"),
    [
        (BLOCK, 5, "align", []),  # a block and three for drafts, where five are
        (BLOCK, 4, "align", ["theirs"]),
        (BLOCK + 1, 4, "align", ["theirs"]),
        (BLOCK, 5, "none", ["theirs"]),
    ],
)
def test_a_block_too_many_stays(tokens: int, blocks: int, mode: str, want: list[str]) -> None:
    allocate = states.make_allocation(lambda self, request, tokens, main: ["theirs"])
    assert allocate(manager(blocks, mode), "request", tokens + 3, tokens) == want


def test_a_request_that_has_nothing_yet_is_allocated_by_vllm() -> None:
    allocate = states.make_allocation(lambda self, request, tokens, main: ["theirs"])
    fresh = manager(0)
    fresh._allocated_block_reqs.clear()
    assert allocate(fresh, "request", 5, 2) == ["theirs"]


@pytest.mark.parametrize(("number", "want"), [(-1, 0), (0, 0), (4, 4)])
def test_blocks_too_many_are_no_room_for_other_groups(number: int, want: int) -> None:
    assert states.make_block_count(lambda self, *args, **kwargs: number)(None, "request", 5) == want


class Batch:
    """Rows, and the calls that a step makes."""

    def __init__(self, vllm: dict[str, SimpleNamespace]) -> None:
        self.copies = SimpleNamespace(mamba_group_ids=[1], offset=9)
        self.collected: list[tuple] = []
        copies = vllm[states.COPIES]
        copies.collect_mamba_copy_meta = lambda bufs, config, functions, groups, *what: (
            self.collected.append((bufs.offset, groups, *what[:3]))
        )
        copies.do_mamba_copy_block = lambda bufs: self.collected.append("copied")

    def before(
        self,
        rows: list[str],
        counts: list[int],
        drafts: dict[str, list[int]] | None = None,
        *,
        finished: tuple[str, ...] = (),
        preempted: tuple[str, ...] | None = None,
        resumed: tuple[str, ...] = (),
    ) -> list[int]:
        """A step begins with these rows, and wrong counts in them; returns what counts then."""
        batch = SimpleNamespace(req_ids=rows, num_accepted_tokens_cpu=counts)
        output = SimpleNamespace(
            finished_req_ids=finished,
            preempted_req_ids=preempted,
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=resumed),
            scheduled_spec_decode_tokens={name: [1] for name in rows} if drafts is None else drafts,
        )
        step = states.make_step_start(lambda *args: None)
        requests = {name: name for name in rows}
        index = dict.fromkeys(rows, 7)
        step(output, None, None, index, batch, requests, None, None, self.copies)
        return counts

    def after(self, rows: list[str], counts: list[int]) -> None:
        batch = SimpleNamespace(req_ids=rows, num_accepted_tokens_cpu=counts)
        states.make_step_end(lambda *args: None)(*[None] * 2, batch, *[None] * 4, self.copies)


def test_counts_go_with_requests_wherever_their_rows_move(vllm) -> None:
    batch = Batch(vllm)
    batch.after(["a", "b", "c"], [2, 4, 1])
    assert batch.before(["c", "new", "a", "b"], [9, 9, 9, 9]) == [1, 1, 2, 4]


def test_a_request_left_out_of_a_step_keeps_its_count(vllm) -> None:
    batch = Batch(vllm)
    batch.after(["a", "b"], [3, 4])
    assert batch.before(["b"], [9]) == [4]
    batch.after(["b"], [2])
    assert batch.before(["a", "b"], [1, 1]) == [3, 2]


@pytest.mark.parametrize("how", ["finished", "preempted", "resumed"])
def test_a_request_that_begins_anew_counts_anew(vllm, how: str) -> None:
    batch = Batch(vllm)
    batch.after(["a"], [4])
    assert batch.before(["a"], [9], **{how: ("a",)}) == [1]


def test_a_step_without_drafts_begins_with_the_state_of_the_last_accepted_one(vllm) -> None:
    batch = Batch(vllm)
    batch.after(["a", "b", "c"], [3, 3, 1])
    counts = batch.before(["a", "b", "c"], [9, 9, 9], {"a": [5]})
    assert counts == [3, 1, 1]
    assert batch.collected == [(0, [1], 7, 7, 2), "copied"]


def test_what_is_copied_is_described_when_the_last_description_was_read(vllm) -> None:
    batch = Batch(vllm)
    order: list[str] = []
    batch.copies.caovan_copied = SimpleNamespace(synchronize=lambda: order.append("waited"))
    output = SimpleNamespace(
        finished_req_ids=(),
        preempted_req_ids=None,
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=()),
        scheduled_spec_decode_tokens={},
    )
    rows = SimpleNamespace(req_ids=[], num_accepted_tokens_cpu=[])
    theirs = states.make_step_start(lambda *args: order.append("described"))
    theirs(output, *[None] * 3, rows, *[None] * 3, batch.copies)
    after = states.make_step_end(lambda *args: order.append("described"))
    after(*[None] * 2, rows, *[None] * 4, batch.copies)
    assert order == ["waited", "described"] * 2
