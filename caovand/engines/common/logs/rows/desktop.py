"""Why a desktop program that brings an engine (LM Studio, Jan, Msty) does not open on Linux: rows
for every engine.

They are AppImages and made with Electron, whose own parts print these texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.engines.common.logs.signature import signature

_TEXTS = (
    r"error loading libfuse\.so|AppImages require FUSE to run|SUID sandbox helper binary was found"
    r"|No usable sandbox!|Missing X server or \$DISPLAY|spawn /tmp/\.mount_\S{1,100} ENOENT"
    r"|cannot open display: "
)
_RAW = re.compile(rf".{{0,200}}?(?:{_TEXTS})")
ROWS = (
    signature("desktop.fuse", "cause", "engine-unusable",
         r"error loading libfuse\.so|AppImages require FUSE to run"),
    signature("desktop.sandbox", "cause", "access-denied",
         r"SUID sandbox helper binary was found|No usable sandbox!"),
    signature("desktop.display", "cause", "engine-unusable",
         r"Missing X server or \$DISPLAY|cannot open display: "),
    signature("desktop.gone", "cause", "engine-unusable",
         r"spawn (?P<mount>/tmp/\.mount_[^\s/]{1,60})\S{0,100} ENOENT"),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "desktop.fuse": (
        "An AppImage needs FUSE 2, which newer distributions leave out: install it (Ubuntu 24.04 "
        "and newer: apt install libfuse2t64; before, and Debian: libfuse2; Fedora: fuse-libs; "
        "Arch: fuse2), or unpack it (./FILE.AppImage --appimage-extract, then squashfs-root/AppRun"
        ").",
    ),
    "desktop.sandbox": (
        "The system does not let the program make its sandbox (Ubuntu 24.04 restricts user "
        "namespaces): start it with --no-sandbox, install its .deb package in place of the "
        "AppImage, or allow it: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0. An "
        "unpacked one works, too, once its chrome-sandbox belongs to root (mode 4755).",
    ),
    "desktop.display": (
        "The program opens a window and there is no screen: on a server take its version without "
        "one (LM Studio: the daemon llmster with `lms`; others: Ollama or llama-server), or give "
        "it a virtual screen (apt install xvfb; xvfb-run ./FILE.AppImage --no-sandbox).",
    ),
    "desktop.gone": (
        "{mount} is where a running AppImage was unpacked, and it runs no longer: start the "
        "application once more, and leave it open. To use its command line without it, unpack the "
        "AppImage for good (--appimage-extract) and start it from there once, or install the .deb "
        "package.",
    ),
}
"""Sentences by row."""


def is_raw(line: str) -> bool:
    """Whether a line is of an AppImage's or Electron's own parts."""
    return bool(_RAW.match(line))
