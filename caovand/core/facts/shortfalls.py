"""Shortages of a machine for an engine or a checkpoint under any plan: fact and remedy.

They are warnings, not obstacles: CUDA's compatibility packages can stand in for a newer driver, and
a checkpoint larger than memory still loads from disk, slowly. Only a single file that is larger
than RAM and swap together may fail: torch maps it for private writing, which Linux refuses as an
obvious overcommitment unless vm.overcommit_memory is 1 (vllm#759).
"""

from __future__ import annotations

from collections.abc import Sequence

from caovand.core.facts.inventory import Gpu, Host, ModelCard
from caovand.core.problem import Problem

DRIVER_OF_CUDA = {11: "450.80", 12: "525.60", 13: "580.65"}
"""The oldest driver for each CUDA release, by NVIDIA's compatibility table."""
INSTALL_DRIVER = (
    "sudo ubuntu-drivers install (on Debian: cuda-drivers from NVIDIA's repository), then reboot"
)
SMALL_SHM_MIB = 1024
"""Less than this of /dev/shm is little for several ranks."""
LARGER_SHM = "sudo mount -o remount,size=8G /dev/shm (in a container: --shm-size=8g)"
_OLDEST_CARD = {11: (3, 5), 12: (5, 0), 13: (7, 5)}
"""Compute capability of the oldest cards that each CUDA release compiles for."""


def old_driver(gpus: Sequence[Gpu], cuda: str | None) -> Problem | None:
    """The driver is too old for the wanted CUDA; None if it is not, or is unknown."""
    has = gpus[0].cuda if gpus else ""
    if not has or not cuda or _major(has) >= _major(cuda):
        return None
    need = DRIVER_OF_CUDA.get(_major(cuda), "a newer one")
    return Problem(
        "",
        f"driver {gpus[0].driver} supports CUDA {has}, but the engine needs CUDA {cuda}",
        f"install driver {need} or newer: {INSTALL_DRIVER}",
    )


def oldest_card(cuda: str | None) -> tuple[int, int]:
    """Compute capability of the oldest cards that a CUDA release compiles for; CUDA 12's if
    unknown."""
    return _OLDEST_CARD.get(_major(cuda or ""), _OLDEST_CARD[12])


def small_host(model: ModelCard, host: Host) -> Problem | None:
    """RAM and swap together are smaller than the checkpoint, whose files are mapped one by one."""
    need = model.size() >> 20
    if need <= host.ram_mib + host.swap_mib:
        return None
    fact = (
        f"the checkpoint has {need} MiB, the machine {host.ram_mib} MiB RAM and {host.swap_mib} MiB"
        " swap"
    )
    if model.gguf:
        return Problem(
            "",
            f"{fact}: Linux evicts mapped weights again, and every token waits for the disk",
            "add memory, or use a GGUF file quantised to fewer bits",
        )
    if cannot_map(model, host):
        return Problem(
            "",
            f'{fact}: mapping its largest file, {model.largest_file >> 20} MiB, fails with "unable'
            ' to mmap" unless Linux overcommits',
            "add memory or swap (`caovanctl doctor` has the commands), or use a checkpoint in "
            "smaller files",
        )
    return Problem(
        "",
        f"{fact}: loading is slow, because Linux evicts pages and has to read some of them again",
        "add memory, or use a smaller checkpoint",
    )


def cannot_map(model: ModelCard, host: Host) -> bool:
    """Whether a single file that is mapped is larger than RAM and swap."""
    return not model.pickled and model.largest_file >> 20 > host.ram_mib + host.swap_mib


def more_swap(need_mib: int) -> str:
    """Commands that add swap for a checkpoint of this size."""
    return (
        f"sudo fallocate -l {need_mib // 1024 + 8}G /swapfile && sudo chmod 600 /swapfile"
        " && sudo mkswap /swapfile && sudo swapon /swapfile"
    )


def _major(release: str) -> int:
    number = release.partition(".")[0]
    return int(number) if number.isdecimal() else 0
