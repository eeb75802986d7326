#!/bin/sh
# `make run`: caovand in the foreground on a tiny model made here. usage: run.sh vllm|llamacpp
# Needs the virtual environment and an engine, for vLLM also the model, which the Makefile makes
# first. Everything but the sockets stays in the checkout; the sockets are where caovanctl looks for
# them by itself.
set -eu
kind=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
place=$root/.caovan
config=$place/caovan.toml
mkdir -p "$place"
case $kind in
    vllm) model=$place/models/hybrid_copy engine=$root/.engines/current ;;
    llamacpp) model=$place/models/tiny.gguf engine=$root/.engines/current-llamacpp ;;
esac
if [ ! -e "$config" ]; then
    if [ $kind = llamacpp ]; then
        mkdir -p "$place/models"
        "$root/.venv/bin/python" -c 'import sys
from caovand.engines.llamacpp.tiny_model import tiny_model
sys.stdout.buffer.write(tiny_model())' >"$model.part"
        mv "$model.part" "$model"
    fi
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
fast="MTP 4: the engine restarts"
[ $kind = vllm ] || fast="no change: this model drafts nothing"
export STATE_DIRECTORY="$place/state" CACHE_DIRECTORY="$place/cache" LOGS_DIRECTORY="$place/log"
cat <<TEXT

caovand starts in the foreground on a tiny model with random weights (what it says makes no sense).
The configuration is $config. Ctrl-C stops everything.

TEXT
tell_when_it_serves() {
    # Status 4 is "no daemon yet".
    while status=0; "$root/.venv/bin/caovanctl" wait --timeout 3600 >/dev/null 2>&1 || status=$?; do
        [ $status = 4 ] && kill -0 $$ 2>/dev/null || break
        sleep 0.5
    done
    # Another caovand that serves where caovanctl looks is not ours.
    [ $status = 0 ] && "$root/.venv/bin/caovanctl" status --json | grep -q "\"pid\": $$\b" || exit 0
    cat <<TEXT

It serves. In a second terminal:

    export PATH="$root/.venv/bin:\$PATH"
    caovanctl status
    curl -s http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 32}'
    caovanctl mode fast          # $fast
    caovanctl reload             # after an edit of $config

TEXT
}
# Not a child of ours: it would stay a zombie of caovand's, which this shell becomes.
(tell_when_it_serves &)
exec "$root/.venv/bin/caovand" --config "$config"
