#!/bin/sh
# Prints the kind of engine that `make run` takes, and on stderr why: that of the demo's
# configuration where there is one, else KIND, else one that is installed, else the one that answers
# soonest here. The seconds were measured on a quiet machine with two cores.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
config=$root/.caovan/caovan.toml
case ${KIND:-} in
    vllm | llamacpp | "") ;;
    *) echo "cannot run KIND=$KIND: the demo knows vllm and llamacpp; choose one of them" >&2; exit 1 ;;
esac
if [ -e "$config" ]; then
    if grep -q '\.gguf"' "$config"; then found=llamacpp; else found=vllm; fi
    if [ "${KIND:-$found}" != $found ]; then
        echo "cannot run KIND=$KIND: $config is for $found; move it away" >&2
        exit 1
    fi
    echo $found
    exit 0
elif [ -n "${KIND:-}" ]; then
    echo "$KIND"
    exit 0
elif [ -x "$root/.engines/current/bin/python" ]; then
    echo vllm
    exit 0
elif [ -x "$root/.engines/current-llamacpp/bin/python" ]; then
    echo llamacpp
    exit 0
fi
# llama.cpp is 64 MiB to download and nine minutes of one core to compile.
llamacpp=$((35 + 540 / $(nproc)))
# vLLM's CPU build is 556 MiB, 2,500 MiB unpacked, and takes a minute to start; its CUDA build is
# 3.6 GiB, and compiles kernels for the card.
if [ -e /dev/nvidiactl ]; then vllm=900; else vllm=220; fi
# Where the system has no Python 3.11, one comes from GitHub, which is not reachable everywhere.
. /etc/os-release 2>/dev/null || VERSION_CODENAME=
command -v python3.11 >/dev/null || { [ "${VERSION_CODENAME:-}" = bookworm ] && ! command -v python3 >/dev/null; } ||
    vllm=$((vllm + 300))
# Whether an engine cannot be installed: without root, a missing package is for somebody else.
lacks() {
    # shellcheck disable=SC2046 # one word a need
    missing=$("$root/packaging/prerequisites.sh" --missing $("$root/packaging/engine.sh" --needs "$1") 2>/dev/null) || return 0
    [ "$(id -u)" != 0 ] && [ -n "$missing" ]
}
! lacks llamacpp || llamacpp=$((llamacpp + 10000))
! lacks vllm || vllm=$((vllm + 10000))
if [ $llamacpp -lt $vllm ]; then
    echo "the engine that answers soonest here is llama.cpp: 64 MiB to download, then $(nproc) cores compile it" >&2
    [ ! -e /dev/nvidiactl ] || echo "it uses the processor; for vLLM on the GPU (3.6 GiB): make run KIND=vllm" >&2
    echo llamacpp
else
    echo "the engine that answers soonest here is vLLM: 556 MiB to download, 2.5 GiB on disk" >&2
    echo vllm
fi
