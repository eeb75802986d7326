"""Drive the engine round by round, and read the daemon's metrics after each."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caovand import __version__
from caovand.adapters.network.http import Unanswered
from caovand.cli.common.client import DaemonClient
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.progress import Screen
from caovand.core.model_source.pace import duration
from caovand.core.reporting.wire import WireError
from caovand.lab.bench.sized import SizedPrompts
from caovand.lab.bench.target import Target, refused_key
from caovand.lab.core.bench import prompts, record
from caovand.lab.core.bench.progress import BenchProgress
from caovand.lab.core.bench.prompts import TooLittleText
from caovand.lab.core.bench.record import TimedAnswer
from caovand.lab.corpus import digest, texts
from caovand.lab.streamed import BadStatus, Streams

FIGURES_S = 30.0  # as long as figures that include the last request may take
POLL_S = 0.25
BAD_KEY = (401, 403)
TOO_LONG = (400, 413, 422)


class Interrupted(Exception):
    """The measurement ended early, by an error or, if that is None, by Ctrl-C."""

    def __init__(self, error: CommandError | None) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class BenchOrder:
    """The measurement to make. `salt` begins every prompt and differs between runs."""

    prompts: Sequence[int]
    at_once: Sequence[int]
    rounds: int
    tokens: int
    seed: int
    salt: str

    @property
    def cells(self) -> int:
        """The number of pairs of prompt length and concurrency."""
        return len(self.prompts) * len(self.at_once)

    @property
    def every_round(self) -> list[tuple[int, int]]:
        """Length and concurrency of each round in order, warm-up rounds included."""
        return [
            (length, count)
            for length in self.prompts
            for count in (
                self.warm_up(length),
                *(at_once for at_once in self.at_once for _ in range(self.rounds)),
            )
        ]

    def warm_up(self, length: int) -> int:
        """Concurrency of the warm-up round of a length.

        It keeps kernels that the first request of a length compiles out of the results.
        """
        return self.at_once[-1] if length == self.prompts[0] else 1


class BenchRun:
    """One measurement; `done` are the cells that are complete."""

    def __init__(
        self,
        client: DaemonClient,
        target: Target,
        order: BenchOrder,
        passages: Sequence[str],
        screen: Screen,
    ) -> None:
        self._client, self._target, self._order = client, target, order
        self._screen = screen
        path, work = target.api.completions, target.work
        self._streams = Streams(target.endpoint, path, target.model, work=work)
        self._sized = SizedPrompts(target, self._streams, passages, order.salt, order.seed)
        self._progress = BenchProgress(order.every_round, order.tokens)
        self._sent, self._shown = 0, (0, 0)
        self._what = ""
        self.done: list[dict[str, Any]] = []

    def measure_cells(self) -> Iterator[dict[str, Any]]:
        """Measure one cell after another, the shortest prompts first; raises Interrupted."""
        order = self._order
        try:
            for length in order.prompts:
                self._round(length, order.warm_up(length), warm_up=True)
                for at_once in order.at_once:
                    cell = self._cell(length, at_once)
                    self.done.append(cell)
                    yield cell
        except KeyboardInterrupt:
            raise Interrupted(None) from None
        except Unanswered as problem:
            raise Interrupted(self._explain_failure(problem)) from problem
        except CommandError as problem:
            raise Interrupted(problem) from problem
        except WireError as problem:
            raise Interrupted(CommandError(Exit.FAILED, problem.message, problem.hint)) from problem
        except TooLittleText as error:
            refusal = CommandError(Exit.FAILED, error.problem.message, error.problem.remedy)
            raise Interrupted(refusal) from error

    def _cell(self, length: int, at_once: int) -> dict[str, Any]:
        order = self._order
        before = self._status_after(time.monotonic())
        rounds = []
        for _ in range(order.rounds):
            rounds.append(self._round(length, at_once))
            self._sent += at_once
            self._show()
        answers = [answer for round_answers in rounds for answer in round_answers]
        end = max(answer.pieces[-1] for answer in answers)
        after = self._status_after(end)
        busy = (min(answer.sent for answer in answers), end)
        counted = record.counts(before, after, answers, busy)
        return record.cell(length, at_once, rounds, counted)

    def _round(self, length: int, at_once: int, *, warm_up: bool = False) -> list[TimedAnswer]:
        texts = [self._sized.prompt(length) for _ in range(at_once)]
        self._what = f"prompts of {length:,}, {at_once} at once"
        answers = self._streams.at_once(texts, self._order.tokens, self._move_bar)
        self._progress.ended(answers, warm_up=warm_up)
        return answers

    def _move_bar(self, first: int, answered: int) -> None:
        """Move the bar within a round; without a bar, a line per round is enough."""
        if self._screen.moves and (first, answered) != self._shown:
            self._shown = first, answered
            self._show(first, answered)

    def _show(self, first: int = 0, answered: int = 0) -> None:
        order, left_s = self._order, self._progress.left_s(first)
        total = order.rounds * sum(order.at_once) * len(order.prompts)
        left = f", {duration(left_s)} left" if self._screen.moves and left_s else ""
        text = f"{self._sent} of {total}{left}  {self._what}"
        self._screen.line(self._progress.percent(first, answered), text)

    def _status_after(self, moment: float) -> Mapping[str, Any]:
        """The first status with newer metrics and samples; the last one if none comes in time."""
        deadline = time.monotonic() + FIGURES_S
        while True:
            status = self._client.ask("status")
            if problem := self._restart_error(status):
                raise problem
            if record.counted_at(status, time.monotonic()) > moment:
                return status
            if time.monotonic() > deadline:
                return status
            time.sleep(POLL_S)

    def _restart_error(self, status: Mapping[str, Any]) -> CommandError | None:
        """Why this is not the engine that was measured so far; None if it is."""
        if status["served"] and status["generation"] == self._target.generation:
            return None
        failure = status["last_failure"]
        cause = f": {failure['failure']}: {failure['text']}" if failure else ""
        return CommandError(
            Exit.FAILED,
            f"cannot continue: the engine exited or was restarted{cause}",
            "see `caovanctl events`, then run this again once `caovanctl wait` returns",
        )

    def _explain_failure(self, problem: Unanswered) -> CommandError:
        """The error message for a failed request."""
        if isinstance(problem, BadStatus) and problem.status in BAD_KEY:
            return refused_key("bench", problem.status)
        if isinstance(problem, BadStatus) and problem.status in TOO_LONG:
            return CommandError(
                Exit.FAILED,
                f"cannot bench: the engine refused a request: {problem}",
                "choose shorter --prompts or --tokens",
            )
        try:
            if restart := self._restart_error(self._client.ask("status")):
                return restart
        except CommandError as away:
            return CommandError(
                away.status,
                f"cannot continue: a request failed ({problem}), and {away.message}",
                away.hint,
            )
        return CommandError(
            Exit.FAILED, f"cannot continue: a request failed: {problem}", "see `caovanctl logs`"
        )


def measure(
    client: DaemonClient, tested: Target, order: BenchOrder
) -> tuple[dict[str, Any], Interrupted | None]:
    """Measure an order; return the result with the measured cells, and the reason if it stopped
    early.
    """
    known = texts()
    screen = Screen(sys.stderr)
    run = BenchRun(client, tested, order, prompts.passages(known), screen)
    cut: Interrupted | None = None
    begun = time.time()
    try:
        for _ in run.measure_cells():
            pass
    except Interrupted as problem:
        cut = problem
    finally:
        screen.clear()
    document = {
        "at": begun,
        "version": __version__,
        **tested.described,
        "tokens": order.tokens,
        "seed": order.seed,
        "texts": digest(known),
        "complete": cut is None,
        "cells": run.done,
    }
    return document, cut
