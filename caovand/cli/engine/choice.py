"""Choose the lock file for `install` and `fetch`: the requested version and build, or this
machine's."""

from __future__ import annotations

import argparse
from pathlib import Path

from caovand.adapters.engine_install import lock
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.gpu.nvml import read_gpus
from caovand.cli.common.progress import Screen
from caovand.core.engine.install import Build
from caovand.engines import registry


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add VERSION, --kind, --build and --python."""
    parser.add_argument(
        "version", nargs="?", metavar="VERSION", help="its version (default: the recommended one)"
    )
    kind_argument(parser)
    parser.add_argument(
        "--build",
        choices=sorted(lock.BUILDS),
        help="default: cuda if there is an NVIDIA GPU, else cpu",
    )
    parser.add_argument(
        "--python",
        metavar="X.Y|PATH",
        help="the engine's Python (default: found, or installed by uv)",
    )


def kind_argument(parser: argparse.ArgumentParser) -> None:
    """Add --kind."""
    parser.add_argument(
        "--kind",
        choices=list(registry.MODULES),
        default=lock.FIRST_KIND,
        help="kind of engine (default: %(default)s)",
    )


def chosen_lock(args: argparse.Namespace, screen: Screen) -> lock.Lock:
    """The lock file to use; if no build was requested, print the choice and its reason."""
    engine = registry.engine_of(args.kind)
    if problem := engine.install.elsewhere:
        raise EngineError(problem.cannot, problem.fact, problem.remedy)
    build: Build | None = args.build
    if build is None:
        # WSL has no card on its PCI bus, but its driver lists the card.
        here = on_the_bus(Path("/sys/bus/pci/devices")) or read_gpus({})
        build = "cuda" if here else "cpu"
        reason = "NVIDIA GPU found" if build == "cuda" else "no NVIDIA GPU found"
        screen.say(f"build: {build} ({reason}; --build overrides)")
    if build not in engine.install.versions:
        only = " and ".join(sorted(engine.install.versions))
        kinds = [kind for kind in registry.MODULES if _has(kind, build)]
        raise EngineError(
            f"install {engine.title} ({build})",
            f"caovan installs only its {only} build",
            f"choose an engine with a {build} build, --kind {' or '.join(kinds)}; where the card"
            f" and its driver are still to come, pass --build {only}",
        )
    return lock.load(build, args.version, args.kind)


def _has(kind: str, build: Build) -> bool:
    return build in registry.engine_of(kind).install.versions


def on_the_bus(devices: Path) -> bool:
    """Whether an NVIDIA display controller is on the PCI bus, with or without a driver."""
    for device in devices.glob("*"):
        try:
            vendor = (device / "vendor").read_text(errors="replace").strip()
            kind = (device / "class").read_text(errors="replace")
            if vendor == "0x10de" and kind.startswith("0x03"):
                return True
        except OSError:
            continue
    return False
