#!/bin/sh
# Runs a command with its output in a file, and shows every few seconds that it is running, with the
# last line it printed: alive.sh LOG LABEL COMMAND...
set -eu
log=$1 label=$2
shift 2
every=5
mkdir -p "$(dirname "$log")"
# A background command gets no Ctrl-C: kill it with all that it started.
setsid "$@" >"$log" 2>&1 </dev/null &
child=$!
trap 'trap - INT TERM HUP; kill -TERM -$child 2>/dev/null; exit 130' INT TERM HUP
seconds=0
while sleep 1; kill -0 $child 2>/dev/null; do
    seconds=$((seconds + 1))
    [ $((seconds % every)) != 0 ] ||
        printf '      %s, %d s: %.60s\n' "$label" $seconds "$(tail -n 1 "$log" | tr -d '\r')"
done
wait $child
