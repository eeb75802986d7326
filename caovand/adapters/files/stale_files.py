"""Remove the stale files of a killed engine.

vLLM and its libraries put sockets and scratch files into the temporary folder and shared memory
into /dev/shm; a killed process removes neither. So the engine gets its own temporary folder, which
is emptied after each end. Shared memory that its processes use and that is newer than they are is
recorded in a ledger while they live, for the next daemon too, and removed once no process uses it.
System V segments are removed as well if engines have their own user.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from caovand.adapters.files import emptying, state_file
from caovand.adapters.privileges import engine_user
from caovand.adapters.privileges.engine_user import as_engine
from caovand.core import limits
from caovand.core.document import PartReader, listed, read_or_none, record, string

SHARED = Path("/dev/shm")
# A socket's path has at most 107 bytes; the longest name that libraries use in the folder has 37.
MAX_FOLDER = 64
SEGMENTS = "/proc/sysvipc/shm"
IPC_RMID = 0
MAX_POLLS = 3  # number of checks until a file counts as another's
FileId = tuple[int, int]
"""Its device and its inode: a container has its own /dev/shm, with the same inodes."""


class StaleFiles:
    """The temporary folder of the engine and its shared memory; methods may block on a disk.

    The folder's name is derived from `mark`, or else from the ledger's path.
    """

    def __init__(
        self,
        places: Iterable[Path],
        ledger: Path,
        shared: Path = SHARED,
        proc: Path = Path("/proc"),
        mark: Path | None = None,
    ) -> None:
        # Daemons may share a cache, never a ledger: the folder to empty must be ours alone.
        name = f"tmp-{zlib.crc32(os.fsencode((mark or ledger).absolute())):08x}"
        short = (place / name for place in places)
        self.folder = next((f for f in short if len(os.fsencode(f)) <= MAX_FOLDER), None)
        self.made = False
        """Whether the folder exists for the engine."""
        self._ledger, self._shared, self._proc = ledger, shared, proc
        self._before: frozenset[str] = frozenset()
        self._looks: Counter[str] = Counter()
        self._ours: frozenset[str] = frozenset()
        self._recorded = False

    def begin(self) -> None:
        """Prepare an engine's start: remove an earlier one's files and create the folder."""
        self.remove()
        self._before, self._looks = frozenset(self._files()), Counter()
        self._recorded = False
        self.made = False
        if self.folder is not None:
            with contextlib.suppress(OSError):
                as_engine(make_folder, str(self.folder))
                self.made = True

    def take_over(self, pids: Iterable[int]) -> None:
        """Continue the ledger of a killed daemon, and record what these processes use."""
        if written := self._read_ledger():
            self._before, self._ours = written
            self.look(pids)

    def look(self, pids: Iterable[int]) -> None:
        """Record the shared memory of the engine's processes that is newer than they are."""
        files = self._files()
        # Checking another's file again and again costs time.
        known = self._before | self._ours
        fresh = {name for name in files if name not in known and self._looks[name] < MAX_POLLS}
        if not self._recorded:
            self._write()
        if not fresh:
            return
        used: set[FileId] | None = None
        with limits.suppress_absent():
            used = self._used_by(pids)
        if used is None:  # the answer is missing: try the next time
            return
        self._looks.update(fresh)
        if new := {name for name in fresh if files[name] in used}:
            self._ours |= new
            self._write()

    def remove(self) -> tuple[str, ...]:
        """Remove the files of dead engines; return those that could not be removed."""
        files, left = self._files(), list[str]()
        written = self._read_ledger()
        if ours := (self._ours | (written[1] if written else frozenset())) & files.keys():
            everybody = [int(entry) for entry in os.listdir(self._proc) if entry.isdigit()]
            with limits.suppress_absent():
                used = self._used_by(everybody)
                unused = sorted(name for name in ours if files[name] not in used)
                paths = [str(self._shared / name) for name in unused]
                # An earlier release ran engines as our own user.
                own = list(filter(_is_own, paths))
                left += emptying.remove_all(own)
                left += as_engine(emptying.remove_all, [path for path in paths if path not in own])
        if self.folder is not None:
            with contextlib.suppress(OSError):
                left += as_engine(emptying.empty, str(self.folder))
        if engine_user.current() is not None:
            with contextlib.suppress(OSError):
                as_engine(remove_unused_segments)
        self._ours = frozenset()
        with contextlib.suppress(OSError):
            self._ledger.unlink(missing_ok=True)
        return tuple(left)

    def _write(self) -> None:
        names = {"before": sorted(self._before), "ours": sorted(self._ours)}
        with contextlib.suppress(OSError):
            state_file.write(self._ledger, names)
            self._recorded = True

    def _read_ledger(self) -> tuple[frozenset[str], frozenset[str]] | None:
        """The ledger's two lists: names from before the engine, and the engine's."""
        known = read_or_none(_LEDGER, state_file.read_or_none(self._ledger))
        return (frozenset(known["before"]), frozenset(known["ours"])) if known else None

    def _files(self) -> dict[str, FileId]:
        """The files in the shared folder, by name."""
        with limits.suppress_absent(), os.scandir(self._shared) as entries:
            device = os.stat(self._shared).st_dev
            return {entry.name: (device, entry.inode()) for entry in entries}
        return {}

    def _used_by(self, pids: Iterable[int]) -> set[FileId]:
        """Files in the shared folder that processes map or have open."""
        arguments = (str(self._shared), str(self._proc), list(pids))
        identities = as_engine(used_by, *arguments)
        # Of an engine that an earlier release started, only the daemon's user may see them.
        if engine_user.current() is not None:
            identities += used_by(*arguments)
        return {(device, inode) for device, inode in identities}


def used_by(shared: str, proc: str, pids: Iterable[int]) -> list[FileId]:
    """Files in a folder that processes readable for our user map or have open.

    Not by name: a semaphore is created under a temporary name, and /proc shows that one.
    """
    prefix = f"{shared}/"
    used: set[FileId] = set()
    for folder in (Path(proc) / str(pid) for pid in pids):
        with limits.suppress_absent(), open(folder / "maps", errors="replace") as maps:
            used |= {_parse_mapping(line) for line in maps if prefix in line}
        with limits.suppress_absent():
            for entry in os.listdir(folder / "fd"):
                with limits.suppress_absent():
                    if os.readlink(folder / "fd" / entry).startswith(prefix):
                        seen = os.stat(folder / "fd" / entry)
                        used.add((seen.st_dev, seen.st_ino))
    return list(used)


def make_folder(folder: str) -> None:
    """Create a folder of our user's alone; a link there, which an engine made, is removed."""
    place = Path(folder)
    if place.is_symlink():
        place.unlink()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)


def _is_own(path: str) -> bool:
    with limits.suppress_absent():
        return os.lstat(path).st_uid == os.getuid()
    return False


def is_ledger(document: Any) -> bool:
    """Whether this document is a ledger of the engine's shared memory."""
    return read_or_none(_LEDGER, document) is not None


_LEDGER: PartReader[dict[str, tuple[str, ...]]] = record(
    dict, dict.fromkeys(("before", "ours"), listed(string())), may_have_more=True
)


def _parse_mapping(line: str) -> FileId:
    """The file in a line of /proc/PID/maps: addresses, rights, offset, device, inode, path."""
    device, inode = line.split(None, 5)[3:5]
    major, minor = (int(number, 16) for number in device.split(":"))
    return os.makedev(major, minor), int(inode)


def remove_unused_segments(listing: str = SEGMENTS) -> None:
    """Remove our user's segments of System V, which have no file.

    Those that no process is attached to, and whose creator has ended.
    Only for a user that runs nothing but engines: nothing distinguishes another program's segments.
    """
    libc = ctypes.CDLL(None)
    with limits.suppress_absent(), open(listing, encoding="ascii", errors="replace") as lines:
        names = next(lines, "").split()
        for line in lines:
            segment = dict(zip(names, map(int, line.split()), strict=False))
            # If its creator lives, someone may attach to it in a moment.
            if (
                segment["uid"] == segment["cuid"] == os.geteuid()
                and segment["nattch"] == 0
                and not os.path.exists(f"/proc/{segment['cpid']}")
            ):
                libc.shmctl(segment["shmid"], IPC_RMID, None)
