"""A service with a private /tmp does not see the machine's /tmp."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from caovand.adapters.files.private_tmp import remedy
from tests.daemon_process import ROOT

# As systemd 252 shows them to a service; the second where /tmp is a file system of its own.
ON_DISK = (
    "530 496 254:1 /tmp/systemd-private-0d7e-caovan.service-Xk3/tmp /tmp rw,nosuid shared:245"
    " master:1 - ext4 /dev/vda1 rw\n"
    "531 496 254:1 /var/tmp/systemd-private-0d7e-caovan.service-nR1/tmp /var/tmp rw - ext4 x rw\n"
)
IN_MEMORY = "530 496 0:36 /systemd-private-0d7e-caovan.service-Xk3/tmp /tmp rw - tmpfs tmpfs rw\n"
SHARED = "30 1 0:36 / /tmp rw,nosuid,nodev shared:12 - tmpfs tmpfs rw\n"


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    return tmp_path / "mountinfo"


@pytest.mark.parametrize(
    ("lines", "path", "folder"),
    [
        (ON_DISK, "/tmp/no-such/model", "/tmp"),
        (ON_DISK, "/var/tmp/no-such/engine/bin/python", "/var/tmp"),
        (IN_MEMORY, "/tmp/no-such/model", "/tmp"),
        (IN_MEMORY, "/tmp/no-such/../no-such/model", "/tmp"),
        (IN_MEMORY, "/var/tmp/no-such/model", ""),
        (SHARED, "/tmp/no-such/model", ""),
        (ON_DISK, "/srv/no-such/model", ""),
        (ON_DISK, "/tmp-2/no-such/model", ""),
        ("", "/tmp/no-such/model", ""),
        ("garbled\n\n", "/tmp/no-such/model", ""),
    ],
)
def test_only_what_the_service_alone_does_not_see_is_told(
    mounts: Path, lines: str, path: str, folder: str
) -> None:
    mounts.write_text(lines)
    told = remedy(path, mounts)
    assert (
        told.startswith(f"the service has its own {folder} (PrivateTmp)")
        if folder
        else (told == "")
    )


def test_what_is_there_needs_no_remedy(mounts: Path, tmp_path: Path) -> None:
    mounts.write_text(ON_DISK)
    assert remedy(str(tmp_path), mounts) == ""


def test_a_link_into_the_machines_tmp_is_seen_through(mounts: Path, tmp_path: Path) -> None:
    mounts.write_text(ON_DISK)
    (tmp_path / "python").symlink_to("/tmp/no-such/python3.12")
    assert "PrivateTmp" in remedy(str(tmp_path / "python"), mounts)


def test_without_a_list_of_mounts_nothing_is_told(tmp_path: Path) -> None:
    assert remedy("/tmp/no-such/model", tmp_path / "absent") == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_folder_that_is_mounted_as_systemd_does_it_is_known(tmp_path: Path) -> None:
    own = tmp_path / "systemd-private-0d7e-caovan.service-Xk3/tmp"
    own.mkdir(parents=True)
    asks = "from caovand.adapters.files.private_tmp import remedy; print(remedy('/tmp/model'))"
    ask = (  # the checkout may lie below /tmp itself
        f"mount --rbind / /mnt && cd /mnt{ROOT} && mount --bind {own} /tmp"
        f' && exec /mnt{sys.executable} -c "{asks}"'
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", ask], capture_output=True, text=True, check=False
    )
    if "not permitted" in done.stderr or "permission denied" in done.stderr:
        pytest.skip("no mount namespaces here")
    assert "the service has its own /tmp" in done.stdout, done.stderr
