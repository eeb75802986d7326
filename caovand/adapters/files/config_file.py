"""The configuration file, and the mode set by `caovanctl mode`, which survives restarts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import cast

from caovand.adapters.engine.choice import chosen_engine
from caovand.adapters.files import safe_files, secret_file, state_file
from caovand.core import api_key as keys
from caovand.core.config import toml_syntax
from caovand.core.config.key import ConfigError
from caovand.core.config.parser import parse
from caovand.core.config.schema import MODES, Config, Mode
from caovand.core.engine.record import Arguments
from caovand.engines import registry

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES = 1 << 20
MIN_SIMILARITY = 0.75
"""Minimum similarity, by difflib, of a name to suggest instead."""


def load(path: Path) -> Config:
    """Load the configuration in `path`; raises ConfigError if it cannot be read or used."""
    try:
        # Editors on Windows begin a file with a BOM.
        text = safe_files.read(path, MAX_BYTES).decode("utf-8-sig")
    except OSError as problem:
        text = f"cannot read {path}: {problem.strerror}; {_remedy(path, problem)}"
        raise ConfigError([text]) from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(
            [f"cannot read {path}: it is not UTF-8 text ({problem}); save it as UTF-8"]
        ) from problem
    return loads(text, path)


def _remedy(path: Path, problem: OSError) -> str:
    """The remedy for a file that we cannot read."""
    if isinstance(problem, PermissionError):
        return "run this as a user who can read it, or correct its permissions"
    if isinstance(problem, FileNotFoundError):
        with contextlib.suppress(OSError):
            names = [file.name for file in path.parent.iterdir() if file.is_file()]
            if close := get_close_matches(path.name, names, 1, MIN_SIMILARITY):
                return f'did you mean "{path.with_name(close[0])}"?'
        return "pass the configuration file, which only needs [model] path"
    return "pass a configuration file"


def loads(text: str, path: Path) -> Config:
    """Parse `text`, the current or future content of `path`; raises ConfigError."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as problem:  # also huge numbers and deep nesting
        wrong = toml_syntax.explain_syntax_error(text, str(problem))
        raise ConfigError([f"{path}: not valid TOML: {wrong}"]) from problem
    return parse(
        document, str(path), registry.MODULES, lambda config: chosen_engine(config).healing.by_name
    )


def api_key(
    config: Config, extra_args: Sequence[str], environ: Mapping[str, str], arguments: Arguments
) -> str:
    """The key that the engine requires of every client, caovan included; "" if there is none.

    The first of --api-key, the file, [engine] env and our own environment, in vLLM's order.
    Raises ConfigError if that one is unusable.
    """
    typed = arguments.api_keys(extra_args)
    if typed is None and config.server.api_key_file:
        return secret_file.read(config.server.api_key_file, secret_file.API_KEY_FILE)
    if typed is not None:
        api_keys, name = typed, "--api-key in [engine] extra_args"
    else:
        env, variable = dict(config.engine.env), arguments.api_key_variable
        where = "[engine] env" if variable in env else "the daemon's environment"
        key, name = env.get(variable, environ.get(variable, "")), f"{variable} in {where}"
        api_keys = (key,) if key else ()
    if not all(map(keys.is_usable, api_keys)):
        raise ConfigError([f"cannot use {name}: a key {keys.RULE}"])
    return api_keys[0] if api_keys else ""


def page_token(config: Config) -> str:
    """The token that the page requires of its readers; "" if there is none; raises ConfigError."""
    if not config.page.listen or not config.page.token_file:
        return ""
    return secret_file.read(config.page.token_file, secret_file.TOKEN_FILE)


def check_secrets(config: Config, source: Path) -> None:
    """Raise ConfigError, naming the configuration file, if its key or token cannot be used."""
    try:
        api_key(config, config.engine.extra_args, {}, chosen_engine(config).arguments)
        page_token(config)
    except ConfigError as problem:
        raise ConfigError(f"{source}: {text}" for text in problem.findings) from None


def check_secret_files(config: Config) -> None:
    """Raise ConfigError if a file with a secret is missing, or every user may read it."""
    typed = chosen_engine(config).arguments.api_keys(config.engine.extra_args)
    if config.server.api_key_file and typed is None:
        secret_file.check(config.server.api_key_file, secret_file.API_KEY_FILE)
    if config.page.listen and config.page.token_file:
        secret_file.check(config.page.token_file, secret_file.TOKEN_FILE)


class ModeMemory:
    """The operator's mode, in its own file; None while the configuration decides."""

    def __init__(self, path: Path) -> None:
        self._path = path
        content = state_file.read_or_none(path)
        mode = content.get("mode") if isinstance(content, dict) else None
        self.mode: Mode | None = cast(Mode, mode) if mode in MODES else None

    def choose(self, mode: Mode | None) -> None:
        """Store a mode, or clear it with None; on OSError nothing changes."""
        state_file.write(self._path, {"mode": mode})
        self.mode = mode
