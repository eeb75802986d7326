"""Prompts of real text with a chosen number of tokens, as counted by the engine."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

from caovand.adapters.network import http
from caovand.adapters.network.http import Unanswered
from caovand.lab.bench.target import Target
from caovand.lab.core.bench import prompts
from caovand.lab.streamed import BadStatus, Streams

COUNT_S = 120.0


class SizedPrompts:
    """The prompts of one run; thread-safe. Every prompt begins with `salt`."""

    def __init__(
        self,
        target: Target,
        streams: Streams,
        passages: Sequence[str],
        salt: str,
        seed: int,
    ) -> None:
        self._target, self._streams, self.passages = target, streams, passages
        self._salt, self._seed = salt, seed
        self._numbers = itertools.count(1)
        self._lengths: dict[int, int] = {}

    def prompt(self, length: int, number: int | None = None) -> str:
        """Prompt `number` with `length` tokens; by default one that has not been sent yet."""
        number = next(self._numbers) if number is None else number
        text = prompts.prompt(self.passages, self._salt, self._seed, number)
        if self._target.api.tokenize is not None:
            return prompts.fit(text, length, self.count_tokens)[0]
        if length not in self._lengths:  # counting costs a completion, so one text represents all
            self._lengths[length] = len(prompts.fit(text, length, self.count_tokens)[0])
        return text[: self._lengths[length]]

    def count_tokens(self, text: str) -> int:
        """Count a text's tokens, by a completion if the engine offers no other way."""
        target, tokenize = self._target, self._target.api.tokenize
        if tokenize is None:
            return self._streams.at_once([text], 1)[0].prompt_tokens
        body = tokenize.body(target.model, text)
        answer = http.call(target.endpoint, tokenize.path, COUNT_S, body)
        if answer.status != 200:
            raise BadStatus(tokenize.path, answer.status, target.endpoint.redact(answer.body))
        try:
            count = tokenize.count(json.loads(answer.body))
        except (ValueError, LookupError, TypeError, RecursionError):
            count = None
        if not isinstance(count, int):
            raise Unanswered(f"{tokenize.path}: the answer has no token count")
        return count
