#!/bin/sh
# Makes .venv: `venv.sh run` with what caovan needs, `venv.sh dev` with the tests' tools too.
set -eu
cd "$(dirname "$0")/.."
case $1 in
    # uv unpacks an engine several times as fast as pip.
    run) extra=page ready=.venv/ready-to-run ;;
    dev) extra=dev ready=.venv/ready ;;
esac
for stamp in $ready .venv/ready; do
    [ ! -e $stamp ] || [ pyproject.toml -nt $stamp ] || exit 0
done
packaging/prerequisites.sh "make .venv" python
[ -x .venv/bin/python ] || echo "making .venv; its libraries come from the package index"
python=$(packaging/find-python.sh 10 13)
log=.caovan/venv.log
packaging/alive.sh $log .venv sh -c "'$python' -m venv .venv &&
    .venv/bin/python -m pip install --disable-pip-version-check --no-color --progress-bar off -e '.[$extra]' uv" || {
    tail -n 3 $log >&2
    echo "cannot install what caovan needs: is the package index reachable? pip's output is in $log" >&2
    exit 1
}
touch $ready
