#!/bin/sh
# Prints the newest Python from OLDEST to NEWEST that runs and can make virtual environments.
# usage: find-python.sh OLDEST NEWEST (minor versions of 3, such as 10 13)
set -eu
oldest=$1 newest=$2
fits() { "$1" -c "import sys; sys.exit(not (3, $oldest) <= sys.version_info[:2] <= (3, $newest))" 2>/dev/null; }
works() { fits "$1" && "$1" -c "import ensurepip, venv" 2>/dev/null; }
minor=$newest
while [ "$minor" -ge "$oldest" ]; do
    # pyenv's shims refuse versions that are not chosen, so its installed ones are asked directly.
    for python in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/python3; do
        if works "$python"; then
            command -v "$python"
            exit 0
        fi
    done
    minor=$((minor - 1))
done
if works python3; then
    command -v python3
    exit 0
fi
echo "cannot find a Python from 3.$oldest to 3.$newest with venv: apt install python3 python3-venv" >&2
exit 1
