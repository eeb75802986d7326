"""`caovanctl model pull --from ENGINE`: pull a model that an engine stores itself, by name."""

from __future__ import annotations

import argparse
import os
import pwd
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from caovand.adapters import model_folder
from caovand.adapters.model_pull import named
from caovand.adapters.model_pull.errors import PullError
from caovand.adapters.privileges import engine_user
from caovand.cli.common.printing import show
from caovand.cli.common.survey import SYSTEM_CONFIG, configuration, file_to_edit, inspect
from caovand.cli.model.shared import gib, world
from caovand.core.engine.record import Engine
from caovand.engines import registry

KINDS = tuple(kind for kind in registry.MODULES if registry.engine_of(kind).models is not None)
"""Engines that store models by name."""


def run(args: argparse.Namespace, engine: Engine) -> int:
    """Pull a model from an engine's own store (`--from`)."""
    models = engine.models
    assert models is not None
    refused = {"--revision": args.revision, "--to": args.to, "--trust-code": args.trust_code}
    for option, value in refused.items():
        if value:
            raise PullError(
                f"pull {args.model} with {option}",
                f"{engine.title} manages its own models",
                "omit that option",
            )
    if not models.entry(args.model):
        problem = models.missing(args.model)
        raise PullError(f"pull {args.model}", problem.fact, problem.remedy)
    config = configuration(args.config, args.model)
    config = replace(config, engine=replace(config.engine, kind=engine.name))
    machine = inspect(config, source=args.config or SYSTEM_CONFIG)
    if machine.engine is None or not machine.engine.executable:
        fact, remedy = (
            (machine.engine_problem.fact, machine.engine_problem.remedy)
            if machine.engine_problem
            else (f"{engine.title} is not installed here", f"install {engine.title}")
        )
        raise PullError(f"pull {args.model}", fact, remedy)
    environ = _environ(os.environ)
    folders = [Path(folder) for folder in models.folders(config, environ)]
    folder = next(
        (place for place in folders if place.is_dir()), folders[0]
    )  # the engine will create it
    here = world()
    here.say(f"{args.model}: {engine.title} {machine.engine.version} downloads it into {folder}")
    named.pull(models.pull, machine.engine.executable, folder, args.model, here)
    card = model_folder.read_named(models, config, environ)
    assert card.gguf is not None  # the card was read from a GGUF file
    result = {"name": args.model, "path": card.path, "size_bytes": card.gguf.size}
    show(
        args,
        result,
        f"{args.model} is complete: {gib(card.gguf.size)}\nin {file_to_edit(args)}:"
        f' [model] path = "{args.model}" and [engine] kind = "{engine.name}"',
    )
    return 0


def _environ(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Root downloads on behalf of the service, which has another home."""
    try:
        home = pwd.getpwnam(engine_user.SERVICE_USER).pw_dir if os.geteuid() == 0 else ""
    except KeyError:
        home = ""
    return {**environ, "HOME": home} if home else environ
