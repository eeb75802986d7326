"""The API key that the engine asks its clients for, the daemon among them, and what it may be.

It travels in a header of HTTP, which takes no line end, no letter outside ASCII, and no blank at
either end. No message repeats a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from caovand.core import flags

VARIABLE = "VLLM_API_KEY"
RULE = "must be one line of plain ASCII, without a blank at either end"


def usable(key: str) -> bool:
    """Whether a client can show this key."""
    return bool(key) and key.isascii() and key.isprintable() and key == key.strip()


def typed(extra_args: Sequence[str]) -> tuple[str, ...] | None:
    """The keys of the last --api-key, any of which will do; None where there is no such flag."""
    for flag in reversed(flags.read(extra_args)):
        if flag.name == "api_key":
            return tuple(text for text in flag.texts if text)
    return None


def variable(env: Mapping[str, str], environ: Mapping[str, str]) -> tuple[str, str]:
    """The key in the engine's environment, "" for none, and where it comes from."""
    if VARIABLE in env:
        return env[VARIABLE], f"{VARIABLE} in [engine] env"
    return environ.get(VARIABLE, ""), f"{VARIABLE} in the daemon's environment"
