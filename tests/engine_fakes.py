"""Tiny wheels that resemble an engine, and an in-process pip, for tests of engine installations."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from caovand.adapters.engine_install import commands, install, places
from caovand.adapters.engine_install.commands import Finished
from caovand.adapters.engine_install.lock import Lock, parse

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
TORCH = """\
__version__ = "1.0+cpu"
class version:
    cuda = None
class cuda:
    @staticmethod
    def device_count():
        return 0
"""
PLATFORMS = """\
class current_platform:
    device_type = "cpu"
    @staticmethod
    def import_kernels():
        import vllm._C
"""
ENGINE = {
    ("torch", "1.0+cpu"): {"torch/__init__.py": TORCH},
    ("vllm", "9.9.9"): {
        "vllm/__init__.py": '__version__ = "9.9.9"\n',
        "vllm/platforms.py": PLATFORMS,
        "vllm/_C.py": "",
    },
    ("six", "1.0"): {"six.py": "ANSWER = 6\n"},
}


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """Build a wheel that a real pip can install."""
    info = f"{name}-{version}.dist-info"
    whole = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, text in whole.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
        rows.append(f"{path},sha256={digest.rstrip(b'=').decode()},{len(text.encode())}\n")
    whole[f"{info}/RECORD"] = "".join(rows) + f"{info}/RECORD,,\n"
    made = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in whole.items():
            entry = zipfile.ZipInfo(path)  # no timestamps, for reproducible bytes
            if ".data/scripts/" in path:
                entry.external_attr = 0o100755 << 16
            archive.writestr(entry, text)
    return made


def wheelhouse(folder: Path) -> Path:
    """Create a folder with every wheel of the tiny engine."""
    folder.mkdir(parents=True)
    for (name, version), files in ENGINE.items():
        wheel(folder, name, version, files)
    return folder


def lock_text(index: Path, *others: str, **head: str) -> str:
    """A lock file of all wheels in a folder; `head` changes or adds `# caovan:` lines.

    `others` are the sha256 of each package's wheels for other platforms.
    """
    keys = {"version": "9.9.9", "build": "cpu", "python": PYTHON, "disk-mib": "1"}
    keys |= {key.replace("_", "-"): value for key, value in head.items()}
    lines = [f"# caovan: {key} = {value}" for key, value in keys.items()]
    for file in sorted(index.glob("*.whl")):
        name, version = file.name.split("-")[:2]
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        hashes = map("--hash=sha256:{}".format, (*others, digest))
        lines.append(" \\\n    ".join([f"{name}=={version}", *hashes]))
        lines.append(f"    # {file.stat().st_size} bytes")
    return "\n".join(lines) + "\n"


def tiny_lock(index: Path, **head: str) -> Lock:
    return parse(lock_text(index, **head), "tiny")


class FakePip:
    """Does to the same files what an installation's commands do, and records them."""

    def __init__(self, index: Path) -> None:
        self.index = index
        self.steps: list[str] = []
        self.answer: Finished | None = None  # returned instead, for the step named in answer_to
        self.answer_to = ""
        self.at: tuple[int, str] | None = None

    def __call__(
        self, command: Sequence[str], env: Mapping[str, str], tick: Callable[[], None]
    ) -> Finished:
        line = list(command)
        if "compileall" in line:
            return Finished(0, "")
        step, act = self._understand(line)
        self.steps.append(step)
        here = (len(self.steps), "before")
        if self.at == here:
            die()
        if self.answer is not None and step == self.answer_to:
            return self.answer
        tick()
        done = act(line)
        if self.at == (here[0], "after"):
            die()
        return done

    def _understand(self, line: list[str]) -> tuple[str, Callable[[list[str]], Finished]]:
        if "-c" in line:
            return "ask", self._ask
        if "venv" in line:
            return "venv", self._venv
        if "download" in line:
            return "download", self._download
        if "install" in line:
            return ("unpack" if "-r" in line else "plugin"), self._install
        assert line[-2].endswith("run_in_env.py"), line
        return "prove", self._prove

    def _ask(self, line: list[str]) -> Finished:
        return Finished(0, f"{line[0]}\n{PYTHON}\nx86_64\nTrue\n")

    def _half(self) -> None:
        if self.at == (len(self.steps), "half"):
            die()

    def _venv(self, line: list[str]) -> Finished:
        path = Path(line[-1])
        (path / "bin").mkdir(parents=True, exist_ok=True)
        self._half()
        (path / "bin" / "python").symlink_to(line[0])
        (path / "lib" / f"python{PYTHON}" / "site-packages").mkdir(parents=True)
        return Finished(0, "")

    def _download(self, line: list[str]) -> Finished:
        target = Path(line[line.index("--dest") + 1])
        target.mkdir(exist_ok=True)
        for pin in parse_requirements(Path(line[line.index("-r") + 1])):
            name, hashes = pin
            match = self.index / f"{name.replace('==', '-')}-py3-none-any.whl"
            if not match.exists():
                return Finished(1, f"ERROR: No matching distribution found for {name}\n")
            data = match.read_bytes()
            got = hashlib.sha256(data).hexdigest()
            if got not in hashes:
                return Finished(1, PIP_MISMATCH.format(name=name, want=hashes[0], got=got))
            self._half()
            (target / match.name).write_bytes(data)
        return Finished(0, "")

    def _install(self, line: list[str]) -> Finished:
        path = Path(line[0]).parents[1]
        site = next((path / "lib").glob("python3*/site-packages"))
        if "-r" in line:
            text = Path(line[line.index("-r") + 1]).read_text()
            files = [
                Path(one.partition(" ")[0].replace("%2B", "+")) for one in text.split("file://")[1:]
            ]
        else:
            files = [Path(line[-1])]
        for file in files:
            with zipfile.ZipFile(file) as archive:
                archive.extractall(site)
            self._half()
        return Finished(0, "")

    def _prove(self, line: list[str]) -> Finished:
        site = next((Path(line[0]).parents[1] / "lib").glob("python3*/site-packages"))
        whole = all((site / path).exists() for files in ENGINE.values() for path in files)
        errors = [] if whole else ["import vllm: ModuleNotFoundError: No module named 'vllm'"]
        return Finished(
            0,
            "a warning\n"
            + json.dumps(
                {
                    "python": f"{PYTHON}.0",
                    "headers": True,
                    "plugins": [],
                    "devices": [],
                    "errors": errors,
                    "warnings": [],
                    "version": "9.9.9",
                    "torch": "1.0+cpu",
                    "cuda": None,
                    "platform": "cpu",
                    "caovan_plugin": "1" if (site / "plug.py").exists() else None,
                }
            )
            + "\n",
        )


# The output of a real pip 23.2.
PIP_MISMATCH = """\
ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated \
the package versions, please update the hashes. Otherwise, examine the package contents \
carefully; someone may have tampered with them.
    {name} from file:///index/x.whl (from -r batch.txt (line 1)):
        Expected sha256 {want}
             Got        {got}
"""


def parse_requirements(path: Path) -> list[tuple[str, list[str]]]:
    found = []
    for line in path.read_text().replace("\\\n", " ").splitlines():
        name, *hashes = line.split()
        found.append((name, [one.removeprefix("--hash=sha256:") for one in hashes]))
    return found


def world(run: FakePip, said: list[str], free_bytes: int = 2**40) -> commands.InstallWorld:
    return commands.InstallWorld(
        run=run,
        free_bytes=lambda _path: free_bytes,
        now=lambda: datetime(2026, 6, 1, tzinfo=timezone.utc),
        environ={"PATH": "/nowhere"},
        say=said.append,
        progress=lambda done, total, what: None,
    )


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def install_until(lock: str, index: str, root: str, point: str) -> None:
    """Install such an engine, and kill this process with SIGKILL at a given point.

    Points are named "3 half", "finish", "link 2 before" and so on; a point that is never reached
    kills nothing.
    """
    run = FakePip(Path(index))
    what, *rest = point.split()
    if what.isdigit():
        run.at = (int(what), rest[0])
    elif what in ("finish", "switch"):
        setattr(places, what, lambda *_args: die())
    elif what == "link":
        real, count = places._activate_link, iter(range(1, 9))

        def link(one: Path) -> None:
            mine = next(count) == int(rest[0])
            if mine and rest[1] == "before":
                die()
            real(one)
            if mine:
                die()

        places._activate_link = link
    plugin = Path(index).parent / "plugin.whl"
    install.install(
        install.InstallRequest(
            lock=parse(Path(lock).read_text(), lock),
            root=Path(root),
            plugin=plugin,
            python=sys.executable,
        ),
        world(run, []),
    )
