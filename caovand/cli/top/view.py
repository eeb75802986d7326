"""What the live screen shows: what was asked of the daemon, frozen, and how to draw it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Page(Enum):
    """What fills the screen."""

    MAIN = "main"
    LOG = "log"
    INCIDENTS = "incidents"
    HELP = "help"
    MODE = "mode"
    """The main page, with the question which mode to use."""


@dataclass(frozen=True)
class TerminalStyle:
    """What the terminal can show; parts of a bar are letters where colours do not tell them."""

    unicode: bool = True
    colour: bool = True


@dataclass(frozen=True)
class CardProcess:
    """A process on a card; user and command are empty where it cannot be seen from here.

    `cores` it keeps busy, the host's MiB that it uses and the seconds it has run are then None.
    """

    gpu: int
    pid: int
    mib: int
    user: str
    command: str
    cores: float | None = None
    host_mib: int | None = None
    age_s: float | None = None


@dataclass(frozen=True)
class EventLine:
    """One of the daemon's events, with its time as text."""

    moment: str
    kind: str
    text: str


@dataclass(frozen=True)
class View:
    """What is known at `moment`; `lost` says why the daemon does not answer, since `lost_s`."""

    moment: str
    status: Mapping[str, Any]
    recent: Mapping[str, Any]
    processes: tuple[CardProcess, ...] = ()
    happenings: tuple[EventLine, ...] = ()
    page: Page = Page.MAIN
    body: tuple[str, ...] = ()
    """The lines of `page`, where it is the log or the incidents."""
    note: str = ""
    """What a key brought about, or what could not be asked."""
    lost: str = ""
    lost_s: float = 0.0
