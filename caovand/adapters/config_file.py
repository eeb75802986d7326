"""The configuration file, and the mode that `caovanctl mode` chose (remembered over restarts)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from caovand.adapters import safe_files, store
from caovand.core import api_key as keys
from caovand.core.config import MODES, Config, ConfigError, Mode, parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST_BYTES = 1 << 20
MOST_SECRET_BYTES = 64 << 10


def load(path: Path) -> Config:
    """The configuration in `path`; raises ConfigError where it cannot be read or used."""
    try:
        # Windows' editors begin a file with a BOM.
        text = safe_files.read(path, MOST_BYTES).decode("utf-8-sig")
    except OSError as problem:
        raise ConfigError([f"cannot read {path}: {problem.strerror}"]) from problem
    except UnicodeDecodeError as problem:
        raise ConfigError([f"cannot read {path}: it is no UTF-8 text ({problem})"]) from problem
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as problem:  # also of numbers and nesting beyond measure
        raise ConfigError([f"{path}: no valid TOML: {problem}"]) from problem
    return parse(document, str(path))


def read_secret(path: str) -> str:
    """The key in a file, its only line; raises ConfigError where there is none."""
    # Somebody may have written the key itself there: only what begins like a path is repeated.
    is_path = path.startswith(("/", "./", "../", "~"))
    name = f"[server] api_key_file {path}" if is_path else "[server] api_key_file"
    try:
        text = safe_files.read_text(Path(path), MOST_SECRET_BYTES).strip()
    except OSError as problem:
        remedy = "write the key into a file that caovand may read, and name its whole path here"
        raise ConfigError([f"cannot read {name}: {problem.strerror}; {remedy}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"cannot read {name}: it is no UTF-8 text"]) from None
    if not keys.usable(text):
        raise ConfigError([f"cannot use {name}: it must hold one line of plain ASCII"])
    return text


def api_key(config: Config, extra_args: Sequence[str], environ: Mapping[str, str]) -> str:
    """The key the engine will ask clients for, us too; "" for none.

    The first of --api-key, the file, [engine] env and our own environment, as vLLM takes them.
    Raises ConfigError where that one is bad.
    """
    typed = keys.typed(extra_args)
    if typed is None and config.server.api_key_file:
        return read_secret(config.server.api_key_file)
    if typed is not None:
        found, name = typed, "--api-key in [engine] extra_args"
    else:
        key, name = keys.variable(dict(config.engine.env), environ)
        found = (key,) if key else ()
    if not all(map(keys.usable, found)):
        raise ConfigError([f"cannot use {name}: a key {keys.RULE}"])
    return found[0] if found else ""


def check_secret(config: Config, source: Path) -> None:
    """Raise ConfigError, naming the configuration's file, where its key cannot be used."""
    try:
        api_key(config, config.engine.extra_args, {})
    except ConfigError as problem:
        raise ConfigError(f"{source}: {text}" for text in problem.findings) from None


class ModeMemory:
    """The operator's mode in a file of its own; None where the configuration decides."""

    def __init__(self, path: Path) -> None:
        self._path = path
        content = store.read_json(path)
        mode = content.get("mode") if isinstance(content, dict) else None
        self.mode: Mode | None = cast(Mode, mode) if mode in MODES else None

    def choose(self, mode: Mode | None) -> None:
        """Remember a mode, or with None forget it; OSError leaves things as they were."""
        store.write_json(self._path, {"mode": mode})
        self.mode = mode
