"""Which firewall is active here, as far as any user can see: only root can read its rules."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from caovand.adapters.files import safe_files
from caovand.adapters.system import processes

ETC = Path("/etc")
MAX_BYTES = 1 << 20
_COMMENT = re.compile(r"#.*")
# Line-length limit: input crafted to be slow must not block the daemon.
_DROPS = re.compile(r"\bhook\s+input\b[^{}]{0,200}\bpolicy\s+drop\b")


def active_firewall() -> str:
    """One of ufw, firewalld and nftables; "" if none is visible, which proves nothing."""
    if re.search(r"(?mi)^ENABLED=yes\s*$", _read_text(ETC / "ufw/ufw.conf")):
        return "ufw"
    if any(process.name == "firewalld" for process in processes.all_processes()):
        return "firewalld"
    # Loaded rules are not visible, but the rules of a service that starts at boot are.
    enabled = any((ETC / "systemd/system").glob("*.wants/nftables.service"))
    rules = _COMMENT.sub("", _read_text(ETC / "nftables.conf"))
    return "nftables" if enabled and _DROPS.search(rules) else ""


def _read_text(path: Path) -> str:
    """Read a file; "" if it is missing or closed to us."""
    with suppress(OSError):
        return safe_files.read(path, MAX_BYTES).decode(errors="replace")
    return ""
