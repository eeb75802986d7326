"""The two users of the packaged service, without a package; root creates and removes them for
tests."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from caovand.adapters.privileges.engine_user import VARIABLE
from caovand.adapters.system import processes

DAEMON, ENGINE = "caovan-test", "caovan-test-engine"
RIGHTS = "+setuid,+setgid"
LOCK = Path(tempfile.gettempdir(), "caovan-test-users.lock")
TAKEN = 9
"""useradd's exit status if the user exists, for example after a killed test."""
# Users of the packages in a machine that another test boots have numbers from 999 downwards, and
# its processes are seen here by number.
NUMBERS = ("SYS_UID_MIN=300", "SYS_UID_MAX=899", "SYS_GID_MIN=300", "SYS_GID_MAX=899")
SHARED = Path("/dev/shm")
CARDS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm")


@dataclass(frozen=True)
class Users:
    """The daemon's user and the engine user."""

    daemon: pwd.struct_passwd
    engine: pwd.struct_passwd

    def daemons_rights(self) -> tuple[str, ...]:
        """A command prefix that runs a daemon as its user, with the rights that the unit grants."""
        rights = (f"--inh-caps={RIGHTS}", f"--ambient-caps={RIGHTS}")
        return (*self._become(self.daemon), *rights, f"--bounding-set=-all,{RIGHTS}")

    def engines_rights(self) -> tuple[str, ...]:
        """A command prefix that runs a daemon as the engine user, without a separate user for
        engines."""
        return (*self._become(self.engine), "--bounding-set=-all")

    def _become(self, user: pwd.struct_passwd) -> tuple[str, ...]:
        groups = ",".join(map(str, sorted({self.engine.pw_gid, *_groups_of_cards()})))
        ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", f"--groups={groups}")
        return ("setpriv", *ids, "--no-new-privs")

    def environ(self, cache: Path) -> dict[str, str]:
        """The environment that either daemon needs."""
        own = {"CACHE_DIRECTORY": str(cache), "HOME": str(cache), "XDG_CACHE_HOME": str(cache)}
        return {**own, VARIABLE: ENGINE}

    def make_cache(self, cache: Path, like: Path) -> None:
        """Create both users' cache folder, as the package does, with a copy of the contents of
        another one."""
        if like.is_dir():
            shutil.copytree(like, cache, symlinks=True)
        cache.mkdir(exist_ok=True)
        self.own(cache)

    @contextlib.contextmanager
    def cache(self) -> Iterator[Path]:
        """A cache of both users, in a folder with a short name, removed at the end."""
        with tempfile.TemporaryDirectory(prefix="caovan-") as folder:
            Path(folder).chmod(0o755)
            (cache := Path(folder) / "cache").mkdir()
            self.own(cache)
            yield cache

    def own(self, cache: Path) -> None:
        """Give these users the cache of earlier ones."""
        owner = f"{self.engine.pw_uid}:{self.engine.pw_gid}"
        subprocess.run(["chown", "-hR", owner, str(cache)], check=True)
        cache.chmod(0o770)

    def left(self) -> list[str]:
        """Processes and shared memory that the engine user has left behind."""
        own = self.engine.pw_uid
        living = [
            str(one) for one in processes.all_processes() if not one.zombie and one.uid == own
        ]
        files = [
            str(file) for file in SHARED.iterdir() if file.lstat().st_uid == self.engine.pw_uid
        ]
        return living + files

    def runs(self, pid: int) -> bool:
        """Whether a process runs as the engine user."""
        found = processes.read(pid)
        return found is not None and found.uid == self.engine.pw_uid


def _groups_of_cards() -> set[int]:
    """The groups that may use the cards' devices, unless everybody may."""
    found = [os.stat(path) for path in CARDS if os.path.exists(path)]
    return {one.st_gid for one in found if one.st_gid and not one.st_mode & stat.S_IWOTH}


@contextlib.contextmanager
def service_users() -> Iterator[Users]:
    """Create both users, for one test on this machine at a time; skip if they cannot be created."""
    if os.getuid() != 0 or not all(map(shutil.which, ("useradd", "userdel", "setpriv"))):
        pytest.skip("needs root, useradd and setpriv")
    with contextlib.ExitStack() as undo:
        lock = undo.enter_context(open(LOCK, "ab"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in (DAEMON, ENGINE):
            words = ["useradd", "--system", "--no-create-home", "--user-group"]
            words += [word for number in NUMBERS for word in ("--key", number)] + [name]
            if subprocess.run(words, capture_output=True, check=False).returncode not in (0, TAKEN):
                pytest.skip(f"cannot make the user {name}")
            undo.callback(subprocess.run, ["userdel", name], check=False, capture_output=True)
        for gid in _groups_of_cards():
            subprocess.run(["usermod", "--append", "--groups", str(gid), ENGINE], check=True)
        yield Users(*map(pwd.getpwnam, (DAEMON, ENGINE)))


@contextlib.contextmanager
def enterable(*paths: Path) -> Iterator[None]:
    """Make the parent folders of these paths accessible to every user; undone at the end."""
    with contextlib.ExitStack() as undo:
        for path in paths:
            for folder in (*path.absolute().parents, *path.resolve().parents):
                if not (mode := folder.stat().st_mode) & stat.S_IXOTH:
                    folder.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)
                    undo.callback(folder.chmod, stat.S_IMODE(mode))
        yield
