"""Clients' keys: their permissions and limits. Only digests of the keys are stored."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from caovand.core.document import listed, number, optional, read_or_none, record, string, whole
from caovand.core.gateway.fair import BANDS
from caovand.core.gateway.naming import EFFORTS, MAX_TEMPERATURE, MAX_TOKENS, Defaults
from caovand.core.problem import Problem, ProblemError

PREFIX = "sk-caovan-"
MAX_KEYS = 200
MAX_MODELS = 10
MAX_MODEL_NAME = 200
MAX_LIMIT = 10**12
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@dataclass(frozen=True)
class ClientKey:
    """A client's key. Without `models` it may use all models; without a limit, any amount.

    `temperature`, `max_tokens` and `reasoning_effort` are for its requests that set none.
    """

    name: str
    digest: str
    models: tuple[str, ...] = ()
    rpm: int | None = None
    tokens_per_day: int | None = None
    band: str = BANDS[0]
    temperature: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str | None = None

    @property
    def defaults(self) -> Defaults:
        """Default values for its requests."""
        return Defaults(self.temperature, self.max_tokens, self.reasoning_effort)

    def may_use(self, asked: str, model: str) -> bool:
        """Whether the key may request the model of this name."""
        return not self.models or asked in self.models or model in self.models


def digest_of(secret: str) -> str:
    """The digest of a key; its secret is long and random, so no salt is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def check_new_key(key: ClientKey, taken: Sequence[str]) -> ClientKey:
    """Return the key to add; `taken` are the existing names. Raises ProblemError if it is
    invalid."""
    cannot = f"add the key {key.name[:64]!r}"
    if not NAME.fullmatch(key.name):
        fact = "a name has 1 to 64 letters, digits, and . _ @ - after the first"
        raise ProblemError(cannot, fact, "choose another name")
    if key.name in taken:
        raise ProblemError(
            cannot, "a key of this name exists", "revoke that key first, or choose another name"
        )
    if len(taken) >= MAX_KEYS:
        raise ProblemError(cannot, f"{MAX_KEYS} keys exist, the maximum", "revoke unused keys")
    if len(key.models) > MAX_MODELS or not all(
        0 < len(model) <= MAX_MODEL_NAME for model in key.models
    ):
        fact = f"a key can name up to {MAX_MODELS} models of up to {MAX_MODEL_NAME} characters"
        raise ProblemError(cannot, fact, "name fewer, or none for all")
    for what, value, low, high in (
        ("--rpm", key.rpm, 1, MAX_LIMIT),
        ("--tokens-per-day", key.tokens_per_day, 1, MAX_LIMIT),
        ("--temperature", key.temperature, 0, MAX_TEMPERATURE),
        ("--max-tokens", key.max_tokens, 1, MAX_TOKENS),
    ):
        if value is not None and not low <= value <= high:
            fact = f"{what} must be from {low} to {high}"
            raise ProblemError(cannot, fact, "omit it for no limit")
    if key.reasoning_effort is not None and key.reasoning_effort not in EFFORTS:
        fact = f"unknown reasoning effort {key.reasoning_effort!r}"
        raise ProblemError(cannot, fact, f"use one of {', '.join(EFFORTS)}")
    if key.band not in BANDS:
        raise ProblemError(cannot, f"unknown band {key.band!r}", f"use {' or '.join(BANDS)}")
    return key


def to_document(keys: Sequence[ClientKey]) -> list[dict[str, Any]]:
    """The keys as JSON, without their secrets, which are not stored anywhere."""
    return [asdict(key) for key in keys]


def from_document(document: Any) -> tuple[ClientKey, ...] | None:
    """The keys in a document; None if it is not a document of keys."""
    return read_or_none(_KEYS, document)


def wrong_key() -> Problem:
    """The error for a client without a valid key."""
    return Problem("answer", "the API key is missing or wrong", "send a key of this server")


_LIMIT = optional(whole())
_OPTIONS = ("band", "rpm", "tokens_per_day", "temperature", "max_tokens", "reasoning_effort")
_KEYS = listed(record(ClientKey, {
    **dict.fromkeys(("name", "digest", "band"), string()),
    "models": listed(string()),
    **dict.fromkeys(("rpm", "tokens_per_day", "max_tokens"), _LIMIT),
    "temperature": optional(number()),
    "reasoning_effort": optional(string()),
}, may_lack=_OPTIONS))  # fmt: skip
