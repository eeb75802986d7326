"""Resolve the model that a request names, and rewrite its body for the engine. A name is a served
name or an alias, with an optional reasoning effort after a colon.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from caovand.core.gateway.body import Fields

MAX_TEMPERATURE = 2
MAX_TOKENS = 16_777_216
"""The largest limit of generated tokens."""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
PREFIX = "/v1/"
CHAT, COMPLETIONS, RESPONSES, MESSAGES = "chat/completions", "completions", "responses", "messages"
"""Paths behind PREFIX."""
_EFFORT_FIELDS = {CHAT: "reasoning_effort", RESPONSES: "reasoning", MESSAGES: "output_config"}
_LIMIT_FIELDS = {
    CHAT: ("max_tokens", "max_completion_tokens"),
    COMPLETIONS: ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
    MESSAGES: ("max_tokens",),
}
"""Fields that limit the tokens generated: the gateway sets the first unless one is there."""


@dataclass(frozen=True)
class Defaults:
    """Values for requests that do not set them; None leaves a value to the engine."""

    temperature: float | None = None
    max_tokens: int | None = None
    effort: str | None = None

    def over(self, other: Defaults) -> Defaults:
        """Return these values, completed by those of `other`."""
        return Defaults(*(
            theirs if ours is None else ours
            for ours, theirs in zip(astuple(self), astuple(other), strict=True)
        ))  # fmt: skip


@dataclass(frozen=True)
class ResolvedName:
    """The served model that a name stands for, the effort after the colon, "" if there is none, and
    the defaults of the alias."""

    model: str
    effort: str = ""
    defaults: Defaults = Defaults()


@dataclass(frozen=True)
class Naming:
    """The served names, the first of which is the default, and the aliases for them; defaults for
    all requests, and for those that name an alias."""

    served: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    defaults: Defaults = Defaults()
    alias_defaults: Mapping[str, Defaults] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All names to list, except aliases of models that are not served."""
        known = (alias for alias, name in self.aliases.items() if self._resolve_served(name))
        return tuple(dict.fromkeys((*self.served, *known)))

    def resolve(self, name: str) -> ResolvedName | None:
        """Resolve `name` ("" means the default); None if no such model is served."""
        if not name and self.served:
            return ResolvedName(self.served[0])
        return self._resolve_served(name) or self._resolve_alias(name) or self._with_effort(name)

    def _resolve_served(self, name: str) -> ResolvedName | None:
        if name in self.served:
            return ResolvedName(name)
        model, _, effort = name.rpartition(":")
        return ResolvedName(model, effort) if model in self.served and effort in EFFORTS else None

    def _resolve_alias(self, name: str) -> ResolvedName | None:
        model = self._resolve_served(self.aliases[name]) if name in self.aliases else None
        if model is None:
            return None
        defaults = self.alias_defaults.get(name, Defaults())
        return ResolvedName(model.model, "", defaults.over(Defaults(effort=model.effort or None)))

    def _with_effort(self, name: str) -> ResolvedName | None:
        alias, _, effort = name.rpartition(":")
        model = self._resolve_alias(alias) if effort in EFFORTS else None
        return replace(model, effort=effort) if model else None


def rewrite_body(
    body: bytes, fields: Fields, path: str, naming: Naming, of_key: Defaults = Defaults()
) -> bytes:
    """Return the body with the served model's name, and with defaults for missing fields: the
    client key's take precedence over the alias's, and the alias's over everybody's."""
    name = fields.model
    meant = naming.resolve(name) if name is not None else None
    api = path[len(PREFIX) :] if path.startswith(PREFIX) else ""
    defaults = of_key.over(meant.defaults if meant else Defaults()).over(naming.defaults)
    asked = Defaults(effort=meant.effort or None if meant else None)
    more = dict(_missing_defaults(fields.names, api, asked.over(defaults)))
    changed = meant is not None and meant.model != name
    if fields.begin is None or not (more or changed):
        return body
    whole = memoryview(body)
    added = b"".join(b"%s:%s," % (_json(key), _json(value)) for key, value in more.items())
    if not fields.names:
        added = added[:-1]
    if not changed:
        return b"".join((whole[: fields.begin], added, whole[fields.begin :]))
    assert meant is not None
    assert fields.model_at is not None
    first, last = fields.model_at
    middle = whole[fields.begin : first]
    return b"".join((whole[: fields.begin], added, middle, _json(meant.model), whole[last:]))


def _missing_defaults(
    names: Collection[str], api: str, defaults: Defaults
) -> Iterator[tuple[str, Any]]:
    """The default fields that the request lacks."""
    limits = _LIMIT_FIELDS.get(api, ())
    if limits and defaults.temperature is not None and "temperature" not in names:
        yield "temperature", defaults.temperature
    if limits and defaults.max_tokens is not None and not {*limits} & {*names}:
        yield limits[0], defaults.max_tokens
    key, effort = _EFFORT_FIELDS.get(api, ""), defaults.effort
    if key and effort and key not in names:
        yield key, effort if api == CHAT else {"effort": effort}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
