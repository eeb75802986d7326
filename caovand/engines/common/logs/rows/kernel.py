"""Messages of kernel and driver about the host's own failures: Xid, lost cards, the OOM killer.

They affect every engine alike, and an engine's own log repeats some of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from caovand.core.healing.failure import Finding
from caovand.engines.common.logs.hit import Hit, cause, finding
from caovand.engines.common.logs.signature import first, signature

MAX_TEXT = 500  # characters kept of a line

_XID = r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): "
CARD_LOST = (
    signature("xid.memory", "cause", "gpu-lost", _XID + r"(?P<xid>48|64|9[45]|140),"),
    signature("xid.firmware", "cause", "gpu-lost", _XID + r"(?P<xid>62|109|119|120),"),
    signature("xid.link", "cause", "gpu-lost", _XID + r"(?P<xid>74|14[4-9]|150),"),
    signature("xid.lost", "cause", "gpu-lost",
         _XID + r"(?P<xid>46|54|79|110|136|143|15[58]|16[79]"
         r"|154(?=, GPU recovery action changed from .{1,40} to .{0,10}\((?:GPU|Node|OS|Drain))),"),
    signature("gpu.lost", "cause", "gpu-lost",
         r"fallen off the bus|GPU is lost|GSP (?:RPC )?[Tt]imeout|GPU marked for reset"
         r"|GPU_IS_LOST|CUDA error: uncorrectable (?:ECC|NVLink) error"
         r"|CUDA_ERROR_(?:ECC|NVLINK)_UNCORRECTABLE|cudaErrorECCUncorrectable"
         r"|Unable to determine the device handle"),
    signature("pcie.fatal", "cause", "gpu-lost",
         r"\bnvidia (?P<bus>[0-9a-fA-F:.]{7,16}): (?:AER|PCIe Bus Error): .{0,60}"
         r"(?:severity=)?Uncorrect(?:ed|able) \(Fatal\)"),
)  # fmt: skip
# A fault of the program on the card, and one that ended its work there, for any reason: an
# assertion in a kernel is 43.
XID_APP = signature("xid.app", "consequence", "illegal-access",
    r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<xid>13|31),")  # fmt: skip
XID_STOPPED = signature("xid.stopped", "consequence", "launch-failure",
    r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): "
    r"(?P<xid>8|11|25|32|39|4[0135]|69|7[0-256]|80),")  # fmt: skip
OF_PROGRAM = (XID_APP, XID_STOPPED)
CLEANUP = "45"
"""The Xid that follows any end of a program, even a kill from outside."""
HOST_KILLED = signature("host.killed", "cause", "host-oom",
    r"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process (?P<pid>\d+) "
    r"(?:,UID \d{1,10}, )?\((?P<name>[^)]*)")  # fmt: skip
NOT_STARTED = signature("nvrm.init", "cause", "gpu-absent",
    r"RmInitAdapter failed|NVRM: No NVIDIA (?:graphics adapter|GPU) found")  # fmt: skip
ROWS = (*CARD_LOST, *OF_PROGRAM, HOST_KILLED, NOT_STARTED)
# Facts that a log shows about another machine. On this one, inventory and engine provide them.
_OTHER_MACHINE = (
    signature("xid.previous", "cause", "gpu-lost",
         r"NVRM: Xid .{0,120}caused by previous Xid (?P<xid>48|7[49]|9[45]|1[124]\d)\b"),
    signature("driver.mismatch", "cause", "gpu-absent",
         r"NVRM: API mismatch|nvidia-modeset: Version mismatch"
         r"|nvidia: disagrees about version|nvidia: version magic"),
    signature("driver.nouveau", "cause", "gpu-absent",
         r"already bound to nouveau|driver such as: ?nouveau|NVRM: .{0,60}\bnouveau\b"),
    signature("driver.unsupported", "cause", "gpu-absent",
         r"NVRM: .{0,200}(?:requires? use of the NVIDIA open kernel|not supported by (?:the|open)"
         r"|Legacy drivers|only ready for use on Data Center)"),
    signature("driver.unsigned", "cause", "gpu-absent",
         r"PKCS#7 signature not signed with a trusted key|Loading of (?:unsigned )?module .{0,60}"
         r"(?:rejected|unavailable key)|module with unavailable key is rejected"
         r"|Key was rejected by service|Required key not available|Lockdown: modprobe: unsigned"),
    signature("driver.build", "cause", "gpu-absent",
         r"Bad return status for module build|make(?:\[\d\])?: \*\*\* \[.{0,120}/dkms/nvidia"
         r"|dkms (?:install|build) .{0,120}exited \d"
         r"|DKMS module '?nvidia\S{0,60} .{0,60}(?i:failed)"),
    signature("driver.busy", "cause", "gpu-absent",
         r"Could not unload NVIDIA driver kernel modules|rmmod: ERROR: Module nvidia\w{0,20} is in"
         r"|modprobe: FATAL: Module nvidia\w{0,20} is in use"
         r"|An NVIDIA kernel module '\w{1,30}' appears to "),
    signature("driver.leftover", "cause", "gpu-absent",
         r"File: (?P<folder>/var/lib/dkms/nvidia[^/\s]{0,40}/[^/\s]{1,40})/source/dkms\.conf does"),
    # Firmware or hypervisor gave the card no addresses: BAR1 is 0M @ 0x0
    signature("driver.addresses", "cause", "gpu-absent",
         r"NVRM: This PCI I/O region assigned|NVRM: BAR\d is 0M @|can't find suitable place for BAR"
         r"|\bnvidia [\da-f:.]{7,16}: BAR \d: (?:no space for|failed to assign)"),
    signature("driver.module", "cause", "gpu-absent",
         r"Unable to load the kernel module 'nvidia|Module (?P<module>nvidia[\w-]{0,20}) not found"
         r"|could not insert '?nvidia|NVRM: (?:None of the NVIDIA devices were|NVIDIA init module "
         r"failed|The NVIDIA probe routine failed)"
         r"|nvidia: probe of \S{1,20} failed with error|insmod: ERROR: .{0,200}nvidia"),
    signature("nvswitch.fatal", "cause", "gpu-lost",
         r"SXid \(PCI:(?P<bus>[\da-fA-F:.]+)\): (?P<xid>\d{1,6}), Fatal"),
    signature("pcie.link", "generic", "gpu-lost",
         r"(?:AER|PCIe Bus Error): .{0,80}Uncorrect(?:ed|able) ?\(?(?:Fatal|Non-Fatal)"
         r"|AER: can't recover|DPC: containment event"),
    signature("amd.fault", "generic", "illegal-access",
         r"\bamdgpu\b.{0,80}\[\w{0,10}hub\d?\].{0,40}page fault"),
    signature("amd.reset", "generic", "gpu-lost",
         r"amdgpu_job_timedout|\bamdgpu\b.{0,100}(?:ring \S{1,30} timeout|GPU reset|GPU hang)"
         r"|MES failed to response|GPU reset begin|Trying to push to a killed entity"),
    signature("intel.reset", "generic", "launch-failure",
         r"(?:i915|xe) \S{1,20}: .{0,60}(?:GPU HANG|[Ee]ngine reset|Timedout job)"),
    signature("host.oom", "generic", "host-oom",
         r"invoked oom-killer|oom-kill:constraint=|[Mm]emory cgroup out of memory"
         r"|\bout of memory: Kill|oom_reaper: reaped process|page allocation failure"),
    signature("host.disk", "cause", "unknown",
         r"blk_update_request: .{0,20}I/O error|Buffer I/O error on dev|print_req_error: I/O error"
         r"|EXT4-fs error|XFS \(\S{1,40}\): .{0,60}(?:corruption|error)|BTRFS (?:error|critical)"
         r"|nvme\S{0,20}: (?:I/O .{0,60}timeout|controller is down)"),
    # BUG: kernel NULL pointer dereference, address: 0000000000000000
    signature("host.oops", "generic", "engine-died",
         r"BUG: (?:kernel NULL pointer|unable to handle)|\bOops: |general protection fault, "),
    signature("host.machine", "cause", "engine-died",
         r"mce: \[Hardware Error\]|Machine [Cc]heck|Kernel panic - not syncing"
         r"|watchdog: BUG: soft lockup"),
    signature("host.instruction", "cause", "backend-unsupported",
         r"traps: (?P<name>\S{1,40})\[\d{1,10}\] trap invalid opcode"),
    signature("host.selinux", "generic", "access-denied",
         r"\bavc: {1,2}denied {1,2}\{ (?P<access>[\w ]{2,80}?) \}.{0,200}?\bcomm=\"?(?P<program>"
         r"[^\s\"]{1,60})(?:.{0,80}?\b(?:path|name)=\"?(?P<path>[^\s\"]{1,300}))?"),
    signature("host.apparmor", "generic", "access-denied",
         r"apparmor=\"DENIED\" operation=\"(?P<access>[\w-]{1,40})\".{0,120}?profile=\""
         r"(?:(?P<snap>snap\.[^\"]{1,100})|(?P<profile>[^\"]{1,100}))\"(?:.{0,60}?name=\"(?P<path>[^\"]{1,300})\")?"),
    signature("host.segfault", "consequence", "engine-died",
         r"(?:(?P<name>[\w.:-]{1,40})\[\d{1,10}\]: |^)segfault at [\da-f]"
         r"|traps: (?P<trapped>\S{1,40})\["),
    signature("xid.other", "consequence", "launch-failure",
         r"NVRM: Xid \(PCI:(?P<bus>[\da-fA-F:.]+)\): "
         r"(?P<xid>(?!63|9[23]|10[67]|121|141|15[2-4]|157|16[0-5])\d{1,3}),"),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "xid.memory": (
        "The card's memory had an error that its ECC could not correct (Xid {xid}): restart the "
        "program that used it, and reset the card while nothing runs on it (sudo nvidia-smi "
        "--gpu-reset -i N), or reboot, whereupon the driver replaces the faulty rows. `nvidia-smi "
        "-q -d ECC,ROW_REMAPPER` counts them: one error is no defect; if it comes back, or a "
        "replacement failed, have the card replaced. Power and cables are not at fault.",
    ),
    "xid.firmware": (
        "The card's own processor stopped answering the driver (Xid {xid}): reboot, or reset the "
        "card (sudo nvidia-smi --gpu-reset -i N). If it comes back, install another release of the "
        "driver first; with the proprietary modules NVreg_EnableGpuFirmware=0 (options nvidia in "
        "/etc/modprobe.d; not for cards that need the open ones) does without that firmware. Then "
        "check power and temperature.",
    ),
    "xid.link": (
        "An NVLink between cards failed (Xid {xid}): reset all linked cards, or reboot. "
        "`nvidia-smi nvlink -e` counts the errors: if they come back, check the seat of the bridge "
        "(or have the baseboard checked), and restart nvidia-fabricmanager; until then use one "
        "card, or NCCL_P2P_DISABLE=1.",
    ),
    "nvrm.init": (
        "The driver cannot start the card: power the machine off and on. If that does not help, "
        "install another driver release, update the firmware, and check the card's seat, power "
        "and, in a virtual machine, how it is passed through.",
    ),
    "driver.mismatch": (
        "The kernel runs another release of the NVIDIA driver than the installed libraries: reboot "
        "after the update, or install kernel module and libraries of one release.",
    ),
    "driver.nouveau": (
        "The nouveau driver holds the card: blacklist it (blacklist nouveau, options nouveau "
        "modeset=0 in /etc/modprobe.d), rebuild the initramfs, and reboot.",
    ),
    "driver.unsupported": (
        "This driver does not support the card: the newest cards need the open kernel modules, "
        "old ones a legacy release. Install the flavour and release that NVIDIA lists for it.",
    ),
    "driver.unsigned": (
        "Secure Boot rejects the driver's kernel module: sign it and enrol the key (sudo mokutil "
        "--import /var/lib/shim-signed/mok/MOK.der, then reboot), or disable Secure Boot.",
    ),
    "driver.build": (
        "The driver's kernel module does not build for this kernel, which is newer than the driver "
        "supports, or lacks its headers: install the headers, a newer driver, or for an old card "
        "the older kernel (LTS) that its legacy driver supports; the make.log that the line names "
        "has the error.",
    ),
    "driver.busy": (
        "The loaded driver is in use, so it can be neither unloaded nor replaced: end what holds "
        "the cards (`sudo lsof /dev/nvidia*`: servers, nvidia-persistenced, DCGM, a desktop: sudo "
        "systemctl isolate multi-user.target; modules on top: `lsmod | grep nvidia`), or reboot. "
        "In Kubernetes drain the node (kubectl drain) or let the operator do so "
        "(driver.upgradePolicy.drain); where the host has a driver of its own, set "
        "driver.enabled=false.",
    ),
    "driver.leftover": (
        "DKMS still lists a driver whose sources are gone, and stops there before it builds the "
        "installed one: remove its folder (sudo rm -r {folder}), see `dkms status`, and run sudo "
        "dkms autoinstall.",
    ),
    "driver.addresses": (
        "The firmware gave the card no room in the PCI address space, which large memory needs: "
        "in the BIOS enable Above 4G Decoding (and Resizable BAR), disable CSM, and update the "
        "BIOS; with Thunderbolt or an adapter try the kernel's option pci=realloc. A virtual "
        "machine needs UEFI (OVMF) and more 64-bit MMIO (VMware: pciPassthru.use64bitMMIO=TRUE and "
        "pciPassthru.64bitMMIOSizeGB). The driver is not at fault.",
    ),
    "driver.packages": (
        "The driver's packages come from several sources or releases ({package} lacks its own). "
        "First let the lists be current: sudo apt update && sudo apt --fix-broken install (sudo "
        "apt full-upgrade). If that does not help, remove them all (sudo apt purge '*nvidia*'), "
        "keep one source (the distribution's, or NVIDIA's, which /etc/apt/preferences.d can "
        "prefer), install the driver anew (Ubuntu: sudo ubuntu-drivers install), and reboot.",
    ),
    "driver.module": (
        "There is no module {module} for the kernel that runs: the driver is not installed, or was "
        "built for another kernel, usually before an update. Install the headers of this one "
        "(linux-headers-$(uname -r); kernel-devel) and the driver with DKMS again, and reboot. A "
        "virtual machine needs the card passed through, and WSL2 the driver of Windows alone.",
        "The driver's kernel module does not load: install the headers of the running kernel, "
        "rebuild it (sudo dkms autoinstall) or reinstall the driver, and reboot.",
    ),
    "nvswitch.fatal": (
        "An NVSwitch reported a fatal fault: restart nvidia-fabricmanager, or reboot; if it comes "
        "back, have the baseboard checked.",
    ),
    "pcie.link": (
        "A PCIe link failed: check the card's seat, riser or cable and its power, lower the slot's "
        "PCIe generation in the firmware, and reboot.",
    ),
    "amd.fault": (
        "A kernel accessed invalid memory of the AMD card: update driver and ROCm, and use a build "
        "for exactly this card (without HSA_OVERRIDE_GFX_VERSION).",
    ),
    "amd.reset": (
        "The AMD card hung and its driver reset it: restart the engine; update kernel, firmware "
        "and ROCm, and use smaller batches. If the reset failed, reboot.",
    ),
    "host.disk": (
        "The kernel reports a fault of a disk or file system: `journalctl -k` and smartctl name "
        "it.",
    ),
    "host.oops": (
        "The kernel itself failed, in its own code or a driver's: the lines that follow name the "
        "module in brackets ([amdgpu], [nvidia]). Reboot, then use another kernel (the "
        "distribution's long-term one, or a newer one) and another release of the driver and its "
        "firmware; the engine only called it.",
    ),
    "host.selinux": (
        "SELinux denies {program} the access {access} to {path}. If the file has a wrong label, as "
        "after a move or by hand: sudo restorecon -Rv {path}; for a folder that a container "
        "mounts, add :z to the volume (or --security-opt label=disable, for a card container_t may "
        "use: sudo setsebool -P container_use_devices on). Where a policy's rule for the path is "
        "at fault, set another type (sudo semanage fcontext -a -t TYPE, then restorecon), or allow "
        "what is needed: sudo ausearch -m avc -ts recent | audit2allow -M local, then sudo "
        "semodule -i local.pp.",
        "`sudo setenforce 0` for one attempt shows whether nothing else is at fault.",
    ),
    "host.apparmor": (
        "The confinement of a snap ({snap}) denies {access}, and its profile is fixed: install the "
        "program from another package (Docker: docker-ce from Docker's own repository; Ollama: its "
        "install script), then remove the snap. `snap connections` lists interfaces that may be "
        "connected in its place (sudo snap connect).",
        "AppArmor denies the profile {profile} the operation {access}: `sudo aa-complain "
        "{profile}` for one attempt shows whether that is all; then add a rule for the path to the "
        "profile (/etc/apparmor.d/local), or start the container with --security-opt "
        "apparmor=unconfined.",
    ),
    "host.machine": ("The machine itself failed: check its memory, CPU and cooling.",),
    "pcie.fatal": (
        "The PCIe link of a card failed: check its seat, riser or cable, and lower the slot's "
        "PCIe generation in the firmware; reboot to get the card back.",
    ),
    "host.instruction": (
        "The build uses instructions that this CPU lacks (AVX, AVX2 or AVX-512): install a "
        "build for it.",
    ),
}
"""Sentences by row."""

# Prefixes of the kernel's lines, also when an engine's log repeats them.
KERNEL_LINE = re.compile(
    r".{0,80}?(?:NVRM: |nvidia [\da-fA-F:.]{7,16}: |Out of memory: Kill(?:ed)? process"
    r"|Memory cgroup out of memory: Kill(?:ed)? process)"
)
# More prefixes, which count only in a log that no engine wrote.
_ANY_KERNEL_LINE = re.compile(
    r".{0,80}?(?:NVRM: |Error! (?:Bad return|Could not loc)|==> \w{1,8}: "
    r"|make(?:\[\d\])?: \*\*\* \[.{0,120}/dkms/nvidia"
    r"|(?:Building )?DKMS module |File: /var/lib/dkms"
    r"|\bnvidia(?:-(?:nvlink|nvswitch\d{0,2}|uvm|modeset|drm))?"
    r"(?: [\da-fA-F:.]{7,16})?: |\boom-kill:|invoked oom-killer"
    r"|[Oo]ut of memory:|oom_reaper: |PKCS#7 signature|Loading of (?:unsigned )?module|Lockdown: "
    r"|(?:modprobe|insmod|rmmod): (?:ERROR|FATAL)|Could not unload NVIDIA|\bamdgpu\b"
    r"|ERROR: (?:Unable to load the kernel|An NVIDIA kernel) module"
    r"|\[drm\b|\bi915 |\bxe \d|pcieport |\bAER: |mce: |Kernel panic|watchdog: BUG"
    r"|BUG: |Oops: |traps: "
    r"|segfault at [\da-f]|blk_update_request|Buffer I/O error|print_req_error"
    r"|\bavc: {1,2}denied|apparmor=\"DENIED|EXT4-fs error|XFS \(|BTRFS |nvme\d|drmn\d: |SXid \()"
)


def is_of_kernel(line: str) -> bool:
    """Whether a line outside engine logs comes from the kernel, a driver or its installer."""
    return bool(_ANY_KERNEL_LINE.match(line))


def find_in_machine(lines: Sequence[str]) -> Finding | None:
    """Find a failure in another machine's kernel log, whose processes are unknown."""
    found = find_in_kernel(lines, None)
    if found is not None and found.signature not in (row.id for row in OF_PROGRAM):
        return found
    hits = []
    for index, line in enumerate(lines):
        taken = first(_OTHER_MACHINE, line)
        if taken is not None and is_of_kernel(line):
            hits.append(Hit(index, line, "", *taken))
    named = [hit for hit in hits if hit.row.kind != "consequence"]
    return cause(hits) or found or (finding((named or hits)[0]) if hits else None)


_XID_PID = re.compile(r"\bpid='?(\d+)")


def find_in_kernel(lines: Sequence[str], pids: Collection[int] | None) -> Finding | None:
    """A GPU fault, or an out-of-memory kill of one of `pids`, in lines of the kernel log.

    None stands for the processes of another machine: any may be the engine's.
    """
    symptom: Finding | None = None
    for number, line in enumerate(lines, 1):
        found = first(ROWS, line) if KERNEL_LINE.match(line) else None
        if found is None:
            continue
        row, captures = found
        fault = Finding(row.failure, line.strip()[:MAX_TEXT], "", captures, row.id, number)
        if row is HOST_KILLED and not _among(captures["pid"], pids):
            continue
        if row not in OF_PROGRAM:
            return fault
        if pids is not None and captures["xid"] == CLEANUP:
            continue  # here, what ended it is seen
        # Skip another program's fault on the same card. If no pid is named, the engine's log
        # decides.
        blamed = _XID_PID.search(line)
        if symptom is None and (_among(blamed[1], pids) if blamed else pids is None):
            symptom = fault
    return symptom


def _among(pid: str, pids: Collection[int] | None) -> bool:
    return pids is None or int(pid) in pids
