#!/bin/sh
# Prints the kind of engine for `make run`: the demo's configured one, else KIND, else an installed
# one, else the one that answers soonest here. Announces on stderr what has to be installed, with the
# minutes that it takes on a quiet machine.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
config=$root/.caovan/caovan.toml
case ${KIND:-} in
    vllm | llamacpp | "") ;;
    *) echo "cannot run KIND=$KIND: the demo knows vllm and llamacpp; choose one of them" >&2; exit 1 ;;
esac
installed() {
    case $1 in
        vllm) [ -x "$root/.engines/current/bin/python" ] ;;
        llamacpp) [ -x "$root/.engines/current-llamacpp/bin/python" ] ;;
    esac
}
# Whether an engine cannot be installed: without root, missing packages cannot be added.
lacks() {
    # shellcheck disable=SC2046 # one word a need
    missing=$("$root/packaging/prerequisites.sh" --missing $("$root/packaging/engine.sh" --needs "$1") 2>/dev/null) || return 0
    [ "$(id -u)" != 0 ] && [ -n "$missing" ]
}

# Seconds to the first answer, as measured: llama.cpp is six minutes of one core to compile.
llamacpp=$((35 + 370 / $(nproc)))
if [ -e /dev/nvidiactl ]; then
    vllm=900 about_vllm="vLLM for the GPU: 3.6 GiB to download, 9 GiB on disk"
else
    vllm=150 about_vllm="vLLM's CPU build: 556 MiB to download, 2.5 GiB on disk"
    # Without a system Python 3.11, one comes from GitHub, which is not reachable everywhere.
    . /etc/os-release 2>/dev/null || VERSION_CODENAME=
    command -v python3.11 >/dev/null ||
        { [ "${VERSION_CODENAME:-}" = bookworm ] && ! command -v python3 >/dev/null; } || vllm=$((vllm + 300))
fi
why=
if [ -e "$config" ]; then
    if grep -q '\.gguf"' "$config"; then kind=llamacpp; else kind=vllm; fi
    if [ "${KIND:-$kind}" != $kind ]; then
        echo "cannot run KIND=$KIND: $config is for $kind; move it away" >&2
        exit 1
    fi
elif [ -n "${KIND:-}" ]; then
    kind=$KIND
elif installed vllm; then
    kind=vllm
elif installed llamacpp; then
    kind=llamacpp
else
    kind=vllm why=", which answers soonest here"
    [ $llamacpp -ge $vllm ] || kind=llamacpp
    other=llamacpp
    [ $kind = vllm ] || other=vllm
    if lacks $kind && ! lacks $other; then kind=$other why=; fi
fi
if ! installed $kind; then
    case $kind in
        vllm) echo "the engine is $about_vllm; about $(((vllm + 59) / 60)) minutes in all$why" >&2 ;;
        llamacpp)
            echo "the engine is llama.cpp: 64 MiB to download, then $(nproc) cores compile it; about $(((llamacpp + 59) / 60)) minutes in all$why" >&2
            [ ! -e /dev/nvidiactl ] || echo "it uses the processor; for $about_vllm: make run KIND=vllm" >&2
            ;;
    esac
fi
echo $kind
