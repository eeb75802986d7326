"""Encode and decode a node's facts as a JSON document.

Documents come over the network: each is accepted unchanged or refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from itertools import groupby
from typing import Any

from caovand.core.cluster.node import MAX_FILES, NodeCard, NodeFacts
from caovand.core.document import (
    BadDocument,
    PartReader,
    flag,
    listed,
    number,
    optional,
    record,
    require,
    string,
    table,
    whole,
)
from caovand.core.printable import one_line

MAX_TEXT = 256
"""The maximum length of a string in characters."""
MAX_PATH = 4096
MAX_CARDS = 64
MAX_DEVICES = 64
MAX_KERNELS = 64
MAX_SIZE = 1 << 40
"""Far beyond any size in MiB, and any Unix time, of a machine."""
OCCUPIED = "occupied_mib"
CAPABILITY = re.compile(r"([1-9][0-9]?)\.([0-9]{1,2})")


def public_facts(facts: NodeFacts | None) -> dict[str, Any]:
    """The facts shown to people and `caovanctl plan` in the response to the op `cluster`.

    Consecutive equal cards share one entry with a `count`, and with each card's occupied memory if
    there is any: a response may cover 64 nodes.
    """
    if facts is None:
        return {}
    kinds = (list(alike) for _, alike in groupby(facts.cards, lambda card: card.kind))
    cards = [_shared_entry(alike) for alike in kinds]
    return {"engine": facts.engine, "version": facts.version, "cards": cards}


def _shared_entry(alike: list[NodeCard]) -> dict[str, Any]:
    document = {**_card_document(alike[0]), "count": len(alike)}
    del document["free_mib"]
    occupied = [card.occupied_mib for card in alike]
    return {**document, OCCUPIED: occupied} if any(occupied) else document


def _card_document(card: NodeCard) -> dict[str, Any]:
    return {**asdict(card), "compute_capability": "{}.{}".format(*card.compute_capability)}


def to_document(facts: NodeFacts) -> dict[str, Any]:
    """Encode the facts as plain JSON values."""
    cards = [_card_document(card) for card in facts.cards]
    return {
        **vars(facts), "cards": cards, "model": dict(facts.model), "rdma": dict(facts.rdma),
        "kernels": list(facts.kernels),
    }  # fmt: skip


def from_document(document: Any) -> NodeFacts:
    """Decode the facts; raises BadDocument."""
    return _FACTS(document, "")


def read_shown_cards(document: Any) -> tuple[NodeCard, ...]:
    """The cards in what `public_facts` returned; raises BadDocument for anything else."""
    cards: list[NodeCard] = []
    for at, alike in enumerate(listed(_alike)(document, "cards")):
        cards += alike
        if len(cards) > MAX_CARDS:
            raise BadDocument(f"cards[{at}].count", f"makes more than {MAX_CARDS} cards")
    return tuple(cards)


def _line(max_chars: int) -> PartReader[str]:
    fact = "has control characters"
    return require(string(max_chars), lambda text: one_line(text) == text, fact)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _capability(value: Any, part: str) -> tuple[int, int]:
    match = CAPABILITY.fullmatch(_TEXT(value, part))
    if match is None:
        raise BadDocument(part, 'is not of the form "7.5"')
    return int(match[1]), int(match[2])


def _card(value: Any, part: str) -> NodeCard:
    card = record(NodeCard, {**_KIND, "free_mib": _SIZE})(value, part)
    if card.free_mib > card.memory_mib:
        raise BadDocument(f"{part}.free_mib", f"is more than {card.memory_mib}")
    return card


def _alike(value: Any, part: str) -> list[NodeCard]:
    """Read one entry of the cards that are shown: equal cards."""
    readers = {**_KIND, "count": whole(1, MAX_CARDS), OCCUPIED: listed(_SIZE)}
    entry: dict[str, Any] = record(dict, readers, may_lack=(OCCUPIED,))(value, part)
    count = entry.pop("count")
    occupied = entry.pop(OCCUPIED, ()) or (0,) * count
    if len(occupied) != count or max(occupied) > entry["memory_mib"]:
        fact = f"is not a list of {count} numbers up to {entry['memory_mib']}"
        raise BadDocument(f"{part}.{OCCUPIED}", fact)
    return [NodeCard(**entry, free_mib=entry["memory_mib"] - mib) for mib in occupied]


_TEXT, _SIZE = _line(MAX_TEXT), whole(high=MAX_SIZE)
_NAME = require(_TEXT, bool, "is empty")
_ADDRESS = require(_TEXT, _is_address, "is not an IP address")
_KIND: Mapping[str, PartReader[Any]] = {
    "name": _NAME, "memory_mib": _SIZE, "compute_capability": _capability,
}  # fmt: skip
_FACTS = record(NodeFacts, {
    **{entry.name: _TEXT for entry in fields(NodeFacts)},
    **dict.fromkeys(("name", "caovan", "engine", "version", "interface"), _NAME),
    **dict.fromkeys(("address", "listens_at"), _ADDRESS),
    **dict.fromkeys(("mtu", "speed_mbit", "ram_mib", "shm_free_mib"), _SIZE),
    "nvcc": flag,
    "p2p": optional(flag),
    "memlock_mib": optional(_SIZE),
    "clock": number(0, MAX_SIZE),
    "kernels": listed(_TEXT, MAX_KERNELS),
    "cards": listed(_card, MAX_CARDS),
    "rdma": table(_TEXT, MAX_DEVICES, _TEXT),
    "model_folder": _line(MAX_PATH),
    "model": table(_TEXT, MAX_FILES, _TEXT),
})  # fmt: skip
