"""The programs that start Ray on a node and vLLM over it, with a stand-in for Ray."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand.adapters.ray_in_env.__main__ import ActorOutput
from caovand.adapters.system import processes
from tests.daemon_process import ROOT
from tests.ports import free_port

PROGRAMS = ROOT / "caovand/adapters/ray_in_env"
ENGINE = ROOT / "tests/standin/engine.py"
TOKEN = "a" * 64


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_port()}"


@contextlib.contextmanager
def launcher(address: str, folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """The launcher of a node with two cards; all it has started is ended behind it."""
    env = {
        **os.environ, "TMPDIR": str(folder), "RAY_AUTH_TOKEN": TOKEN,
        "CAOVAN_RAY_NODES": "127.0.0.1",
    }  # fmt: skip
    words = [str(ENGINE), str(PROGRAMS), "--address", address, "--own", "127.0.0.1", "--cards", "2"]
    with subprocess.Popen(
        [*words, *(("--", *command) if command else ())], env=env, text=True,
        stdout=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
            process.terminate()
            process.wait()
        finally:
            for one in of_session(process.pid):
                processes.send(one, signal.SIGKILL)


def of_session(session: int) -> list[processes.Process]:
    return [one for one in processes.all_processes() if one.session == session and not one.zombie]


@pytest.fixture
def folder() -> Iterator[Path]:
    """One whose path has room for Ray's sockets."""
    place = Path(f"/tmp/caovan-ray-{os.getpid()}")
    place.mkdir()
    yield place
    place.rmdir()  # the launcher has left nothing there


def lines_until(process: subprocess.Popen[str], words: str) -> list[str]:
    assert process.stdout is not None
    found = []
    for line in process.stdout:
        found.append(line)
        if words in line:
            return found
    raise AssertionError(f"it ended: {found}")


def test_the_command_runs_once_all_have_joined_and_ends_all(address: str, folder: Path) -> None:
    command = (
        sys.executable,
        "-c",
        "import os, sys; print(os.environ['RAY_ADDRESS']); sys.exit(7)",
    )
    with launcher(address, folder, *command) as head:
        lines = lines_until(head, address)
        assert "Ray: 1 of 1 nodes joined: 127.0.0.1 with 2 of 2 cards\n" in lines
        assert head.wait() == 7
        assert not of_session(head.pid)


def test_asked_to_end_it_ends_the_command_first_and_then_ray(address: str, folder: Path) -> None:
    program = (
        "import os, signal, sys, time\n"
        "def end(*_): os.write(1, b'in good order\\n'); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "os.write(1, b'begun\\n')\n"  # a print that is under way bears no other
        "time.sleep(600)"
    )
    with launcher(address, folder, sys.executable, "-c", program) as head:
        lines_until(head, "begun")
        head.terminate()
        lines = lines_until(head, "in good order")
        assert head.wait() == 0
        assert not of_session(head.pid)
        # What the actor on this node has printed came, without Ray's own marks.
        assert not [line for line in lines if line.startswith(":")]


def test_what_actors_print_is_printed(address: str, folder: Path) -> None:
    with launcher(address, folder, "/bin/sleep", "600") as head:
        (line,) = lines_until(head, "this is an actor")[-1:]
        assert line.startswith("(Worker_PP0 pid=")


def test_a_ray_that_dies_ends_the_command(address: str, folder: Path) -> None:
    with launcher(address, folder, "/bin/sleep", "600") as head:
        lines_until(head, "this is an actor")
        titles = {one.pid: processes.command_of(one.pid) for one in of_session(head.pid)}
        (ray, *_) = [pid for pid, title in titles.items() if " ray.scripts.scripts start " in title]
        os.kill(ray, signal.SIGKILL)
        assert "RayNodeError: Ray on this node exited (exit status 137)\n" in lines_until(
            head, "RayNodeError"
        )
        assert head.wait() == 1
        assert not of_session(head.pid)


def test_a_worker_waits_for_its_head(address: str, folder: Path) -> None:
    with launcher(address, folder) as worker:
        lines_until(worker, f"waiting for Ray's head at {address}")
        with launcher(address, folder, "/bin/sleep", "600") as head:
            lines_until(head, "this is an actor")
            lines_until(worker, "this is an actor")


def test_in_a_folder_without_room_for_rays_sockets_one_in_tmp_is_used_again(
    address: str, tmp_path: Path
) -> None:
    deep = tmp_path / ("x" * 40)
    deep.mkdir()
    used = Path(f"/tmp/caovan-ray-{zlib.crc32(os.fsencode(deep)):08x}")
    with launcher(address, deep, "/bin/sleep", "600") as head:
        lines_until(head, "this is an actor")
        assert stat.S_IMODE(used.stat().st_mode) == 0o700
        (used / "stale").touch()
        head.kill()  # it removes nothing now
    assert (used / "stale").exists()
    with launcher(address, deep, "/bin/sleep", "600") as head:
        lines_until(head, "this is an actor")
        assert not (used / "stale").exists()
    assert not used.exists()


def test_where_that_one_cannot_be_removed_it_is_another(address: str, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 40)
    deep.mkdir()
    used = Path(f"/tmp/caovan-ray-{zlib.crc32(os.fsencode(deep)):08x}")
    used.touch()  # no folder, which rmtree refuses
    try:
        with launcher(address, deep, "/bin/sleep", "600") as head:
            lines_until(head, "this is an actor")
    finally:
        used.unlink()


class Logs:
    """Ray's folder for what actors print, with one of the files in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "session_latest" / "logs"
        self.folder.mkdir(parents=True)
        self.file = self.folder / "worker-1.out"


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def test_a_file_that_is_gone_again_ends_nothing(
    logs: Logs, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (logs.folder / "worker-0.out").symlink_to("nowhere")  # listed, and not to be opened
    logs.file.write_bytes(b"a\n")
    ActorOutput(tmp_path).pass_on()
    assert capfdbinary.readouterr().out == b"a\n"


def test_without_descriptors_nothing_ends_and_nothing_is_lost(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:  # fmt: skip
    logs.file.write_bytes(b"a\n")
    printed = ActorOutput(tmp_path)
    for name in ("glob", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, no_descriptor)
            printed.pass_on()
    printed.pass_on()
    assert capfdbinary.readouterr().out == b"a\n"


def no_descriptor(*_: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_file_that_takes_the_place_of_another_is_printed_as_well(
    logs: Logs, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    printed = ActorOutput(tmp_path)
    logs.file.write_bytes(b"a\nwithout an end")
    printed.pass_on()
    logs.file.rename(logs.folder / "worker-1.out.1")
    logs.file.write_bytes(b"b\n")
    printed.pass_on()
    logs.file.write_bytes(b"b\nc\n")
    printed.pass_on()
    assert capfdbinary.readouterr().out == b"a\nwithout an endb\nc\n"


def test_a_head_without_an_ipv4_address_is_named(folder: Path) -> None:
    with launcher("fd00::1:7071", folder) as worker:
        assert worker.stdout is not None
        (line,) = worker.stdout
        assert line.startswith(
            "RayNodeError: cannot join Ray's head at fd00::1: it has no IPv4 address here ("
        )
        assert worker.wait() == 1


def test_an_engine_without_ray_is_named(folder: Path) -> None:
    words = [sys.executable, "-S", str(PROGRAMS), "--address", "x:1", "--own", "x", "--cards", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={})
    assert (done.returncode, done.stdout) == (1, "ModuleNotFoundError: No module named 'ray'\n")


@pytest.mark.parametrize(
    ("nodes", "cards", "text"),
    [
        ("127.0.0.1,10.0.0.2", "2", "1 of 2 nodes joined: {} with 2 of 2 cards; missing: 10.0.0.2"),
        ("127.0.0.1", "3", "1 of 1 nodes joined: {} with 2 of 3 cards"),
    ],
)  # fmt: skip
def test_who_does_not_join_in_time_is_named(
    address: str, folder: Path, nodes: str, cards: str, text: str
) -> None:
    with launcher(address, folder, "/bin/sleep", "600") as head:
        lines_until(head, "this is an actor")
        begun = time.monotonic()
        done = subprocess.run(
            [str(ENGINE), str(PROGRAMS / "joined.py"), nodes, cards, "1"],
            env={**os.environ, "RAY_ADDRESS": address, "RAY_AUTH_TOKEN": TOKEN},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        text = text.format("127.0.0.1")
        assert done.stdout.splitlines() == [
            f"Ray: {text}",
            f"RayNodeError: vLLM cannot start: after 1 s {text}",
        ]
        assert time.monotonic() - begun >= 1


def test_nobody_joins_without_the_token(address: str, folder: Path) -> None:
    with launcher(address, folder, "/bin/sleep", "600") as head:
        lines_until(head, "this is an actor")
        done = subprocess.run(
            [str(ENGINE), str(PROGRAMS / "joined.py"), "127.0.0.1", "2", "0"],
            env={**os.environ, "RAY_ADDRESS": address, "RAY_AUTH_TOKEN": "b"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert "ConnectionError: InvalidAuthToken" in done.stderr
