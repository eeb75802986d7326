"""How a file system refuses a program, by the system's reason: rows for any engine.

Python prints the number (OSError: [Errno 37]), Go and C++ the text alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from caovand.engines.common.logs.signature import SERVED, signature

_PATH = r"(?:(?:: | )'(?P<path>[^']{1,300})')?"
ROWS = (
    # OSError: [Errno 37] No locks available
    signature("files.locks", "generic", "unknown",
         r"\[Errno (?:37|524)\]|\bNo locks available" + _PATH),
    # OSError: [Errno 122] Disk quota exceeded: '/home/user/.cache/x'
    signature("files.quota", "generic", "unknown",
         r"(?:\[Errno 122\] )?[Dd]isk quota exceeded" + _PATH),
    # rename /tmp/a /usr/share/ollama/b: invalid cross-device link
    signature("files.moved", "generic", "unknown", r"\b[Ii]nvalid cross-device link"),
    # creating file "/tmp/tiktoken-rs-cache/fb374d": Permission denied (os error 13)
    signature("files.others", "cause", "access-denied",
         r"(?:\[Errno 13\] Permission denied: ['\"]|\b(?:creating|opening|writing) "
         r"(?:file|directory) ['\"]|\b(?:mkdir|open|creat) )(?P<shared>(?:/var)?/tmp/"
         r"(?!tmp|pip-|ollama)[\w.+-]{1,80})"
         r"(?=/)[^'\"\s:]{0,300}(?:['\"]$|['\"]?: [Pp]ermission denied)"),
    # rename /mnt/models/a /mnt/models/b: read-only file system
    signature("files.readonly", "cause", "access-denied",
         r"\b(?:rename|link|symlink|open|mkdir|remove|chmod|truncate|write) (?P<path>[^\s:]{1,300})"
         r"\S{0,200}(?: \S{1,500})?: read-only file system"),
    # IsADirectoryError: [Errno 21] Is a directory: '/models/m'
    signature("files.folder", "generic", "bad-arguments",
         r"^(?:IsADirectory|NotADirectory)Error: \[Errno (?:20|21)\] "
         r"(?:(?P<folder>Is a directory)|Not a directory)" + _PATH, SERVED),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "files.locks": (
        "The file system cannot lock files, as a network share without a lock service (NFS 3): "
        "keep caches on a local disk (HF_HOME, HF_MODULES_CACHE, XDG_CACHE_HOME, "
        "TRITON_CACHE_DIR, VLLM_CACHE_ROOT), or mount the share with NFS 4, or with local locks "
        "(nolock, local_lock=all).",
    ),
    "files.quota": (
        "The user's quota on the file system is used up: delete old files (`quota -s`, du), or put "
        "caches and models elsewhere (HF_HOME, XDG_CACHE_HOME, OLLAMA_MODELS).",
    ),
    "files.moved": (
        "A file cannot be moved from one file system to another, which this release tries: let its "
        "temporary folder (TMPDIR of the server) be on the same file system as the target, or "
        "install a newer release, which copies it.",
    ),
    "files.others": (
        "The folder {shared} belongs to another user of this machine, or to another container "
        "that shares it: programs use one such folder below /tmp for all users. Let this user have "
        "its own: set TMPDIR to a folder that it may write, or the variable of the program "
        "(TIKTOKEN_RS_CACHE_DIR, TIKTOKEN_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR, RAY_TMPDIR); or "
        "have its owner delete it or open it (chmod -R a+rwX {shared}).",
    ),
    "files.readonly": (
        "{path} may not be written: its file system is mounted read-only, or the unit's sandbox "
        "leaves it so (ProtectSystem=). Add the folder to ReadWritePaths= of the unit (on NixOS "
        "the service's own option for its models), or mount it for writing.",
    ),
    "files.folder": (
        "{path} is a folder where a file is needed: name the file in it.",
        "A path leads through a file, or names a folder for a file: correct it.",
    ),
}
"""Sentences by row; one with an unknown {name} is left out."""
