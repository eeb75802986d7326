"""Clients' keys for the gateway and the daily use of each, kept in the state folder.

Once a key has existed, clients must send one, even if the last key has been revoked or the file is
damaged: only removing the file opens the gateway to everybody.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from caovand.adapters.files import state_file
from caovand.adapters.system import wall_clock
from caovand.core.gateway import keys
from caovand.core.gateway.keys import ClientKey
from caovand.core.problem import ProblemError
from caovand.core.units import DAY_S

KEYS, USAGE = "gateway_keys.json", "gateway_usage.json"
SECRET_BYTES = 24
KEPT_DAYS = 92
MAX_DAY = 100_000
MAX_ROWS = 300
"""Maximum rows of usage in one response, which must fit a frame."""
SAVE_EVERY_S = 60.0

Counts = dict[str, list[int]]
"""Requests, input tokens and output tokens by key name."""


class Keys:
    """The keys in the folder `state`; every change calls `changed`."""

    def __init__(
        self, state: Path, notice: Callable[[str, str], None], changed: Callable[[], None]
    ) -> None:
        self._state, self._notice, self._changed = state, notice, changed
        self._keys: tuple[ClientKey, ...] | None = self._read()
        self._usage: dict[int, Counts] = _usage(state_file.read_or_none(state / USAGE))
        self._saved_at, self._unsaved = float("-inf"), False

    def _read(self) -> tuple[ClientKey, ...] | None:
        path = self._state / KEYS
        try:
            stored = keys.from_document(state_file.read(path))
        except FileNotFoundError:
            return None
        except (OSError, state_file.Unusable):
            stored = None
        if stored is None:
            text = f"cannot read {path}: the gateway refuses every key; restore or remove the file"
            self._notice("failure", text)
        return stored or ()

    def for_gateway(self) -> list[dict[str, Any]] | None:
        """The keys that clients may send; None if they need none."""
        return None if self._keys is None else keys.to_document(self._keys)

    def used_today(self) -> dict[str, Any]:
        """The current UTC day, and each key's tokens during it."""
        day = _today()
        counts = self._usage.get(day, {})
        return {"day": day, "tokens": {name: n[1] + n[2] for name, n in counts.items()}}

    def add(self, requested: ClientKey) -> str:
        """Add a key and return its secret, which is shown only once; raises ProblemError or
        OSError."""
        there = self._keys or ()
        keys.check_new_key(requested, [key.name for key in there])
        secret = keys.PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        self._keep((*there, replace(requested, digest=keys.digest_of(secret))))
        return secret

    def revoke(self, name: str) -> None:
        """Revoke a key at once; raises ProblemError or OSError."""
        there = self._keys or ()
        left = tuple(key for key in there if key.name != name)
        if len(left) == len(there):
            known = ", ".join(key.name for key in there) or "no keys exist"
            raise ProblemError(
                f"revoke the key {name[:64]!r}", "there is no such key", f"keys: {known}"
            )
        self._keep(left)

    def _keep(self, client_keys: tuple[ClientKey, ...]) -> None:
        state_file.write(self._state / KEYS, keys.to_document(client_keys))
        self._keys = client_keys
        self._changed()

    # -- usage ------------------------------------------------------------------------------

    def take(self, used: Sequence[Sequence[Any]]) -> bool:
        """Add the gateway's counts: day, name, requests, input tokens, output tokens.

        Return whether it is time to save. Raises TypeError or ValueError for anything else.
        """
        for day, name, *counts in used:
            if not (isinstance(day, int) and 0 <= day <= MAX_DAY and isinstance(name, str)):
                raise ValueError(day, name)
            known = self._usage.setdefault(day, {}).setdefault(name, [0, 0, 0])
            known[:] = [old + int(new) for old, new in zip(known, counts, strict=True)]
            self._unsaved = True
        for day in sorted(self._usage)[:-KEPT_DAYS]:
            del self._usage[day]
        return self._unsaved and wall_clock.now() - self._saved_at >= SAVE_EVERY_S

    def save(self) -> None:
        """Write the usage; raises OSError."""
        if self._unsaved:
            self._saved_at, self._unsaved = wall_clock.now(), False
            state_file.write(
                self._state / USAGE, {str(day): counts for day, counts in self._usage.items()}
            )

    def describe(self) -> dict[str, Any]:
        """The keys without digests, and each one's daily usage, latest first."""
        listed = [
            {name: value for name, value in entry.items() if name != "digest"}
            for entry in self.for_gateway() or []
        ]
        days = [
            {"day": _date(day), "key": name, "requests": n[0], "read": n[1], "written": n[2]}
            for day in sorted(self._usage, reverse=True)
            for name, n in sorted(self._usage[day].items())
        ]
        return {"required": self._keys is not None, "keys": listed, "usage": days[:MAX_ROWS]}


def _today() -> int:
    return int(wall_clock.now() // DAY_S)


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * DAY_S, timezone.utc).date().isoformat()


def _usage(document: Any) -> dict[int, Counts]:
    """Parse the usage file; a damaged one counts as empty."""
    usage: dict[int, Counts] = {}
    try:
        for day, counts in document.items():
            usage[int(day)] = {str(name): [int(n) for n in row] for name, row in counts.items()}
    except (AttributeError, TypeError, ValueError):
        return {}
    rows = [row for day in usage.values() for row in day.values()]
    usable = all(len(row) == 3 for row in rows) and all(0 <= day <= MAX_DAY for day in usage)
    return usage if usable else {}


def requested_key(args: Mapping[str, Any]) -> ClientKey:
    """The key that a request asks for; raises ProblemError if an argument has the wrong type."""
    requested = keys.from_document([{"digest": "", "models": [], **args}])
    if requested is None:
        raise ProblemError(
            "add the key", "an argument has the wrong type", "`caovanctl key add -h`"
        )
    return requested[0]
