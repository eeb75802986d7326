"""Limits of the system that any program runs into: rows for every engine."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.engines.common.logs.signature import signature

_PROGRAM = (
    r"(?:[\w./-]{0,200}/)?(?:vllm|sglang|ollama|llama-\w{1,20}|python[\d.]{0,4}|ray|torchrun)"
)
"""Programs that start an engine: a shell that misses another program does not end one."""
ROWS = (
    signature("system.files", "cause", "unknown",
         r"(?:Error|error|failed|panic|accept4?|FATAL|fatal).{0,200}\b[Tt]oo many open files"
         r"|std::system_error.{0,60}Too many open files"),
    signature("system.threads", "cause", "unknown",
         r"RuntimeError: can't start new thread|\b[Tt]hread creation failed"
         r"|pthread_create(?:\(\))? failed|failed to create new OS thread"
         r"|BlockingIOError: \[Errno 11\] Resource temporarily unavailable"
         r"|unable to (?:create|start) (?:new )?(?:native )?thread"),
    signature("system.program", "cause", "engine-unusable",
         rf"sh: (?:(?:line )?\d{{1,4}}: )?(?P<program>{_PROGRAM}): (?:command )?not found"
         r"|executable file [`'](?P<sought>[^`']{1,200})[`'] not found in \$PATH"
         r"|(?P<init>catatonit)\b.{0,20}: failed to exec pid1: No such file"
         r"|exec: \"(?P<started>(?!-)[^\"]{1,200})\": (?:executable file not found"
         r"|(?:stat )?[^\":]{0,200}: no such file)"),
    signature("system.execute", "cause", "access-denied",
         rf"sh: (?:(?:line )?\d{{1,4}}: )?(?P<program>{_PROGRAM}|/[\w./-]{{1,200}}): "
         r"[Pp]ermission denied"
         r"|exec: \"(?P<started>[^\"]{1,200})\": (?:[^\":]{0,200}: )?permission denied"),
    # A container may run as a numeric user without a name
    signature("system.user", "cause", "access-denied",
         r"getpwuid\(\): uid not found: (?P<uid>\d{1,10})"),
    signature("system.readonly", "cause", "access-denied",
         r"(?:\[Errno 30\] |\(os error 30\)|std::filesystem.{0,200})Read-only file system"
         r"(?:: '(?P<path>[^']{1,300})')?|Read-only file system \(os error 30\)"),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "system.files": (
        "The process may not open more files; each connection and each worker takes some. Raise "
        "the limit: `ulimit -n 65536`, LimitNOFILE= of its unit, or docker --ulimit "
        "nofile=65536:65536.",
    ),
    "system.threads": (
        "The user, unit or container may not start more threads: raise `ulimit -u`, TasksMax= of "
        "the unit, or docker --pids-limit; or let libraries start fewer (OMP_NUM_THREADS=8, "
        "OPENBLAS_NUM_THREADS=8).",
    ),
    "system.program": (
        "There is no program {program} on the PATH of this user or unit: use its full path, or "
        "activate the environment that it is installed in.",
        "The image has no program {started}: correct the command or the entrypoint, or use the "
        "image with the engine.",
        "The image has no program {sought}: what follows the image's name is the command to run, "
        "so that options belong before that name; or use the image with the engine.",
        "The image lacks the program that the command names ({init} only reports it): pull the "
        "image of the release that the tool expects, or correct the command.",
    ),
    "system.execute": (
        "The user may not execute {program}: a folder above it or the interpreter of its first "
        "line is closed to this user (OpenShift runs images as an arbitrary user). Install it "
        "where every user can read, or run it as the user it was installed for.",
        "The container's user may not execute {started}: correct its permissions in the image, or "
        "run the container as another user.",
    ),
    "system.user": (
        "The container runs as user {uid}, which has no name and no home in it: set USER, HOME and "
        "TORCHINDUCTOR_CACHE_DIR to a folder that this user can write, or run it as a user that "
        "exists in the image.",
    ),
    "system.readonly": (
        "{path} is in a file system that is mounted read-only, as in a container with a read-only "
        "root or a model folder mounted with :ro. Mount it for writing, or set writable folders "
        "(HF_HOME, XDG_CACHE_HOME, TRITON_CACHE_DIR, VLLM_CACHE_ROOT).",
        "A file system is mounted read-only: mount it for writing, or set writable folders "
        "(HF_HOME, XDG_CACHE_HOME, TRITON_CACHE_DIR, VLLM_CACHE_ROOT).",
    ),
}
