"""A fresh Debian as a layer over a base, in name spaces of its own but for the network."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.patience import until

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# $1 is the base, $2 the layer's folder, what follows are paths to see there as they are here.
ENTER = """
set -e
base=$1 work=$2 root=$2/root
shift 2
mount --make-rprivate /
mkdir -p "$root" "$work/upper" "$work/work"
mount -t overlay overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/work" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
for path; do
    mkdir -p "$root${path%/*}"
    [ ! -d "$path" ] || mkdir -p "$root$path"
    [ -e "$root$path" ] || touch "$root$path"
    mount --bind "$path" "$root$path"
done
exec chroot "$root" sleep infinity
"""
SEEN = ("/etc/hosts", "/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt")


class BareRoot:
    """A root over `base` that processes can be started in; it ends with all of them."""

    def __init__(self, base: Path, seen: Iterable[str], environ: Mapping[str, str]) -> None:
        self._work = tempfile.TemporaryDirectory(prefix="caovan-bare-")
        self._environ, self.base = environ, base
        name_spaces = ["--mount", "--pid", "--fork", "--uts", "--ipc", "--kill-child"]
        self.seen = [path for path in (*SEEN, *seen) if os.path.exists(path)]
        self._holder = subprocess.Popen(
            [
                "unshare",
                *name_spaces,
                "sh",
                "-c",
                ENTER,
                "sh",
                str(base),
                self._work.name,
                *self.seen,
            ]
        )
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self._first = int(until(children.read_text, "the first process").split()[0])
        until(self._is_there, "the root")

    def _is_there(self) -> bool:
        assert self._holder.poll() is None
        return Path(f"/proc/{self._first}/comm").read_text().strip() == "sleep"

    @property
    def path(self) -> Path:
        """The root as its processes see it."""
        return Path(f"/proc/{self._first}/root")

    @property
    def written(self) -> Path:
        """What was written there since it is a layer of its own."""
        return Path(self._work.name, "upper")

    def command(self, line: str, folder: str) -> list[str]:
        """`line` for a shell of root's there, as a command."""
        variables = {"HOME": "/root", "PATH": PATH, "TERM": "xterm", **self._environ}
        words = [f"{name}={value}" for name, value in variables.items()]
        # nsenter waits for what it starts: a Ctrl-C is for that alone.
        enter = ["env", "--ignore-signal=INT", "nsenter", "-t", str(self._first)]
        inside = ["env", "-i", "--default-signal=INT", *words, "sh", "-c"]
        script = f"cd {shlex.quote(folder)} && {line}"
        return [*enter, "-m", "-p", "-u", "-i", "-r", "-w", "--", *inside, script]

    def close(self) -> None:
        """End everything there, and forget it."""
        self._holder.kill()
        self._holder.wait()
        self._work.cleanup()
