"""The spawner starts and signals programs of one user, and does nothing else."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.adapters.privileges import spawner
from tests.examples import examples
from tests.patience import PATIENCE_S, until

PYTHON = "/usr/bin/python3"  # one that every user may run
DAEMON, ENGINE = 64321, 64322
RIGHTS = "+setuid,+setgid"
AS_DAEMON = ("setpriv", f"--reuid={DAEMON}", f"--regid={DAEMON}", "--clear-groups")

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not os.path.exists(PYTHON) or not shutil.which("setpriv"),
    reason=f"needs root, {PYTHON} and setpriv",
)


class Spawned:
    """A spawner that was started as a daemon does it, whose daemon this process is."""

    def __init__(self, program: Path, engine: int = ENGINE, before: Sequence[str] = ()) -> None:
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caps = (f"--inh-caps={RIGHTS}", f"--ambient-caps={RIGHTS}")
        words = [PYTHON, "-I", "-S", str(program), str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                [*before, *AS_DAEMON, *caps, *words, str(engine), f"{engine},44"],
                pass_fds=[theirs.fileno()],
                stderr=subprocess.DEVNULL if engine != ENGINE else None,
                cwd="/",
            )
        self.link.settimeout(PATIENCE_S)
        self.ready = self.link.recv(100) == b"{}"

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """One message, and the answer to it."""
        socket.send_fds(self.link, [message], descriptors)
        answer = self.link.recv(spawner.MAX_MESSAGE)
        assert answer, "the spawner has exited"
        return dict(json.loads(answer))

    def start(self, *argv: str, output: int, session: bool = False, **more: Any) -> dict[str, Any]:
        """Ask for a program whose output goes there."""
        asked = {"op": "start", "argv": argv, "env": {"PATH": "/usr/bin:/bin"}, "session": session}
        with open(os.devnull, "rb") as nothing:
            message = json.dumps({**asked, "ends_with": signal.SIGTERM, **more})
            return self.send(message.encode(), [nothing.fileno(), output, output])

    def run(self, script: str, **more: Any) -> str:
        """The output of a script of the shell, which has ended."""
        with open(os.memfd_create("output"), "w+b") as output:
            pid = self.start("/bin/sh", "-c", script, output=output.fileno(), **more)["pid"]
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            output.seek(0)
            return output.read().decode()

    def close(self) -> None:
        """End it as a daemon's end does."""
        self.link.close()
        assert self.process.wait(PATIENCE_S) == 0


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    """The spawner where every user may read it."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(shutil.copy(spawner.__file__, name))


@pytest.fixture(scope="module")
def shared(program: Path) -> Iterator[Spawned]:
    """A spawner for tests that leave it as it was."""
    one = Spawned(program)
    yield one
    one.close()


def may(user: int, pid: int, *words: str) -> bool:
    """Whether a user without rights may do something to a process."""
    drop = (
        "setpriv",
        f"--reuid={user}",
        f"--regid={user}",
        "--clear-groups",
        "--bounding-set=-all",
    )
    argv = [*drop, *(word.format(pid=pid) for word in words)]
    done = subprocess.run(argv, capture_output=True, cwd="/", check=False)
    return done.returncode == 0


def test_a_program_has_the_user_its_three_descriptors_and_nothing_else(shared: Spawned) -> None:
    script = (
        "cat /proc/self/status; echo; ls /proc/self/fd; pwd; env; cut -d' ' -f 6 /proc/self/stat"
    )
    status, rest = shared.run(script, session=True).split("\n\n")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {*fields["Uid"].split(), *fields["Gid"].split()} == {str(ENGINE)}
    assert fields["Groups"].split() == ["44", str(ENGINE)]
    capabilities = ("CapInh", "CapPrm", "CapEff", "CapAmb")
    assert {int(fields[name], 16) for name in capabilities} == {0}
    assert fields["NoNewPrivs"] == "1"
    for kept in ("SigIgn", "SigBlk"):
        assert not int(fields[kept], 16) & (1 << signal.SIGTERM - 1 | 1 << signal.SIGINT - 1)
    # `ls` opened the fourth itself.
    descriptors, (folder, *env), session = rest.split()[:4], rest.split()[4:-1], rest.split()[-1]
    assert descriptors == ["0", "1", "2", "3"]
    assert folder == "/"
    assert set(env) - {"PWD=/"} == {"PATH=/usr/bin:/bin"}
    assert int(session) != os.getsid(0)


IN_A_TERMINAL = """
import fcntl, os, pty, subprocess, sys, termios
_, terminal = pty.openpty()
os.setsid()
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
open("/dev/tty").close()
sys.exit(subprocess.run(sys.argv[1:], close_fds=False).returncode)
"""


def test_what_it_starts_has_no_terminal_to_type_into(program: Path) -> None:
    """A daemon that root starts by hand has one, whose shell would obey."""
    one = Spawned(program, before=(PYTHON, "-c", IN_A_TERMINAL))
    with open(os.memfd_create("output"), "w+b") as output:
        script = "true </dev/tty && echo has one; echo done"
        one.start("/bin/sh", "-c", script, output=output.fileno())

        def printed() -> bytes:
            return os.pread(output.fileno(), 1000, 0)

        until(lambda: printed().endswith(b"done\n"), "its end")
        assert b"has one" not in printed()
        assert b"/dev/tty" in printed()
    one.close()


def test_it_signals_programs_of_its_user_and_nobody_elses(shared: Spawned) -> None:
    with open(os.devnull, "wb") as output:
        pid = shared.start("/bin/sleep", "1000", output=output.fileno())["pid"]
    stranger = subprocess.Popen(["/bin/sleep", "1000"], cwd="/")
    try:
        kill = json.dumps({"op": "signal", "signal": signal.SIGKILL}).encode()
        pidfd = os.pidfd_open(stranger.pid)
        assert shared.send(kill, [pidfd]) == {"errno": errno.EPERM}
        os.close(pidfd)
        assert stranger.poll() is None
        pidfd = os.pidfd_open(pid)
        assert shared.send(kill, [pidfd]) == {}
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        # Its pid may be a stranger's by now; the descriptor is not.
        assert shared.send(kill, [pidfd]) == {"errno": errno.ESRCH}
        os.close(pidfd)
    finally:
        stranger.kill()
        stranger.wait()


def test_it_kills_by_pid_what_it_started_alone(shared: Spawned) -> None:
    with open(os.devnull, "wb") as output:
        pid = shared.start("/bin/sleep", "1000", output=output.fileno())["pid"]
    assert shared.send(json.dumps({"op": "kill", "pid": pid}).encode()) == {}
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    for other in (os.getpid(), 1, -1, 0, True, "1"):
        assert "refused" in shared.send(json.dumps({"op": "kill", "pid": other}).encode())


def test_neither_the_engines_user_nor_the_daemon_gets_into_it(shared: Spawned) -> None:
    pid = shared.process.pid
    shared.send(b'{"op":"kill","pid":1}')
    with open(os.devnull, "wb") as output:
        sleeper = shared.start("/bin/sleep", "1000", output=output.fileno())["pid"]
    shared.send(json.dumps({"op": "kill", "pid": sleeper}).encode())  # as the engine's user
    os.waitpid(sleeper, 0)
    assert not may(ENGINE, pid, "sh", "-c", "kill -0 {pid}")
    assert may(DAEMON, pid, "sh", "-c", "kill -0 {pid}"), "it may end it"
    for user in (ENGINE, DAEMON):
        for file in ("mem", "environ", "maps"):
            assert not may(user, pid, "cat", f"/proc/{{pid}}/{file}"), (user, file)
    for slowing in ("renice -n 19 -p {pid}", "taskset -p 1 {pid}", "chrt --idle -p 0 {pid}"):
        assert not may(ENGINE, pid, *slowing.split()), slowing
    fields = Path(f"/proc/{pid}/status").read_text()
    assert f"Uid:\t{DAEMON}\t{DAEMON}\t{DAEMON}\t" in fields
    assert "CapEff:\t0000000000000000" in fields
    assert f"CapPrm:\t{spawner.SETUID_AND_SETGID:016x}" in fields


def test_what_it_started_ends_with_the_daemon_and_not_by_a_term(program: Path) -> None:
    one = Spawned(program)
    with open(os.devnull, "wb") as output:
        pid = one.start("/bin/sleep", "1000", output=output.fileno())["pid"]
    one.process.send_signal(signal.SIGTERM)  # systemd sends it to all of a unit
    assert "refused" in one.send(b"{}")
    one.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


def test_a_program_that_has_not_begun_ends_with_the_daemon_too(program: Path) -> None:
    one = Spawned(program)
    joined, joins = os.pipe()
    os.set_blocking(joins, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(joins, bytes(1 << 16)):  # the new process waits for room to write its pid
            pass
    os.set_blocking(joins, True)
    asked = {"op": "start", "argv": ["/bin/true"], "env": {}, "session": False, "ends_with": 15}
    with open(os.devnull, "r+b") as nothing:
        pid = one.send(json.dumps(asked).encode(), [nothing.fileno()] * 3 + [joins])["pid"]
    one.close()
    os.close(joins)
    with open(joined, "rb") as rest:
        rest.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


@pytest.mark.parametrize("user", [0, DAEMON])
def test_the_engines_user_is_neither_root_nor_the_daemons(program: Path, user: int) -> None:
    one = Spawned(program, user)
    assert not one.ready
    assert one.process.wait() == 1
    one.link.close()


GOOD: dict[str, Any] = {
    "op": "start", "argv": ["/bin/true"], "env": {}, "session": False, "ends_with": 15,
}  # fmt: skip
BAD: tuple[tuple[bytes, int], ...] = (
    (b"", 0), (b"{}", 0), (b"[]", 3), (b"\xff", 3), (b"[" * 60_000, 3), (b"null", 1),
    (b"{" + b" " * spawner.MAX_MESSAGE + b"}", 0),
    *((json.dumps({**GOOD, **change}).encode(), 3) for change in (
        {"op": "stop"}, {"op": None}, {"argv": []}, {"argv": "/bin/true"}, {"argv": [1]},
        {"argv": ["/bin/true\0"]}, {"env": []}, {"env": {"A": 1}}, {"env": {"A=": "1"}},
        {"env": {"": "1"}}, {"session": 1}, {"ends_with": 1}, {"ends_with": True},
        {"ends_with": "15"}, {"uid": 0},
    )),
    (json.dumps(GOOD).encode(), 0), (json.dumps(GOOD).encode(), 2), (json.dumps(GOOD).encode(), 6),
    *((json.dumps({"op": "signal", "signal": number}).encode(), 1) for number in (0, 19, "9")),
    (b'{"op":"signal","signal":9}', 0), (b'{"op":"signal","signal":9}', 2),
    (b'{"op":"signal","signal":9,"pid":1}', 1),
)  # fmt: skip


@pytest.mark.parametrize(("message", "count"), BAD)
def test_it_refuses_all_else(shared: Spawned, message: bytes, count: int) -> None:
    with open(os.devnull, "rb") as file:
        if not message:
            shared.link.send(message)
            assert "refused" in json.loads(shared.link.recv(1000))
        else:
            assert "refused" in shared.send(message, [file.fileno()] * count)
    assert shared.run("echo lives") == "lives\n"


def test_what_is_no_pidfd_and_what_cannot_run_is_an_error(shared: Spawned) -> None:
    with open(os.devnull, "rb") as file:
        found = shared.send(b'{"op":"signal","signal":9}', [file.fileno()])
    assert found == {"errno": errno.EBADF}
    with open(os.memfd_create("output"), "w+b") as output:
        pid = shared.start("/nonexistent", output=output.fileno())["pid"]
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == spawner.CANNOT_RUN
        output.seek(0)
        assert b"cannot start /nonexistent" in output.read()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@examples(500)
@given(
    change=st.dictionaries(st.sampled_from([*GOOD, "uid", "signal"]), values, min_size=1),
    count=st.integers(0, 6),
)
def test_no_message_crashes_it(shared: Spawned, change: dict[str, Any], count: int) -> None:
    with open(os.devnull, "rb") as file:
        answer = shared.send(json.dumps({**GOOD, **change}).encode(), [file.fileno()] * count)
    if "pid" in answer:  # it was a good one
        os.waitpid(answer["pid"], 0)
    assert len(answer) == 1


@pytest.mark.long
def test_a_hundred_thousand_malformed_messages(program: Path) -> None:
    one, chance = Spawned(program), random.Random(1)
    good = json.dumps(GOOD).encode()
    before = len(os.listdir(f"/proc/{one.process.pid}/fd"))
    with open(os.devnull, "rb") as file:
        for _ in range(100_000):
            message = bytearray(good)
            for _ in range(chance.randint(1, 8)):
                message[chance.randrange(len(message))] = chance.randrange(256)
            # Whatever the change made of it, it lacks a descriptor.
            answer = one.send(bytes(message), [file.fileno()] * chance.choice((0, 1, 2, 5, 9)))
            assert answer.keys() == {"refused"}
    assert len(os.listdir(f"/proc/{one.process.pid}/fd")) == before
    assert one.run("echo lives") == "lives\n"
    one.close()


def test_one_can_audit_it_in_an_hour() -> None:
    text = Path(spawner.__file__).read_text()
    assert len(text.splitlines()) <= 300
    imported = re.findall(r"^(?:import|from) (\w+)", text, re.M)
    assert {*imported} <= sys.stdlib_module_names, "the standard library alone"


def test_what_has_ended_costs_it_nothing(shared: Spawned) -> None:
    folder = f"/proc/{shared.process.pid}/fd"
    before = len(os.listdir(folder))
    for _ in range(20):
        shared.run("true")
    until(lambda: len(os.listdir(folder)) <= before, "no descriptor of programs that ended")
    poll = select.poll()
    poll.register(shared.link, select.POLLIN)
    assert poll.poll(0) == []
