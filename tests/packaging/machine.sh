#!/bin/bash
# A throw-away Debian with a real systemd as PID 1, on a host whose own PID 1 need not be systemd.
#
#   machine.sh base DIR SUITE PACKAGE,... [mmdebstrap option...]   make a base root (once)
#   machine.sh boot DIR BASE [nspawn option...]   boot on a fresh layer over BASE; DIR is the machine
#   machine.sh exec DIR COMMAND...           run a command in it
#   machine.sh end DIR                       power off, drop everything
#
# UNIFIED=1 with boot gives the machine cgroup v2 alone (without the controllers that a host on v1
# keeps for itself). Needs root, mmdebstrap and systemd-container.
set -euo pipefail
verb=$1 machine=$2
shift 2
CG=/sys/fs/cgroup

leader() { cat "$machine/leader"; }

inside() {
    nsenter -t "$(leader)" -a -- env -i HOME=/root TERM=dumb LANG=C.UTF-8 \
        container=systemd-nspawn DEBIAN_FRONTEND=noninteractive SYSTEMD_PAGER= SYSTEMD_COLORS=0 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# Our own group in each hierarchy, as a folder. cpuset groups start without processors: left out.
groups() {
    awk -F: '{c = $2; if (c == "") c = "unified"; sub(/^name=/, "", c); print c, $3}' /proc/self/cgroup |
        while read -r controller path; do
            folder=$CG/$controller$path
            [ "$controller" = cpuset ] || [ ! -d "$folder" ] || echo "${folder%/}"
        done
}

case $verb in
base)
    suite=$1 packages=$2
    shift 2
    # The host's own mirror where it has this suite, else the default one.
    mirror=$(apt-cache policy | awk -v of="$suite/main" '$3 == of {print $2; exit}')
    part=$machine.part
    rm -rf "$part"
    mmdebstrap -q --variant=minbase --include="$packages" "$@" "$suite" "$part" ${mirror:+"$mirror"}
    : >"$part/etc/machine-id"
    rm -f "$part/etc/hostname" "$part/usr/sbin/policy-rc.d"
    # No periodic jobs in a test; the journal is kept and never throttled.
    for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer dpkg-db-backup.timer \
        man-db.timer systemd-networkd-wait-online.service console-getty.service; do
        ln -sf /dev/null "$part/etc/systemd/system/$unit"
    done
    mkdir -p "$part/etc/systemd/journald.conf.d" "$part/var/log/journal"
    printf '[Journal]\nStorage=persistent\nRateLimitBurst=0\n' >"$part/etc/systemd/journald.conf.d/test.conf"
    mv "$part" "$machine"
    ;;
boot)
    base=$1
    shift
    mkdir -p "$machine"/{root,upper,work}
    mount -t overlay overlay -o "lowerdir=$base,upperdir=$machine/upper,workdir=$machine/work" "$machine/root"
    # An own sub-group everywhere: systemd may do there what it likes, and nothing is left after.
    groups | while read -r folder; do
        mkdir "$folder/caovan-test-$$" && echo "$folder/caovan-test-$$"
    done >"$machine/groups"
    # No machined and no bus needed; an own /run, so that the host's stays as it is. New name spaces
    # are made under the same groups, so the join comes first.
    # shellcheck disable=SC2016 # expanded by the inner shell
    SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=${UNIFIED:-0} setsid unshare -m --propagation private bash -c '
        while read -r group; do echo $$ >"$group/cgroup.procs"; done <"$0/groups"
        mount -t tmpfs -o mode=755 tmpfs /run
        exec systemd-nspawn -q -b -D "$0/root" -M test --register=no --keep-unit --link-journal=no \
            --console=read-only --system-call-filter="bpf landlock_create_ruleset landlock_add_rule landlock_restrict_self" "$@"
    ' "$machine" "$@" >"$machine/console.log" 2>&1 </dev/null &
    nspawn=$!
    echo $nspawn >"$machine/nspawn"
    for _ in $(seq 600); do
        kill -0 $nspawn 2>/dev/null || { tail -5 "$machine/console.log" >&2; exit 1; }
        pid=$(pgrep -P $nspawn | head -1 || true)
        if [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = systemd ]; then
            echo "$pid" >"$machine/leader"
            inside test -S /run/systemd/private 2>/dev/null && break
        fi
        sleep 0.05
    done
    # nspawn mounts the v1 controllers read-only, and then MemoryMax= and the like do nothing,
    # silently: make them writable and let PID 1 look again.
    for controller in memory pids cpu cpuacct blkio devices; do
        inside mount -o remount,rw,bind "$CG/$controller" 2>/dev/null || true
    done
    inside systemctl daemon-reexec
    for _ in $(seq 600); do
        state=$(inside systemctl is-system-running --wait 2>/dev/null || true)
        case $state in running) exit 0 ;; degraded) break ;; esac
        sleep 0.05
    done
    inside systemctl --failed --no-legend >&2
    echo "cannot boot a test machine: it is ${state:-silent}; see $machine/console.log" >&2
    exit 1
    ;;
exec) inside "$@" ;;
end)
    nspawn=$(cat "$machine/nspawn" 2>/dev/null || true)
    ours() { [ -n "$nspawn" ] && grep -qs nspawn "/proc/$nspawn/cmdline"; }
    if ours; then
        inside systemctl poweroff 2>/dev/null || true
        for _ in $(seq 200); do ours || break; sleep 0.05; done
        ! ours || kill "$nspawn"
    fi
    for _ in $(seq 100); do
        left=
        while read -r folder; do
            [ ! -d "$folder" ] || find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || left=$folder
        done <"$machine/groups"
        [ -n "$left" ] || break
        sleep 0.05
    done
    ! mountpoint -q "$machine/root" || umount "$machine/root"
    rm -rf "$machine"
    [ -z "$left" ] || { echo "cannot remove $left: processes are left in it" >&2; exit 1; }
    ;;
*)
    sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
