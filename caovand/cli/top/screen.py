"""Render the live screen as lines of text for a size and a style. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.text import Text

from caovand.cli.common import status_lines
from caovand.cli.top import parts
from caovand.cli.top.view import ScreenPage, TerminalStyle, View
from caovand.core.config.schema import MODES
from caovand.core.printable import one_line

MIN_WIDTH, MIN_HEIGHT = 40, 10
KEYS = "m mode  l log  i incidents  r requests  ? help  q quit"
BACK_HELP = "Esc back  q quit"
MODE_KEYS = {mode[0]: mode for mode in (*MODES, "default")}
HELP = (
    "m    choose the mode: the engine restarts if its plan changes",
    "l    the engine's latest output; l or Esc goes back",
    "i    the recorded failures; i or Esc goes back",
    "r    the latest requests at the gateway; r or Esc goes back",
    "?    this page",
    "q    quit; engine and daemon keep running",
    "",
    "The daemon is polled once a second and scrapes the engine every 5 s. Charts",
    "cover the last 5 minutes, latest reading on the right; blank is 0 or unknown.",
    "Without colours, the parts of a card's memory are letters, explained below it.",
    "",
    "Print one screen as text: caovanctl top | cat",
)
WITHOUT_LIMIT = 1000  # lines: one-off output outside a screen may be longer
MAX_EVENTS = 10  # events in that output


@dataclass(frozen=True)
class Section:
    """Lines that belong together; `least` of them are shown before another section gets more.

    If space is short, `last` keeps the final lines.
    """

    lines: Sequence[Text]
    least: int
    last: bool = False

    def cut(self, room: int) -> list[Text]:
        """At most `room` lines."""
        if room >= len(self.lines):
            return list(self.lines)
        if self.last:
            return list(self.lines[len(self.lines) - room :])
        left = Text(
            f"{'':<{parts.LABEL_COLUMNS}}and {len(self.lines) - room + 1} more lines", style="dim"
        )
        return [*self.lines[: room - 1], left] if room > 1 else list(self.lines[:room])


def lines(view: View, page: ScreenPage, width: int, height: int, look: TerminalStyle) -> list[Text]:
    """Exactly `height` lines of at most `width` columns."""
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        need = f"needs {MIN_WIDTH}x{MIN_HEIGHT}, this is {width}x{height}; q quits"
        rows = [Text("caovanctl top"), *map(Text, _wrap(need, width))]
        return _fit(rows[:height], width, height, look)
    room = height - 1
    if page is ScreenPage.HELP:
        rows = [Text("caovanctl top", style="bold"), Text(), *map(Text, HELP)]
    elif page in (ScreenPage.LOG, ScreenPage.INCIDENTS, ScreenPage.REQUESTS):
        body = view.body if view.page is page else ()
        above = [_header(view), *_note(view)]
        rows = [*above, *map(Text, body[-(room - len(above)) :])]
    else:
        rows = main(view, width, room, look)
    rows = _fit(rows[:room], width, room, look)
    return [*rows, *_fit([_footer(view, page, width)], width, 1, look)]


def one_off(view: View, width: int, look: TerminalStyle) -> list[Text]:
    """The main page for one-off output: as many lines as needed, and the latest events."""
    latest = replace(view, event_lines=view.event_lines[-MAX_EVENTS:])
    rows = main(latest, width, WITHOUT_LIMIT, look)
    return _fit(rows, width, len(rows), look)


def main(view: View, width: int, room: int, look: TerminalStyle) -> list[Text]:
    """The main page in at most `room` lines."""
    events = Section(parts.event_lines(view.event_lines), 3, last=True)
    if view.lost:
        return _stack([Section([_header(view), *_why(view)], 3), events], (0, 1), (0, 1), room)
    answer = view.status
    figures = answer.get("figures") or {}  # earlier releases have none
    shown = [
        Section([_header(view), *parts.progress(answer, width, look)], 2),
        Section([*_note(view), *status_lines.outlook(answer), *status_lines.troubles(answer)], 2),
        Section(list(status_lines.nodes(answer)), 1),
        Section(list(status_lines.identity(answer)), 1),
        Section(list(parts.speed(view.recent, width, look)), 1),
        Section(list(parts.activity(figures, width, look)), 2),
        Section(list(parts.cards(answer, width, look)), 2),
        Section(list(parts.processes(view.processes, width)), 2),
        events,
    ]
    return _stack(shown, (0, 1, 2, 6, 4, 5, 8, 7, 3), (0, 1, 2, 6, 4, 5, 7, 3, 8), room)


def _stack(
    sections: Sequence[Section], needs: Sequence[int], preferences: Sequence[int], room: int
) -> list[Text]:
    """Stack the sections: minimum sizes are granted in one order, further lines in the other."""
    rooms = [0] * len(sections)
    for place in needs:
        rooms[place] = min(sections[place].least, len(sections[place].lines), room)
        room -= rooms[place]
    for place in preferences:
        more = min(len(sections[place].lines) - rooms[place], room)
        rooms[place] += more
        room -= more
    return [
        line for section, size in zip(sections, rooms, strict=True) for line in section.cut(size)
    ]


def _note(view: View) -> list[Text]:
    return [status_lines.row("note", view.note, "yellow")] if view.note else []


def _header(view: View) -> Text:
    if not view.lost:
        return status_lines.head(view.status)
    text = Text(f"NO ANSWER for {status_lines.duration(view.lost_s)}", style="bold red")
    return text.append(f"  from caovand, which was {view.status['state']}", style="default")


def _why(view: View) -> list[Text]:
    return [
        status_lines.row("why", view.lost),
        status_lines.row("next", "retrying every second"),
    ]


def _footer(view: View, page: ScreenPage, width: int) -> Text:
    """The keys, and the time of the latest reply."""
    keys = KEYS if page is ScreenPage.MAIN else BACK_HELP
    if page is ScreenPage.MODE:
        modes = "  ".join(f"{letter} {mode}" for letter, mode in MODE_KEYS.items())
        keys = f"may restart the engine: {modes}  Esc"
    text = Text(keys, style="reverse")
    text.truncate(max(width - len(view.moment) - 2, 0), overflow="crop", pad=True)
    return text.append(f"  {view.moment}", style="dim not reverse")


def _fit(rows: Sequence[Text], width: int, height: int, look: TerminalStyle) -> list[Text]:
    """The lines without control characters, truncated to the width and padded to the height."""
    fitted = []
    for line in rows:
        plain = one_line(line.plain)
        if not look.unicode:
            plain = plain.replace("°", "").encode("ascii", "backslashreplace").decode("latin-1")
        if plain != line.plain:  # escaping has shifted the positions of its styles
            line = Text(plain, style=line.style)  # noqa: PLW2901
        line = line.copy()  # noqa: PLW2901
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis" if look.unicode else "crop")
        fitted.append(line)
    return fitted + [Text()] * (height - len(fitted))


def _wrap(text: str, width: int) -> list[str]:
    return [text[at : at + width] for at in range(0, len(text), max(width, 1))]
