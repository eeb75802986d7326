"""Encode and decode a node's facts as a JSON document.

Documents come over the network: each is accepted unchanged or refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from itertools import groupby
from typing import Any

from caovand.core.cluster.node import MAX_FILES, Card, NodeFacts
from caovand.core.printable import one_line

MAX_TEXT = 256
"""Maximum characters of a text."""


MAX_PATH = 4096


MAX_CARDS = 64


MAX_DEVICES = 64


MAX_KERNELS = 64


LARGEST = 1 << 40
"""Far beyond any real size in MiB or Unix time."""


CAPABILITY = re.compile(r"([1-9][0-9]?)\.([0-9]{1,2})")


class BadFacts(ValueError):
    """The document does not describe a node; `field` names the invalid part."""

    def __init__(self, field: str, fact: str) -> None:
        self.field = field
        super().__init__(f"cannot read a node's facts: {field} {fact}")


NAMES = tuple(entry.name for entry in fields(NodeFacts))


CARD_NAMES = tuple(entry.name for entry in fields(Card))


OCCUPIED = "occupied_mib"


SHOWN_NAMES = (*(name for name in CARD_NAMES if name != "free_mib"), "count", OCCUPIED)


NEEDED = frozenset({"name", "caovan", "engine", "version", "interface"})
"""Texts that must not be empty."""


def public_facts(facts: NodeFacts | None) -> dict[str, Any]:
    """The facts shown to people and `caovanctl plan` in the response to the op `cluster`.

    Consecutive equal cards share one entry with a `count`, and with each card's occupied memory if
    there is any: a response may cover 64 nodes.
    """
    if facts is None:
        return {}
    kinds = (list(same) for _, same in groupby(facts.cards, lambda card: card.kind))
    return {
        "engine": facts.engine, "version": facts.version, "cards": [_shown(one) for one in kinds],
    }  # fmt: skip


def _shown(alike: list[Card]) -> dict[str, Any]:
    document = {**_card_document(alike[0]), "count": len(alike)}
    del document["free_mib"]
    occupied = [card.occupied_mib for card in alike]
    return {**document, OCCUPIED: occupied} if any(occupied) else document


def read_shown_cards(document: Any) -> tuple[Card, ...]:
    """Parse the cards that `public_facts` returned; raises BadFacts."""
    if not isinstance(document, list):
        raise BadFacts("cards", "is not a list")
    found: list[Card] = []
    for at, entry in enumerate(document):
        where = f"cards[{at}]"
        whole = {OCCUPIED: [], **entry} if isinstance(entry, dict) else entry
        table = _table(whole, where, SHOWN_NAMES)
        count = _whole(table.pop("count"), f"{where}.count")
        if not 0 < count <= MAX_CARDS - len(found):
            raise BadFacts(
                f"{where}.count", f"is not positive, or makes more than {MAX_CARDS} cards"
            )
        occupied = table.pop(OCCUPIED)
        if not isinstance(occupied, list) or len(occupied) not in (0, count):
            raise BadFacts(f"{where}.{OCCUPIED}", "is not a list of a figure for each card")
        card = _card({**table, "free_mib": table["memory_mib"]}, where)
        found += [_occupied(card, mib, where) for mib in occupied or [0] * count]
    return tuple(found)


def _occupied(card: Card, mib: Any, where: str) -> Card:
    if _whole(mib, f"{where}.{OCCUPIED}") > card.memory_mib:
        raise BadFacts(f"{where}.{OCCUPIED}", f"is more than {card.memory_mib}")
    return replace(card, free_mib=card.memory_mib - mib)


def _card_document(card: Card) -> dict[str, Any]:
    return {**asdict(card), "compute_capability": "{}.{}".format(*card.compute_capability)}


def to_document(facts: NodeFacts) -> dict[str, Any]:
    """Encode the facts as plain JSON values."""
    cards = [_card_document(card) for card in facts.cards]
    return {**{name: getattr(facts, name) for name in NAMES}, "cards": cards,
            "model": dict(facts.model), "rdma": dict(facts.rdma),
            "kernels": list(facts.kernels)}  # fmt: skip


def from_document(document: Any) -> NodeFacts:
    """Decode the facts; raises BadFacts."""
    values = _table(document, "the document", NAMES)
    return NodeFacts(**{name: _read(value, name) for name, value in values.items()})


def _read(value: Any, name: str) -> Any:
    reader = READERS.get(name)
    return reader(value, name) if reader else _text(value, name)


def _table(value: Any, where: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Check for a table with exactly these keys."""
    if not isinstance(value, dict):
        raise BadFacts(where, "is not a table")
    for key in value:
        if key not in names:
            shown = one_line(key[:MAX_TEXT]) if isinstance(key, str) else "a key"
            raise BadFacts(shown, f"is unknown in {where}")
    for name in names:
        if name not in value:
            raise BadFacts(name, f"is missing in {where}")
    return {name: value[name] for name in names}


def _text(value: Any, where: str, longest: int = MAX_TEXT) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise BadFacts(where, f"is not a text of at most {longest} characters")
    if one_line(value) != value:
        raise BadFacts(where, "has control characters")
    if not value and where.rpartition(".")[2] in NEEDED:
        raise BadFacts(where, "is empty")
    return value


def _path(value: Any, where: str) -> str:
    return _text(value, where, MAX_PATH)


def _address(value: Any, where: str) -> str:
    text = _text(value, where)
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise BadFacts(where, "is not an IP address") from None
    return text


def _whole(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise BadFacts(where, f"is not a whole number from 0 to {LARGEST}")
    return value


def _limit(value: Any, where: str) -> int | None:
    return None if value is None else _whole(value, where)


def _known(value: Any, where: str) -> bool | None:
    if value is not None and type(value) is not bool:
        raise BadFacts(where, "is neither true nor false, nor null")
    return value


def _flag(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise BadFacts(where, "is neither true nor false")
    return value


def _seconds(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not 0 <= value <= LARGEST:  # NaN is in no range
        raise BadFacts(where, f"is not a number from 0 to {LARGEST}")
    return float(value)


def _cards(value: Any, where: str) -> tuple[Card, ...]:
    if not isinstance(value, list) or len(value) > MAX_CARDS:
        raise BadFacts(where, f"is not a list of at most {MAX_CARDS} cards")
    return tuple(_card(entry, f"{where}[{at}]") for at, entry in enumerate(value))


def _card(value: Any, where: str) -> Card:
    table = _table(value, where, CARD_NAMES)
    capability = _text(table["compute_capability"], f"{where}.compute_capability")
    match = CAPABILITY.fullmatch(capability)
    if match is None:
        raise BadFacts(f"{where}.compute_capability", 'is not of the form "7.5"')
    memory_mib = _whole(table["memory_mib"], f"{where}.memory_mib")
    free_mib = _whole(table["free_mib"], f"{where}.free_mib")
    if free_mib > memory_mib:
        raise BadFacts(f"{where}.free_mib", f"is more than {memory_mib}")
    name = _text(table["name"], f"{where}.name")
    return Card(name, memory_mib, (int(match[1]), int(match[2])), free_mib)


def _model_digests(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > MAX_FILES:
        raise BadFacts(where, f"is not a table of at most {MAX_FILES} files")
    return {
        _text(name, f"a file's name in {where}"): _text(digest, f"a file's digest in {where}")
        for name, digest in value.items()
    }


def _kernels(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_KERNELS:
        raise BadFacts(where, f"is not a list of at most {MAX_KERNELS} names")
    return tuple(_text(name, f"a name in {where}") for name in value)


def _devices(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > MAX_DEVICES:
        raise BadFacts(where, f"is not a table of at most {MAX_DEVICES} devices")
    return {
        _text(name, f"a device's name in {where}"): _text(
            layer, f"a device's link layer in {where}"
        )
        for name, layer in value.items()
    }


READERS: Mapping[str, Callable[[Any, str], Any]] = {
    "nvcc": _flag,
    "kernels": _kernels,
    "cards": _cards,
    "address": _address,
    "mtu": _whole,
    "speed_mbit": _whole,
    "listens_at": _address,
    "rdma": _devices,
    "memlock_mib": _limit,
    "p2p": _known,
    "ram_mib": _whole,
    "shm_free_mib": _whole,
    "model_folder": _path,
    "model": _model_digests,
    "clock": _seconds,
}
"""The reader of each field that is not a text."""
