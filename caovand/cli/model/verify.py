"""`caovanctl model verify MODEL`: compare every file with the publisher's hash."""

from __future__ import annotations

import argparse

from caovand.adapters.model_pull import folders
from caovand.adapters.model_pull.verify import verify
from caovand.cli.common.printing import show
from caovand.cli.model.shared import gib, model_argument, model_verb, root_of, world


def run(args: argparse.Namespace) -> int:
    place = folders.find(root_of(args), args.model)
    made = folders.require(place, f"verify {args.model}")
    here = world()
    damage, strange = verify(here, place, made)
    for line in damage:
        here.say(line)
    for line in strange:
        here.say(f"note: {line}")
    again = f"caovanctl model pull {made.name} downloads the damaged files"
    show(
        args,
        {"name": made.name, "path": str(place.folder), "damage": damage, "strange": strange},
        f"{made.name} is damaged, {len(damage)} of {len(made.files)} files; {again}"
        if damage
        else f"{made.name} is intact: {len(made.files)} files, {gib(made.size_bytes)}",
    )
    return 1 if damage else 0


VERB = model_verb(
    "verify",
    "compare every file of a pulled model with the publisher's hash",
    example="caovanctl model verify Qwen/Qwen3-8B-AWQ",
    arguments=model_argument,
    run=run,
)
