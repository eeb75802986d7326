"""Files that compilers and the dynamic loader do not find, by the package that has them: rows for
any engine."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.engines.common.logs.signature import SERVED, signature

_HEADER = (
    r"(?:(?P<of_compiler>(?:stddef|stdarg|stdbool|stdint|float|limits|iso646|\w{0,10}mmintrin|"
    r"immintrin|x86intrin|omp)\.h)"
    r"|(?P<of_libc>(?:stdio|stdlib|string|errno|math|unistd|features|pthread|dlfcn|assert|ctype"
    r"|(?:sys|bits|gnu|asm|linux)/\S{1,60})(?:\.h)?)"
    r"|(?P<of_cudnn>cudnn\w{0,30}\.h)|(?P<of_nccl>nccl\.h)"
    r"|(?P<of_cuda>(?:cu(?:da|blas|sparse|solver|rand|fft|pti)|nv|driver_types|vector_types|crt/"
    r"|thrust/|cub/|cooperative_groups)\S{0,60})"
    r"|(?P<of_torch>(?:torch|ATen|c10)/\S{1,100})"
    r"|(?P<of_cutlass>(?:cutlass|cute)/\S{1,100})"
    r"|(?P<of_system>(?:numa|infiniband/verbs|zlib|openssl/\w{1,20})\.h)"
    r"|(?P<of_cxx>[a-z_]{3,20}(?=['>\":\s]))"
    r"|(?P<header>[^\s:'\">]{1,100}))"
)
_SYMBOL = (
    r"(?:(?P<of_torch>_Z(?:T[ISV])?N?K?(?:2at|3c10|4c10d|5torch)\w{1,400})"
    r"|(?P<of_nccl>p?nccl[A-Z]\w{1,60})"
    r"|(?P<of_cuda>(?:__)?(?:cuda|cublas|cudnn|cusparse|cusolver|cufft|nvrtc|nvJitLink"
    r"|nvml)\w{1,80})"
    r"|(?P<of_python>_?Py[A-Z_]\w{1,60})"
    r"|(?P<symbol>\S{1,300}))"
)
LINKER = (
    r"(?:cannot find|unable to find library) -l(?:(?P<of_driver>cuda)"
    r"|(?P<of_toolkit>cu(?:dart|blas(?:Lt)?|dnn|fft|rand|solver|sparse|pti)|nv(?:rtc|JitLink"
    r"|ToolsExt|idia-ml))|(?P<library>[\w.+-]{1,60}?))(?=:|\s|$)"
)
"""A library that the linker does not find, by what brings it: the driver, the CUDA toolkit, or
another package."""
# What builds print, within the rows of an engine.
BUILD = (
    r"(?P<absent>Could not find nvcc|nvcc: not found|No such file or directory: '\S*nvcc'"
    r"|CUDA_HOME environment variable is not set)"
    r"|(?:No such file or directory: '(?=ninja')|(?=Ninja is required to load C))"
    r"(?P<ninja>[Nn]inja)"
    r"|(?P<failed>nvcc fatal|ninja: build stopped: subcommand failed|Ninja build failed"
    r"|CalledProcessError: Command .{0,40}\b(?:ninja|nvcc|cmake)\b|Error building extension ')"
)
COMPILER = (
    r"(?P<compiler>Failed to find C compiler|InvalidCxxCompiler|No working C\+\+ compiler found)"
    r"|^(?:(?=.*returned non-zero exit status).*[/\\']|CalledProcessError: Command .{0,200}/)"
    r"(?P<ran>[\w.-]{0,30}?(?:gcc|g\+\+|cc|clang))(?:\.exe)?(?:'|, )"
)
PTXAS = (
    r"(?P<ptxas>PTXASError\b|CalledProcessError: Command .{0,200}/ptxas\b"
    r"|Internal Triton PTX codegen error|`ptxas` failed with|^ptxas fatal)"
)
ROWS = (
    signature("build.needs-card", "cause", "jit-toolchain",
         r"compute_No CUDA devices found|CUDA_ARCHITECTURES is set to \"?native\"?, but no"),
    # Nothing is built: an import loads the toolkit's libraries
    signature("jit.cuda", "cause", "jit-toolchain",
         r"Error: Could not find (?:the |a )?CUDA (?P<part>lib\w{0,6}|include|home|toolkit"
         r"|install\w{0,6})\b"),
    signature("jit.python", "cause", "jit-toolchain",
         r"fatal error: ['\"<]?(?P<header>Python|pyconfig)\.h\b"),
    signature("jit.header", "cause", "jit-toolchain",
         rf"fatal error: ['\"<]?{_HEADER}['\">]?(?:: No such| ?file not found)"
         rf"|Cannot open include file: '(?P<missing>[^']{{1,100}})'"),
    signature("jit.link", "cause", "jit-toolchain", LINKER),
    signature("jit.assembler", "cause", "jit-toolchain",
         r"ptxas fatal {0,4}: Value '(?P<target>[^']{1,40})' is not defined for option 'gpu-name'"),
    signature("jit.feature", "cause", "backend-unsupported",
         r"ptxas error {0,4}: Feature '(?P<feature>[^']{1,80})' (?:not supported on|requires) "),
    # Triton's compiler, in C++
    signature("jit.assertion", "cause", "backend-unsupported",
         r"(?:\bmlir::triton::|/Triton\w{0,40}\.cpp:\d|\btriton/\S{1,200}\.cpp:\d).{0,400}"
         r"Assertion [`'].{1,300}' failed"),
    signature("jit.old", "cause", "jit-toolchain",
         r"NVCC version should be >= (?P<wanted>\d{1,3}(?:\.\d{1,3})?)"
         r"|nvcc version .{0,60}(?:too old|at least|required)"),
    signature("jit.option", "cause", "jit-toolchain",
         r"(?:c\+\+|g\+\+|gcc|cc|clang(?:\+\+)?): error: (?:unrecognized|unknown|unsupported) "
         r"(?:command[- ]line )?(?:option|argument):? [‘'\"]?(?P<option>-[\w=.+-]{1,60})"
         # nvcc fatal   : Unknown option '-static-global-template-stub=false'
         r"|nvcc fatal {0,4}: Unknown option '(?P<nvcc>-{1,2}[^'\s]{1,80})'"),
    signature("jit.processor", "cause", "jit-toolchain",
         r"(?:^|[\s/])csrc/cpu/\S{1,80}\.(?:cpp|hpp|h):\d{1,6}:\d{1,5}: (?:fatal )?error: "
         r"(?P<why>.{1,200})"),
    signature("jit.compiler", "generic", "jit-toolchain",
         r"^[\w./+:\\-]{1,300}\.(?:h|hpp|hh|cuh?|c|cc|cpp|cxx)(?::\d{1,6}:\d{1,6}|\(\d{1,6}\)): "
         r"error ?(?:#\d{1,6}|C\d{1,5})?: (?!Python\.h)(?P<why>.{1,200})"),
    # AssertionError at deep_gemm/__init__.py:56: assert cuda_home is not None
    signature("jit.home", "cause", "jit-toolchain",
         r"^AssertionError.{0,120}\bassert \w{0,20}cuda_home\w{0,10} is not None"),
    # What export CUDA_HOME=$CUDA_HOME:/usr/local/cuda makes of an empty one
    signature("jit.listed", "cause", "jit-toolchain",
         r"\bsh: (?:\d{1,4}: )?(?P<listed>[\w./-]{0,200}:/[\w./-]{1,200}/bin/nvcc): not found"),
    # libnccl.so.2: cannot open shared object file: ..., and of two releases:
    # Invalid config blocking attribute value -2147483648
    signature("nccl.library", "cause", "bad-arguments",
         r"^NameError: name 'nccl\w{1,40}' is not defined|\blibnccl\.so[.\d]{0,12}: cannot open"
         r"|Invalid config blocking attribute", SERVED),
    # RuntimeError: The detected CUDA version (11.8) mismatches the version that was used to compile
    signature("jit.mismatch", "cause", "jit-toolchain",
         r"The detected CUDA version \((?P<nvcc>[\d.]{1,8})\) mismatches the version"),
    # These libraries are numbered as CUDA is
    signature("engine.cuda", "cause", "bad-arguments",
         r"(?:^|[ \[(:'\"/])(?P<library>lib(?:(?P<compiler>nvrtc)"
         r"|(?P<runtime>cudart|cublas|cublasLt))\.so\.(?P<major>\d{1,2}))(?:\.\d{1,4}){0,3}: "
         r"cannot open shared object file", SERVED),
    signature("engine.loader", "cause", "bad-arguments",
         r"(?:^|[ \[(:])(?!libcuda\.so|libnvidia-ml)"
         r"(?=(?:(?P<without>libtorch_(?:cuda|hip)\.so): cannot open)?)"
         r"(?=(?:[^\s:'\"(\[]{1,300}/(?P<infer>flashinfer)/[\w./-]{1,80}: undefined)?)"
         r"(?=(?:[^\s:'\"(\[]{1,300}/)?(?P<flash>flash_attn_\w{1,20})\.\S{1,80}: undefined)?"
         r"(?P<library>[^\s:'\"(\[]{1,300}\.so[\w.]{0,20}): "
         rf"(?:cannot open shared object file|undefined symbol: {_SYMBOL}"
         r"|file too short|invalid ELF header|cannot allocate memory in static TLS"
         r"|failed to map segment)"
         r"|'NoneType' object has no attribute "
         r"'(?P<native>c(?:(?:de)?quantize_|get_|i?gemm)\w{1,60})'"
         r"|operator (?:(?P<pair>torch(?:vision|audio))::\w{1,60}|(?P<operator>[\w:.]{1,100})) "
         r"does not exist", SERVED),
    # The reasons are in the lines after it
    signature("engine.kernels", "generic", "bad-arguments",
         r"Could not load any common_ops library", SERVED),
)  # fmt: skip
LINKER_ADVICE = (
    "The compiler is there; its linker does not find lib{of_driver}.so. The driver brings "
    "libcuda.so.1, which programs load (`ldconfig -p | grep libcuda` shows its folder), and often "
    "no libcuda.so next to it: sudo ln -s libcuda.so.1 FOLDER/libcuda.so, and set "
    "LIBRARY_PATH=FOLDER if the linker does not search there (usually /usr/lib/x86_64-linux-gnu, "
    "under WSL /usr/lib/wsl/lib). Without root, or without a driver as in `docker build`, set "
    "LIBRARY_PATH to the toolkit's stubs, /usr/local/cuda/lib64/stubs.",
    "The compiler is there; its linker does not find lib{of_toolkit}.so, which the CUDA toolkit "
    "brings: set LIBRARY_PATH to its libraries (/usr/local/cuda/lib64, in conda "
    "$CONDA_PREFIX/lib), and install the whole toolkit of PyTorch's CUDA release if they lack it.",
    "The compiler is there; its linker does not find lib{library}: install its development package "
    "(Debian and Ubuntu: lib{library}-dev; `apt-file search lib{library}.so` finds its name), or "
    "add its folder to LIBRARY_PATH.",
)
COMPILER_ADVICE = (
    "There is no C compiler ({compiler}): install gcc and g++ (apt install build-essential), or "
    "name one in CC and CXX.",
    "The C compiler ({ran}) ran and failed. Its own message is in the lines before, or comes when "
    "the command in the line is run by hand. Usually Python.h is missing (install python3-dev, "
    "python3.X-dev for that Python), or it cannot find -lcuda (run sudo ldconfig, or link the "
    "driver's libcuda.so.1 as libcuda.so into a folder of LIBRARY_PATH).",
)
_BUILDING = (
    "{ninja}, which builds kernels on this machine, is missing, or not on the PATH of this "
    "process. Install it into the engine's environment (pip install ninja; for the system apt "
    "install ninja-build). If it is there, start the engine with that environment activated, or "
    "its bin folder on PATH: a unit or a program that calls it by its full path leaves that out.",
    "A kernel must be built here, and a tool for it is missing ({absent}): install gcc and g++ and "
    "the CUDA toolkit that fits the driver and PyTorch, and set CUDA_HOME to it (an image with the "
    "toolkit has devel in its name; `sudo caovanctl engine install` brings nvcc and ninja). Or do "
    "without what is built: FlashInfer's sampler and kernels for experts "
    "(VLLM_USE_FLASHINFER_SAMPLER=0, another --attention-backend and --moe-backend).",
    "Building a kernel failed ({failed}): the tools are there, and their reason stands in the "
    "lines before, the first with error:, fatal error or Killed. Most probable first: the CUDA "
    "toolkit in use (nvcc --version, CUDA_HOME) does not fit PyTorch's CUDA, the card or gcc; the "
    "compilers had too little memory (MAX_JOBS=4); or the disk is full. FlashInfer's sampler and "
    "its kernels for experts can be done without (VLLM_USE_FLASHINFER_SAMPLER=0, another backend).",
    "Triton's assembler failed ({ptxas}): it is older than the card, or the kernel is wrong for "
    "it. Let TRITON_PTXAS_PATH name the ptxas of a newer CUDA toolkit, or install a newer release "
    "of the engine with its Triton.",
    *COMPILER_ADVICE,
    "Triton does not find the driver's {unlinked}: run sudo ldconfig, or link libcuda.so.1 as "
    "libcuda.so into a folder of LIBRARY_PATH.",
)
ADVICE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("jit.nvcc", "jit.ptxas", "sglang.jit"), _BUILDING),
    "jit.assertion": (
        "Triton's compiler failed on a kernel for this card, usually one older than Ampere "
        "(compute capability below 8.0): no setting of the card is at fault. Install a newer "
        "release of the engine with the Triton that it requires, or let it use other "
        "kernels: another attention backend, no prefix caching or chunked prefill, another "
        "quantization.",
    ),
    "build.needs-card": (
        "The build needs this machine's own card and sees none, as in `docker build`: set the "
        "architecture (for CMake -DCMAKE_CUDA_ARCHITECTURES=86, for PyTorch "
        "TORCH_CUDA_ARCH_LIST=8.6), or build where nvidia-smi shows the card.",
    ),
    "jit.cuda": (
        "No CUDA toolkit was found (its {part}) where kernels such as sgl_kernel search for it: in "
        "CUDA_HOME or CUDA_PATH, in the folder of nvcc (conda's may have no libraries), "
        "or in /usr/local/cuda. The driver does not bring it. Install the toolkit of PyTorch's "
        "CUDA release and set CUDA_HOME to its folder, or use the engine's own image, which has "
        "it. An import that only loads libcudart accepts the one of PyTorch's "
        "packages: set CUDA_HOME to the full path of site-packages/nvidia/cuda_runtime.",
    ),
    "jit.python": (
        "{header}.h is Python's: install python3-dev (python3.X-dev for Python 3.X; python3-devel "
        "on Fedora and RHEL) for the Python that runs the engine. A Python of conda "
        "or uv brings its own headers. Triton builds with them for every kernel, so that no "
        "setting of the engine avoids it.",
    ),
    "jit.header": (
        "{of_compiler} is the C compiler's own header: the compiler that ran is incomplete, or its "
        "folders are not found. Install gcc and g++ again, and set CC and CXX to them.",
        "{of_libc} is the C library's header: install libc6-dev and linux-libc-dev.",
        "{of_cxx} is a header of C++: install g++, of the same release as gcc.",
        "{of_cudnn} is cuDNN's: install its development package, or nvidia-cudnn-cu12.",
        "{of_nccl} is NCCL's: install libnccl-dev, or nvidia-nccl-cu12.",
        "{of_cuda} is the CUDA toolkit's: install the whole toolkit that fits the driver and "
        "PyTorch, and set CUDA_HOME to it.",
        "{of_torch} is PyTorch's: build in the environment of the engine's own PyTorch.",
        "{of_cutlass} is CUTLASS': fetch the source's submodules, or install the package again.",
        "{of_system} is a system library's: install its development package.",
        "A compiler ran and did not find {header}: install the package that has it.",
        "A compiler ran and did not find {missing}: install the Windows SDK, and the CUDA toolkit "
        "for its own headers.",
    ),
    "jit.link": LINKER_ADVICE,
    "jit.assembler": (
        "The assembler (ptxas) that ran is older than the card ({target}): let Triton use the one "
        "of a newer CUDA toolkit (TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas), or install a newer "
        "release of PyTorch and Triton.",
    ),
    "jit.feature": (
        "A kernel uses {feature}, which this card does not have: let the engine use other kernels "
        "for that part (for experts --moe-backend), or install a newer release.",
    ),
    "jit.mismatch": (
        "A package is compiled here by the nvcc of CUDA {nvcc}, and PyTorch is built for another: "
        "install the toolkit of PyTorch's CUDA (torch.version.cuda) and set CUDA_HOME to it, or "
        "PyTorch for CUDA {nvcc}. pip fetches another PyTorch to build with, without "
        "--no-build-isolation; a ready wheel needs no build.",
    ),
    "jit.old": (
        "A kernel is compiled here, and the nvcc that was found is older than {wanted}: install a "
        "newer CUDA toolkit and set CUDA_HOME and PATH to it, or disable these kernels (for "
        "DeepGEMM VLLM_USE_DEEP_GEMM=0, SGLANG_ENABLE_JIT_DEEPGEMM=0).",
    ),
    "jit.option": (
        "The nvcc that ran does not know {nvcc}: the CUDA toolkit is older than what compiles here "
        "(such as FlashInfer) is written for. Install a newer toolkit that the driver supports "
        "(12.8 or newer for current releases), and set CUDA_HOME and PATH to it; or use an older "
        "release of the package.",
        "The compiler does not know {option}: it is older than the source asks for, or the source "
        "is built for another CPU (options such as -mavx2 are of x86, not of ARM). Install a "
        "newer compiler, or take the engine's build for this architecture.",
    ),
    "jit.listed": (
        "The compiler was sought at {listed}: CUDA_HOME (or CUDA_PATH) is a list with a colon, or "
        "begins with one, and must be one folder: export CUDA_HOME=/usr/local/cuda, without "
        "$CUDA_HOME: before it.",
    ),
    "jit.home": (
        "Kernels are compiled on this machine, and no CUDA toolkit is found for it: install the "
        "one of PyTorch's CUDA release (nvcc; in a container an image with devel in its tag) and "
        "set CUDA_HOME to it (/usr/local/cuda), or do without these kernels "
        "(SGLANG_ENABLE_JIT_DEEPGEMM=0, VLLM_USE_DEEP_GEMM=0).",
    ),
    "jit.processor": (
        "vLLM's kernels for CPUs do not compile here ({why}): older releases need AVX-512, "
        "which this machine's CPU may lack (lscpu | grep avx512), and gcc 12.3 or newer. "
        "Install the finished wheel or image for CPUs of a newer release, which also runs "
        "with AVX2, or compile with gcc 12 on a CPU with AVX-512.",
    ),
    "jit.compiler": (
        "A compiler ran and refuses the source ({why}): the source was written for another release "
        "of the compiler, the CUDA toolkit or PyTorch. Use a build for the installed PyTorch, or "
        "install the releases that its build requires.",
    ),
    "engine.cuda": (
        "This build is for NVIDIA's cards (CUDA {major}), and none was found here ({nowhere}). On "
        "a machine with AMD's or Intel's cards, or with none, install the build for it instead "
        "(AMD: the image rocm/vllm or vLLM's wheels for ROCm); CUDA's libraries do not help. On "
        "one with an NVIDIA card see first that nvidia-smi shows it there.",
        "A package was built for CUDA {major}, and the loader does not find lib{compiler}. If it "
        "is there (find / -name '{library}*'), in site-packages/nvidia/*/lib by pip or in "
        "/usr/local/cuda-{major}*/lib64 by the toolkit, add its folder to LD_LIBRARY_PATH of the "
        "process, since the loader searches neither by itself. If it is not, and PyTorch has CUDA "
        "{major} (torch.version.cuda), install nvidia-cuda-nvrtc-cu{major} and do the same. If "
        "PyTorch has another CUDA here, install the package's build for that one.",
        "lib{runtime} of CUDA {major} is missing: a package was built for CUDA {major}, and the "
        "environment has the libraries of another release, or none. Install the package's build "
        "for the CUDA that PyTorch has here (torch.version.cuda), or PyTorch and engine for CUDA "
        "{major} (nvidia-cuda-runtime-cu{major} brings the library alone). If the library is there "
        "(find / -name '{library}*'), add its folder to LD_LIBRARY_PATH of the process.",
    ),
    "engine.kernels": (
        "The compiled kernels of sgl_kernel were not loaded, and the loader's reason is missing "
        "here: a line like `ImportError: lib...so: ...` at the end of the message, if there is "
        'one. Otherwise `ldd` on the common_ops file under "found files" lists what is "not '
        "found\" (LD_LIBRARY_PATH=/the environment's site-packages/torch/lib ldd ...).",
        "Usually a library of the system is missing that pip does not bring: libnuma.so.1 (apt "
        "install libnuma1), libnvrtc, libcudart or libcublas of the CUDA that the kernels were "
        "built for, or the driver's libcuda.so.1 (in a container: --gpus all). SGLang's own image "
        "(lmsysorg/sglang) has all but the driver. To upgrade sgl_kernel helps only where ldd "
        "finds everything: then PyTorch and kernels are of different releases.",
    ),
    "engine.loader": (
        "The installed PyTorch is a build without the card's library ({without}), usually one for "
        "processors alone, while the engine is built for cards: install the PyTorch for CUDA (or "
        "ROCm) that the engine requires, best the engine again in its own environment or image.",
        "{flash} is of the package flash-attn, which was compiled for another PyTorch than the "
        "installed one. vLLM and SGLang have kernels of their own: if nothing else needs it, pip "
        "uninstall flash-attn. Otherwise install it for this PyTorch: the wheel on its page of "
        "releases whose name has this torch, CUDA, Python and C++ ABI, or pip install flash-attn "
        "--no-build-isolation --no-cache-dir --force-reinstall --no-deps.",
        "{infer} was installed for another PyTorch: pip uninstall flashinfer-python flashinfer "
        "(engines then use other kernels), or install the release that this engine's release "
        "requires, for the PyTorch that is installed.",
        "{library} was built for another PyTorch, which has {of_torch}.",
        "{library} needs another release of NCCL ({of_nccl}): check LD_LIBRARY_PATH and "
        "LD_PRELOAD for an older one.",
        "{library} needs another release of CUDA's libraries ({of_cuda}): check LD_LIBRARY_PATH "
        "for an older one.",
        "{library} was built for another Python ({of_python}).",
        "bitsandbytes did not find its CUDA library, and so has no {native}: install the release "
        "of bitsandbytes that fits PyTorch's CUDA.",
        "{pair} and PyTorch are of different releases: install the pair that belongs together "
        "(torch 2.7 with torchvision 0.22, 2.8 with 0.23, 2.9 with 0.24) from one index: pip "
        "install --force-reinstall torch=={{the release that the engine requires}} torchvision "
        "torchaudio.",
        "The package that has {operator} was built for another PyTorch.",
        "The library {library} cannot be loaded: it is missing, damaged, or belongs to another "
        "PyTorch or CUDA.",
        "Install the engine again with its PyTorch and kernels of one release, in its own "
        "environment.",
    ),
}
"""Advice by row; a sentence about another owner is left out."""
