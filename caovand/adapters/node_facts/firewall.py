"""The active firewall, as far as any user can see it: only root can read its rules."""

from __future__ import annotations

import re
from pathlib import Path

from caovand.adapters.files.safe_files import read_or_empty
from caovand.adapters.system import processes

ETC = Path("/etc")
_COMMENT = re.compile(r"#.*")
# Line-length limit: input crafted to be slow must not block the daemon.
_DROPS = re.compile(r"\bhook\s+input\b[^{}]{0,200}\bpolicy\s+drop\b")


def active_firewall() -> str:
    """One of ufw, firewalld and nftables; "" if none is visible, which does not prove that none
    exists.
    """
    if re.search(r"(?mi)^ENABLED=yes\s*$", read_or_empty(ETC / "ufw/ufw.conf")):
        return "ufw"
    if any(process.name == "firewalld" for process in processes.all_processes()):
        return "firewalld"
    # Loaded rules are not visible, but the rules of a service that starts at boot are.
    enabled = any((ETC / "systemd/system").glob("*.wants/nftables.service"))
    rules = _COMMENT.sub("", read_or_empty(ETC / "nftables.conf"))
    return "nftables" if enabled and _DROPS.search(rules) else ""
