#!/bin/sh
# Checks what this system must have, before anything is downloaded: prerequisites.sh FOR NEED...
# FOR says what they are for. A NEED is python, compiler, headers=VERSION (Python.h of
# that Python, if the system has it), numa, curl, avx2 or disk=MIB.
# As root it installs missing packages with apt; otherwise it prints the command. If FOR is --missing,
# it only prints the packages.
set -eu
here=$(dirname "$0")
root=$(cd "$here/.." && pwd)
purpose=$1
shift

missing=
need() { missing="$missing $*"; }
library() { for file in /lib*/"$1" /lib/*/"$1" /usr/lib*/"$1" /usr/lib/*/"$1"; do [ ! -e "$file" ] || return 0; done; false; }
refuse() {
    echo "cannot $purpose: $1" >&2
    exit 1
}

for what; do
    case $what in
        python)
            if ! "$here/find-python.sh" 10 13 >/dev/null 2>&1; then
                ! command -v python3 >/dev/null ||
                    python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' ||
                    refuse "$(python3 --version) is here, and a Python from 3.10 to 3.13 is needed; install one, such as with pyenv"
                need python3 python3-venv
            fi
            ;;
        compiler) command -v c++ >/dev/null || need g++ ;;
        headers=*)
            # Where this Python is missing, caovan installs one, which has its headers.
            python=python${what#headers=}
            ! "$python" -c 'import ensurepip, venv' 2>/dev/null ||
                "$python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
                need "$python-dev"
            ;;
        numa) library libnuma.so.1 || need libnuma1 ;;
        curl) command -v curl >/dev/null || need curl ;;
        avx2) grep -qw avx2 /proc/cpuinfo || refuse "this processor has no AVX2, which vLLM's CPU build needs; try KIND=llamacpp" ;;
        disk=*)
            wanted=${what#disk=}
            free=$(df -Pm "$root" | awk 'NR == 2 {print $4}')
            [ "$free" -ge "$wanted" ] || refuse "$root has $free MiB free, and $wanted MiB are needed; make room, or use a checkout on another disk"
            ;;
    esac
done
if [ "$purpose" = --missing ]; then
    echo "$missing"
    exit 0
fi
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    refuse "missing:$missing; run: sudo apt-get install$missing"
fi
log=$root/.caovan/apt.log
install="apt-get install -y --no-install-recommends$missing"
echo "installing with apt:$missing"
export DEBIAN_FRONTEND=noninteractive
# A fresh system has no package lists, or old ones.
"$here/alive.sh" "$log" apt sh -c "$install || { apt-get update && $install; }" || {
    tail -n 5 "$log" >&2
    refuse "apt could not install$missing: see $log; is the package archive reachable?"
}
