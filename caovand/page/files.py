"""The page's static files, read once: a request gets one of them or 404."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from html import escape
from pathlib import Path

from caovand.core.problem import Problem

FOLDER = Path(__file__).with_name("static")
INDEX, LOGIN = "index.html", "login.html"
KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".txt": "text/plain",
    ".woff2": "font/woff2",
}
PROBLEM = "<!--problem-->"
"""The place in login.html for the reason why a token was refused."""


@dataclass(frozen=True)
class File:
    """A file as sent to browsers."""

    kind: str
    data: bytes
    tag: str


def load(folder: Path = FOLDER) -> dict[str, File]:
    """The files by name."""
    files = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in KINDS and path.is_file():
            data = path.read_bytes()
            tag = hashlib.sha256(data).hexdigest()[:32]
            files[path.name] = File(KINDS[path.suffix], data, tag)
    return files


def login(page: bytes, problem: Problem | None) -> bytes:
    """The login page, with the last attempt's problem."""
    if problem is None:
        return page
    text = f'<p class="problem" role="alert">{escape(str(problem))}</p>'
    return page.replace(PROBLEM.encode(), text.encode())
