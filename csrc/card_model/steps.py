"""A decode step of Qwen3.6-27B in 4 bits on one card: what it reads, and how long that takes.

One request, 4 drafts: a pass of the target over 5 tokens, then four of the MTP layer over one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from card_model import card
from card_model.times import (
    ATTENTION,
    attention_us,
    copy_ms,
    gdn_decode_us,
    lm_head_us,
    split_kv_ms,
)

HIDDEN, INNER, VOCABULARY, LAYERS = 5120, 17_408, 248_320, 64
FULL, LINEAR = 16, 48  # layers with attention, and with Gated DeltaNet
# of an attention layer; the last is a GDN layer's values
QUERIES, KEYS, VALUES = 24 * 256, 4 * 256, 48 * 128
GDN_KEYS = 16 * 128
DRAFTS = 4
FOUR_BITS = (4 + 16 / 128) / 8  # bytes per weight, in groups of 128
LENGTHS = {"2k": 2_048, "32k": 32_768, "128k": 131_072, "250k": 256_000}
NEIGHBOUR = {"2k": 33.8, "32k": 39.0, "128k": 52.9}
"""Milliseconds per step, including drafts, as measured by carjorvaz/qwen38-27b-rtx2080ti."""

_MLP = 3 * HIDDEN * INNER
_ATTENTION = HIDDEN * (2 * QUERIES + 2 * KEYS + QUERIES)


@dataclass(frozen=True)
class Tensors:
    what: str
    elements: int
    """In all layers."""
    bytes_each: float
    passes: int
    """Passes of a step that read them."""

    @property
    def gb(self) -> float:
        """Gigabytes read per step."""
        return self.elements * self.bytes_each * self.passes / 1e9


def read(head: float = 2, mtp: float = 2) -> tuple[Tensors, ...]:
    """The weights that a step reads; `head` and `mtp` are bytes per weight."""
    projections = HIDDEN * (2 * GDN_KEYS + 3 * VALUES)
    layers = LAYERS * _MLP + FULL * _ATTENTION + LINEAR * projections
    return (
        Tensors("layers, 4 bits in groups of 128", layers, FOUR_BITS, 1),
        Tensors("gates of Gated DeltaNet (in_proj_a, in_proj_b)", LINEAR * HIDDEN * 96, 2, 1),
        Tensors("convolutions", LINEAR * 4 * (2 * GDN_KEYS + VALUES), 2, 1),
        Tensors("norms", (2 * LAYERS + 1) * HIDDEN, 2, 1),
        Tensors("lm_head, the target's pass", HIDDEN * VOCABULARY, head, 1),
        Tensors("lm_head, drafts", HIDDEN * VOCABULARY, head, DRAFTS),
        Tensors("MTP layer: fc", 2 * HIDDEN * HIDDEN, mtp, DRAFTS),
        Tensors("MTP layer: attention", _ATTENTION, mtp, DRAFTS),
        Tensors("MTP layer: MLP", _MLP, mtp, DRAFTS),
        Tensors("embedding, a row a token", HIDDEN, 2, 1 + 2 * DRAFTS),
    )


def bytes_table() -> str:
    """The table of what a step reads, and how much of it is 16-bit."""
    rows = ["| weights | bits | GB | read | GB a step | ms at the copy rate |"]
    rows.append("| --- " * 6 + "|")
    found = read()
    for t in found:
        bits = "4" if t.bytes_each == FOUR_BITS else "16"
        rows.append(
            f"| {t.what} | {bits} | {t.elements * t.bytes_each / 1e9:.3f} | {t.passes} x "
            f"| {t.gb:.3f} | {copy_ms(t.gb * 1e9):.2f} |"
        )
    whole, wide = (sum(t.gb for t in found if t.bytes_each >= least) for least in (0, 2))
    rows.append(f"| **in 16 bits** | | | | **{wide:.2f}** | **{copy_ms(wide * 1e9):.1f}** |")
    rows.append(f"| all | | | | {whole:.2f} | {copy_ms(whole * 1e9):.1f} |")
    return "\n".join(rows)


def _weights_ms(*, head: float, mtp: float, named: tuple[str, ...]) -> float:
    return copy_ms(sum(t.gb for t in read(head, mtp) if t.what.startswith(named)) * 1e9)


_LAYERS = ("layers", "gates", "conv", "norms", "embedding")
_FIVE, _ONE = ATTENTION[0], ATTENTION[1]


def _verify_ms(keys: int) -> float:
    return FULL * attention_us(_FIVE, keys) / 1e3


def _verify_of_others_ms(keys: int) -> float:
    """The neighbour's kernel, with scores in registers, by the same model: laps of 32 keys."""
    return FULL * split_kv_ms("verify_registers", 5, [32]) * keys / 131_072


def _drafting_ms(keys: int) -> float:
    return DRAFTS * attention_us(_ONE, keys) / 1e3


def _states_ms() -> float:
    """48 layers and 4 tokens, the most that was counted; the fifth token adds a state at the copy
    rate."""
    fifth = copy_ms(VALUES * 128 * 4)
    return LINEAR * (sum(gdn_decode_us(4, 48)) / 1e3 + fifth)


@dataclass(frozen=True)
class Part:
    what: str
    before: Callable[[int], float]
    """Milliseconds by number of keys."""
    after: Callable[[int], float]


def parts() -> tuple[Part, ...]:
    """The modelled parts of a step; `before` applies none of the levers."""
    head = copy_ms(HIDDEN * VOCABULARY * 2)
    mtp = _weights_ms(head=2, mtp=2, named=("MTP",))
    layers = _weights_ms(head=2, mtp=2, named=_LAYERS)
    ours = lm_head_us(8, VOCABULARY, HIDDEN) / 1e3
    return (
        Part("layers' weights", lambda keys: layers, lambda keys: layers),
        Part("lm_head, the target's pass", lambda keys: head, lambda keys: ours),
        Part("lm_head, 4 drafts", lambda keys: DRAFTS * head, lambda keys: DRAFTS * ours),
        Part("MTP layer, 4 drafts", lambda keys: mtp, lambda keys: mtp),
        Part("attention of 5 tokens, 16 layers", _verify_of_others_ms, _verify_ms),
        Part("attention of 4 drafts", _drafting_ms, _drafting_ms),
        Part("Gated DeltaNet, 48 layers", lambda keys: _states_ms(), lambda keys: _states_ms()),
    )


def _row(what: str, cells: list[str]) -> str:
    return f"| {what} | {' | '.join(cells)} |"


def step_table() -> str:
    """The table of a step's parts, before and after, and of the neighbour's measurement."""
    rows = [_row("", list(LENGTHS)), "| --- " * (len(LENGTHS) + 1) + "|"]
    whole = {"before": dict.fromkeys(LENGTHS, 0.0), "after": dict.fromkeys(LENGTHS, 0.0)}
    for part in parts():
        cells = []
        for name, keys in LENGTHS.items():
            before, after = part.before(keys), part.after(keys)
            whole["before"][name] += before
            whole["after"][name] += after
            moved = abs(before - after) > 0.005
            cells.append(f"{before:.1f} -> {after:.1f}" if moved else f"{after:.1f}")
        rows.append(_row(part.what, cells))
    cheaper = sum(less for what, less, *_ in levers()[:2])
    whole["after, and with cheaper drafts"] = {
        name: ms - cheaper for name, ms in whole["after"].items()
    }
    for name, sums in whole.items():
        rows.append(_row(f"**step, {name}**", [f"**{ms:.1f}**" for ms in sums.values()]))
    measured = [f"{NEIGHBOUR[name]:.1f}" if name in NEIGHBOUR else "none" for name in LENGTHS]
    rows.append(_row("neighbour, measured", measured))
    return "\n".join(rows)


def levers() -> tuple[tuple[str, float, str, str], ...]:
    """Further ways to shorten a step: the milliseconds, what changes, and how to get it."""
    ours = lm_head_us(8, VOCABULARY, HIDDEN) / 1e3
    mtp = _weights_ms(head=2, mtp=2, named=("MTP",))

    def drafting(tokens: int) -> float:
        return DRAFTS * (ours - lm_head_us(8, tokens, HIDDEN) / 1e3)

    return (
        ("MTP layer in int8", mtp / 2, "drafts", "`CAOVAN_DRAFTER=int8`"),
        (
            "drafts over 65,536 tokens", drafting(65_536), "drafts",
            "`CAOVAN_DRAFT_VOCABULARY=65536`",
        ),
        ("drafts over 32,768 tokens", drafting(32_768), "drafts", "`=32768`"),
        ("MTP layer in 4 bits", mtp * (1 - FOUR_BITS / 2), "drafts", "not built"),
        ("lm_head in 4 bits", (1 + DRAFTS) * ours * (1 - FOUR_BITS), "answers", "not built"),
        ("gates in int8", copy_ms(LINEAR * HIDDEN * 96), "answers", "not built"),
    )  # fmt: skip


def lever_table() -> str:
    """The table of levers, each applied alone."""
    rows = ["| lever | a step, ms | changes | how |", "| --- | --- | --- | --- |"]
    for what, less, changes, how in levers():
        rows.append(f"| {what} | {-less:.1f} | {changes} | {how} |")
    return "\n".join(rows)


TEXT = f"""# A decode step on one RTX 2080 Ti, modelled

Made by `python -m card_model steps`, and held by a test; not measured. Qwen3.6-27B in 4 bits (AWQ
or GPTQ in groups of 128, whose MTP layer, lm_head and gates stay in 16), one request, an int4
cache, 4 drafts; memory at {card.COPY_GB_S} GB/s. Small kernels, launches and sampling are left out:
the sums are lower bounds. The model's error is in
[NOTEBOOK.md](NOTEBOOK.md#modelled-on-an-rtx-2080-ti).

## What a step reads
"""
STEP = """
## Before and after

Milliseconds. "Before" has an lm_head in 16 bits and the neighbour's verify attention (scores in
registers) by the same model: Triton's kernels, which vLLM has, were not to be modelled for SM75.
"After" has our attention and `lm_head = "int8"`.
"""
NEXT = """
The neighbour's drafts take 4.5 ms at 2k, ours what four passes over a 16-bit MTP layer and a whole
int8 head take: its stack has the head and the drafter in 4 bits, and drafts over a part of the
vocabulary (README of syv-ai/qwen38-27b-rtx3090, which it ports). So "after" is behind where weights
bind and ahead where attention does, and cheaper drafts (the first two levers) are ahead at each; at
2k by no more than launches and sampling may take, which its figures include and these do not.

## What more there is to take
"""


def page() -> str:
    """csrc/STEPS.md."""
    tables = (bytes_table(), step_table(), lever_table())
    texts = zip((TEXT, STEP, NEXT), tables, strict=True)
    return "\n".join(f"{text}\n{table}\n" for text, table in texts).replace("\n\n\n", "\n\n")
