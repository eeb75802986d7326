"""The RECORDs of installed packages, in which each names its files and their content.

Whatever caovan changes or builds in an environment gets a correct entry, so that `engine verify`
can check every file afterwards.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.lock import canonical
from caovand.adapters.files import safe_files

_RECORD = re.compile(r"[^/]+\.dist-info/RECORD")


class Records:
    """The files that packages in a site-packages folder claim in their RECORDs.

    `infos`: package -> its dist-info folder. `owners`: file -> package -> the file's hash in that
    RECORD, "" if it has none (bytecode, the RECORD itself). `without`: packages without a RECORD.
    """

    def __init__(self, site: Path) -> None:
        self.infos = {canonical(info.name.split("-")[0]): info for info in site.glob("*.dist-info")}
        self.owners: dict[str, dict[str, str]] = {}
        self.without: list[str] = []
        for package, info in sorted(self.infos.items()):
            try:
                with (info / "RECORD").open(encoding="utf-8", newline="") as file:
                    for row in csv.reader(file):
                        if len(row) > 1:
                            self.owners.setdefault(row[0], {})[package] = row[1]
            except OSError:
                self.without.append(package)


def find_shared_files(owners: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """One line for each set of packages that ship the same file with different content.

    `owners`: file -> package -> hash of its content, "" if unknown. Which of them is installed is
    random. Files outside all package folders (build left-overs such as `build_backend.py`) are
    ignored: nothing depends on them.
    """
    shared: dict[tuple[str, ...], list[str]] = {}
    for file, hashes in sorted(owners.items()):
        if "/" in file and not file.startswith("..") and len({*hashes.values()} - {""}) > 1:
            shared.setdefault(tuple(sorted(hashes)), []).append(file)
    for packages, files in shared.items():
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        yield f"{' and '.join(packages)} both own {files[0]}{more}"


def content_hash(data: bytes) -> str:
    """A file's sha256 as RECORDs write it: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def fix_records(site: Path, wheels: Iterable[Path]) -> None:
    """Correct RECORD entries that do not match a wheel's own files (patched after RECORD was
    written).

    A file is only accepted if it is the one in the wheel, whose sha256 the lock names. Only the
    size is compared: reading everything would take minutes.
    """
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            record = next((n for n in archive.namelist() if _RECORD.fullmatch(n)), None)
            if record is None or not (site / record).is_file():
                continue
            sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
            stale = set()
            for row in csv.reader(archive.read(record).decode().splitlines()):
                name, size = (row[0], row[-1]) if row else ("", "")
                if size.isdigit() and name in sizes and sizes[name] != int(size):
                    path = site / name
                    if path.is_file() and path.read_bytes() == archive.read(name):
                        stale.add(name)
            if stale:
                _renew_entries(site, site / record, stale)


def append_code(site: Path, name: str, code: str) -> None:
    """Add code to the end of an installed module, once, and renew its entry in RECORD.

    Raises EngineError if the module cannot be read, OSError if it cannot be replaced.
    """
    path = site / name
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        fact = f"{path} cannot be read: {error.strerror}"
        raise EngineError(f"adapt {name}", fact, "install the engine again") from None
    if code not in text:
        _replace(path, text + code)
        for record in site.glob("*.dist-info/RECORD"):
            _renew_entries(site, record, {name})


def write_dist_info(site: Path, name: str, version: str, files: Sequence[Path] = ()) -> None:
    """Make a package that owns `files`, which were built here."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    metadata, installer = info / "METADATA", info / "INSTALLER"
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
    installer.write_text("caovan\n", "utf-8")
    rows = [_entry(site, os.path.relpath(path, site)) for path in (*files, metadata, installer)]
    record = "\n".join([*rows, f"{info.name}/RECORD,,"])
    (info / "RECORD").write_text(f"{record}\n", "utf-8")


def _renew_entries(site: Path, record: Path, names: set[str]) -> None:
    """Enter the present content of these files where a RECORD has them."""
    rows = record.read_text(encoding="utf-8").splitlines()
    if names.isdisjoint(row.partition(",")[0] for row in rows):
        return
    for number, row in enumerate(rows):
        if (name := row.partition(",")[0]) in names:
            rows[number] = _entry(site, name)
    _replace(record, "".join(f"{row}\n" for row in rows))


def _entry(site: Path, name: str) -> str:
    data = (site / name).read_bytes()
    return f"{name},sha256={content_hash(data)},{len(data)}"


def _replace(path: Path, text: str) -> None:
    # never in place: the file may be a link into a cache
    safe_files.replace(path, text, 0o644)
