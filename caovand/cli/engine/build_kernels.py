"""`caovanctl engine build-kernels`: compile ahead of time what most starts on these cards would
compile.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from caovand.adapters.engine_install import kernels, places
from caovand.adapters.engine_install.commands import InstallWorld
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.files import safe_files
from caovand.adapters.gpu.nvml import read_gpus
from caovand.adapters.system import host
from caovand.cli.common.printing import show
from caovand.cli.common.progress import Screen
from caovand.cli.engine.shared import ENGINE, engine_verb, root_of, world_of
from caovand.core.facts.inventory import version_numbers
from caovand.core.units import MIB
from caovand.engines.registry import engine_of

CANNOT = "build kernels"
Capability = tuple[int, int]


def capability(text: str) -> Capability:
    """Parse 7.5 as (7, 5)."""
    match = re.fullmatch(r"([1-9][0-9]?)\.([0-9])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f'{text} is not of the form "7.5"')
    return int(match[1]), int(match[2])


def jobs(text: str) -> int:
    """Parse the number of concurrent compilers."""
    if not re.fullmatch(r"[1-9][0-9]{0,2}", text):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to 999")
    return int(text)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar=ENGINE, help="default: the one in use")
    cards_and_jobs(parser)


def cards_and_jobs(parser: argparse.ArgumentParser) -> None:
    """Add --capability and --jobs."""
    parser.add_argument(
        "--capability",
        type=capability,
        action="append",
        metavar="X.Y",
        help="compute capability of cards to build for; may be repeated (default: the cards here)",
    )
    parser.add_argument(
        "--jobs",
        type=jobs,
        metavar="N",
        help="concurrent compilers (default: one per core, as memory allows)",
    )


def run(args: argparse.Namespace) -> int:
    root = root_of(args)
    with safe_files.readable_by_all(), places.locked(root, CANNOT, make=False):
        engine = places.get(root, args.name, CANNOT) if args.name else places.current(root)
        if engine is None:
            remedy = "install one with sudo caovanctl engine install"
            raise EngineError(CANNOT, f"no engine in {root} is in use", remedy)
        cards = args.capability or cards_here()
        if not cards:
            remedy = "name the cards' compute capability, such as --capability 7.5"
            raise EngineError(CANNOT, "no NVIDIA GPU is visible", remedy)
        made = build(engine, cards, args.jobs, world_of(Screen(sys.stderr)))
    names = ", ".join(map(sm_name, cards))
    text = f"{engine.name} has its kernels for {names}: {len(made)} built now"
    show(
        args, {"name": engine.name, "cards": [sm_name(card) for card in cards], "built": made}, text
    )
    return 0


def cards_here() -> list[Capability]:
    """Compute capabilities of the visible cards."""
    return sorted({gpu.compute_capability for gpu in read_gpus({})})


def sm_name(card: Capability) -> str:
    """Format (7, 5) as SM75."""
    return "SM{}{}".format(*card)


def known_for(engine: places.InstalledEngine, cards: Sequence[Capability]) -> bool:
    """Whether such an engine has kernels to build for any of these cards, or for future ones."""
    needed = engine_of(engine.kind).kernels.needed
    release = version_numbers(engine.version)
    return any(needed(release, card) for card in cards or [(7, 5)])


def build(
    engine: places.InstalledEngine,
    cards: Sequence[Capability],
    jobs: int | None,
    world: InstallWorld,
) -> list[str]:
    """Build what is missing for these cards, printing the time of each part; return the labels of
    what was built."""
    if engine.build != "cuda":
        remedy = "name an engine that is: caovanctl engine list"
        raise EngineError(CANNOT, f"{engine.name} is not built for CUDA", remedy)
    known = engine_of(engine.kind).kernels
    here = host.read_host(engine.path)
    jobs = jobs or known.compilers(here.cpus, here.available_mib)
    labels = []
    for card in cards:
        needed = known.needed(version_numbers(engine.version), card)
        world.say(
            f"building kernels for {sm_name(card)} in {kernels.folder_of(engine.path, card)}:"
            f" {len(needed)} in all, {jobs} compilers at once, minutes each"
        )
        made = kernels.build(engine, card, needed, jobs, world)
        if not made:
            world.say("      every kernel was already built")
        for kernel in made:
            world.say(
                f"      {kernel.label}: {kernel.seconds:.0f} s, {kernel.size_bytes // MIB} MiB"
            )
            labels.append(kernel.label)
    return labels


VERB = engine_verb(
    "build-kernels",
    "compile ahead of time the kernels that most models would compile at a start",
    description="Compile ahead of time the kernels that most models would compile at a start:"
    " FlashInfer's. Triton's depend on the sizes of a loaded model: its first start compiles them,"
    " which takes a minute or more, and later starts find them.",
    example="sudo caovanctl engine build-kernels",
    arguments=arguments,
    run=run,
    effects=True,
)
