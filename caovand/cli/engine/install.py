"""`caovanctl engine install`: install an engine from its lock file, check that it runs and switch
to it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from caovand.adapters.engine_install import install, lock, places
from caovand.adapters.engine_install.commands import InstallWorld
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.from_source import BuildOptions
from caovand.adapters.files import safe_files
from caovand.adapters.gpu.nvml import read_gpus
from caovand.adapters.system import host
from caovand.cli.common.printing import show
from caovand.cli.common.progress import Screen
from caovand.cli.engine import build_kernels, choice
from caovand.cli.engine.shared import (
    describe_engine,
    engine_document,
    engine_verb,
    root_of,
    world_of,
)
from caovand.core.engine.install import Source
from caovand.core.facts.inventory import Gpu
from caovand.core.facts.shortfalls import old_driver, oldest_card
from caovand.engines import registry

PACKAGED_PLUGINS = Path("/usr/share/caovan/plugin")
CHECKOUT_PLUGIN = Path(__file__).resolve().parents[3] / "plugin"


def arguments(parser: argparse.ArgumentParser) -> None:
    choice.arguments(parser)
    parser.add_argument("--wheels", metavar="DIR", help="install offline from this folder")
    parser.add_argument(
        "--plugin",
        metavar="PATH",
        help="caovan's vLLM plugin, a wheel or a source tree (default: on CUDA, the one shipped "
        "with caovan)",
    )
    parser.add_argument(
        "--again", action="store_true", help="install a second copy as NAME.2, and keep the first"
    )
    build_kernels.cards_and_jobs(parser)
    parser.add_argument(
        "--no-kernels",
        dest="kernels",
        action="store_false",
        help="do not build the kernels for these cards: `engine build-kernels` or the first "
        "start does",
    )


def run(args: argparse.Namespace) -> int:
    screen = Screen(sys.stderr)
    chosen = choice.chosen_lock(args, screen)
    if chosen.build == "cuda":
        here = read_gpus({})
        check_driver(chosen, here)
        if here and not args.capability:
            compiled_for(chosen, tuple(sorted({gpu.compute_capability for gpu in here})))
    root, world = root_of(args), world_of(screen)
    source = registry.engine_of(chosen.kind).install.source
    engine = install.install(
        install.InstallRequest(
            lock=chosen,
            root=root,
            python=args.python,
            offline=Path(args.wheels).absolute() if args.wheels else None,
            plugin=_plugin(args.plugin, chosen),
            again=args.again,
            public=os.geteuid() == 0 and root == places.DEFAULT_ROOT,
            compilers=_compilers(args, chosen, source, root) if source else BuildOptions(),
        ),
        world,
    )
    if engine.build == "cuda" and args.kernels and source is None:
        _build_kernels(engine, args, root, world)
    text = f"{engine.name} is in use: {describe_engine(engine)}, {engine.interpreter}"
    show(args, engine_document(engine), text)
    return 0


def _compilers(
    args: argparse.Namespace, wanted: lock.Lock, source: Source, root: Path
) -> BuildOptions:
    """One compiler per core, as memory allows; for the named cards, else for those in this
    machine."""
    here = host.read_host(root)
    room = here.available_mib // source.compiler_mib[wanted.build]
    jobs = args.jobs or max(1, min(here.cpus, room))
    if wanted.build != "cuda":
        return BuildOptions(jobs)
    cards = args.capability or build_kernels.cards_here()
    if not cards:
        remedy = "name the cards' compute capability, such as --capability 7.5, or use --build cpu"
        raise EngineError(f"build {wanted.name}", "no NVIDIA GPU is visible", remedy)
    return BuildOptions(jobs, compiled_for(wanted, tuple(cards)))


def compiled_for(
    wanted: lock.Lock, cards: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, int], ...]:
    """The cards that the lock's CUDA can compile for; raises EngineError if there are none."""
    oldest = oldest_card(_cuda(wanted))
    able = tuple(card for card in cards if card >= oldest)
    if able:
        return able
    major = _cuda(wanted).partition(".")[0]
    fact = "CUDA {} compiles for {}.{} and newer, not for {}.{}".format(major, *oldest, *cards[-1])
    remedy = "`caovanctl doctor` names an engine that has code for it; --build cpu leaves it idle"
    raise EngineError(f"install {wanted.name}", fact, remedy)


def _cuda(wanted: lock.Lock) -> str:
    """Release of the lock's CUDA runtime."""
    return next((pin.version for pin in wanted.pins if pin.name == "nvidia-cuda-runtime"), "")


def _build_kernels(
    engine: places.InstalledEngine, args: argparse.Namespace, root: Path, world: InstallWorld
) -> None:
    """Build the kernels for this machine's cards; the engine is in use whether or not that
    succeeds."""
    cards = args.capability or build_kernels.cards_here()
    if not build_kernels.known_for(engine, cards):
        return
    if not cards:
        world.say("      note: no GPU is visible; once one is: sudo caovanctl engine build-kernels")
        return
    try:
        with safe_files.readable_by_all(), places.locked(root, build_kernels.CANNOT):
            build_kernels.build(engine, cards, args.jobs, world)
    except EngineError as error:
        world.say(
            f"      warning: {error}; until then each start compiles the kernels that it needs"
        )


def check_driver(wanted: lock.Lock, gpus: Sequence[Gpu]) -> None:
    """Raise EngineError before gigabytes are downloaded if the driver is too old for the lock."""
    if lack := old_driver(gpus, _cuda(wanted)):
        raise EngineError(f"install {wanted.name}", lack.fact, lack.remedy)


def _plugin(chosen: str | None, wanted: lock.Lock) -> Path | None:
    """The plugin to add: the chosen one; on CUDA by default the installed package's or the
    checkout's."""
    takes = registry.engine_of(wanted.kind).install.takes_plugin
    if chosen:
        if not takes:
            raise EngineError("add the plugin", f"{wanted.title} has no plugins", "omit --plugin")
        if not Path(chosen).exists():
            raise EngineError("add the plugin", f"there is no {chosen}", "check --plugin")
        return Path(chosen).absolute()
    if wanted.build != "cuda" or not takes:
        return None
    wheels = sorted(PACKAGED_PLUGINS.glob("caovan_vllm_sm75_turbo3-*.whl"))
    if (CHECKOUT_PLUGIN / "pyproject.toml").is_file():
        wheels.append(CHECKOUT_PLUGIN)
    return wheels[-1] if wheels else None


VERB = engine_verb(
    "install",
    "install an engine from its lock file, check that it runs and switch to it",
    example="sudo caovanctl engine install --build cuda",
    arguments=arguments,
    run=run,
    effects=True,
)
