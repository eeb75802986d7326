"""Rich's console for caovanctl: its colours and tables, with markup in texts disabled."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

from caovand.cli.common.printing import raw_stream
from caovand.core.printable import printable


def console(*, stderr: bool = False) -> Console:
    """A console on standard output or error that prints every text literally."""
    stream = raw_stream(sys.stderr if stderr else sys.stdout)
    made = _Console(file=stream, markup=False, emoji=False, highlight=False, soft_wrap=True)
    made.push_render_hook(_Shows())
    return made


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to `ending`; newer releases of rich would exit here."""
        raise BrokenPipeError


class _Shows(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Shown(renderable) for renderable in renderables]


class _Shown:
    """A renderable whose control characters are escaped."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._inner, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
