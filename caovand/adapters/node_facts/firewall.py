"""Which firewall is on here, as far as any user can see: its rules are root's to read."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from caovand.adapters.files import safe_files
from caovand.adapters.system import processes

ETC = Path("/etc")
MAX_BYTES = 1 << 20
_COMMENT = re.compile(r"#.*")
# Within a line's length: rules made to be slow shall not keep the daemon.
_DROPS = re.compile(r"\bhook\s+input\b[^{}]{0,200}\bpolicy\s+drop\b")


def active_firewall() -> str:
    """One of ufw, firewalld and nftables; "" where none can be seen, which proves nothing."""
    if re.search(r"(?mi)^ENABLED=yes\s*$", _text(ETC / "ufw/ufw.conf")):
        return "ufw"
    if any(process.name == "firewalld" for process in processes.all_processes()):
        return "firewalld"
    # What is loaded cannot be seen: the rules of a service that starts with the machine can.
    enabled = any((ETC / "systemd/system").glob("*.wants/nftables.service"))
    rules = _COMMENT.sub("", _text(ETC / "nftables.conf"))
    return "nftables" if enabled and _DROPS.search(rules) else ""


def _text(path: Path) -> str:
    """Read a file; "" if it is missing or closed to us."""
    with suppress(OSError):
        return safe_files.read(path, MAX_BYTES).decode(errors="replace")
    return ""
