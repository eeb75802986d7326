#!/bin/sh
# Runs Python 3.10 with the oldest libraries that must do: oldest.sh ARGUMENT...
# Makes .venv-oldest first. If there is no Python 3.10 and uv cannot fetch one (from GitHub, or from
# UV_PYTHON_INSTALL_MIRROR), the last line says "skipped: ..." and the status is 0.
set -eu
cd "$(dirname "$0")/.."
folder=.venv-oldest
if [ ! -e $folder/ready ] || [ tests/oldest.txt -nt $folder/ready ]; then
    if ! python=$(packaging/find-python.sh 10 10 2>/dev/null); then
        export UV_PYTHON_INSTALL_DIR="$PWD/.caovan/python" UV_CACHE_DIR="$PWD/.caovan/uv"
        log=$(.venv/bin/uv python install 3.10 2>&1) && python=$(.venv/bin/uv python find 3.10) || {
            printf '%s\n' "$log"
            echo "skipped: no Python 3.10 is here, and uv could not fetch one: put python3.10 on PATH, or set UV_PYTHON_INSTALL_MIRROR"
            exit 0
        }
    fi
    echo "making $folder"
    "$python" -m venv $folder
    $folder/bin/python -m pip install -q --disable-pip-version-check -r tests/oldest.txt 2>$folder/pip.log || {
        echo "cannot install the oldest libraries: is the package index reachable? See $folder/pip.log for pip's output" >&2
        exit 1
    }
    touch $folder/ready
fi
exec $folder/bin/python "$@"
