"""Finding the engine's Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from caovand.adapters.engine_install import commands, pythons
from caovand.adapters.engine_install.commands import Finished
from caovand.adapters.engine_install.errors import EngineError

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Pythons:
    """Interpreters that do not exist but answer; others fail. uv brings one where told to."""

    def __init__(self, *usable: Path, headers: tuple[Path, ...] = ()) -> None:
        self.usable, self.headers = usable, headers
        self.brings: Path | None = None
        self.asked: list[Sequence[str]] = []

    def __call__(
        self, command: Sequence[str], env: Mapping[str, str], tick: Callable[[], None]
    ) -> Finished:
        self.asked.append(command)
        first = Path(command[0])
        if first.name == "uv" and self.brings is not None:
            place(self.brings)
            return Finished(0, "")
        if "venv" in command or "pip" in command:
            (first.parent if "pip" in command else Path(command[-1])).mkdir(
                parents=True, exist_ok=True
            )
            return Finished(0, "")
        if first not in self.usable:
            return Finished(1, "no route")
        return Finished(0, f"{first}\n3.9\nx86_64\n{first in self.headers}\n")


def place(folder: Path, name: str = "python3.9") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("")
    (folder / name).chmod(0o755)
    return folder / name


@pytest.fixture
def tmp_public(tmp_path: Path) -> Path:
    """A folder everybody may pass through, which pytest's own is not."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path


def test_one_on_path_is_found(tmp_path: Path) -> None:
    python = place(tmp_path / "bin")
    environ = {"PATH": f"{tmp_path}/none:{tmp_path}/bin", "HOME": str(tmp_path)}
    assert pythons.find("3.9", None, tmp_path, environ, Pythons(python)).path == python


def test_pyenvs_are_found_newest_first(tmp_path: Path) -> None:
    versions = tmp_path / ".pyenv" / "versions"
    for version in ("3.9.1", "3.9.2", "3.10.1", "3.9-dev"):
        place(versions / version / "bin")
    found = list(pythons.candidates("3.9", tmp_path, {"PATH": "", "HOME": str(tmp_path)}))
    assert [path.parents[1].name for path in found] == ["3.9.2", "3.9.1"]


def test_one_that_cannot_make_environments_is_passed_over(tmp_path: Path) -> None:
    place(tmp_path / "a")
    good = place(tmp_path / "b")
    environ = {"PATH": f"{tmp_path}/a:{tmp_path}/b", "HOME": str(tmp_path)}
    assert pythons.find("3.9", None, tmp_path, environ, Pythons(good)).path == good


def test_one_that_others_can_run_then_one_with_headers_is_preferred(tmp_public: Path) -> None:
    private = place(tmp_public / "a")
    plain, headed = place(tmp_public / "b"), place(tmp_public / "c")
    (tmp_public / "a").chmod(0o700)
    environ = {"PATH": f"{tmp_public}/a:{tmp_public}/b:{tmp_public}/c", "HOME": str(tmp_public)}
    run = Pythons(private, plain, headed, headers=(private, headed))
    found = pythons.find("3.9", None, tmp_public, environ, run)
    assert (found.path, found.headers, found.public) == (headed, True, True)


def test_uv_brings_one_into_the_root_where_the_service_can_read_it(tmp_path: Path) -> None:
    uv = place(tmp_path / "bin", "uv")
    run = Pythons()
    environ = {"PATH": f"{tmp_path}/bin", "HOME": str(tmp_path)}
    brought = tmp_path / ".python" / "cpython-3.9.2-linux-x86_64-gnu" / "bin"
    run.brings, run.usable = brought, (brought / "python3.9",)
    assert pythons.find("3.9", None, tmp_path, environ, run).path == brought / "python3.9"
    assert [list(one) for one in run.asked if "install" in one] == [
        [str(uv), "--no-config", "python", "install", "3.9"]
    ]
    # and it is found again, without uv
    run.asked.clear()
    environ["PATH"] = ""
    assert pythons.find("3.9", None, tmp_path, environ, run).path == brought / "python3.9"
    assert not [one for one in run.asked if "install" in one]


def test_offline_a_python_is_unpacked_from_the_folder_and_never_brought(tmp_path: Path) -> None:
    uv = place(tmp_path / "bin", "uv")
    environ = {"PATH": str(uv.parent), "HOME": str(tmp_path)}
    folder, root = tmp_path / "wheels", tmp_path / "root"
    folder.mkdir()
    run = Pythons()
    with pytest.raises(EngineError, match=r"no usable one is here or in .*/wheels.* --with-python"):
        pythons.find("3.9", None, root, environ, run, offline=folder)
    place(folder / ".python" / "cpython-3.9.2-x" / "bin")  # no sha256: what earlier ones fetched
    with pytest.raises(EngineError, match="no usable one is here"):
        pythons.find("3.9", None, root, environ, run, offline=folder)
    place(folder / ".python-archives", "0123abcde-cpython-3.9.2-x.tar.gz")
    wanted = root / ".python" / "cpython-3.9.2-x" / "bin" / "python3.9"
    run.brings, run.usable = wanted.parent, (wanted,)
    assert pythons.find("3.9", None, root, environ, run, offline=folder).path == wanted
    assert not [one for one in run.asked if str(uv) in one]
    asked = next(one for one in run.asked if "python" in one)
    assert asked[1:] == ["--no-config", "python", "install", "--offline", "3.9"]
    pip = next(one for one in run.asked if "--require-hashes" in one)
    assert "--no-index" in pip
    assert not (root / ".python-archives").exists()


@pytest.mark.parametrize("what", ["setuid", "fifo", "link"])
def test_a_python_with_what_no_python_has_is_refused(tmp_path: Path, what: str) -> None:
    uv = place(tmp_path / "bin", "uv")
    brought = tmp_path / ".python" / "cpython-3.9.2-x" / "bin"
    (brought / "inside").mkdir(parents=True)
    (brought / "fine").symlink_to("inside/../python3.9")
    if what == "setuid":
        place(brought, "su").chmod(0o4755)
    elif what == "fifo":
        os.mkfifo(brought / "fifo")
    else:
        (brought / "link").symlink_to("../../../../etc/shadow")
    run = Pythons()
    run.brings = brought
    with pytest.raises(EngineError, match="do not trust"):
        pythons.find("3.9", None, tmp_path, {"PATH": str(uv.parent), "HOME": "/"}, run)
    assert not brought.exists()


def test_for_a_service_a_private_python_counts_as_absent(tmp_public: Path) -> None:
    private = place(tmp_public / "a")
    (tmp_public / "a").chmod(0o700)
    place(tmp_public / "bin", "uv")
    environ = {"PATH": f"{tmp_public}/a:{tmp_public}/bin", "HOME": str(tmp_public)}
    run = Pythons(private)
    run.brings = tmp_public / ".python" / "cpython-3.9.2-linux-x86_64-gnu" / "bin"
    run.usable = (private, run.brings / "python3.9")
    found = pythons.find("3.9", None, tmp_public, environ, run, public=True)
    assert found.path == run.brings / "python3.9"
    fact = "the service's user cannot run .*/a/python3.9, which lies in a private folder; omit"
    with pytest.raises(EngineError, match=fact):
        pythons.find("3.9", str(private), tmp_public, environ, run, public=True)


def test_uv_is_brought_too_by_its_hash_and_not_kept(tmp_path: Path) -> None:
    run = Pythons()
    run.brings = tmp_path / ".python" / "cpython-3.9.2-linux-x86_64-gnu" / "bin"
    run.usable = (run.brings / "python3.9",)
    environ = {"PATH": "", "HOME": str(tmp_path)}
    assert pythons.find("3.9", None, tmp_path, environ, run).path == run.usable[0]
    pip = next(one for one in run.asked if "--require-hashes" in one)
    assert "--hash=sha256:" in Path(pip[-1]).read_text()
    assert not (tmp_path / ".uv").exists()


def test_none_at_all_names_the_packages(tmp_path: Path) -> None:
    environ = {"PATH": "", "HOME": str(tmp_path)}
    fact = r"cannot find Python 3\.9: .*could not install one \(no route\); apt install python3\.9 "
    with pytest.raises(EngineError, match=fact):
        pythons.find("3.9", None, tmp_path, environ, Pythons())


def test_our_own_python_answers_with_its_base(tmp_path: Path) -> None:
    found = pythons.inspect(Path(sys.executable), commands.run)
    assert found is not None
    assert found.version == HERE
    base = getattr(sys, "_base_executable", sys.executable)
    assert found.path.resolve() == Path(base).resolve()


def test_the_users_own_python_is_taken_as_it_is(tmp_path: Path) -> None:
    found = pythons.find(HERE, sys.executable, tmp_path, {}, commands.run)
    assert found.version == HERE


def test_a_child_is_watched_heard_and_freed_of_our_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "x")
    ticks: list[int] = []
    code = "import os, sys; print('INDEX', os.environ.get('PIP_INDEX_URL'), os.environ['A']); "
    code += "print('err', file=sys.stderr); sys.exit(3)"
    done = commands.run(
        [sys.executable, "-c", code], {"PIP_INDEX_URL": "", "A": "1"}, lambda: ticks.append(1)
    )
    assert done.code == 3
    assert "INDEX None 1" in done.output
    assert "err" in done.output
    assert ticks


def test_a_child_dies_when_we_are_interrupted(tmp_path: Path) -> None:
    told = tmp_path / "pid"

    def interrupt() -> None:
        if told.exists():
            raise KeyboardInterrupt

    # the name appears with its content; then output, so that the watcher wakes up
    code = (
        f"import os, pathlib, signal; new = pathlib.Path('{told}.new');"
        f"new.write_text(str(os.getpid())); new.replace('{told}');"
        "print('here', flush=True); signal.pause()"
    )
    with pytest.raises(KeyboardInterrupt):
        commands.run([sys.executable, "-c", code], {}, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)
