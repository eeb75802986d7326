"""Which engine is in use, and how that is switched."""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path

import pytest

from caovand.adapters.engine_install import places
from caovand.adapters.engine_install.errors import EngineError


def engine(root: Path, name: str) -> places.InstalledEngine:
    path = root / name
    (path / "bin").mkdir(parents=True)
    made = places.InstalledEngine(
        name=name,
        path=path,
        version="0.32.0",
        build="cpu",
        python="3.11.2",
        torch="2.13.0+cpu",
        plugin=None,
        plugin_sha256=None,
        lock_sha256="0" * 64,
        made_at="2026-06-01T00:00:00+00:00",
    )
    places.finish(made)
    return made


def test_a_finished_engine_is_read_back_as_it_was(tmp_path: Path) -> None:
    made = engine(tmp_path, "one")
    assert places.read(made.path) == made
    assert places.engines(tmp_path) == [made]
    assert made.interpreter == tmp_path / "one/bin/python"


def test_no_root_means_no_engine(tmp_path: Path) -> None:
    assert places.engines(tmp_path / "absent") == []
    assert places.current(tmp_path / "absent") is None


@pytest.mark.parametrize("marker", ['{"version"', "[]", '"text"', "{}"])
def test_an_unfinished_engine_does_not_count_and_cannot_be_used(
    tmp_path: Path, marker: str
) -> None:
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / places.STEPS).write_text("{}")
    (tmp_path / "half" / places.MARKER).write_text(marker)
    assert places.engines(tmp_path) == []
    assert places.unfinished(tmp_path) == ["half"]
    with pytest.raises(EngineError, match="cannot use half: half is unfinished; run the same"):
        places.switch(tmp_path, "half")


@pytest.mark.parametrize("name", ["absent", "../one", ".one", "current"])
def test_only_an_engine_of_the_root_can_be_used(tmp_path: Path, name: str) -> None:
    engine(tmp_path / "root", "two")
    engine(tmp_path, "one")
    with pytest.raises(EngineError, match=r".* has no engine .*; available: two"):
        places.switch(tmp_path / "root", name)


def test_use_and_rollback_go_back_and_forth(tmp_path: Path) -> None:
    one, two = engine(tmp_path, "one"), engine(tmp_path, "two")
    places.switch(tmp_path, "one")
    with pytest.raises(EngineError, match=r"cannot roll back: /.* has no earlier engine; choose"):
        places.rollback(tmp_path)
    places.switch(tmp_path, "two")
    places.switch(tmp_path, "two")  # twice forgets nothing
    assert places.rollback(tmp_path) == one
    assert places.current(tmp_path) == one
    assert places.rollback(tmp_path) == two


@pytest.mark.parametrize(("switched", "target"), [(0, "one"), (1, "two")])
def test_a_killed_switch_loses_no_target_of_a_rollback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switched: int, target: str
) -> None:
    for name in ("one", "two", "three"):
        engine(tmp_path, name)
    places.switch(tmp_path, "one")
    places.switch(tmp_path, "two")
    real, left = Path.replace, iter([None] * switched)

    def killed(self: Path, to: Path) -> Path:
        if next(left, self) is self:
            raise KeyboardInterrupt
        return real(self, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            places.switch(tmp_path, "three")
    assert places.rollback(tmp_path).name == target


def test_a_folder_that_is_not_there_is_not_made_to_switch_in_it(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineError, match="cannot use x: the folder"),
        places.locked(tmp_path / "typo", "use x", make=False),
    ):
        pass
    assert not (tmp_path / "typo").exists()


def test_a_switch_is_never_seen_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(tmp_path, "one")
    engine(tmp_path, "two")
    places.switch(tmp_path, "one")
    seen = []
    real = Path.replace

    def watched(self: Path, target: Path) -> Path:
        seen.append((tmp_path / "current").readlink().name)
        done = real(self, target)
        seen.append((tmp_path / "current").readlink().name)
        return done

    monkeypatch.setattr(Path, "replace", watched)
    places.switch(tmp_path, "two")
    assert seen == ["one", "two", "two", "two"]


def test_current_is_the_real_folder_so_that_a_running_engine_sees_no_switch(
    tmp_path: Path,
) -> None:
    engine(tmp_path, "one")
    places.switch(tmp_path, "one")
    now = places.current(tmp_path)
    assert now is not None
    assert now.interpreter == tmp_path / "one" / "bin" / "python"


def test_a_python_behind_current_is_started_from_its_real_folder(tmp_path: Path) -> None:
    one = engine(tmp_path, "one")
    one.interpreter.symlink_to("/usr/bin/python3")
    places.switch(tmp_path, "one")
    assert places.resolve_python(tmp_path / "current" / "bin" / "python") == one.interpreter
    absent = tmp_path / "absent" / "bin" / "python"
    assert places.resolve_python(absent) == absent


def test_the_engine_in_use_is_not_removed(tmp_path: Path) -> None:
    engine(tmp_path, "one")
    places.switch(tmp_path, "one")
    with pytest.raises(EngineError, match="cannot remove one: it is in use; switch first"):
        places.remove(tmp_path, "one")


def test_an_engine_that_still_runs_is_not_removed(tmp_path: Path) -> None:
    one = engine(tmp_path, "one")
    library = one.path / "lib.so"
    library.write_bytes(b"x" * 4096)
    fact = f"process {os.getpid()} is running from it; restart"
    with library.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    with pytest.raises(EngineError, match=fact):
        places.remove(tmp_path, "one")
    mapped.close()
    places.remove(tmp_path, "one")
    assert places.engines(tmp_path) == []


def test_removing_the_previous_engine_forgets_it(tmp_path: Path) -> None:
    engine(tmp_path, "one")
    engine(tmp_path, "two")
    places.switch(tmp_path, "one")
    places.switch(tmp_path, "two")
    places.remove(tmp_path, "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "two"]
    with pytest.raises(EngineError, match="no earlier engine"):
        places.rollback(tmp_path)


def test_an_unfinished_engine_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / places.STEPS).write_text("{}")
    places.remove(tmp_path, "half")
    assert list(tmp_path.iterdir()) == []


def test_two_commands_do_not_change_a_root_at_once(tmp_path: Path) -> None:
    fact = f"cannot use y: another .* \\(pid {os.getpid()}\\)"
    with (
        places.locked(tmp_path, "install x"),
        pytest.raises(EngineError, match=fact),
        places.locked(tmp_path, "use y"),
    ):
        pass
    with places.locked(tmp_path, "use y"):
        pass


def test_a_child_of_a_killed_command_keeps_the_root_locked(tmp_path: Path) -> None:
    with places.locked(tmp_path, "install x"):
        inherited = [
            int(fd.name)
            for fd in Path("/proc/self/fd").iterdir()
            if fd.exists() and fd.resolve() == (tmp_path / ".lock").resolve()
        ]
        assert all(os.get_inheritable(fd) for fd in inherited)
        child = os.dup(inherited[0])  # as a child holds it
    with (
        pytest.raises(EngineError, match="another engine command is running"),
        places.locked(tmp_path, "use y"),
    ):
        pass
    fcntl.flock(child, fcntl.LOCK_UN)
    os.close(child)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_root_that_is_not_ours_says_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with (
        pytest.raises(
            EngineError, match=r"cannot write to .*: Permission denied; run it with sudo"
        ),
        places.locked(tmp_path / "engines", "install x"),
    ):
        pass


def test_a_root_that_cannot_be_a_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(
            EngineError, match=r"cannot install x: cannot write to /.*: Not a directory; .*--root"
        ),
        places.locked(tmp_path / "file" / "engines", "install x"),
    ):
        pass


def test_the_root_is_the_option_else_the_environment_else_the_systems(tmp_path: Path) -> None:
    assert places.root_from(str(tmp_path), {"CAOVAN_ENGINES": "/x"}) == tmp_path
    assert places.root_from(None, {"CAOVAN_ENGINES": "/x"}) == Path("/x")
    assert places.root_from(None, {}) == Path("/var/lib/caovan/engines")
