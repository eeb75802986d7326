#!/bin/sh
# `make run`: caovand in the foreground on a tiny model that is made here. Everything stays in the
# checkout: .venv, .engines and .caovan.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
trap 'echo; exit 0' INT  # on Ctrl-C only make itself should die of the signal
place=$root/.caovan
config=$place/caovan.toml
[ ${#place} -le 90 ] || {
    echo "cannot run the demo: the path of $place is too long for sockets in it; use a checkout with a shorter path" >&2
    exit 1
}
kind=$(packaging/demo/kind.sh)
# shellcheck disable=SC2046 # one word a need
packaging/prerequisites.sh "run the demo" python curl $(packaging/engine.sh --needs "$kind")
packaging/venv.sh run
mkdir -p "$place/models"
cat >"$place/env" <<ENV
# Points caovanctl in a shell at the demo: . $place/env
export PATH="$root/.venv/bin:\$PATH"
export RUNTIME_DIRECTORY="$place/run" STATE_DIRECTORY="$place/state"
export CACHE_DIRECTORY="$place/cache" LOGS_DIRECTORY="$place/log"
export CAOVAN_ENGINES="$root/.engines" CAOVAN_MODELS="$place/models"
export TORCHINDUCTOR_CACHE_DIR="$place/cache/inductor"
ENV
. "$place/env"
packaging/engine.sh "$kind"
case $kind in
    vllm)
        model=$place/models/demo engine=$root/.engines/current fast="MTP 4: the engine restarts"
        "$engine/bin/python" packaging/demo/make_model.py "$model" >/dev/null
        ;;
    llamacpp)
        model=$place/models/tiny.gguf engine=$root/.engines/current-llamacpp
        fast="no change: this model drafts nothing"
        "$root/.venv/bin/python" -c 'import sys
from caovand.engines.llamacpp.tiny_model import tiny_model
sys.stdout.buffer.write(tiny_model())' >"$model.part"
        mv "$model.part" "$model"
        ;;
esac
if [ ! -e "$config" ]; then
    # Plans for a trial: a small context, and on the CPU build little memory for its cache.
    cat >"$config.part" <<TOML
# The demo's configuration; the Makefile never overwrites it. All keys: $root/etc/caovan.toml
[model]
path = "$model"
served_name = "demo"
max_model_len = 2048

[engine]
python = "$engine/bin/python"
TOML
    mv "$config.part" "$config"
fi
# What libraries keep where no variable names a folder stays in the demo, too.
export XDG_CACHE_HOME="$place/cache/home"
cat <<TEXT

caovand starts in the foreground on a tiny model that knows one sentence.
The configuration is $config. Ctrl-C stops everything.

TEXT
tell_when_it_serves() {
    # 3 is "not serving yet", 4 "no daemon yet".
    while status=0; caovanctl wait --timeout 8 >/dev/null 2>&1 || status=$?; do
        kill -0 $$ 2>/dev/null || exit 0
        case $status in
            0) break ;;
            3) state=$(caovanctl status 2>/dev/null | head -n 1) ;;
            4) sleep 0.5; continue ;;
            *) exit 0 ;;
        esac
        case $state in
            FAILED* | STOP*) exit 0 ;;
            SERVING* | "") ;;
            *) echo "      $state" ;;
        esac
    done
    cat <<TEXT

It serves. In a second terminal:

    . $place/env
    caovanctl status
    curl -s http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"model": "demo", "messages": [{"role": "user", "content": "hello"}]}'; echo
    caovanctl mode fast          # $fast
    caovanctl reload             # after an edit of $config

TEXT
}
# Not a child of ours: it would stay a zombie of caovand's, which this shell becomes.
(tell_when_it_serves &)
exec caovand --config "$config"
