#!/bin/sh
# Installs an engine into the checkout, unless it is there: engine.sh vllm|llamacpp
# With --needs before the kind it prints what the system must have for it (prerequisites.sh).
set -eu
cd "$(dirname "$0")/.."
if [ "$1" = --needs ]; then
    case $2 in
        llamacpp) [ -x .engines/current-llamacpp/bin/llama-server ] || echo "compiler disk=1500" ;;
        vllm)
            if [ -x .engines/current/bin/python ]; then
                :
            elif [ -e /dev/nvidiactl ]; then
                echo "compiler headers=3.12 disk=13500" # Triton needs Python.h
            else
                echo "avx2 numa disk=4000"
            fi
            ;;
    esac
    exit 0
fi
kind=$1
needs=$(packaging/engine.sh --needs "$kind")
[ -n "$needs" ] || exit 0
# shellcheck disable=SC2086 # one word a need
export PATH="$PWD/.venv/bin:$PATH" # uv
export TORCHINDUCTOR_CACHE_DIR="$PWD/.caovan/cache/inductor"
packaging/prerequisites.sh "install an engine" $needs
if [ "$kind" = llamacpp ]; then
    exec .venv/bin/python -m caovand.cli.engine install --kind llamacpp --build cpu --root .engines
fi
# With a card the plugin goes into the engine, and into the plugin its library.
if .venv/bin/python -c 'from caovand.adapters.gpu.nvml import read_gpus; raise SystemExit(not read_gpus())'; then
    ${MAKE:-make} -C csrc package
fi
exec .venv/bin/python -m caovand.cli.engine install --root .engines
