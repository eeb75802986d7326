"""A secret in a file of its own: the API key of the server, or the token of the page."""

from __future__ import annotations

from pathlib import Path

from caovand.adapters import safe_files
from caovand.core import api_key
from caovand.core.config import ConfigError

MOST_BYTES = 64 << 10
API_KEY_FILE = "[server] api_key_file"
TOKEN_FILE = "[page] token_file"


def read(path: str, key: str) -> str:
    """The secret in a file, which is its only line; raises ConfigError, naming `key`, without one.

    `key` is the configuration key that names the file, such as API_KEY_FILE.
    """
    # Someone may have put the secret itself there, so only text that looks like a path is repeated.
    is_path = path.startswith(("/", "./", "../", "~"))
    name = f"{key} {path}" if is_path else key
    try:
        text = safe_files.read_text(Path(path), MOST_BYTES).strip()
    except OSError as problem:
        remedy = "write the secret to a file that caovand can read, and put its full path here"
        raise ConfigError([f"cannot read {name}: {problem.strerror}; {remedy}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"cannot read {name}: it is not UTF-8 text"]) from None
    if not api_key.usable(text):
        raise ConfigError([f"cannot use {name}: it must contain one line of plain ASCII"])
    return text
