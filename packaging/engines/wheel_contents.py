"""List a wheel's contents without downloading it: a zip file keeps its directory at the end.

From an index that supports HTTP ranges, as PyPI does, only that part is requested.
"""

from __future__ import annotations

import io
import re
import urllib.parse
import urllib.request
import zipfile
from http import HTTPStatus
from typing import Any, BinaryIO, cast

from caovand.adapters.engine_install.errors import EngineError

_BLOCK_BYTES = 64 * 1024
_SITE = re.compile(r"^[^/]+\.data/(?:purelib|platlib)/")
_ELSEWHERE = re.compile(r"^[^/]+\.data/")


class _Remote(io.RawIOBase):
    """A file of known size behind a URL, read by ranges.

    Raises EngineError: zipfile takes an OSError for the end of the file.
    """

    def __init__(self, url: str, size_bytes: int) -> None:
        self._url, self._size, self._at = url, size_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        last = min(self._at + len(buffer), self._size) - 1
        if last < self._at:
            return 0
        asked = urllib.request.Request(self._url, headers={"Range": f"bytes={self._at}-{last}"})
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                if answer.status != HTTPStatus.PARTIAL_CONTENT:
                    raise OSError("the server does not support range requests")
                data = answer.read()
        except OSError as error:
            raise _unreadable(self._url, error) from error
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _opened(url: str, size_bytes: int) -> BinaryIO:
    if url.startswith("file:"):
        return open(urllib.request.url2pathname(urllib.parse.urlsplit(url).path), "rb")
    return cast(BinaryIO, io.BufferedReader(cast(Any, _Remote(url, size_bytes)), _BLOCK_BYTES))


def installed(url: str, size_bytes: int) -> dict[str, str]:
    """Path in site-packages -> what tells its content, for each file of the wheel at `url`.

    Raises EngineError where the list cannot be read.
    """
    try:
        with _opened(url, size_bytes) as file, zipfile.ZipFile(file) as archive:
            return {
                path: f"{one.CRC:08x} {one.file_size}"
                for one in archive.infolist()
                if not one.is_dir() and not _ELSEWHERE.match(path := _SITE.sub("", one.filename))
            }
    except (OSError, zipfile.BadZipFile) as error:
        raise _unreadable(url, error) from error


def _unreadable(url: str, error: Exception) -> EngineError:
    remedy = "check the network, or put the wheel into a folder: --find-links DIR"
    return EngineError(f"read the contents of {url}", str(error), remedy)
