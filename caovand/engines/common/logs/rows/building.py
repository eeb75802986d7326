"""Messages of CMake, compilers, linkers and pip when an engine's build fails: rows for tables.

They identify no engine: the paths and targets around them show what is built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.engines.common.logs.rows import toolchain
from caovand.engines.common.logs.signature import signature

_RAW = re.compile(
    r".{0,200}?(?:CMake Error|nvcc (?:fatal|error)|unsupported (?:GNU|clang|Microsoft|CUDA|HIP)"
    r"|compiler identification is unknown|compiler: \S{1,200} - broken|Could NOT find"
    r"|Could not find (?:nvcc|any instance|a package)|Failed to (?:find nvcc|detect a default)"
    r"|cannot find -l|unable to find library -l|cannot open input file|fatal error: "
    r"|[:(]\d{1,6}(?:[:,]\d{1,5})?(?:\): |: )(?:fatal |catastrophic )?error"
    r"|Cannot open include file"
    r"|.{0,60}_EXECUTABLE-NOTFOUND|cannot compile \w{1,60}$"
    r"|(?:nvcc|vulkan-shaders-gen|glslc|git|ninja|hipcc|icpx|clang|gcc|g\+\+|cmake"
    r"|make): (?:command )?not found"
    r"|nvcc: No such|undefined reference to|LNK\d{4}|ld returned 1|linker command failed"
    r"|DSO missing from"
    r"|symbol\(s\) not found|ninja: (?:build stopped|error)|make(?:\[\d{1,2}\])?: \*\*\* "
    r"|is not able to compile|is deprecated|or higher is required|has been removed|No CMAKE_"
    r"|By not providing|Build system changed|Makefile build|CMakeLists|FAILED: |CUDA Toolkit not "
    r"|No CUDA toolset| {0,12}'nmake' |error: Microsoft Visual C"
    r"|Compiler requires the CUDA|CMAKE_\w{1,30} |Unable to find cl|Killed signal"
    r"|invalid target ID|is not defined for option|compute_No CUDA|package configuration file"
    r"|internal compiler error|out of heap space|virtual memory exhausted|died due to signal"
    r"|Failed building wheel|ERROR: Could not build wheels"
    r"|Building wheel for .{1,60} error$|subprocess-exited|: build failed"
    r"|Configuring incomplete|CMake (?:build|configuration|Generate step) failed"
    r"|LLVM ERROR: |(?:Assertion|Runtime|OS)Error: (?:CUDA_HOME |Cannot find CUDA_HOME"
    r"|Unknown runtime environment)"
    r"|CUDA::\w{1,30}$|libcuda\.so\S{0,12}, needed by|Target \S{1,60} links to target"
    r"|(?:.{0,60}: )?Unsloth: (?:No working quant|Quantization failed|The file 'llama)"
    r")"
)
ROWS = (
    signature("build.memory", "cause", "host-oom",
         r"Killed signal terminated program|internal compiler error: Killed|compiler is out of heap"
         r" space|died due to signal 9|virtual memory exhausted|LLVM ERROR: out of memory"),
    signature("build.no-card", "cause", "jit-toolchain",
         r"compute_No CUDA devices|gpu architecture 'compute_(?:native)?'"
         r"|CMAKE_CUDA_ARCHITECTURES must be non-empty|Failed to detect a default CUDA architecture"
         r"|Failed to detect a default HIP architecture"),
    signature("build.architecture", "cause", "jit-toolchain",
         r"Unsupported gpu architecture '(?P<architecture>\w{1,40})'"
         r"|unsupported (?:CUDA|HIP) gpu architecture: (?P<named>\w{1,40})"
         r"|invalid target ID '(?P<target>[\w:+-]{1,40})'"),
    # Since 11.5 nvcc knows native, since 11.1 compute_86
    signature("build.old-nvcc", "cause", "jit-toolchain",
         r"Value '(?P<value>\w{1,20})' is not defined for option 'gpu-(?:architecture|code)'"),
    # pip builds a package that has no wheel: AssertionError: CUDA_HOME is not set
    signature("build.toolkit", "cause", "jit-toolchain",
         r"Error: (?P<toolkit>CUDA_HOME (?:environment variable )?is not set"
         r"|Cannot find CUDA_HOME|Unknown runtime environment)"),
    signature("build.host-compiler", "cause", "jit-toolchain",
         r"unsupported (?P<compiler>GNU|clang|Microsoft Visual Studio) version"),
    signature("build.old-cmake", "cause", "jit-toolchain",
         r"CMake (?P<version>\d[\d.]{0,10}) or higher is required"
         r"|Compatibility with CMake < [\d.]{1,8} has been removed"),
    signature("build.options", "cause", "bad-arguments",
         r"(?P<option>[A-Z]\w{2,39}) is deprecated(?: and will be removed|\.| in favor)"
         r"|Build system changed|Makefile build (?:is deprecated|has been replaced)"
         r"|does not appear to contain CMakeLists"),
    # CMake's generator for Visual Studio looks for CUDA in Visual Studio's own folders
    signature("build.toolset", "cause", "jit-toolchain", r"No CUDA toolset found"),
    signature("build.windows", "cause", "jit-toolchain",
         r"^ {0,12}'nmake' '-\?'|[Cc]ould not find any instance of Visual Studio"
         r"|Unable to find cl\.exe|Microsoft Visual C\+\+ \d{2}\.\d or greater is required"),
    signature("build.cxx", "cause", "jit-toolchain",
         r"No CMAKE_C(?:XX)?_COMPILER could be found|The CXX compiler identification is unknown"
         r"|cannot execute .{1,3}cc1plus"
         r"|CMAKE_C(?:XX)?_COMPILER (?:not set|variable)"),
    signature("build.cuda", "cause", "jit-toolchain",
         r"No CMAKE_CUDA_COMPILER could be found|CUDA Toolkit not found"
         r"|Compiler requires the CUDA toolkit|[Ff]ailed to find nvcc"
         r"|nvcc: (?:not found|command not found|No such)"
         r"|CMAKE_CUDA_COMPILER (?:not set|variable)"),
    signature("build.compiler", "cause", "jit-toolchain",
         r"No CMAKE_(?P<language>\w{1,10})_COMPILER could be found"
         r"|The (?P<unknown>\w{1,10}) compiler identification is unknown"
         r"|is not able to compile a simple test program"
         r"|[Ff]ailed to find nvcc|nvcc: (?:not found|command not found|No such)"
         r"|CUDA Toolkit not found|Compiler requires the CUDA toolkit"
         r"|CMAKE_(?P<unset>\w{1,10})_COMPILER (?:not set|variable)"
         r"|[Cc]ould not find .{0,30}compiler"
         r"|compiler: \S{1,200} - broken"),
    signature("build.header", "cause", "jit-toolchain",
         r"fatal error: '?(?P<header>[\w./+-]{1,120})'?(?:: No such file| file not found)"
         r"|Cannot open include file: '(?P<included>[^']{1,120})'"),
    signature("build.library", "cause", "jit-toolchain",
         toolchain.LINKER + r"|cannot open input file '(?P<file>[^']{1,120}\.lib)'"),
    signature("build.package", "generic", "jit-toolchain",
         r"^(?!.{0,60}-- ).{0,200}Could NOT find (?P<package>[\w.+-]{1,60})"
         r"|package configuration file provided by \"(?P<config>[\w.+-]{1,60})\""
         r"|By not providing \"Find(?P<module>[\w.+-]{1,60})\.cmake\""
         r"|\b(?:\w{1,30}_)?(?P<program>[A-Z]{2,20})_EXECUTABLE-NOTFOUND"
         r"|(?P<tool>vulkan-shaders-gen|glslc|git|ninja|hipcc|icpx|clang|gcc|g\+\+|cmake"
         r"|make): (?:command )?not found"),
    # The names of CMake's targets for the libraries of a toolkit
    signature("build.part", "cause", "jit-toolchain",
         r"^\W{0,12}(?P<part>CUDA::\w{1,30})$"
         r"|links to target \"(?:Find)?(?P<target>CUDA::\w{1,30})\" but the target was not"),
    signature("build.stub", "cause", "jit-toolchain",
         r"libcuda\.so[.\d]{0,4}, needed by|undefined reference to [`']cu(?:Mem|Device|Get|Ctx)"
         r"[A-Z]"),
    signature("build.quantizer", "cause", "jit-toolchain",
         r"Unsloth: (?:No working quantizer found|Quantization failed"
         r"|The file 'llama\.cpp/\S{1,60}'.{0,80}does not exist)"),
    signature("build.linked", "cause", "jit-toolchain",
         r"(?P<file>[^\s:]{1,200}): error adding symbols: DSO missing from command line"),
    signature("build.link", "generic", "jit-toolchain",
         r"undefined reference to [`'](?P<symbol>[^'`]{1,120})|error LNK\d{4}|ld returned 1 exit"
         r"|symbol\(s\) not found for architecture|linker command failed"),
    signature("build.source", "generic", "jit-toolchain",
         r"\.(?:c|cc|cpp|cu|cuh|h|hpp|m|mm|metal|comp):\d{1,6}:\d{1,5}: (?:fatal )?error: "
         r"(?P<why>.{1,200})"
         r"|^cannot compile (?P<shader>\w{1,80})$"
         r"|\.(?:c|cc|cpp|cu|cuh|h|hpp)\(\d{1,6}(?:,\d{1,5})?\): (?:fatal |catastrophic )?error"
         r"(?: [A-Z]{1,3}\d{1,5})?: (?P<says>.{1,200})"),
    signature("build.nvcc", "generic", "jit-toolchain",
         r"nvcc (?:fatal|error) {0,3}: (?P<why>.{1,200})"),
    signature("build.failed", "consequence", "jit-toolchain",
         r"CMake Error|CMake Generate step failed|ninja: (?:build stopped|error: )"
         r"|make(?:\[\d{1,2}\])?: \*\*\* \[.{0,200}(?:\.o|\.dir"
         r"|\ball|build|\.gch|ggml)\S{0,40}\] Error \d"
         r"|Failed building wheel for |Could not build wheels for "
         r"|Building wheel for .{0,100} error$|CMake build failed"
         r"|Configuring incomplete|CMake configuration failed|^FAILED: |: build failed"
         r"|subprocess-exited-with-error"),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "build.memory": (
        "The compiler ran out of memory: compile fewer files at once (`cmake --build build -j 2`; "
        "for pip CMAKE_BUILD_PARALLEL_LEVEL=2), or add memory or swap.",
    ),
    "build.no-card": (
        "No card is visible while the engine is built, as in `docker build`, or its architecture "
        "was left empty: set it, such as -DCMAKE_CUDA_ARCHITECTURES=89 for compute capability 8.9 "
        "(AMD: -DGPU_TARGETS=gfx1100), or pass the card to the build.",
    ),
    "build.architecture": (
        "The toolkit cannot compile for {architecture}: install a CUDA toolkit that supports the "
        "card (a new card needs a newer one, an old card an older one), and name only your card in "
        "CMAKE_CUDA_ARCHITECTURES.",
        "The toolkit cannot compile for {named}: install a newer one, and name only your card's "
        "architecture.",
        "The toolkit cannot compile for {target}: install a ROCm release that supports the card, "
        "and name only your card's architecture.",
    ),
    "build.old-nvcc": (
        "This nvcc is too old to know {value}, as the one of Ubuntu's package nvidia-cuda-toolkit "
        "often is: install NVIDIA's CUDA toolkit, of a release that supports the card and that the "
        "driver can run (nvidia-smi shows the newest), and let PATH begin with /usr/local/cuda/bin "
        "(`nvcc --version`). A prebuilt binary for CUDA needs no nvcc.",
    ),
    "build.toolkit": (
        "pip found no finished package (wheel) for this Python, system and CPU, and its own "
        "build of the sources found no CUDA toolkit ({toolkit}). Take what has a wheel: a Python "
        "that the release supports (usually 3.10 to 3.12) on Linux, a current pip, a newer "
        "release; of flash-attn the wheel on its page of releases, for this PyTorch and Python.",
        "To build it nevertheless install the CUDA toolkit of PyTorch's CUDA release, and set "
        "CUDA_HOME to it (/usr/local/cuda); without a card VLLM_TARGET_DEVICE=cpu.",
    ),
    "build.host-compiler": (
        "The CUDA toolkit does not support this host compiler: install an older one and pass it in "
        "-DCMAKE_CUDA_HOST_COMPILER=, or install a newer toolkit.",
    ),
    "build.old-cmake": (
        "The build needs another CMake: `pip install cmake` brings a new one; if it says that "
        "compatibility was removed, -DCMAKE_POLICY_VERSION_MINIMUM=3.5.",
    ),
    "build.options": (
        "The build's options or its tool have changed with the release: use those that the line "
        "names, and its CMake instructions in an empty build folder.",
    ),
    "build.toolset": (
        "Visual Studio does not know the CUDA toolkit: the toolkit is missing, or was installed "
        "before Visual Studio. Copy the files of its folder extras\\visual_studio_integration\\"
        "MSBuildExtensions into the folder BuildCustomizations of Visual Studio (MSBuild\\Microsoft"
        "\\VC\\v170), or install the toolkit again with its Visual Studio Integration; then build "
        "again. A prebuilt wheel or binary for CUDA needs neither.",
    ),
    "build.windows": (
        "There is no C++ compiler of Visual Studio: install the Build Tools for Visual Studio with "
        'the workload "Desktop development with C++", and build in its Developer PowerShell. A '
        "prebuilt wheel or binary needs none (llama-cpp-python: pip's --extra-index-url with "
        "https://abetlen.github.io/llama-cpp-python/whl/cpu, or cu124 for CUDA 12.4).",
    ),
    "build.cxx": (
        "There is no C++ compiler: install one (Debian and Ubuntu: sudo apt install "
        "build-essential, Fedora: gcc-c++, Alpine: build-base, macOS: xcode-select --install, "
        "conda: gxx_linux-64, Windows: the Build Tools for Visual Studio with C++), or name it in "
        "CXX; then build again in an empty folder. A prebuilt wheel or binary needs none.",
    ),
    "build.cuda": (
        "The CUDA toolkit with its compiler nvcc is not found; the driver and PyTorch's packages "
        "have none. Install it (NVIDIA's package cuda-toolkit; conda: cuda-toolkit of the channel "
        "nvidia), in a container use an image with devel in its tag, and let PATH or CUDACXX lead "
        "to /usr/local/cuda/bin/nvcc (-DCMAKE_CUDA_COMPILER=); then build in an empty folder. A "
        "prebuilt wheel or binary for CUDA needs no toolkit, and without a card leave CUDA off.",
    ),
    "build.compiler": (
        "CMake finds no working {language} compiler: install the toolkit or compiler, and add it "
        "to PATH (for CUDA also -DCMAKE_CUDA_COMPILER=/usr/local/cuda/bin/nvcc; in a container an "
        "image with devel in its tag); then build in an empty folder.",
        "CMake finds no working {unknown} compiler: install its complete toolkit, with the headers "
        "of one release, and set it in the variables of the engine's build instructions; then "
        "build in an empty folder.",
        "A compiler or toolkit is missing or does not work: install it, add it to PATH (for CUDA "
        "also -DCMAKE_CUDA_COMPILER=/usr/local/cuda/bin/nvcc), and build in an empty folder.",
    ),
    "build.header": (
        "The build needs the header {header}: install the development package or toolkit that has "
        "it.",
        "The build needs the header {included}: install the toolkit or SDK that has it.",
    ),
    "build.library": (
        *toolchain.LINKER_ADVICE,
        "The linker does not find {file}: install the toolkit or SDK that has it.",
    ),
    "build.package": (
        "The build needs {package}: install its development package, or switch off the option that "
        "requires it.",
        "The build needs {config}: install its development package, and add its folder to "
        "CMAKE_PREFIX_PATH.",
        "The build needs {module}: install its development package, and add its folder to "
        "CMAKE_PREFIX_PATH.",
        "The build needs the program {tool}: install it.",
        "The build needs the program {program} (for Vulkan: glslc, of the Vulkan SDK or shaderc): "
        "install it.",
    ),
    "build.part": (
        "CMake found a CUDA toolkit, but not its library {part}: only a part of the toolkit is "
        "installed, or it is split over folders. Install the rest of the same release (packages "
        "cuda-toolkit-12-x, or cuda-cudart-dev, libcublas-dev, cuda-driver-dev; for conda "
        "cuda-toolkit), let -DCUDAToolkit_ROOT=/usr/local/cuda name it, and build in an empty "
        "folder.",
        "CMake found a CUDA toolkit, but not its library {target}: install the rest of the same "
        "release (cuda-cudart-dev, libcublas-dev, cuda-driver-dev), use a newer CMake, let "
        "-DCUDAToolkit_ROOT=/usr/local/cuda name it, and build in an empty folder.",
    ),
    "build.stub": (
        "The linker does not find the driver's libcuda, as in `docker build`, where there is no "
        "driver: link against the toolkit's stub (`ln -s libcuda.so "
        "/usr/local/cuda/lib64/stubs/libcuda.so.1`, with "
        "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,/usr/local/cuda/lib64/stubs), leave out programs "
        "and tests (-DLLAMA_BUILD_TESTS=OFF), or do without it (-DGGML_CUDA_NO_VMM=ON).",
    ),
    "build.quantizer": (
        "Unsloth finds no llama-quantize that works: build llama.cpp in the folder where it looks "
        "(`git clone https://github.com/ggml-org/llama.cpp`, `cmake -B build`, `cmake --build "
        "build --config Release -t llama-quantize llama-gguf-split`) and copy "
        "build/bin/llama-* into llama.cpp itself; remove a half-built folder first. A newer "
        "unsloth and unsloth_zoo do this themselves. Or save the merged model, and convert it with "
        "convert_hf_to_gguf.py and llama-quantize.",
    ),
    "build.linked": (
        "The linker needs {file}, which the build does not name: pass it (for libpthread.so "
        "-DCMAKE_EXE_LINKER_FLAGS=-pthread and -DCMAKE_SHARED_LINKER_FLAGS=-pthread to CMake, in "
        "CMAKE_ARGS for pip; for others -lNAME), or build on a newer system, whose C library "
        "contains it.",
    ),
    "build.link": (
        "The linker does not find symbols that the objects use: objects of another release or "
        "compiler are in the build folder, or a library is missing or of another release. Build in "
        "an empty folder, with one toolkit.",
    ),
    "build.source": (
        "The compiler refuses the source: compiler, toolkit or SDK and the engine's release do not "
        "fit together. Use those that its build instructions name, or another release; a prebuilt "
        "binary needs none.",
    ),
    "build.nvcc": (
        "nvcc cannot compile it: use the CUDA toolkit and host compiler that the engine's build "
        "instructions name.",
    ),
    "build.failed": (
        "The build failed; the first error before this line says why. Without it: install the "
        "compilers and toolkit of the build instructions and build in an empty folder, or use a "
        "prebuilt binary.",
    ),
}
"""Sentences by row; one with an unknown {name} is left out."""


def is_raw(line: str) -> bool:
    """Whether a line can report a failed build."""
    return bool(_RAW.match(line))
