"""Shortages of a machine for an engine or a checkpoint under any plan: fact and remedy.

They are warnings, not obstacles: CUDA's compatibility packages can stand in for a newer driver, and
a checkpoint larger than memory may still load from disk, slowly.
"""

from __future__ import annotations

from collections.abc import Sequence

from caovand.core.facts.inventory import Gpu, Host, ModelCard
from caovand.core.problem import Problem

DRIVER_OF_CUDA = {11: "450.80", 12: "525.60", 13: "580.65"}
"""The oldest driver for each CUDA release, by NVIDIA's compatibility table."""
_OLDEST_CARD = {11: (3, 5), 12: (5, 0), 13: (7, 5)}
"""Compute capability of the oldest cards that each CUDA release compiles for."""


def old_driver(gpus: Sequence[Gpu], wanted: str | None) -> Problem | None:
    """The driver is too old for the wanted CUDA; None if it is not, or is unknown."""
    has = gpus[0].cuda if gpus else ""
    if not has or not wanted or _major(has) >= _major(wanted):
        return None
    need = DRIVER_OF_CUDA.get(_major(wanted), "a newer one")
    return Problem(
        "",
        f"driver {gpus[0].driver} is made for CUDA {has}, the engine for CUDA {wanted}",
        f"install driver {need} or newer: sudo ubuntu-drivers install, then reboot",
    )


def oldest_card(cuda: str | None) -> tuple[int, int]:
    """Compute capability of the oldest cards that a CUDA release compiles for; CUDA 12's if
    unknown."""
    return _OLDEST_CARD.get(_major(cuda or ""), _OLDEST_CARD[12])


def small_host(model: ModelCard, host: Host) -> Problem | None:
    """RAM and swap together are smaller than the checkpoint, which loading maps as a whole."""
    need = model.size() >> 20
    if need <= host.ram_mib + host.swap_mib:
        return None
    return Problem(
        "",
        f"the checkpoint has {need} MiB, the machine {host.ram_mib} MiB RAM and {host.swap_mib} MiB"
        " swap: loading it takes very long, or is killed",
        "add memory or swap (`caovanctl doctor` has the commands), or serve a smaller checkpoint",
    )


def more_swap(need_mib: int) -> str:
    """Commands that add swap for a checkpoint of this size."""
    return (
        f"sudo fallocate -l {need_mib // 1024 + 8}G /swapfile && sudo chmod 600 /swapfile"
        " && sudo mkswap /swapfile && sudo swapon /swapfile"
    )


def _major(release: str) -> int:
    number = release.partition(".")[0]
    return int(number) if number.isdecimal() else 0
