"""The progress bar of a long step, and its replacement without a terminal."""

from __future__ import annotations

import io

import pytest

from caovand.cli.common.progress import Screen


class Terminal(io.TextIOWrapper):
    """Keeps what is not flushed to itself, as a terminal's stream does."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.shown = io.BytesIO()
        super().__init__(self.shown, encoding=encoding)

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        """What one sees."""
        return self.shown.getvalue().decode()


@pytest.mark.parametrize(("columns", "bar"), [("80", "━━━─────────  "), ("60", "")])
def test_a_bar_is_drawn_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, columns: str, bar: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = Terminal()
    Screen(out).progress(1, 4, "shards")
    assert out.text == f"       25 %  {bar}1 of 4  shards"


def test_a_terminal_of_plain_characters_has_a_plain_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal("ascii")
    Screen(out).line(100, "done")
    assert out.text == "      100 %  ############  done"


def test_a_bar_is_gone_before_others_print() -> None:
    out = Terminal()
    screen = Screen(out)
    screen.line(50, "half")
    screen.clear()
    assert out.text.endswith("half\r\033[K")
    screen.clear()
    assert out.text.count("\033[K") == 1


def test_elsewhere_every_tenth_is_a_line_and_no_more() -> None:
    out = io.StringIO()
    screen = Screen(out)
    for done in range(101):
        screen.line(done, "step")
    assert [line.split()[0] for line in out.getvalue().splitlines()] == [
        str(percent) for percent in range(0, 101, 10)
    ]


def test_what_is_quiet_for_long_shows_life_and_what_is_not_does_not() -> None:
    seconds, out = [0.0], io.StringIO()
    screen = Screen(out, lambda: seconds[0])
    screen.say("[6/6] checking that")
    for seconds[0] in (1.0, 8.0, 9.0, 17.0):
        screen.alive()
    screen.line(10, "step")
    seconds[0] = 18.0
    screen.alive()
    assert out.getvalue().splitlines() == [
        "[6/6] checking that", "      ... 8 s", "      ... 17 s", "       10 %  step",
    ]  # fmt: skip
