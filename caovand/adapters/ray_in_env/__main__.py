"""Run by an engine's own Python: Ray on one node of a cluster, and on the head vLLM over it.

    ENGINE/bin/python ray_in_env --address HOST:PORT --own IP --cards N [-- COMMAND ...]

The node with rank 0 has the COMMAND and becomes Ray's head at the address; the others join it
there. The COMMAND is started once all nodes have joined with their cards (joined.py). When either
exits, both are stopped: the COMMAND, then Ray. The output of the actors on this node is printed
here, and not sent to the head.

CAOVAN_RAY_NODES has the addresses of all nodes, only on the head. This program must not import
anything of caovan.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

JOINED = Path(__file__).with_name("joined.py")
JOIN_S = 120.0
"""Seconds from the start until all nodes must have joined."""
LOOK_S = 0.2
STORE_BYTES = 256 << 20
"""The size of Ray's object store: vLLM's ranks exchange only their configuration through it."""
MAX_FOLDER = 43
"""Ray puts a socket below its folder, which takes 64 more bytes; a socket's path has at most
107."""
PIECE_BYTES = 1 << 20
QUIET_VARIABLES: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "warning",
    # Ray would kill a rank if memory is short, which is up to the kernel and the daemon.
    "RAY_memory_monitor_refresh_ms": "0",
}
MARKS = (b":job_id:", b":actor_name:", b":task_name:")
"""Prefixes of lines that Ray writes into an actor's output for its own reader."""
PR_SET_PDEATHSIG = 1


class StopRequested(Exception):
    """A signal has requested this program to exit."""


class ProgramInGroup:
    """A program in its own process group, which gets the signal `alone` when this one is gone."""

    def __init__(
        self, words: Sequence[str], env: Mapping[str, str], alone: signal.Signals = signal.SIGTERM
    ) -> None:
        libc = ctypes.CDLL(None)

        def tie() -> None:
            os.setpgid(0, 0)
            libc.prctl(PR_SET_PDEATHSIG, alone)

        self._alone = alone
        self._process = subprocess.Popen(
            words,
            env={**QUIET_VARIABLES, **env},
            cwd="/",
            preexec_fn=tie,  # noqa: PLW1509  (this program has no threads)
        )

    @property
    def status(self) -> int | None:
        """Its exit status in a shell's notation; None while it runs."""
        status = self._process.poll()
        return status if status is None or status >= 0 else 128 - status

    def end(self) -> None:
        """End it with its group; the caller that ends this program limits the time."""
        if self.status is None:
            self._process.send_signal(self._alone)
            self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


class ActorOutput:
    """The output of the actors on this node, in Ray's log folder."""

    def __init__(self, folder: Path) -> None:
        self._logs = folder / "session_latest" / "logs"
        self._files: dict[Path, BinaryIO] = {}

    def pass_on(self, *, whole: bool = True) -> None:
        """Print new output; only complete lines if `whole`."""
        for path in self._list_files():
            # it is gone again, or there is no descriptor for now
            with contextlib.suppress(OSError):
                self._open(path)
        for file in self._files.values():
            print_new(file, whole=whole)
        sys.stdout.flush()

    def _list_files(self) -> list[Path]:
        """The existing files; none if the folder cannot be listed for now."""
        try:
            return [*self._logs.glob("worker-*.out"), *self._logs.glob("worker-*.err")]
        except OSError:
            return []

    def _open(self, path: Path) -> None:
        """Open a file that is new, or that replaced another. Raises OSError."""
        before = self._files.get(path)
        if before is not None and os.path.samestat(os.fstat(before.fileno()), path.stat()):
            return
        self._files[path] = path.open("rb")
        if before is not None:
            print_new(before, whole=False)
            before.close()


def print_new(file: BinaryIO, *, whole: bool) -> None:
    """Print a file's new content; only complete lines if `whole`."""
    at = file.tell()
    while data := file.read(PIECE_BYTES):
        kept = data[: data.rfind(b"\n") + 1] or (b"" if whole else data)
        kept = kept or (data if len(data) == PIECE_BYTES else b"")
        for line in kept.splitlines(keepends=True):
            if not line.startswith(MARKS):
                sys.stdout.buffer.write(line)
        at += len(kept)
        file.seek(at)
        if not kept:
            break


def main() -> int:
    """Run both programs; return the exit status of the one that exits first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--own", required=True)
    parser.add_argument("--cards", required=True)
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    if importlib.util.find_spec("ray") is None:
        say("ModuleNotFoundError: No module named 'ray'")
        return 1
    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    folder = make_folder()
    running: list[ProgramInGroup] = []
    printed = ActorOutput(folder)
    try:
        return run(options, folder, running, printed)
    except StopRequested:
        return 0
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for program in reversed(running):
            program.end()
        printed.pass_on(whole=False)
        shutil.rmtree(folder, ignore_errors=True)


def run(
    options: argparse.Namespace,
    folder: Path,
    running: list[ProgramInGroup],
    printed: ActorOutput,
) -> int:
    """Start this node's programs, each once it is `running`, and wait for the first to exit."""
    host, _, port = options.address.rpartition(":")
    try:
        host = socket.gethostbyname(host)
    except (OSError, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        say(
            f"RayNodeError: cannot join Ray's head at {host}: it has no IPv4 address here"
            f" ({reason})"
        )
        return 1
    where = ["--head", f"--port={port}", "--include-dashboard=false"]
    if not options.command:
        wait_for(host, int(port))
        where = [f"--address={host}:{port}"]
    ray = ProgramInGroup(
        [
            sys.executable, "-m", "ray.scripts.scripts", "start", *where,
            f"--node-ip-address={options.own}", f"--num-gpus={options.cards}", "--num-cpus=1",
            f"--object-store-memory={STORE_BYTES}", f"--temp-dir={folder}", "--block",
            "--include-log-monitor=false", "--disable-usage-stats",
            # Ports that the kernel chooses: Ray's own might collide with a server's.
            "--min-worker-port=0", "--max-worker-port=0",
        ],
        os.environ,
        # On a graceful stop it would wait half a minute for its actors.
        signal.SIGKILL,
    )  # fmt: skip
    running.append(ray)
    if options.command:
        address = {"RAY_ADDRESS": f"{host}:{port}"}
        nodes = os.environ["CAOVAN_RAY_NODES"]
        words = [sys.executable, str(JOINED), nodes, options.cards, str(JOIN_S)]
        joined = ProgramInGroup(words, {**os.environ, **address})
        running.append(joined)
        if wait_for_first(running, printed) is joined and joined.status == 0:
            running[-1] = ProgramInGroup(options.command, {**os.environ, **address})
        elif joined.status is not None:
            return 1
    ended = wait_for_first(running, printed)
    if ended is not ray:
        return ended.status or 0
    say(f"RayNodeError: Ray on this node exited (exit status {ray.status})")
    return 1


def wait_for_first(running: Sequence[ProgramInGroup], printed: ActorOutput) -> ProgramInGroup:
    """Wait until one of these has exited, printing the actors' output."""
    while True:
        printed.pass_on()
        for program in reversed(running):
            if program.status is not None:
                return program
        time.sleep(LOOK_S)


def wait_for(host: str, port: int) -> None:
    """Wait until Ray's head listens; raise SystemExit if it does not in time."""
    say(f"waiting for Ray's head at {host}:{port}")
    deadline = time.monotonic() + JOIN_S
    while True:
        try:
            socket.create_connection((host, port), LOOK_S * 10).close()
            return
        except OSError as problem:
            if time.monotonic() > deadline:
                reason = problem.strerror or str(problem)
                say(f"RayNodeError: cannot join Ray's head at {host}:{port}: {reason}")
                raise SystemExit(1) from None
            time.sleep(LOOK_S)


def make_folder() -> Path:
    """A private folder whose path leaves room for the names of Ray's sockets.

    It is in the temporary folder, which the daemon empties, or else in /tmp under a name that the
    next launcher knows: a killed one leaves it behind. A confined launcher creates none in a /tmp
    that has folders of the daemon's, but one in /var/tmp.
    """
    usual = tempfile.gettempdir()
    if len(os.fsencode(usual)) + len("/ray-12345678") <= MAX_FOLDER:
        return Path(tempfile.mkdtemp(prefix="ray-", dir=usual))
    name = f"caovan-ray-{zlib.crc32(os.fsencode(usual)):08x}"
    with contextlib.suppress(PermissionError):
        return _try_make(Path("/tmp", name))
    return _try_make(Path("/var/tmp", name))


def _try_make(place: Path) -> Path:
    with contextlib.suppress(OSError):
        if place.lstat().st_uid == os.getuid():
            shutil.rmtree(place)
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:  # another user's, or it cannot be removed
        return Path(tempfile.mkdtemp(prefix="ray-", dir=place.parent))
    return place


def say(text: str) -> None:
    """Print a line for the log."""
    print(text, flush=True)


def ask(*_: object) -> None:
    """Handle a signal."""
    raise StopRequested


if __name__ == "__main__":
    raise SystemExit(main())
