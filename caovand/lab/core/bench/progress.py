"""A measurement's progress and remaining time."""

from __future__ import annotations

from collections.abc import Sequence

from caovand.lab.core.bench.record import TimedAnswer


class BenchProgress:
    """Counts rounds of (prompt tokens, concurrent requests), each with answers of `tokens` tokens.

    The remaining rounds are extrapolated from the measured ones: prefill by prompt token, decoding
    by round, because concurrent requests decode together.
    """

    def __init__(self, rounds: Sequence[tuple[int, int]], tokens: int) -> None:
        self._rounds, self._tokens = rounds, tokens
        self._ended = self._measured = self._measured_tokens = 0
        self._read_s = self._generated_s = 0.0

    def ended(self, answers: Sequence[TimedAnswer], *, warm_up: bool = False) -> None:
        """Count a finished round with these answers; a `warm_up` does not affect the estimate."""
        if not warm_up:
            read = max(answer.pieces[0] for answer in answers)
            self._read_s += read - min(answer.sent for answer in answers)
            self._generated_s += max(answer.pieces[-1] for answer in answers) - read
            self._measured_tokens += self._prompts()[self._ended]
            self._measured += 1
        self._ended += 1

    def percent(self, first: int = 0, answered: int = 0) -> int:
        """Percentage of all tokens done.

        In the current round, `first` requests have their first token and `answered` are complete.
        """
        tokens = [count * self._tokens for _, count in self._rounds]
        done = self._read(first) + sum(tokens[: self._ended]) + answered * self._tokens
        return 100 * done // (sum(self._prompts()) + sum(tokens))

    def left_s(self, first: int = 0) -> float | None:
        """Seconds left; None before the first round was measured."""
        if not self._measured:
            return None
        unread = sum(self._prompts()) - self._read(first)
        rounds = len(self._rounds) - self._ended
        reading_s = self._read_s / self._measured_tokens * unread
        return reading_s + self._generated_s / self._measured * rounds

    def _prompts(self) -> list[int]:
        return [length * count for length, count in self._rounds]

    def _read(self, first: int) -> int:
        now = self._rounds[self._ended][0] * first if first else 0
        return sum(self._prompts()[: self._ended]) + now
