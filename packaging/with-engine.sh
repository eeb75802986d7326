#!/bin/sh
# Runs a command that needs vLLM in the checkout, which it installs first: with-engine.sh COMMAND...
# If the Python for it is not here and uv cannot fetch one (from GitHub, or from
# UV_PYTHON_INSTALL_MIRROR), the last line says "skipped: ..." and the status is 0.
set -eu
cd "$(dirname "$0")/.."
mkdir -p .caovan
log=$(mktemp .caovan/engine-XXXXXX)
trap 'rm -f "$log"' EXIT
{ packaging/engine.sh vllm 2>&1 || echo "no engine"; } | tee "$log"
if [ "$(tail -n 1 "$log")" = "no engine" ]; then
    python=$(sed -n 's/^caovanctl: cannot find \(Python [0-9.]*\): .* uv could not install one .*/\1/p' "$log")
    [ -n "$python" ] || exit 1
    echo "skipped: no $python is here for vLLM, and uv could not fetch one: put it on PATH, or set UV_PYTHON_INSTALL_MIRROR"
    exit 0
fi
rm -f "$log"
exec "$@"
