"""The live screen's content: the daemon's replies, frozen, and how to draw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class ScreenPage(Enum):
    """The page that fills the screen."""

    MAIN = "main"
    LOG = "log"
    INCIDENTS = "incidents"
    REQUESTS = "requests"
    HELP = "help"
    MODE = "mode"
    """The main page, with a prompt for the mode."""


@dataclass(frozen=True)
class TerminalStyle:
    """The terminal's capabilities; without colours, letters mark the parts of a bar."""

    unicode: bool = True
    colour: bool = True


@dataclass(frozen=True)
class CardProcess:
    """A process on a card; user and command are empty if it is not visible from here.

    Then `cores`, the host memory and the running time are None, too.
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
    """One of the daemon's events, with its time formatted."""

    moment: str
    kind: str
    text: str


@dataclass(frozen=True)
class View:
    """Everything known at `moment`; `lost` says why the daemon does not answer, since `lost_s`."""

    moment: str
    status: Mapping[str, Any]
    recent: Mapping[str, Any]
    processes: tuple[CardProcess, ...] = ()
    event_lines: tuple[EventLine, ...] = ()
    page: ScreenPage = ScreenPage.MAIN
    body: tuple[str, ...] = ()
    """Lines of `page` if it is the log, the incidents or the requests."""
    note: str = ""
    """The result of a key, or the failure of a query."""
    lost: str = ""
    lost_s: float = 0.0
