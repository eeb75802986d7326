"""Read a secret from its own file: the server's API key, or the page's token."""

from __future__ import annotations

import grp
import os
from pathlib import Path

from caovand.adapters.files import safe_files
from caovand.core import api_key
from caovand.core.config.key import ConfigError

MAX_BYTES = 64 << 10
API_KEY_FILE = "[server] api_key_file"
TOKEN_FILE = "[page] token_file"
MODE, GROUP = 0o640, "caovan"
MIN_TOKEN = 16  # characters: too long to guess, however many attempts are made


def check(path: str, key: str) -> None:
    """Raise ConfigError, naming `key`, if every user of this machine may read this file.

    `key` is the configuration key that names the file, such as API_KEY_FILE. The file itself is not
    opened: a user who only plans need not be able to read it.
    """
    name = _describe(path, key)
    try:
        seen = os.stat(path)
    except PermissionError:
        return  # the folder is closed to us and to other users
    except (OSError, ValueError) as problem:
        raise _unreadable(name, problem) from None
    if exposed := safe_files.describe_exposure(seen):
        place = path if _is_path(path) else "that file"
        group = f" and `sudo chgrp {GROUP} {place}`" if _is_for_root_alone(seen) else ""
        replace = "replace the secret if others may have read it"
        remedy = f"run `sudo chmod {MODE:o} {place}`{group}, and {replace}"
        raise ConfigError([f"cannot use {name}: {exposed}; {remedy}"])


def read(path: str, key: str) -> str:
    """Read the secret, the only line of a file; raises ConfigError as `check` does."""
    check(path, key)
    name = _describe(path, key)
    try:
        text = safe_files.read_text(Path(path), MAX_BYTES).strip()
    except OSError as problem:
        raise _unreadable(name, problem) from None
    except UnicodeDecodeError:
        raise ConfigError([f"cannot read {name}: it is not UTF-8 text"]) from None
    if not api_key.is_usable(text):
        raise ConfigError([f"cannot use {name}: it must contain one line of plain ASCII"])
    if key == TOKEN_FILE and len(text) < MIN_TOKEN:
        fact = f"it has {len(text)} characters, fewer than {MIN_TOKEN}"
        raise ConfigError([f"cannot use {name}: {fact}; generate one with `openssl rand -hex 24`"])
    return text


def _is_for_root_alone(seen: os.stat_result) -> bool:
    """Whether the service's user could no longer read the file once it is closed to others."""
    try:
        return seen.st_uid == 0 and seen.st_gid != grp.getgrnam(GROUP).gr_gid
    except KeyError:  # not installed as a service
        return False


def _is_path(path: str) -> bool:
    """Whether this is a path, and may be shown: someone may have entered the secret itself."""
    return path.startswith(("/", "./", "../", "~"))


def _describe(path: str, key: str) -> str:
    return f"{key} {path}" if _is_path(path) else key


def _unreadable(name: str, problem: OSError | ValueError) -> ConfigError:
    reason = getattr(problem, "strerror", None) or "the value is not a path"
    remedy = "write the secret to a file that caovan can read, and put its full path here"
    return ConfigError([f"cannot read {name}: {reason}; {remedy}"])
