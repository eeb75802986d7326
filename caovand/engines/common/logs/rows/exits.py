"""How programs that embed an engine report the end of its process or library: Windows codes,
signals.

Any program may print them: they identify no engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.engines.common.logs.signature import signature

_RAW = re.compile(
    r"\(?[Ee]xit(?:ed with)? ?(?:status )?[Cc]ode[:=]? ?-?\d|[Ee]xit status:? -?\d"
    r"|E(?:xited|XITED) \(\d{1,3}\)|OSError: (?:\[WinError -?\d|exception: )"
    r"|OSError: |.{0,300}?: cannot open shared object file|.{0,300}? version [`'](?:GLIBC|CXXABI)"
    r"|.{0,200}?Windows Error 0x|(?:-?\w{0,4}sh: )?\S{1,200}: (?:cannot execute|Exec format error)"
    r"|.{0,400}llama\.cpp terminated unexpectedly|run-detectors: |\(Exit code: \d"
    r"|Fatal error\. System\.|.{0,200}\[LMS\w{1,40}\]|\S{1,200}\.llamafile(?:\.exe)?: \w"
    r"|CANNOT LINK EXECUTABLE "
)
OWNED = (
    r"(?:(?P<cuda>lib(?:cudart|cublas(?:Lt)?|cufft|curand|cusparse|cusolver|nvrtc|nvJitLink)\.so"
    r"(?:\.(?P<release>\d{1,2}))?)"
    r"|(?P<rocm>lib(?:hipblas(?:lt)?|rocblas|amdhip64|hsa-runtime64|rocsolver|hiprtc|MIOpen)\.so)"
    r"|(?P<oneapi>lib(?:sycl|mkl_\w{1,30}|svml|imf|intlc|iomp5|ze_loader)\.so)"
    r"|(?P<musl>libc\.musl-\w{1,20}))?"
)
"""Who a missing library belongs to, by the beginning of its name."""
_CODE = (
    # exit code 3221225781; EXITED (137); ExitStatus(3221225477); no longer running: 3221225781
    r"(?<!\d - )(?:ExitStatus\(|(?:no longer running|has terminated): (?=32\d{8}\b)"
    r"|[Ee]xit(?:ed with)? ?(?:status )?(?:[Cc]ode|status)[:=]? ?|\bE(?:xited|XITED) \()"
)
# Node prints Windows codes as unsigned 64-bit numbers, rounded; Python prints them with their sign
ROWS = (
    signature("exit.unready", "cause", "engine-unusable",
         r"\[WinError (?P<code>1114)\]"
         r"|(?P<text>DLL load failed while importing) \w{1,60}: .{0,60}[Ii]nitiali[sz]"),
    # OSError: /tmp/_MEIUwJ6Ds/koboldcpp_cublas.so: undefined symbol: getcpu
    signature("exit.symbol", "cause", "engine-unusable",
         r"(?:^|[\s'\"(/])(?P<file>(?:koboldcpp\w{0,20}|lib(?:llama|ggml|mtmd)[\w-]{0,30})\.so"
         r"[\d.]{0,20}): undefined symbol: (?:(?P<inside>(?:_Z\w{0,3}\d{1,3})?(?:ggml|llama|gguf"
         r"|clip|mtmd)_\w{1,100})|(?P<outside>\w{1,120}))"),
    signature("exit.library", "cause", "engine-unusable",
         _CODE + r"(?:32212257(?:81|85)|3221225595|-1073741515|-1073741511)\b"
         r"|because (?P<dll>[\w.-]{1,60}\.dll) was not found"
         r"|\[WinError (?:126|127|193)\]|llama\.cpp exit status: exit status 0xc0000(?:135"
         r"|139|07b)|Windows Error 0xc0000(?:135|139|07b)"),
    signature("exit.instruction", "cause", "backend-unsupported",
         _CODE + r"(?:3221225501|-1073741795|132|-4)\b|\[WinError -1073741795\]"
         r"|llama\.cpp exit status: exit status 0xc000001d"
         r"|Windows Error 0xc000001d"),
    signature("exit.memory", "cause", "host-oom",
         _CODE + r"(?:3221225495|3221225773|-1073741801|-1073741523)\b|\[WinError (?:1455|8|14)\]"
         r"|paging file is too small"),
    signature("exit.died", "consequence", "engine-died",
         _CODE + r"(?:(?P<silent>137|-9\b)|13[3-9]|-(?:5|6|7|8|11)\b|32212\d{5}|3765269347"
         r"|-107374\d{4}|-1\b"
         r"|1844674407\d{10})|OSError: exception: (?P<exception>.{1,120})"
         r"|llama\.cpp exit status: exit status 0x[ce]\d|^\(Exit code: (?:5|6|8|10|11)\)"
         r"|\[LMS\w{1,40}\].{0,200}Error loading model"
         r"|\[WinError -\d{6,10}\]|Windows Error 0x[ce]\d"),
    signature("exit.managed", "consequence", "engine-died",
         r"^Fatal error\. System\.(?P<managed>AccessViolationException)"),
    signature("exit.own", "cause", "bad-arguments",
         r"(?:^|[\s'\"(/])(?P<own>lib(?:llama|ggml|mtmd)[\w-]{0,30}\.so[\d.]{0,20}): cannot open "
         r"shared object file"),
    signature("exit.linked", "cause", "bad-arguments",
         r"(?:^|[\s'\"(])(?!libcuda\.so"
         rf"|libnvidia-ml)(?P<library>{OWNED}[^\s'\":]{{0,200}}): cannot open shared "
         r"object file|CANNOT LINK EXECUTABLE .{1,200}: library "
         r"\"(?P<linked>[^\"]{1,200})\" not found"
         r"|version [`'](?P<symbols>(?:GLIBC|GLIBCXX|CXXABI)_[\d.]{1,10})' not found"),
    signature("exit.detectors", "cause", "engine-unusable",
         r"^run-detectors: unable to find an interpreter for (?P<file>\S{1,300})"),
    signature("exit.format", "cause", "engine-unusable",
         r"^(?:-?\w{0,4}sh: )?\S{1,200}: (?:cannot execute"
         r"|Exec format error|Invalid argument|Permission denied)"),
)  # fmt: skip
OWNERS = (
    "{cuda} is of the CUDA runtime, release {release}, for which this build was made; the driver "
    "has none of it. Install that release: in a Python environment pip install "
    "nvidia-cuda-runtime-cu{release} nvidia-cublas-cu{release}, on the system NVIDIA's package "
    "cuda-libraries-{release}-*, in a container an image with runtime in its tag. Where it is "
    "there (/usr/local/cuda/lib64, site-packages/nvidia/*/lib), add its folder to LD_LIBRARY_PATH. "
    "Or take a build for the CUDA that is installed, or for the CPU alone.",
    "{rocm} is of ROCm, for which this build was made: install the release of ROCm that the "
    "build names (its number must fit), and add /opt/rocm/lib to LD_LIBRARY_PATH (or to "
    "/etc/ld.so.conf.d, then sudo ldconfig); or take a build for Vulkan or the CPU.",
    "{oneapi} is of Intel's oneAPI: run `source /opt/intel/oneapi/setvars.sh` in the shell or "
    "before the service's program, or install the runtime of its release.",
    "{musl} is the C library of Alpine: the wheel or binary was built for that, and this system "
    "has glibc. Install one built for manylinux or for this distribution, or build it here.",
)
"""What owns a missing library, and how it gets there."""
INSTRUCTION = (
    "The build uses instructions that this CPU lacks (AVX, AVX2, FMA or AVX-512): install a "
    "build without them, or compile one on this machine (llama.cpp: cmake -DGGML_NATIVE=ON; "
    "llama-cpp-python: pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python, "
    "on old CPUs with CMAKE_ARGS='-DGGML_AVX2=OFF -DGGML_FMA=OFF -DGGML_F16C=OFF'; "
    "KoboldCpp: --noavx2, or its oldpc build). A "
    "virtual machine must pass the host's CPU (CPU type host)."
)
ADVICE: Mapping[str, tuple[str, ...]] = {
    "exit.unready": (
        "Windows found the library, and its own start failed ({code}): usually this CPU lacks "
        "instructions that the build uses (AVX2, which Xeon E5 v1 and v2 and older ones have not: "
        "take the build for old CPUs, of KoboldCpp koboldcpp-oldpc), or the card's driver or "
        "Microsoft's Visual C++ runtime is too old for it: update both.",
        "Windows found the library, and its own start failed ({text}): usually this CPU lacks "
        "instructions that the package uses (AVX2; one for x86 on an ARM machine), or Microsoft's "
        "Visual C++ runtime is too old for it. Update that first, then install the package's "
        "current release, or build it on this machine (pip install --no-binary, which needs "
        "Visual Studio's C++ tools).",
    ),
    "exit.symbol": (
        "{file} lacks {inside}, which another file of the same sources must have: its parts are of "
        "different builds. Clean the build (make clean, or an empty build folder) and build "
        "everything with the same options, or install all files of one release.",
        "{file} needs {outside}, which the libraries of this system lack: the build was made for a "
        "newer system (a newer C library), or for another CUDA, ROCm or BLAS. Use the release "
        "before that change, a newer distribution or a container, or build it here.",
    ),
    "exit.library": (
        "Windows did not load a library of the engine, or one of its dependencies: install the "
        "newest Visual C++ runtime, the card's driver and that build's CUDA or ROCm runtime, then "
        "the engine again; on an old CPU use a build without AVX2.",
    ),
    "exit.instruction": (INSTRUCTION,),
    "exit.died": (
        "The engine's process crashed, and left only its exit code: read the engine's own log. If "
        "it began with an update of the engine or driver, go back to the old one; try another "
        "backend (CPU, Vulkan, CUDA), or fewer layers on the card.",
    ),
    "exit.managed": (
        "The engine's native library crashed inside the program that calls it ({managed}): update "
        "the card's driver, try another backend (CUDA, CPU), and a newer release of library and "
        "program; Vulkan layers of other programs (overlays, frame counters) can cause it, too.",
    ),
    "exit.own": (
        "{own} is a library of llama.cpp itself, which comes with the program, and was not found: "
        "add the folder that it lies in to LD_LIBRARY_PATH (in llama.cpp's images "
        "LD_LIBRARY_PATH=/app).",
        "If no folder has it, program and libraries were separated, or this image or archive is "
        "broken: take all files of one release, the one before or a newer one.",
    ),
    "exit.linked": (
        *OWNERS,
        "The library {library} or one of its dependencies is missing: install the engine again "
        "with the CUDA, ROCm or C++ runtime that this build was made for, or add the library's "
        "folder to LD_LIBRARY_PATH.",
        "The library {linked} is missing: install the engine again with all of its libraries, or "
        "add their folder to LD_LIBRARY_PATH.",
        "The build was made for a newer system ({symbols} is missing): use a build for this "
        "distribution, or a container.",
    ),
    "exit.detectors": (
        "{file} is a program of the APE format, which llamafile uses, and begins with MZ as "
        "Windows programs do: a registration of binfmt_misc (of Wine or Mono: run-detectors) takes "
        "it and finds nothing to run it. Other permissions or another shell do not change that. "
        "Install the APE loader and register it:",
        "sudo wget -O /usr/bin/ape https://cosmo.zip/pub/cosmos/bin/ape-$(uname -m).elf && sudo "
        "chmod +x /usr/bin/ape",
        "sudo sh -c \"echo ':APE:M::MZqFpD::/usr/bin/ape:' >/proc/sys/fs/binfmt_misc/register\"",
        "sudo sh -c \"echo ':APE-jart:M::jartsr::/usr/bin/ape:' "
        '>/proc/sys/fs/binfmt_misc/register"',
        "A registration ends with a reboot: binfmt.d(5) keeps it.",
    ),
    "exit.format": (
        "The system cannot execute the file: it is not executable (chmod +x), for another "
        "processor or system, or needs a newer shell (llamafile with an old zsh, binfmt or WSL: "
        "sh -c ./FILE, or its own APE loader).",
    ),
}
"""Sentences by row."""


def is_raw(line: str) -> bool:
    """Whether a line reports how a process or library ended."""
    return bool(_RAW.match(line))
