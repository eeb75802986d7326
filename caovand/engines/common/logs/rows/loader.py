"""Why the dynamic loader refuses a library that exists: rows for any engine.

After the library's name its message has the system's reason; only `No such file or directory` means
that the library is missing. On macOS dyld prints one thing a line: what it did not find, who needs
it, and the reason.
"""

from __future__ import annotations

from collections.abc import Mapping

from caovand.engines.common.logs.signature import SERVED, signature

# From the name's first character only: else each of a long word's characters is tried as the first.
_LIBRARY = r"(?<![^\s:'\"(\[])(?P<library>[^\s:'\"(\[]{1,300}\.so[\w.+-]{0,40}): "
_OPENING = r"cannot open shared object file: "
ROWS = (
    # libX.so.1: cannot open shared object file: Permission denied
    signature("loader.denied", "cause", "access-denied",
         _LIBRARY + _OPENING + r"(?:Permission denied|Operation not permitted)"),
    # /tmp/libX.so: failed to map segment from shared object: Operation not permitted
    signature("loader.mapped", "cause", "access-denied",
         _LIBRARY + r"failed to map segment from shared object: (?:Operation not|Permission)"),
    # libX.so: failed to map segment from shared object: Cannot allocate memory
    signature("loader.memory", "cause", "host-oom",
         _LIBRARY + r"(?:failed to map segment from shared object|cannot (?:create|allocate) "
         r"\w{2,10} segment\w{0,10}|" + _OPENING[:-2] + r"): Cannot allocate memory"),
    # libX.so.1: wrong ELF class: ELFCLASS32; libX.so: invalid ELF header
    signature("loader.other", "cause", "bad-arguments",
         _LIBRARY + r"(?:wrong ELF class: ELFCLASS(?P<bits>32|64)|(?P<header>invalid ELF header)"
         r"|" + _OPENING + r"Exec format error|ELF (?:load command|file)\b)", SERVED),
    # libX.so: cannot allocate memory in static TLS block
    signature("loader.tls", "cause", "bad-arguments",
         _LIBRARY + r"cannot allocate memory in static TLS", SERVED),
    # libX.so.1: cannot enable executable stack as shared object requires: Invalid argument
    signature("loader.stack", "cause", "bad-arguments",
         _LIBRARY + r"cannot enable executable stack", SERVED),
    # libX.so: cannot open shared object file: Input/output error
    signature("loader.disk", "cause", "unknown",
         _LIBRARY + r"(?:" + _OPENING[:-2] + r"|cannot read file data|cannot stat shared object): "
         r"(?P<why>Input/output error|Stale file handle|Transport endpoint is not connected"
         r"|Too many levels of symbolic links)"),
    # Referenced from: /usr/local/bin/ollama (which was built for Mac OS X 12.0)
    signature("loader.apple.old", "cause", "engine-unusable",
         r"\bbuilt for (?:Mac ?OS X|macOS) (?P<wanted>\d{1,2}(?:\.\d{1,2})?)"
         r"|Expected in: {1,3}(?:<[\w-]{1,40}> )?"
         r"(?P<system>/(?:System/Library|usr/lib)/\S{1,200})"),
    signature("loader.apple.signed", "cause", "engine-unusable",
         r"code signature in <[\w-]{1,40}> '(?P<file>[^'\s]{1,200})' not valid for use in process"
         r"|(?P<refused>code signature (?:invalid|not valid)|library load disallowed)"),
    signature("loader.apple.missing", "generic", "engine-unusable",
         r"\bLibrary not loaded: (?P<library>[^\s'\"]{1,300})"),
    signature("loader.apple.symbol", "generic", "engine-unusable",
         r"\bdyld(?:\[\d{1,7}\])?: .{0,60}Symbol not found: (?P<symbol>[^\s'\"]{1,300})"),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "loader.denied": (
        "The library {library} is there, but this user may not read it, or not pass a folder above "
        "it (in images often /root, which belongs to root): installing it again does not help. "
        "`namei -l` with its path shows which; run as the user that it was installed for, open "
        "these folders (chmod o+x, and o+r for the file), or use an image made for other users.",
    ),
    "loader.mapped": (
        "The library {library} is there, but may not be executed: its file system is mounted "
        "with noexec (often /tmp), or SELinux or AppArmor denies it. Let TMPDIR name a folder on "
        "another file system, or mount it with exec.",
    ),
    "loader.memory": (
        "There is no memory to load {library}: raise the limit of the process (`ulimit -v`, the "
        "unit's or container's memory), or free some.",
    ),
    "loader.other": (
        "{library} is a library of {bits} bits, and the program is not: the loader finds it before "
        "the right one. Remove its folder from LD_LIBRARY_PATH, or install the library for this "
        "processor.",
        "{library} begins with something else than a library does ({header}): a text in its place "
        "(a linker script, a pointer of Git LFS, a link that was copied as text), or a damaged "
        "download.",
        "Each library must be for this CPU and system, and whole: install the package that "
        "has it again, for this architecture.",
    ),
    "loader.tls": (
        "{library} was loaded too late: there is no room left for its thread-local variables. Load "
        "it first (LD_PRELOAD with its full path, or import its package before the others); a "
        "newer C library has more room.",
    ),
    "loader.stack": (
        "{library} asks for an executable stack, which this C library (2.41 and newer) or kernel "
        "refuses: install a newer release of its package, or clear the mark (patchelf "
        "--clear-execstack with its path).",
    ),
    "loader.disk": (
        "The file system of {library} cannot be read ({why}): check the disk or remount the share "
        "(`journalctl -k` has the details).",
    ),
    "loader.apple.old": (
        "The program was built for macOS {wanted} and newer, and this Mac has an older one: update "
        "macOS, or install the last release of the program that supports this macOS (its page of "
        "releases names the oldest), or build it here. Settings and other models do not help.",
        "The program needs what {system} of this macOS lacks: it was built for a newer macOS. "
        "Update macOS, or install the last release of the program that supports this one (its page "
        "of releases names the oldest), or build it here. Settings and other models do not help.",
    ),
    "loader.apple.signed": (
        "macOS does not let the program load {file}, which another team signed (Homebrew) or "
        "nobody: the program should bring its own. Install another release or backend of it (Jan: "
        "Settings, llama.cpp), or Homebrew's llama.cpp, whose parts belong together.",
        "macOS does not let the program load a library that is not signed as it demands "
        "({refused}): install the program again whole, and clear the mark of its download (xattr "
        "-dr com.apple.quarantine FOLDER).",
    ),
    "loader.apple.missing": (
        "The library {library} is missing where the program looks for it. With @rpath or @loader "
        "it belongs to the program: unpack the release whole into one folder, and start it there. "
        "Below /opt/homebrew or /usr/local/opt it is Homebrew's: brew reinstall its formula.",
    ),
    "loader.apple.symbol": (
        "A library that macOS found lacks {symbol}: library and program are of different releases, "
        "or the program is for a newer macOS (the line after it names the library). Install the "
        "program again whole, of a release for this macOS.",
    ),
}
"""Sentences by row; one with an unknown {name} is left out."""
