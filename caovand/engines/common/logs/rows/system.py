"""Limits of the system and libraries it lacks, for any program: rows for every engine."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.engines.common.logs.rows import loader
from caovand.engines.common.logs.signature import SERVED, signature

_PROGRAM = (
    r"(?:[\w./-]{0,200}/)?(?:vllm|sglang|ollama|llama-\w{1,20}|python[\d.]{0,4}|ray|torchrun)"
)
"""Programs that start an engine: a shell that misses another program does not end one."""
_WRITTEN = (
    r"[^']{0,300}/(?:\.(?:cache|config|triton|nv|local|cuda|flashinfer|vllm|sglang|ollama|modelscope"
    r"|EasyOCR)|(?:torchinductor|triton|flashinfer|outlines|tiktoken|huggingface|hf|vllm|sglang"
    r"|xdg|inductor|numba|matplotlib)_?\w{0,10}[_-]?(?:cache|root|home)|torchinductor_\w{1,40}"
    r"|flashinfer|nonexistent|locks)(?:/(?![^']{0,300}\.(?:json|safetensors|bin|gguf|model|txt|py"
    r"|so|pth?|jinja)')[^']{0,300})?"
)
"""Folders that programs create and write: caches and settings below a home."""
_NOT_FOUND = r"(?:\.\d{1,4}){0,3}: cannot open shared"
ROWS = (
    signature("system.files", "cause", "unknown",
         r"(?:Error|error|failed|panic|accept4?|FATAL|fatal).{0,200}\b[Tt]oo many open files"
         r"|std::system_error.{0,60}Too many open files"),
    *loader.ROWS,
    # Shared libraries of distributions, not of an engine or of CUDA; their packages are named
    # after library and version
    signature("system.library", "cause", "bad-arguments",
         r"(?:^|[ \[(:'\"/])(?P<library>"
         r"(?P<gl>lib(?:GL|EGL|GLX|OpenGL)\.so)|(?P<x11>lib(?:SM|ICE|Xext|Xrender|X11)\.so)"
         r"|(?P<glib>lib(?:glib|gthread|gobject|gio)-2\.0\.so)"
         r"|(?P<media>lib(?:av(?:util|codec|format|device|filter)|swscale|swresample)\.so)"
         r"|(?P<mpi>libmpi(?:_\w{1,10})?\.so)|(?P<opencl>libOpenCL\.so)"
         r"|(?P<python>libpython3\.\d{1,2})\.so"
         r"|(?P<package>lib(?:numa|gomp|sndfile|ibverbs|rdmacm|vulkan|curl|ssl|aio|jemalloc"
         r"|openblas|gfortran|atomic|elf|tinfo|ncurses|ffi|stdc\+\+|tbb|cap|uv|sox|mlx5))\.so"
         rf"(?:\.(?P<number>\d{{1,3}}))?){_NOT_FOUND}", SERVED),
    signature("driver.library", "cause", "gpu-absent",
         r"^(?!Failed to import from vllm\.).{0,400}\blibcuda\.so(?:\.1)?: "
         r"(?:cannot open shared|file too short)"),
    signature("system.threads", "cause", "unknown",
         r"RuntimeError: can't start new thread|\b[Tt]hread creation failed"
         r"|pthread_create(?:\(\))? failed|failed to create new OS thread"
         r"|BlockingIOError: \[Errno 11\] Resource temporarily unavailable"
         r"|unable to (?:create|start) (?:new )?(?:native )?thread"),
    # Ray's memory monitor ends workers before the kernel does
    signature("system.ray", "cause", "host-oom",
         r"was running was (?P<used>[\d.]{1,12} ?[KMGT]?B) / (?P<total>[\d.]{1,12} ?[KMGT]?B) "
         r"\([\d.]{1,12}\), which exceeds the memory usage threshold of (?P<share>\d\.\d{1,6})"
         r"|exceeds the memory usage threshold of|killed due to memory pressure \(OOM\)"
         r"|Task was killed due to the node running low on memory"
         r"|address the out of memory issue: https?://docs\.ray\.io/\S{0,100}ray-oom-prevention"
         r"|adjust the kill threshold, set the environment variable `RAY_memory"),
    signature("system.program", "cause", "engine-unusable",
         rf"sh: (?:(?:line )?\d{{1,4}}: )?(?P<program>{_PROGRAM}): (?:command )?not found"
         rf"|sh: command not found: (?P<zsh>{_PROGRAM})\s*$"
         rf"|['‘](?P<windows>{_PROGRAM}(?:\.exe)?)['’] is not "
         r"recognized as (?:an internal|the name of)"
         r"|executable file [`'](?P<smi>nvidia-smi)[`'] not found in \$PATH"
         r"|exec: \"(?P<smi_too>nvidia-smi)\": executable file not found"
         r"|executable file [`'](?P<sought>[^`']{1,200})[`'] not found in \$PATH"
         r"|(?P<init>catatonit)\b.{0,20}: failed to exec pid1: No such file"
         r"|\[FATAL tini \(\d{1,7}\)\] exec (?P<reaped>\S{1,200}) failed: No such file"
         r"|exec: \"(?P<started>(?!-)[^\"]{1,200})\": (?:executable file not found"
         r"|(?:stat )?[^\":]{0,200}: no such file)"),
    signature("system.execute", "cause", "access-denied",
         rf"sh: (?:(?:line )?\d{{1,4}}: )?(?P<program>{_PROGRAM}|/[\w./-]{{1,200}}): "
         r"[Pp]ermission denied"
         r"|exec: \"(?P<started>[^\"]{1,200})\": (?:[^\":]{0,200}: )?permission denied"),
    # A container may run as a numeric user without a name
    signature("system.user", "cause", "access-denied",
         r"getpwuid\(\): uid not found: (?P<uid>\d{1,10})"),
    # PermissionError: [Errno 13] Permission denied: '/app/.cache/vllm'
    signature("system.write", "cause", "access-denied",
         rf"(?:\[Errno (?:13|1)\]|\(os error 13\)) (?:Permission denied|Operation not permitted): "
         rf"'(?:(?P<root>/\.[a-z][\w-]{{0,40}}(?:/[^']{{0,300}})?)|(?P<path>{_WRITTEN}))'"),
    signature("system.readonly", "cause", "access-denied",
         r"(?:\[Errno 30\] |\(os error 30\)|std::filesystem.{0,200})Read-only file system"
         r"(?:: '(?P<path>[^']{1,300})')?|Read-only file system \(os error 30\)"),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "system.library": (
        "The system library {gl} is missing: install the distribution's package for it (Debian and "
        "Ubuntu: apt install libgl1 libglvnd0 libegl1; Fedora: libglvnd-glx), or replace "
        "opencv-python with opencv-python-headless.",
        "The system library {x11} is missing: install the distribution's package for it (Debian "
        "and Ubuntu: apt install libsm6 libxext6 libxrender1).",
        "The system library {glib} is missing: install the distribution's package for it (Debian "
        "and Ubuntu: apt install libglib2.0-0).",
        "The system library {media} is FFmpeg's: install the distribution's package (apt install "
        "ffmpeg), of a release that the program supports.",
        "The system library {mpi} is Open MPI's: install the distribution's package (apt install "
        "openmpi-bin libopenmpi-dev).",
        "The system library {opencl} is missing: install the distribution's package for it (apt "
        "install ocl-icd-libopencl1).",
        "The system library {python} is missing: install the distribution's package for it (apt "
        "install {python}), or add its folder to LD_LIBRARY_PATH.",
        "The system library {package}.so.{number} is missing: install the distribution's package "
        "for it (Debian and Ubuntu: apt install {package}{number}; a version of the library that "
        "the distribution no longer has needs an older image).",
        "In a container, do that in the image; elsewhere `apt-file search` or `dnf provides` with "
        "the file's name finds the package. Installing the engine again does not help.",
    ),
    "driver.library": (
        "The NVIDIA driver's library (libcuda.so.1) is not visible to the process. It belongs to "
        "the driver, not to the CUDA toolkit: if nvidia-smi fails on the host, install the driver.",
        "In a container, install nvidia-container-toolkit and start it with --gpus all "
        "(Kubernetes: a limit of nvidia.com/gpu); a build with `docker build` has no card.",
        "If the file exists (`ldconfig -p | grep libcuda`, on WSL /usr/lib/wsl/lib), add its "
        "folder to LD_LIBRARY_PATH and run sudo ldconfig.",
    ),
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
    "system.ray": (
        "Of the host's memory (not the card's) {used} of {total} were in use, more than the part "
        "of {share} at which Ray's memory monitor ends a worker.",
        "Ray's memory monitor ended a worker because the memory of its node was full: host memory, "
        "not the card's. Give the machine, or the container (docker --memory, a pod's "
        "limits.memory), more of it, end other programs, let Ray run fewer workers on it, or use a "
        "smaller checkpoint; weights pass through it while they are loaded, once for each worker.",
        "RAY_memory_usage_threshold=0.98 in the environment of `ray start` lets Ray use more of it "
        "first; RAY_memory_monitor_refresh_ms=0 turns the monitor off, after which the kernel ends "
        "processes instead.",
    ),
    "system.program": (
        "There is no program {zsh} on the PATH of this shell: install it, open a new terminal, or "
        "use its full path (on a Mac open the application once, which links the command).",
        "Windows finds no program {windows} on PATH: install it, open a new terminal (the "
        "installer changes PATH for those only), or use its full path.",
        "There is no program {program} on the PATH of this user or unit: use its full path, or "
        "activate the environment that it is installed in.",
        "The image has no program {started}: correct the command or the entrypoint, or use the "
        "image with the engine.",
        "There is no {reaped} in the container: correct the command or the entrypoint. An init "
        "that Docker or Podman adds (--init) must exist on the host: install catatonit or "
        "podman-init, or leave --init out.",
        "The image has no {smi}, which comes into a container with the card: none was passed. "
        "Docker: nvidia-container-toolkit, and --gpus all before the image's name; Podman: "
        "--device nvidia.com/gpu=all after `sudo nvidia-ctk cdi generate "
        "--output=/etc/cdi/nvidia.yaml` (its --gpus passes nothing); the variable "
        "NVIDIA_DRIVER_CAPABILITIES must contain utility.",
        "The image has no {smi_too}, which comes into a container with the card: none was passed. "
        "Install and configure nvidia-container-toolkit, and pass --gpus all before the image's "
        "name (Podman: --device nvidia.com/gpu=all); the variable NVIDIA_DRIVER_CAPABILITIES must "
        "contain utility.",
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
        "The container runs as user {uid}, which has no name and no home in it: set USER (or "
        "LOGNAME) to any name, HOME and TORCHINDUCTOR_CACHE_DIR to folders that this user can "
        "write, or run it as a user that exists in the image.",
    ),
    "system.write": (
        "The process may not create {root}: HOME is / here, as in a container under a user without "
        "a home (OpenShift's arbitrary one, runAsUser, --user). Set HOME to a folder that this "
        "user can write, such as a volume: that moves .cache, .config, .triton and the others "
        "(singly: HF_HOME, XDG_CACHE_HOME, TRITON_CACHE_DIR).",
        "The process may not create or write {path}, a cache or home of this user: the folder, or "
        "one above it, belongs to another user (Docker creates the folders above a mount as root). "
        "Change its owner (chown), or name folders that this user may write: HOME and "
        "XDG_CACHE_HOME, or singly VLLM_CACHE_ROOT, HF_HOME, TRITON_CACHE_DIR, "
        "FLASHINFER_WORKSPACE_BASE, TORCHINDUCTOR_CACHE_DIR.",
    ),
    "system.readonly": (
        "{path} is in a file system that is mounted read-only, as in a container with a read-only "
        "root or a model folder mounted with :ro. Mount it for writing, or set writable folders "
        "(HF_HOME, XDG_CACHE_HOME, TRITON_CACHE_DIR, VLLM_CACHE_ROOT).",
        "A file system is mounted read-only: mount it for writing, or set writable folders "
        "(HF_HOME, XDG_CACHE_HOME, TRITON_CACHE_DIR, VLLM_CACHE_ROOT).",
    ),
}
