#!/bin/sh
# Prints the kind of engine that `make run` takes: that of the demo's configuration where there is
# one, else KIND, else one that is installed, else the quicker way to a first answer. Without a card
# that is llama.cpp, built here from 64 MiB, if there are cores to build it; vLLM is a download of
# 560 MB, and a start of a minute.
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
elif [ -n "${KIND:-}" ]; then
    echo "$KIND"
elif [ -x "$root/.engines/current/bin/python" ]; then
    echo vllm
elif [ -x "$root/.engines/current-llamacpp/bin/python" ]; then
    echo llamacpp
elif [ "$(nproc)" -ge 4 ] && command -v c++ >/dev/null && [ ! -e /dev/nvidiactl ]; then
    echo llamacpp
else
    echo vllm
fi
