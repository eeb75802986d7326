#!/bin/sh
# Builds the Debian packages from this checkout into a folder (dist/): caovan, and on amd64
# caovan-kernels, with the CUDA compiler of the system or of PyPI's wheels. One build on Debian 12
# serves Ubuntu 22.04 and 24.04 too.
# usage: packaging/build-deb.sh [FOLDER]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
# Debian's Python and a plain PATH: pybuild fails under pyenv's shims. PIP_* is how pip is told
# where its index is.
plain_path=/usr/sbin:/usr/bin:/sbin:/bin
tools="dpkg-dev build-essential $(sed -n '/^Build-Depends:/,/^$/s/^ \([a-z0-9+-]*\).*/\1/p' "$root/packaging/debian/control" | tr '\n' ' ')"
# debhelper-compat is provided by debhelper, which has no package of that name.
tools=$(echo "$tools" | sed 's/debhelper-compat/debhelper/; s/dh-sequence-installsysusers//; s/dh-sequence-python3/dh-python/')

missing=
for tool in $tools python3-pip; do
    dpkg-query -W -f '${Status}' "$tool" 2>/dev/null | grep -q 'ok installed' || missing="$missing $tool"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "cannot build the packages: missing$missing; sudo apt-get install$missing" >&2
        exit 1
    fi
    echo "installing$missing" >&2
    export DEBIAN_FRONTEND=noninteractive
    # Another program may be installing at the same time.
    install="apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=600$missing"
    $install >&2 || { apt-get update -q >&2 && $install >&2; } ||
        { echo "cannot install$missing: see above; is the package archive reachable?" >&2; exit 1; }
fi

mkdir -p "${1:-$root/dist}"
out=$(cd "${1:-$root/dist}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/caovan
mkdir "$tree"
# What git knows or would take: no virtual environments, engines and models. What was deleted is
# still in its list, hence --ignore-failed-read.
(cd "$root" && git ls-files -z --cached --others --exclude-standard |
    tar -c --null -T - --ignore-failed-read -f - 2>"$work/tar.log") | tar -x -C "$tree"
cp -r "$tree/packaging/debian" "$tree/debian"
for kind in service sysusers tmpfiles; do
    cp "$tree/packaging/systemd/caovan.$kind" "$tree/debian/"
done

# Fetched once, and known by its hash.
vendor=$root/.caovan/vendor
wanted=$(sed -n 's/.*sha256://p' "$root/packaging/debian/vendor.txt")
vendored() { find "$vendor" -name '*.whl' -exec sha256sum {} + 2>/dev/null | sed -n "s/^$wanted  //p" | head -n 1; }
if [ -z "$(vendored)" ] && ! /usr/bin/python3 -m pip download -q --disable-pip-version-check --no-deps \
    --require-hashes -d "$vendor" -r "$root/packaging/debian/vendor.txt" >"$work/pip.log" 2>&1; then
    cat "$work/pip.log" >&2
    echo "cannot fetch the NVML bindings: see above; is the Python package index reachable?" >&2
    exit 1
fi
mkdir "$tree/debian/vendor"
/usr/bin/python3 -m zipfile -e "$(vendored)" "$work/vendor"
cp "$work/vendor/pynvml.py" "$tree/debian/vendor/"

profiles= kind=binary
if [ "$(dpkg --print-architecture)" = amd64 ] && nvcc=${NVCC:-$("$root/csrc/find-nvcc")}; then
    echo "building caovan and caovan-kernels" >&2
else
    echo "building caovan only: caovan-kernels needs amd64 and nvcc (CUDA 12 or 13)" >&2
    profiles=pkg.caovan.nokernels kind=all nvcc=
fi
(
    cd "$tree"
    env -i PATH="$plain_path" HOME="$work" LANG=C.UTF-8 NVCC="$nvcc" \
        DEB_BUILD_PROFILES="$profiles" DEB_BUILD_OPTIONS="parallel=$(nproc)" \
        dpkg-buildpackage -us -uc --build="$kind" >"$work/build.log" 2>&1
) || { tail -n 40 "$work/build.log" >&2; echo "cannot build the packages: see above" >&2; exit 1; }
rm -f "$out"/caovan_*.deb "$out"/caovan-kernels_*.deb
mv "$work"/*.deb "$out/"
ls -1 "$out"/*.deb
