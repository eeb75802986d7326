"""`caovanctl model pull`: plan a model from its headers, then download and verify it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from caovand.adapters.model_pull import folders, hubs
from caovand.adapters.model_pull.errors import PullError
from caovand.adapters.model_pull.folders import ModelFolders
from caovand.adapters.model_pull.world import World
from caovand.cli.common.console import console
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.printing import show
from caovand.cli.common.survey import add_config, file_to_edit
from caovand.cli.model import forecast, named
from caovand.cli.model.shared import gib, model_document, model_verb, root_of, world
from caovand.core.model_source import selection
from caovand.core.model_source.listing import split_name
from caovand.core.model_source.selection import Offer
from caovand.core.problem import Problem
from caovand.engines.registry import engine_of

MAX_NAMED = 3
"""Number of skipped files that a line names."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="OWNER/NAME[:TYPE]",
        help="the model's name on the hub, and for a repository of several GGUF models the type, "
        "such as Q4_K_M (default: the best for this machine)",
    )
    parser.add_argument(
        "--from",
        dest="hub",
        default="hf",
        metavar="HUB",
        help="hf, modelscope, the URL of a Hugging Face mirror, or an engine with its own library: "
        f"{', '.join(named.KINDS)} (default: hf)",
    )
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit")
    parser.add_argument("--to", metavar="DIR", help="the model's folder, instead of one in --root")
    add_config(parser)
    parser.add_argument(
        "--inventory", type=Path, metavar="FILE", help="plan it for a saved inventory's machine"
    )
    parser.add_argument(
        "--trust-code", action="store_true", help="download the repository's Python files too"
    )
    parser.add_argument(
        "--force", action="store_true", help="download even if it does not fit or cannot be planned"
    )


def run(args: argparse.Namespace) -> int:
    # Importing requests takes longer than running most verbs.
    from caovand.adapters.model_pull import headers, offer, pull  # noqa: PLC0415
    from caovand.adapters.model_pull.client import HubClient  # noqa: PLC0415

    if args.hub in named.KINDS:
        return named.run(args, engine_of(args.hub))
    asked = split_name(args.model)
    if asked is None:
        fact = "that is not the name of a model on a hub"
        raise PullError(
            f"pull {args.model!a}",
            fact,
            "name it as OWNER/NAME or OWNER/NAME:TYPE; for a model from an engine's own "
            f"library, add --from {' or '.join(named.KINDS)}",
        )
    hub = hubs.find_hub(args.hub, os.environ)
    folders.require_own(_place(args, args.model).root, f"pull {args.model}")
    client, here = HubClient(hub, hubs.token_for(hub, os.environ), os.environ), world()
    requested = offer.RequestedModel(
        *asked,
        args.revision,
        args.trust_code,
        lambda variants: forecast.choose_variant(args, variants),
    )
    offered = offer.read(client, here, requested)
    place = _place(args, offered.title)
    pull.require_replaceable(place, f"pull {offered.title}")
    _report(here, offered, hub.title)
    model = place.folder / offered.model
    try:
        with headers.fetch_headers(client, here, offered) as described:
            planned = forecast.foresee(args, offered.title, described / offered.model, model)
        obstacle = None if forecast.show(planned, console(stderr=True)) else _too_large(offered)
    except CommandError as problem:
        obstacle = Problem("", problem.message, "fix that first, or download it with --force")
    if obstacle and not args.force:
        raise PullError(obstacle.cannot, obstacle.fact, obstacle.remedy)
    if obstacle:
        here.say(f"note: {obstacle.message}; pulled anyway (--force)")
    made = pull.pull(client, here, offered, place)
    if closed := folders.closed_to_others(place.folder):
        here.say(
            f"note: the service's user cannot enter {closed}: run `chmod a+x {closed}`, or pull "
            "the model into another folder"
        )
    show(
        args,
        model_document(place.folder, made),
        f"{made.name} is complete: {len(made.files)} files, {gib(made.size_bytes)}, each matches "
        "the publisher's hash\n"
        f'in {file_to_edit(args)}, under [model]: path = "{model}"',
    )
    return Exit.DONE


def _place(args: argparse.Namespace, name: str) -> ModelFolders:
    if args.to:
        return ModelFolders(Path(os.path.abspath(args.to)))
    return folders.place_of(root_of(args), name)


def _too_large(offered: Offer) -> Problem:
    """The problem of a model that does not fit; the forecast printed above suggests remedies."""
    return Problem(
        f"pull {offered.title}",
        "the model does not fit this machine",
        (
            "choose a GGUF type with fewer bits, or a smaller model"
            if offered.variant
            else "choose a smaller model, or a checkpoint in 4 bits (AWQ, GPTQ) or fp8"
        )
        + f"; --force downloads {gib(offered.selection.size_bytes)} anyway",
    )


def _report(here: World, offered: Offer, title: str) -> None:
    """Print what will be downloaded, and what will be skipped."""
    at = f"commit {offered.commit[:12]}" if offered.commit else f"revision {offered.revision}"
    count = len(offered.selection.files)
    here.say(
        f"{offered.title} from {title}, {at}: {count} files, {gib(offered.selection.size_bytes)}"
    )
    for kind, names in offered.selection.left_out:
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        here.say(f"  left out, {kind}: {', '.join(names[:MAX_NAMED])}{more}")
    if offered.selection.of(selection.CODE):
        here.say(
            "  the engine runs a model's Python code only if [model] trust_remote_code allows "
            "that; most models need none, and --trust-code downloads it"
        )


VERB = model_verb(
    "pull",
    "download a model, checked against the publisher's hashes",
    description="Download the files of a model that an engine needs. The model is planned first, "
    "from its configuration and the headers of its weights: a model that does not fit this "
    "machine is downloaded only with --force. An interrupted pull resumes.",
    example="sudo caovanctl model pull Qwen/Qwen3-8B-AWQ",
    arguments=arguments,
    run=run,
    effects=True,
)
