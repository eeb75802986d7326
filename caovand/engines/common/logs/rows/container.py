"""Messages of container runtimes that cannot start a container, or cannot pass it a card."""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.engines.common.logs.signature import signature

_RAW = re.compile(
    r"(?:docker: |Error: )?OCI runtime |.{0,200}\bError response from daemon: ?"
    r"|(?:stderr: )?nvidia-container-cli(?:\.real)?: |ERROR: for \S{1,100}  "
    r"|.{0,80}(?:Cannot connect to the Docker daemon|no matching manifest for )"
    r"|exec \S{1,200}: (?:exec |no such file)|.{0,80}Failed to run mount hooks"
    r"|(?:ERROR: )?failed to (?:register layer|extract layer|solve|copy)\b"
    r"|(?:Error: )?(?:writing blob|copying system image|committing the )"
    r"|(?:[IWE]\d{4} .{0,60}\] )?(?:\d{4}/\d\d/\d\d [\d:]{8} )?"
    r"(?:Incompatible (?:strategy|platform) detected|error starting plugins: |NVML not detected: "
    r"|Failed to (?:initialize|start) (?:NVML|nvml)(?: with error)?: {1,2}could not load)"
    r"|ERROR: This container was built for NVIDIA Driver Release "
    r"|Error: (?:statfs |setting up CDI|OCI runtime|crun: |runc: )"
)
_CLI = r"nvidia-container-cli(?:\.real)?: ?(?:\w{1,30} error: ){0,2}"
"""How the tool begins, which Docker's hook runs: the kind of step, then what failed."""
ROWS = (
    signature("container.files", "cause", "gpu-absent",
         r"file creation failed: (?P<path>\S{1,400}): file exists"),
    # How nvidia-container-cli fails, by what it names
    signature("container.mismatch", "cause", "gpu-absent", _CLI + r"[Dd]river/library version mis"),
    signature("container.driver", "cause", "gpu-absent", _CLI + r"driver not loaded"),
    signature("container.wsl", "cause", "gpu-absent",
         r"WSL environment detected but no adapters|dxcore initialization failed"),
    signature("container.libraries", "cause", "gpu-absent",
         _CLI + r"load library failed: (?P<library>[^\s:]{1,100})"),
    signature("container.request", "cause", "gpu-absent",
         _CLI + r"driver error: failed to process request"),
    signature("container.slow", "cause", "gpu-absent", _CLI + r"driver rpc error"),
    signature("container.device", "cause", "gpu-absent",
         _CLI + r"(?P<device>\S{1,100}): unknown device"),
    signature("container.ldconfig", "cause", "gpu-absent",
         _CLI + r"ldcache error: "),
    signature("container.cgroup", "cause", "gpu-absent",
         _CLI + r"(?:cgroup subsystem|failed to (?:add device rules|get device cgroup)"
         r"|.{0,60}\bbpf)|unable to find any existing device filters attached"),
    signature("container.privileges", "cause", "gpu-absent",
         _CLI + r"(?:.{0,100}(?:permitted|[Pp]ermission|privilege)|change root failed)"),
    signature("container.mount", "cause", "gpu-absent",
         _CLI + r"(?:(?:mount|detection|path|stat) error: |stat failed: )"
         r"(?!nvml)(?P<mount>.{1,140})"),
    signature("container.state", "cause", "gpu-absent",
         _CLI + r"(?:(?:cuda|nvml) error: )(?P<state>.{1,60}?)(?:: unknown|\.|$)"),
    signature("container.hook", "cause", "gpu-absent",
         r"invoking the NVIDIA Container Runtime Hook directly"),
    signature("container.cdi.off", "cause", "gpu-absent",
         r"could not select device driver \W{0,2}cdi\b"),
    signature("container.cdi", "cause", "gpu-absent",
         r"unresolvable CDI devices(?: (?P<device>[\w./=-]{1,100}))?|failed to inject CDI devices"
         r"|failed to stat CDI host device|stat nvidia\.com/gpu"),
    signature("container.handler", "cause", "gpu-absent",
         r"RuntimeHandler \"(?P<handler>nvidia[^\"]{0,30})\" not supported"
         r"|no runtime for \"(?P<named>nvidia[^\"]{0,30})\" is configured"),
    signature("container.plugin", "cause", "gpu-absent",
         r"Incompatible (?:strategy|platform) detected|Could not find NVML resources"
         r"|NVML not detected: could not load|set the docker default runtime to .?nvidia"
         r"|(?:NVML|nvml)(?: with error)?: {1,2}could not load NVML library"
         r"|error starting plugins: .{0,200}(?:invalid device discovery strategy"
         r"|[Nn]o devices|NVML)"),
    signature("container.pod", "cause", "gpu-absent",
         r"Insufficient (?:nvidia|amd|intel)\.com/\w"
         r"|no healthy devices present.{0,60}nvidia\.com/gpu"
         r"|Allocate failed due to .{0,200}nvidia\.com/gpu"),
    signature("container.path", "cause", "gpu-absent",
         r"error gathering device information .{0,40}\""
         r"(?P<device>/dev/(?:nvidia|kfd|dri)[^\"]{0,60})"),
    # Podman runs what is in hooks.d
    signature("container.podman", "cause", "gpu-absent", r"error executing hook .{0,100}nvidia"),
    signature("container.gpu", "cause", "gpu-absent",
         _CLI + r"\S"
         r"|could not select device driver .{0,20}with capabilities: \[\[gpu"
         r"|unknown or invalid runtime name: ?nvidia"
         r"|Unknown runtime specified nvidia|nvidia-container-runtime\S{0,20}: (?:no such"
         r"|executable file not found)"),
    signature("container.platform", "cause", "bad-arguments",
         r"no matching manifest for (?P<platform>[\w/]{3,40})"
         r"|(?:Error response from daemon|OCI runtime |^exec ).{0,400}(?P<format>[Ee]xec format "
         r"error)|(?P<other>does not match the (?:specified|detected host) platform)"),
    signature("container.daemon", "cause", "engine-unusable",
         r"Cannot connect to the Docker daemon"),
    signature("container.port", "cause", "port-busy",
         r"Error response from daemon.{0,300}:(?P<ollama>11434)(?:: bind| failed)"
         r"|Error response from daemon.{0,300}(?P<taken>address already in use"
         r"|port is already allocated|[Pp]orts are not available)"),
    signature("container.denied", "cause", "access-denied",
         r"(?P<socket>permission denied) while trying to connect to the [Dd]ocker"
         r"|dial unix \S{1,100}docker\.sock: connect: (?P<refused>permission denied)"
         r"|(?:Error response from daemon|OCI runtime ).{0,400}[Pp]ermission denied"),
    signature("container.network", "cause", "network",
         r"Error response from daemon.{0,200}(?:TLS handshake timeout|i/o timeout|no such host"
         r"|toomanyrequests|connection (?:refused|reset)|Client\.Timeout|context deadline "
         r"exceeded)"),
    signature("container.image", "cause", "bad-arguments",
         r"Error response from daemon.{0,200}(?:manifest (?:for .{1,200} )?(?:unknown|not found)"
         r"|pull access denied|No such image"
         r"|repository does not exist)|\b(?:ErrImagePull|ImagePullBackOff)\b"),
    signature("container.folder", "cause", "bad-arguments",
         r"Error: statfs (?P<folder>/\S{1,300}): no such file or directory"),
    signature("container.release", "cause", "gpu-absent",
         r"This container was built for NVIDIA Driver Release (?P<wanted>[\d.]{3,12}) or later"),
    signature("container.entry", "cause", "bad-arguments",
         r"exec: \"(?P<option>--?[\w-]{1,60})[^\"]{0,200}\": executable file not found"),
    # The kernel says so of a script whose first line ends in a carriage return, too
    signature("container.script", "cause", "bad-arguments",
         r"^exec (?P<script>/\S{1,200}): no such file or directory"),
    signature("container.lxd", "cause", "gpu-absent", r"\blxc\b.{0,80}Failed to run mount hooks"),
    signature("container.disk", "cause", "unknown",
         r"(?:failed to (?:register|extract) layer|Error response from daemon|[Ww]riting blob"
         r"|[Ee]rror committing|copying system image|ERROR: failed to (?:solve|copy)|apply layer)"
         r"\b.{0,900}\bno space left on device"),
    signature("container.options", "cause", "bad-arguments",
         r"Error response from daemon.{0,200}?(?:"
         r"container name \"/(?P<name>[\w.-]{1,100})\" is already"
         r"|(?P<cannot>is already in use by container"
         r"|invalid (?:mount|volume|reference|mode|IP)|bind source path does not exist"
         r"|mount path must be absolute|can only create .{1,60} if|conflicting options"
         r"|[Rr]ange of CPUs|mount a directory onto a file|[Nn]o such container"
         r"|cannot allocate shm))"),
    signature("container.failed", "consequence", "unknown",
         r"Error response from daemon: ?(?P<why>.{1,200})"
         r"|OCI runtime (?:create )?(?:failed|error)"),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "container.files": (
        "The image holds files of the NVIDIA driver itself ({path}), and the container's runtime "
        "must put the host's there: build the image without the driver's packages (nvidia-*, "
        "libnvidia-*); install only the CUDA toolkit in it.",
    ),
    "container.mismatch": (
        "The kernel on the host runs another release of the NVIDIA driver than its libraries, as "
        "after an update: reboot, or unload and load the kernel modules; until `nvidia-smi` works "
        "on the host, no container gets a card.",
    ),
    "container.driver": (
        "The NVIDIA driver is not loaded on the host: install it there, or after an update of the "
        "kernel rebuild its module (sudo dkms autoinstall), and reboot. `nvidia-smi` must work on "
        "the host first; a host without NVIDIA's card must start the container without it.",
    ),
    "container.wsl": (
        "WSL has no NVIDIA card: install the current NVIDIA driver in Windows (and none in WSL), "
        "run `wsl --update` and `wsl --shutdown`, and restart Docker; `nvidia-smi` must work in "
        "WSL. Without such a card leave out --gpus and its section of the compose file.",
    ),
    "container.libraries": (
        "The container's runtime does not find {library} of the NVIDIA driver on the host: install "
        "the driver there (for WSL in Windows), and run `sudo ldconfig`. Docker as a snap, Docker "
        "Desktop on Linux and Docker in a virtual machine do not see the host's: install Docker "
        "from its own packages. In Kubernetes with a driver of the host's own the GPU operator "
        "must know so (driver.enabled=false; MicroK8s: --driver host), else it looks for one in "
        "/run/nvidia/driver.",
    ),
    "container.slow": (
        "The driver took too long to start, or crashed: keep it loaded (sudo systemctl enable "
        "--now nvidia-persistenced), and see whether `nvidia-smi` on the host answers, and what "
        "`journalctl -k | grep -i nvrm` reports.",
    ),
    "container.device": (
        "There is no card {device} on the host: correct --gpus, device_ids or "
        "NVIDIA_VISIBLE_DEVICES by `nvidia-smi -L`; numbers begin at 0.",
    ),
    "container.ldconfig": (
        "The tool that puts the driver's libraries into the container cannot run the host's "
        "ldconfig: name it in /etc/nvidia-container-runtime/config.toml (ldconfig = "
        '"@/sbin/ldconfig", on Ubuntu "@/sbin/ldconfig.real"), update the NVIDIA Container '
        "Toolkit; in an unprivileged container or enroot it may lack the right to mount.",
    ),
    "container.cgroup": (
        "The NVIDIA Container Toolkit cannot set the device rules of this host's cgroups: update "
        "the toolkit (1.8 and later know cgroup v2; the newest leave eBPF to runc) and restart "
        "Docker; rootless, or with Docker inside an LXC container, set no-cgroups = true in "
        "/etc/nvidia-container-runtime/config.toml, else leave it false.",
    ),
    "container.privileges": (
        "The container's runtime may not do what passing a card takes: rootless, or in an "
        "unprivileged LXC, set no-cgroups = true in /etc/nvidia-container-runtime/config.toml and "
        "pass the /dev/nvidia* files; check SELinux or AppArmor and the files' permissions; or run "
        "it as root.",
    ),
    "container.mount": (
        "A file of the driver is not where the container's runtime expects it ({mount}): after an "
        "update of the driver reboot, or reinstall it; `sudo nvidia-modprobe -u -c=0` makes "
        "missing /dev/nvidia* files. Then update the NVIDIA Container Toolkit.",
    ),
    "container.state": (
        "The driver on the host does not start a card ({state}): run `nvidia-smi` there, read "
        "`journalctl -k | grep -i nvrm`, and reboot.",
    ),
    "container.hook": (
        "The runtime is not in the mode for --gpus, as on Jetson or with CDI: start the container "
        "with --runtime=nvidia and NVIDIA_VISIBLE_DEVICES=all instead, or with --device "
        "nvidia.com/gpu=all.",
    ),
    "container.cdi.off": (
        "Docker does not inject devices by CDI, which older releases have switched off: update "
        'Docker (28.3 and later have it on), or write "features": {{"cdi": true}} in '
        "/etc/docker/daemon.json (rootless: ~/.config/docker/daemon.json) and restart it. Or pass "
        "the card with --gpus all.",
    ),
    "container.cdi": (
        "The list of cards for containers (CDI) is missing, or older than the driver: "
        "install the NVIDIA Container Toolkit, and run `sudo nvidia-ctk cdi generate "
        "--output=/etc/cdi/nvidia.yaml`, again after each update of the driver; `nvidia-ctk cdi "
        "list` shows the names.",
    ),
    "container.handler": (
        "The node's container runtime does not know the runtime {handler}: install the NVIDIA "
        "Container Toolkit on the node, run `sudo nvidia-ctk runtime configure "
        "--runtime=containerd` (k3s and k0s have a configuration of their own), and restart it.",
        "The node's container runtime does not know the runtime {named}: install the NVIDIA "
        "Container Toolkit on the node, run `sudo nvidia-ctk runtime configure "
        "--runtime=containerd` (k3s and k0s have a configuration of their own), and restart it.",
    ),
    "container.plugin": (
        "NVIDIA's device plugin runs without the driver's libraries, so the node offers no card: "
        "the pod must start with the NVIDIA runtime. Install the NVIDIA Container Toolkit on the "
        "node, run `sudo nvidia-ctk runtime configure --runtime=containerd --set-as-default` "
        "(crio for CRI-O) and restart it, or give the plugin runtimeClassName: nvidia and its "
        "RuntimeClass. On nodes without a card keep it away with a nodeSelector.",
    ),
    "container.port": (
        "Port {ollama} is Ollama's, and usually its service on the host holds it already: stop "
        "that (`sudo systemctl disable --now ollama`; Windows and macOS: quit it at its symbol) to "
        "use the one in a container, or publish another port (`-p 11435:11434`). A container that "
        "only calls Ollama publishes none of its ports.",
        "Another program or container holds the port ({taken}): `ss -ltnp` (Windows: `netstat "
        "-ano`) and `docker ps` name it. Stop it, or publish another port (-p OTHER:SAME).",
    ),
    "container.pod": (
        "No node of the cluster offers a free card: see what `kubectl describe node` lists as "
        "allocatable and allocated. Without any, the device plugin (or GPU operator) does not run "
        "there or found faults, or the node's container runtime is not the NVIDIA one; a taint, an "
        "MIG profile of another name or another pod may also take them.",
    ),
    "container.path": (
        "The host has no {device}: the card's driver is not loaded there (amdgpu with ROCm, "
        "nvidia, i915 or xe), or it is a virtual machine or WSL without it. `ls /dev/dri /dev/kfd` "
        "shows what there is to pass; leave out the option otherwise.",
    ),
    "container.request": (
        "NVIDIA's container tool asked the driver for the cards, and the driver refused. Under WSL "
        "the driver is the one of Windows: update it there, then `wsl --update` and `wsl "
        "--shutdown`, and update Docker Desktop (or install another release, if it began with an "
        "update). On Linux see whether nvidia-smi works, and reboot after an update of the driver.",
    ),
    "container.podman": (
        "Podman's hook of the NVIDIA Container Toolkit failed, as it does without root and with "
        "SELinux. Use CDI in its place: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml "
        "(again after each update of the driver), remove the hook's file from "
        "/usr/share/containers/oci/hooks.d, and start with --device nvidia.com/gpu=all "
        "--security-opt label=disable, rootless also with --group-add keep-groups.",
    ),
    "container.gpu": (
        "The container's runtime could not give it a card: let `nvidia-smi` work on the host, "
        "install the NVIDIA Container Toolkit, run `sudo nvidia-ctk runtime configure "
        "--runtime=docker`, and restart Docker. On a machine without NVIDIA's card leave out "
        "--gpus.",
    ),
    "container.daemon": (
        "Docker's daemon does not run, or DOCKER_HOST names another: start it (`sudo systemctl "
        "start docker`; Docker Desktop: the application, with WSL integration for this "
        "distribution).",
    ),
    "container.platform": (
        "The image has no variant for {platform}: take a tag that has one, build it on this "
        "machine, or use the program without a container.",
        "The image is for another kind of CPU ({format}): take its tag for this one (arm64 "
        "or amd64), or build it here; under emulation engines do not run.",
        "The image {other}: take its tag for this one (arm64 or amd64), "
        "or name it with --platform; under emulation engines do not run.",
    ),
    "container.denied": (
        "The user may not use Docker ({socket}): sudo usermod -aG docker $USER and log in again, "
        "or use sudo.",
        "The user may not use Docker ({refused}): sudo usermod -aG docker $USER and log in again, "
        "or use sudo.",
        "If it is not the socket: the container's runtime was refused a file. With SELinux "
        "(`getenforce`; `sudo ausearch -m avc -ts recent` names the file) mount volumes with :z, "
        "run restorecon -Rv on Docker's own folders, or start with --security-opt label=disable; "
        "else correct the owner of mounted folders or of the working folder, make the command "
        "executable (chmod +x), and use no file system mounted with noexec.",
    ),
    "container.network": (
        "The registry was not reached, or limits anonymous downloads: check network and proxy of "
        "the Docker daemon, `docker login`, and try again.",
    ),
    "container.image": (
        "There is no such image, tag or platform in the registry, or it needs a login: correct the "
        "name, and use a tag that exists for this CPU.",
    ),
    "container.options": (
        "There is a container with the name {name}: start it (`docker start {name}`), or remove it "
        "first (`docker rm -f {name}`; its volumes stay) to run it with other options.",
        "An option of `docker run` cannot be met ({cannot}): a name in use, a path that does not "
        "exist, or a value out of range.",
    ),
    "container.folder": (
        "Podman does not make folders that it mounts, as Docker does, and {folder} is missing: "
        "`mkdir -p {folder}` as the user who starts the container (in its unit ExecStartPre=mkdir "
        "-p), or mount a volume by name (-v NAME:PATH).",
    ),
    "container.release": (
        "The image is for the NVIDIA driver {wanted} or later, and the host's is older: update the "
        "driver on the host (the image needs no change), or use an older tag of the image, for a "
        "CUDA release that `nvidia-smi` on the host shows or a lower one. Only cards for data "
        "centres can do with an older driver.",
    ),
    "container.script": (
        "{script} is there and cannot be started, or the image lacks it. Usually its lines end as "
        "on Windows (git there changes them): convert it (sed -i 's/\\r$//' FILE; git config "
        "core.autocrlf input, and a .gitattributes with `*.sh text eol=lf`), and build the image "
        "again. Otherwise the program that its first line names is not in the image.",
    ),
    "container.lxd": (
        "LXC's hook for NVIDIA cards failed (nvidia.runtime=true): the host needs "
        "nvidia-container-cli (package libnvidia-container-tools) on the path of LXD or Incus, "
        "`nvidia-smi` must work there, and `nvidia-container-cli info` shows what it lacks. Or set "
        "nvidia.runtime=false, pass the card as a device of the type gpu, and install the driver's "
        "libraries in the container.",
    ),
    "container.disk": (
        "The disk on which the container engine keeps its images is full: `docker system df` and "
        "`docker system prune -a` (Podman: podman system prune -a) free what no container uses. "
        "`df -h` and `df -i` on `docker info -f '{{{{.DockerRootDir}}}}'` show the disk; move that "
        "folder with data-root in /etc/docker/daemon.json, and in Docker Desktop enlarge the "
        "virtual disk (Settings, Resources). An image needs twice its size while it is unpacked, "
        "with Podman also in TMPDIR (/var/tmp).",
    ),
    "container.entry": (
        "The container's command begins with the option {option}. If that is one of docker itself, "
        "put it before the image's name; if it is the engine's, the image has no entrypoint: put "
        "the program before it (`vllm serve MODEL`, `python3 -m sglang.launch_server`).",
    ),
    "container.failed": (
        "The container was not started: the line says why. Correct its options, image or volumes.",
    ),
}
"""Sentences by row."""


def is_raw(line: str) -> bool:
    """Whether a line is of a container's runtime."""
    return bool(_RAW.match(line))
