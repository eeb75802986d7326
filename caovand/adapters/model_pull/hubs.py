"""The hubs: their addresses, the URLs of their files, and the headers that carry a token.

Mirrors have Hugging Face's interface; HF_ENDPOINT, or an address in place of a hub's name, chooses
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from caovand.adapters.model_pull.errors import PullError
from caovand.core.addresses import is_loopback
from caovand.core.model_source.listing import Listing, parse_hugging_face, parse_modelscope

MAX_TOKEN = 1024


@dataclass(frozen=True)
class Hub:
    """A hub's interface; `endpoint` is its address without a slash at the end."""

    title: str
    endpoint: str
    endpoint_variable: str
    token_variable: str
    revision: str
    """The default hub."""
    terms: str
    """The remedy for a user who cannot read a model."""
    list_path: Callable[[str, str], str]
    file_path: Callable[[str, str, str], str]
    token_headers: Callable[[str], dict[str, str]]
    read: Callable[[Any], Listing]

    def listing(self, name: str, revision: str) -> str:
        """The URL of a model's list of files."""
        return self.endpoint + self.list_path(name, revision)

    def file(self, name: str, revision: str, path: str) -> str:
        """The URL of a file."""
        return self.endpoint + self.file_path(name, revision, path)


HUGGING_FACE = Hub(
    title="Hugging Face",
    endpoint="https://huggingface.co",
    endpoint_variable="HF_ENDPOINT",
    token_variable="HF_TOKEN",
    revision="main",
    terms="accept the model's terms on its page, and set HF_TOKEN to a token that can read it",
    list_path=lambda name, revision: (
        f"/api/models/{name}/revision/{quote(revision, safe='')}?blobs=true"
    ),
    file_path=lambda name, revision, path: (
        f"/{name}/resolve/{quote(revision, safe='')}/{quote(path)}"
    ),
    token_headers=lambda token: {"Authorization": f"Bearer {token}"},
    read=parse_hugging_face,
)
MODELSCOPE = Hub(
    title="ModelScope",
    endpoint="https://www.modelscope.cn",
    endpoint_variable="MODELSCOPE_ENDPOINT",
    token_variable="MODELSCOPE_API_TOKEN",
    revision="master",
    terms="request access on its page, and set MODELSCOPE_API_TOKEN to a token that can read it",
    list_path=lambda name, revision: (
        f"/api/v1/models/{name}/repo/files?"
        + urlencode({"Revision": revision, "Recursive": "True"})
    ),
    file_path=lambda name, revision, path: (
        f"/api/v1/models/{name}/repo?" + urlencode({"Revision": revision, "FilePath": path})
    ),
    # Older versions of its API accept a token only as a cookie.
    token_headers=lambda token: {
        "Authorization": f"Bearer {token}", "Cookie": f"m_session_id={token}"
    },
    read=parse_modelscope,
)  # fmt: skip
NAMES: Mapping[str, Hub] = {"hf": HUGGING_FACE, "modelscope": MODELSCOPE}


def find_hub(text: str, environ: Mapping[str, str]) -> Hub:
    """The hub with this name or address, at the endpoint that the environment sets."""
    hub = NAMES.get(text)
    if hub is None:
        return replace(HUGGING_FACE, endpoint=_endpoint(text, "--from"))
    named = environ.get(hub.endpoint_variable)
    return replace(hub, endpoint=_endpoint(named, hub.endpoint_variable)) if named else hub


def token_for(hub: Hub, environ: Mapping[str, str]) -> str:
    """The token for a hub; "" if there is none."""
    token = environ.get(hub.token_variable, "").strip()
    # It must be neither an extra header, nor a text that an error would quote.
    if len(token) > MAX_TOKEN or not all(
        "!" <= letter <= "~" and letter != ";" for letter in token
    ):
        raise PullError(
            f"use {hub.token_variable}",
            "its value is not a token",
            "copy the token again, without spaces and newlines",
        )
    return token


def _endpoint(text: str, origin: str) -> str:
    """An address that may receive a token: encrypted, unless the token never leaves this
    machine.
    """
    remedy = "use hf, modelscope, or an address such as https://hub.example.org"
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or not text.isprintable() or parts.query or parts.fragment:
        raise PullError(f"use {origin}", "it is not the address of a hub", remedy)
    if parts.username is not None or parts.password is not None:
        raise PullError(f"use {origin}", "it contains a password", remedy)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise PullError(f"use {origin}", "it is not encrypted (https://)", remedy)
    return text.rstrip("/")
