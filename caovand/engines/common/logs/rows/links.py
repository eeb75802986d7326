"""Messages of RDMA, NVSHMEM and libraries that move caches between engines: rows for any engine.

Also advice on the messages of NCCL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.engines.common.logs.signature import SERVED, signature

_RAW = re.compile(
    r"RdmaTransport: |Failed to (?:open device \w|modify QP|register memory|create QP"
    r"|connect to (?:metadata|the metadata|Mooncake))|Worker: Process failed for slice"
    r"|Context is not active|Cannot make connection for endpoint"
    r"|Device \d{1,3} is not active|\[Handshake\] "
    r"|\S{1,200}(?:nvshmem|NVSHMEM)\S{0,200}:|nvshmem\w{0,40}: |WARN: .{0,60}nvshmem"
    r"|libibverbs: |(?:\(\w{1,40} pid=[^)]{1,60}\) )?mlx\d: \S{1,80}: got completion"
)
ROWS = (
    # oneCCL: ze_fd_manager.cpp:214 fill_device_fds: EXCEPTION: open failed: fd: -1, errno: ...
    signature("link.oneccl", "cause", "collective-timeout", r"\boneCCL: .{0,200}EXCEPTION: ",
         SERVED),
    signature("link.sizes", "generic", "bad-arguments",
         r"output tensor size must be equal to world_size times input tensor size"
         r"|Tensors must be (?:contiguous|of equal size)|split_sizes .{0,60}(?:sum|match)",
         SERVED),
    signature("link.rdma", "cause", "collective-timeout",
         r"RdmaTransport: (?:No available RNIC|cannot initialize)|[Tt]ransport retry counter exceed"
         r"|Failed to open device (?P<device>\w{1,40}) on port|Failed to modify QP to \w{2,6}"
         r"|(?<!Call to )\bibv_(?:reg_mr|open_device|create_qp|get_device_list)\w{0,10}\b.{0,80}"
         r"(?:fail|error|returned)|Failed to register memory 0x|Context is not active: \w"
         r"|local protection error|No RDMA devices? (?:was |were )?(?:found|available)"
         r"|[Nn]o (?:IB|InfiniBand) devices? found"
         r"|Cannot make connection for endpoint"),
    signature("link.verbs", "cause", "collective-timeout",
         r"Call to (?P<call>ibv_\w{1,40}) .{0,60}failed"
         r"|NET/IB : .{0,100}[Gg]ot completion.{0,40}error"
         r"|NET/IB.{0,60}(?:timeout|retry exceeded)"
         # What the network card's own library prints before NCCL does
         r"|^mlx\d: \S{1,80}: got completion with error"),
    signature("link.nvshmem", "cause", "collective-timeout",
         r"\b(?:nvshmem\w{0,40}|NVSHMEM)\b.{0,200}(?:[Ff]ail|[Ee]rror|not found|unable)"
         r"|DeepEP (?:error|timeout)|deep_ep.{0,100}\b(?:timeout|timed out)"),
    signature("link.store", "cause", "collective-timeout",
         r"Failed to connect to (?:the )?(?:Mooncake|metadata)|MooncakeDistributedStore.{0,60}fail"
         r"|Failed to (?:setup|initialize) [Mm]ooncake|Failed to complete transfers after \d"
         r"|Mooncake (?:store|[Tt]ransfer [Ee]ngine).{0,60}(?:fail|error)"),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "nccl.unloaded": (
        "NCCL's library ({library}) is there and cannot be loaded, or is not there: the lines "
        "after this one say which. Install the nvidia-nccl package that PyTorch requires into the "
        "engine's environment again, and unset VLLM_NCCL_SO_PATH, LD_PRELOAD and an "
        "LD_LIBRARY_PATH with another one; on a system older than glibc 2.28 (CentOS 7) use the "
        "engine's container image.",
    ),
    "nccl.library": (
        "NCCL's library was not found or is of another release: install nvidia-nccl-cu12 (of CUDA "
        "13 nvidia-nccl-cu13) that PyTorch asks for into the environment, and let "
        "VLLM_NCCL_SO_PATH name its libnccl.so.2 where it lies elsewhere.",
    ),
    "nccl.failed": (
        "NCCL, which links the cards, failed, and this line does not show why: NCCL_DEBUG=INFO "
        "names the reason. Check /dev/shm, `nvidia-smi topo -m`, NCCL_P2P_DISABLE=1 and the "
        "network's interface (NCCL_SOCKET_IFNAME), and that one release of NCCL is installed "
        "(pip list | grep nccl).",
    ),
    "nccl.custom": (
        "The custom all-reduce could not share the buffers of its CUDA graphs among the cards: "
        "leave all-reduce to NCCL (--disable-custom-all-reduce). Parts of cards that a device "
        "plugin shares out (HAMi, vGPU) cannot share them at all; memory of expandable segments "
        "cannot, either: without PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF), or without "
        "expandable_segments:True in it (images and trainers may set it), the custom all-reduce "
        "works.",
    ),
    "nccl.duplicate": (
        "Two ranks use the same card: give each rank its own in CUDA_VISIBLE_DEVICES.",
    ),
    "nccl.network": (
        "A rank could not connect to the address in the line: {reason}.",
        "A rank offers the others the address {loopback}, which leads every machine to itself: its "
        "host name resolves to that (/etc/hosts; under hostNetwork often), or to nothing. On every "
        "node set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface of the nodes' network "
        "(`ip -br addr`), for vLLM VLLM_HOST_IP to its address, and correct /etc/hosts.",
        "The ranks cannot reach each other: set the network's interface in NCCL_SOCKET_IFNAME and "
        "GLOO_SOCKET_IFNAME, open the firewall between the nodes, and try NCCL_IB_DISABLE=1.",
    ),
    "link.oneccl": (
        "oneCCL, which links Intel's cards, could not open or share a device: give the container "
        "/dev/dri with its links (--device /dev/dri -v /dev/dri/by-path:/dev/dri/by-path), add the "
        "user to the group render, and try CCL_ZE_IPC_EXCHANGE=sockets; on one card "
        "--tensor-parallel-size 1.",
    ),
    "link.sizes": (
        "The ranks exchange tensors whose sizes do not fit together: the parallel sizes (--tp, "
        "--dp, --enable-dp-attention) do not fit each other or this model in this release. Use "
        "equal or dividing sizes, leave data parallel attention out, or install a newer release.",
    ),
    # Of SGLang, whose clients see it, too
    "sglang.transfer": (
        "The prefill and the decode server could not hand a request's KV cache over: check that "
        "both run, that their RDMA devices match (--disaggregation-ib-device, ibstat), that each "
        "reaches the other's address and bootstrap port, and that both have the same releases of "
        "SGLang and of the transfer engine.",
    ),
    "link.rdma": (
        "RDMA between the engines does not work: a network card cannot be opened, registered or "
        "reached. Check with ibv_devinfo that its port is active, configure cards that can reach "
        "each other (--disaggregation-ib-device, NCCL_IB_HCA, UCX_NET_DEVICES, MC_GID_INDEX), give "
        "the container --privileged or /dev/infiniband, --cap-add IPC_LOCK and --ulimit "
        "memlock=-1, and load nvidia_peermem for memory of cards; otherwise let it use TCP.",
    ),
    "link.verbs": (
        "NCCL's InfiniBand or RoCE transport failed between two network cards: configure cards "
        "that reach each other (NCCL_IB_HCA, NCCL_IB_GID_INDEX=3 for RoCE v2), keep to one rail "
        "where only cards of one number are connected (NCCL_CROSS_NIC=0), give the container "
        "/dev/infiniband and --ulimit memlock=-1, and check with ibv_devinfo; NCCL_IB_DISABLE=1 "
        "uses TCP instead.",
    ),
    "link.nvshmem": (
        "NVSHMEM, which DeepEP's kernels use between cards, could not start or lost a peer: "
        "install the release of NVSHMEM and DeepEP that the engine requires, load nvidia_peermem "
        "or gdrcopy, and try NVSHMEM_REMOTE_TRANSPORT=none on one machine; without it choose "
        "another all-to-all (--all2all-backend, --moe-a2a-backend).",
    ),
    "link.store": (
        "The store of the caches (Mooncake) did not answer or complete: check that its master and "
        "metadata server run at the configured address, that protocol and device_name "
        "fit this machine (protocol tcp needs none), and that both sides have the same release.",
    ),
}
"""Sentences by row; one with an unknown {name} is left out."""


def is_raw(line: str) -> bool:
    """Whether a line of these libraries reports a failure."""
    return bool(_RAW.match(line))
