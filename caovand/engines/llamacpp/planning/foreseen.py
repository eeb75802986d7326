"""Starts of llama.cpp that are certain to fail."""

from __future__ import annotations

from caovand.core.facts.inventory import Inventory
from caovand.core.healing.failure import Finding, Foreseen
from caovand.core.plan import Plan
from caovand.engines.llamacpp.memory.forecast import forecast, host_mib


def foreseen(plan: Plan, inventory: Inventory) -> Foreseen | None:
    """The kernel kills an engine that reads more into host memory than RAM and swap hold.

    Mapped weights need no room there: the engine starts, and reads them from the disk.
    """
    memory, host = forecast(plan, inventory), inventory.host
    if plan.value("load_mode") != "none" or memory.fits is not False:
        return None
    if host_mib(plan, inventory) <= host.ram_mib + host.swap_mib:
        return None
    anyway = (
        "pass --load-mode mmap in [engine] extra_args to start it anyway, but every token will "
        "wait for the disk"
    )
    text = "; ".join((f"cannot start: it does not fit: {memory.lack}", *memory.advice, anyway))
    return Foreseen(Finding("host-oom", text, "plan"))
