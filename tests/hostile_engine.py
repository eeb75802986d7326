"""Ten things that an engine's code may try against its daemon, and what it needs for its work.

As a program, in an engine's process: `hostile_engine.py DAEMON_PID FOLDER`, where `FOLDER` has the
daemon's folders and keys. It prints which of them it could do, as a JSON object.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
ASK = b'{"v":1,"id":"1","op":"status","args":{}}\n'
PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}[os.uname().machine]


def _reads_memory(daemon: int, folder: Path) -> bool:
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{daemon}/maps").read_text()
        with open(f"/proc/{daemon}/mem", "rb") as memory:
            memory.seek(int(maps.split("-")[0], 16))
            return bool(memory.read(8))
    here = ctypes.create_string_buffer(8)
    vector = (ctypes.c_void_p * 2)(ctypes.addressof(here), 8)
    call = ctypes.CDLL(None, use_errno=True).syscall
    # Where nothing is mapped the kernel says EFAULT, but only to whom it lets in.
    done = call(PROCESS_VM_READV, daemon, vector, 1, vector, 1, 0)
    return done >= 0 or os.strerror(ctypes.get_errno()) == "Bad address"


def _writes_memory(daemon: int, folder: Path) -> bool:
    with open(f"/proc/{daemon}/mem", "r+b"):
        return True


def _ends_it(daemon: int, folder: Path) -> bool:
    ways: list[Callable[[], object]] = [
        lambda: os.kill(daemon, 0),
        lambda: signal.pidfd_send_signal(os.pidfd_open(daemon), 0),
        lambda: resource.prlimit(
            daemon, resource.RLIMIT_CORE, resource.prlimit(daemon, resource.RLIMIT_CORE)
        ),
    ]
    return any(map(_succeeds, ways))


def _uses_control(daemon: int, folder: Path) -> bool:
    sockets = [("run/control", ASK), ("run/control", GREETING), ("run/inner/control", GREETING)]
    return any(_answers(folder / name, words) for name, words in sockets)


def _gets_key_of_page(daemon: int, folder: Path) -> bool:
    return any(_answers(folder / "run" / name, ASK) for name in ("page", "gateway"))


def _replaces_sockets(daemon: int, folder: Path) -> bool:
    place = folder / "run/status"
    place.rename(place.with_name("theirs"))
    place.with_name("theirs").rename(place)
    return True


def _writes_state(daemon: int, folder: Path) -> bool:
    return _writes(folder / "state")


def _writes_logs(daemon: int, folder: Path) -> bool:
    with open(folder / "log/engine.log", "ab"):
        return True


def _reads_api_key(daemon: int, folder: Path) -> bool:
    return bool((folder / "api.key").read_text())


def _reads_cluster_key(daemon: int, folder: Path) -> bool:
    return bool((folder / "keys/cluster.key").read_text())


HOSTILE = {
    "read its memory": _reads_memory,
    "write its memory": _writes_memory,
    "end it": _ends_it,
    "use control": _uses_control,
    "take the key from the page's socket": _gets_key_of_page,
    "replace sockets": _replaces_sockets,
    "write state": _writes_state,
    "write logs": _writes_logs,
    "read the API key's file": _reads_api_key,
    "read cluster.key": _reads_cluster_key,
}
NEEDED: dict[str, Callable[[int, Path], bool]] = {
    "write the cache": lambda daemon, folder: _writes(folder / "cache"),
    "write its temporary folder": lambda daemon, folder: _writes(Path(tempfile.gettempdir())),
    "share memory": lambda daemon, folder: _writes(Path("/dev/shm")),
    "rename between folders": lambda daemon, folder: _moves(folder / "cache"),
    "read /usr, /sys and itself": lambda daemon, folder: all(
        os.listdir(place) for place in ("/", "/usr/lib", "/sys/devices", "/proc/self/fd")
    ),
    "signal its own": lambda daemon, folder: os.kill(os.getppid(), 0) is None,
    "name a thread of its child's, as CUDA does": lambda daemon, folder: _names_threads(),
    "use devices": lambda daemon, folder: bool(open("/dev/null", "r+b")),  # noqa: SIM115
}


def _writes(folder: Path) -> bool:
    with tempfile.TemporaryFile(dir=folder) as file:
        return bool(file.write(b"x"))


def _names_threads() -> bool:
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError):
            Path(f"/proc/self/task/{os.getpid()}/comm").write_text("cuda00001400006")
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _moves(cache: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=cache) as one:
        (Path(one) / "from").write_text("x")
        (Path(one) / "from").rename(cache / "moved")
        (cache / "moved").unlink()
        return True


def _answers(place: Path, words: bytes) -> bool:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(5)
        with contextlib.suppress(OSError):
            link.connect(str(place))
            link.sendall(words)
            return bool(link.recv(16))
    return False


def _succeeds(way: Callable[[], object]) -> bool:
    with contextlib.suppress(OSError, ValueError):
        way()
        return True
    return False


def tried(daemon: int, folder: Path) -> dict[str, bool]:
    """Which of the things an engine could do; blocking."""
    found = {}
    for name, attempt in {**HOSTILE, **NEEDED}.items():
        found[name] = False
        with contextlib.suppress(OSError):
            found[name] = attempt(daemon, folder)
    return found


if __name__ == "__main__":
    result = json.dumps(tried(int(sys.argv[1]), Path(sys.argv[2])))
    print(re.sub(r"\s+", " ", result), flush=True)
