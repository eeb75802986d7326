"""Limits of the system that any program runs into: rows for every engine."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.engines.common.signature import signature

ROWS = (
    signature("system.files", "cause", "unknown",
         r"(?:Error|error|failed|panic|accept4?|FATAL|fatal).{0,200}\b[Tt]oo many open files"
         r"|std::system_error.{0,60}Too many open files"),
    signature("system.threads", "cause", "unknown",
         r"RuntimeError: can't start new thread|\b[Tt]hread creation failed"
         r"|pthread_create(?:\(\))? failed|failed to create new OS thread"
         r"|BlockingIOError: \[Errno 11\] Resource temporarily unavailable"
         r"|unable to (?:create|start) (?:new )?(?:native )?thread"),
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
    "system.readonly": (
        "{path} lies in a file system that is mounted read-only, as in a container with a read-"
        "only root or a model folder mounted with :ro. Mount it for writing, or name folders that "
        "can be written (HF_HOME, XDG_CACHE_HOME, TRITON_CACHE_DIR, VLLM_CACHE_ROOT).",
        "A file system is mounted read-only: mount it for writing, or name folders that can be "
        "written (HF_HOME, XDG_CACHE_HOME, TRITON_CACHE_DIR, VLLM_CACHE_ROOT).",
    ),
}
