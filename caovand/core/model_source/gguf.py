"""Choose among a repository's GGUF models: publishers put several into one, of different types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from caovand.core.model_source.listing import RemoteFile

SUFFIX = ".gguf"
TYPE = re.compile(
    r"[-._]((?:UD-)?(?:(?:I?Q\d|TQ\d|MXFP4|NVFP4)\w{0,16}|BF16|F16|F32))(?=[-.]|$)", re.I
)
"""The weight type in a GGUF file's name; a part number may follow."""
USUAL = ("Q4_K_M", "UD-Q4_K_XL", "Q4_K_S", "UD-Q4_K_S", "IQ4_XS", "IQ4_NL", "Q4_0", "MXFP4")
"""Types of about four bits, the usual compromise, best first."""
WHOLE = ("BF16", "F16", "F32")
"""Unquantised types: eight bits give the same answers in half the memory."""
CARD_SHARE = 0.75
"""Share of the cards' free memory for weights; caches and compute buffers need the rest."""
HOST_SHARE = 0.7
PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
"""Path of one part of a model that is split over several files."""
NO_MODEL = re.compile(r"mmproj|imatrix", re.I)
"""Prefixes of file names that are no models by themselves: vision towers and statistics."""


@dataclass(frozen=True)
class Variant:
    """One of the repository's models: the type in its file's name, and its parts in order."""

    label: str
    files: tuple[RemoteFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def type_of(path: str) -> str:
    """Weight type in a file's name, in capitals; empty if the name has none."""
    types = TYPE.findall(path.rpartition("/")[2].removesuffix(SUFFIX))
    return types[-1].upper() if types else ""


def variants(files: Iterable[RemoteFile]) -> tuple[Variant, ...]:
    """Every complete model, smallest first.

    A name without a type serves as its own label, so each label identifies one model.
    """
    groups: dict[str, list[RemoteFile]] = {}
    for one in sorted(files, key=lambda file: file.path):
        name = one.path.rpartition("/")[2]
        if name.endswith(SUFFIX) and not NO_MODEL.match(name):
            part = PART.fullmatch(one.path)
            groups.setdefault(part["stem"] + SUFFIX if part else one.path, []).append(one)
    variants: dict[str, Variant] = {}
    for path, parts in groups.items():
        part = PART.fullmatch(parts[0].path)
        if part and len(parts) != int(part["count"]):
            continue
        stem = path.rpartition("/")[2].removesuffix(SUFFIX)
        label = type_of(path) or stem
        if label in variants:
            label = stem
        variants[label] = Variant(label, tuple(parts))
    return tuple(sorted(variants.values(), key=lambda variant: variant.size_bytes))


def find_variant(variants: Sequence[Variant], label: str) -> Variant | None:
    """The model with this label, ignoring case."""
    return next(
        (variant for variant in variants if variant.label.casefold() == label.casefold()), None
    )


def preferred_variant(variants: Sequence[Variant], card_bytes: int, host_bytes: int) -> Variant:
    """The model for a machine with this much free memory on cards and host.

    Preferred is the best one that fits entirely on the cards; else a four-bit one, split between
    cards and host; else the largest that fits. Without a card, smaller models are faster, so four
    bits come first.
    """
    quantised = [variant for variant in variants if variant.label not in WHOLE] or list(variants)
    usual = next((variant for label in USUAL if (variant := find_variant(variants, label))), None)
    least = usual.size_bytes if usual else 0
    on_cards = _largest_variant(quantised, card_bytes * CARD_SHARE)
    if on_cards is not None and on_cards.size_bytes >= least:
        return on_cards
    free_bytes = card_bytes * CARD_SHARE + host_bytes * HOST_SHARE
    if usual is not None and usual.size_bytes <= free_bytes:
        return usual
    return _largest_variant(quantised, free_bytes) or quantised[0]


def _largest_variant(variants: Sequence[Variant], free_bytes: float) -> Variant | None:
    fitting = [variant for variant in variants if variant.size_bytes <= free_bytes]
    return fitting[-1] if fitting else None
