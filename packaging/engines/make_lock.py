#!/usr/bin/env python3
"""Make a lock from its source, for maintainers: python3 packaging/engines/make_lock.py FILE.in

Needs uv and a network. uv decides the versions; the index's JSON says which wheels fit the lock's
Python on x86_64, with their sha256 and size. Only those are written, so a lock never accepts
another platform's file, nor a source archive unless its `source` line names it. Only metadata and
the wheels' lists of contents are downloaded: two packages that own one file make no lock.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from wheel_contents import installed  # noqa: E402

from caovand.adapters.engine_install.commands import with_absolute_paths  # noqa: E402  (from this checkout)
from caovand.adapters.engine_install.errors import EngineError  # noqa: E402
from caovand.adapters.engine_install.lock import (  # noqa: E402
    ANY_PYTHON,
    Pin,
    canonical,
    header,
    parse,
    same_version,
)
from caovand.adapters.engine_install.records import find_shared_files  # noqa: E402
from caovand.adapters.files import safe_files, trust  # noqa: E402

_WHEEL = re.compile(
    r"^(?P<name>[^-]+)-(?P<version>[^-]+)(-(?P<build>\d[^-]*))?-(?P<python>[^-]+)-(?P<abi>[^-]+)"
    r"-(?P<platform>[^-]+)\.whl$"
)


OLDEST_PYTHON = "3.10"


@dataclass(frozen=True)
class WheelFile:
    """A wheel of an index or a folder. `uploaded` is in ISO 8601, or "" where unknown."""

    filename: str
    sha256: str
    size_bytes: int
    uploaded: str
    url: str


def fits(filename: str, python: str, glibc_minor: int) -> bool:
    """Whether a wheel runs on `python` ("3.12"), x86_64, glibc 2.`glibc_minor`."""
    match = _WHEEL.match(filename)
    if match is None:
        return False
    minor = 0 if python == ANY_PYTHON else int(python.split(".")[1])
    return any(
        _python_fits(tag, match["abi"].split("."), minor) for tag in match["python"].split(".")
    ) and any(_platform_fits(tag, glibc_minor) for tag in match["platform"].split("."))


def _python_fits(tag: str, abis: Sequence[str], minor: int) -> bool:
    pure = re.fullmatch(r"py3(\d*)", tag)
    if pure is not None:
        return "none" in abis and int(pure[1] or 0) <= minor
    if tag == f"cp3{minor}":
        return any(abi in (f"cp3{minor}", "abi3", "none") for abi in abis)
    older = re.fullmatch(r"cp3(\d+)", tag)
    return older is not None and "abi3" in abis and int(older[1]) <= minor


def _platform_fits(tag: str, glibc_minor: int) -> bool:
    if tag in (
        "any",
        "linux_x86_64",
        "manylinux1_x86_64",
        "manylinux2010_x86_64",
        "manylinux2014_x86_64",
    ):
        return True
    match = re.fullmatch(r"manylinux_2_(\d+)_x86_64", tag)
    return match is not None and int(match[1]) <= glibc_minor


def index_files(
    name: str, version: str, index: str, packed: str = "bdist_wheel"
) -> list[WheelFile]:
    """The wheels, or the archive, the index's JSON lists for one release; [] if it has none."""
    page = f"{index}/pypi/{canonical(name)}/json"
    try:
        with urllib.request.urlopen(page, timeout=60) as answer:
            releases = json.load(answer)["releases"]
    except (OSError, ValueError, KeyError) as error:
        raise EngineError(
            "resolve the lock",
            f"{index} does not list {name}: {error}",
            "check the network, or give --json-index",
        ) from error
    return [
        WheelFile(
            file["filename"],
            file["digests"]["sha256"],
            int(file["size"]),
            str(file["upload_time"]),
            urllib.parse.urljoin(page, file["url"]),
        )
        for release, files in releases.items()
        if same_version(release, version)
        for file in files
        if file["packagetype"] == packed
    ]


def local_files(name: str, version: str, folder: Path) -> list[WheelFile]:
    """The wheels of one release in a folder, hashed."""
    found = []
    for path in sorted(folder.glob("*.whl")):
        match = _WHEEL.match(path.name)
        if match and canonical(match["name"]) == canonical(name) and match["version"] == version:
            data = path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            found.append(WheelFile(path.name, digest, len(data), "", path.absolute().as_uri()))
    return found


def compile_versions(source: str, find_links: Path | None, as_of: str | None) -> list[str]:
    """What uv resolves the source to, as `name==version`."""
    head = header(source)
    uv = trust.program("uv", os.environ)
    if uv is None:
        raise EngineError("resolve the lock", "uv is not installed", "pip install uv")
    with tempfile.TemporaryDirectory() as temp:
        wanted = Path(temp, "wanted.in")
        wanted.write_text(source, encoding="utf-8")
        command = [
            uv,
            "pip",
            "compile",
            "--no-config",
            "--quiet",
            "--no-build",
            "--no-annotate",
            "--no-header",
            "--python-version",
            OLDEST_PYTHON if head["python"] == ANY_PYTHON else head["python"],
            "--python-platform",
            head["platform"],
            str(wanted),
        ]
        if "override" in head:
            override = Path(temp, "override.txt")
            override.write_text(head["override"].replace(" ", "\n"), encoding="utf-8")
            command += ["--override", str(override)]
        if find_links is not None:
            command += ["--find-links", str(find_links.absolute())]
        if as_of is not None:
            command += ["--exclude-newer", as_of]
        # Elsewhere a .venv or a uv.toml that lies there would be taken.
        env = with_absolute_paths(trust.own_environ(os.environ))
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=temp, env=env
        )
    if done.returncode != 0:
        raise EngineError(
            "resolve the lock", f"uv failed: {done.stderr.strip()}", "correct the source"
        )
    pins = [
        line.split(";")[0].strip()
        for line in done.stdout.splitlines()
        if line and not line.startswith(("#", " "))
    ]
    return pins + head.get("without-dependencies", "").split()


def resolve(source: str, *, find_links: Path | None, index: str, say: Callable[[str], None]) -> str:
    """The text of the lock that a source file resolves to today, or as of its `as-of` date."""
    try:
        head = header(source)
    except ValueError as error:
        raise EngineError("resolve the lock", str(error), "correct the source") from None
    for key in ("version", "build", "python", "platform", "disk-mib"):
        if key not in head:
            raise EngineError(
                "resolve the lock", f'it has no "# caovan: {key} = ..." line', "correct the source"
            )
    glibc = re.search(r"manylinux_2_(\d+)", head["platform"])
    if glibc is None:
        raise EngineError(
            "resolve the lock",
            f'platform "{head["platform"]}" does not name a glibc version',
            "use x86_64-manylinux_2_N",
        )
    pins = []
    owners: dict[str, dict[str, str]] = {}
    for requirement in compile_versions(source, find_links, head.get("as-of")):
        name, _, version = requirement.partition("==")
        if not version:
            raise EngineError(
                "resolve the lock",
                f'"{requirement}" is not of the form NAME==VERSION',
                "correct the source",
            )
        if name in head.get("source", "").split():
            archives = index_files(name, version, index, "sdist")
            pins += [Pin(name, version, (one.sha256,), one.size_bytes) for one in archives]
            continue
        files = local_files(name, version, find_links) if find_links else []
        files = files or index_files(name, version, index)
        good = [file for file in files if fits(file.filename, head["python"], int(glibc[1]))]
        if not good:
            raise EngineError(
                "resolve the lock",
                f"{requirement} has no compatible wheel",
                "pin another version in the source",
            )
        largest = max(good, key=lambda file: file.size_bytes)
        pins.append(
            Pin(
                name,
                version,
                tuple(sorted(file.sha256 for file in good)),
                largest.size_bytes,
            )
        )
        for path, content in installed(largest.url, largest.size_bytes).items():
            owners.setdefault(path, {})[canonical(name)] = content
        late = min((file.uploaded for file in good), default="")
        if (limit := head.get("as-of")) and late[:10] > limit:
            say(f"warning: {requirement} was uploaded on {late[:10]}, after {limit}")
    if facts := "; ".join(find_shared_files(owners)):
        raise EngineError(
            "resolve the lock",
            f"{facts}: which copy gets installed is random",
            "pin other versions in the source",
        )
    text = render(source, sorted(pins, key=lambda pin: canonical(pin.name)))
    parse(text, "just resolved")
    return text


def render(source: str, pins: Sequence[Pin]) -> str:
    """A lock file: the source's `# caovan:` lines, then every pin with hashes and size."""
    lines = ["# Made by packaging/engines/make_lock.py; change the .in next to it, not this one."]
    lines += [line for line in source.splitlines() if line.startswith("# caovan:")]
    for pin in pins:
        lines += [pin.requirement, f"    # {pin.size_bytes} bytes"]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> int:
    """Write the lock of a source next to it; the exit status."""
    parser = argparse.ArgumentParser(
        prog="make_lock.py",
        description="Resolve a lock's source (.in) and write the lock (.txt) next to it.",
        epilog="example: packaging/engines/make_lock.py packaging/engines/cuda-0.33.0.in",
    )
    parser.add_argument("source", type=Path, metavar="FILE.in")
    parser.add_argument(
        "--find-links",
        type=Path,
        metavar="DIR",
        help="an additional folder of wheels to resolve from",
    )
    parser.add_argument(
        "--json-index",
        metavar="URL",
        default="https://pypi.org",
        help="an index that has /pypi/NAME/json (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    target = args.source.with_suffix(".txt")
    try:
        text = resolve(
            args.source.read_text(encoding="utf-8"),
            index=args.json_index,
            say=lambda line: print(line, file=sys.stderr),
            find_links=args.find_links,
        )
        safe_files.replace(target, text, 0o644)
    except EngineError as error:
        print(f"make_lock.py: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"make_lock.py: cannot make {target}: {error}", file=sys.stderr)
        return 1
    print(f"{target} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
