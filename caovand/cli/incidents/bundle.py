"""`caovanctl incidents bundle N FILE`: one incident, packed for whoever helps."""

from __future__ import annotations

import argparse
import io
import os
import tarfile
import time
from pathlib import Path

from caovand.adapters import safe_files
from caovand.cli.client import connect
from caovand.cli.errors import CommandError, Exit
from caovand.cli.incidents.files import REPORT, fetch
from caovand.cli.verb import Verb


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", type=int)
    parser.add_argument("file", type=Path)


def run(args: argparse.Namespace) -> int:
    """incidents bundle."""
    with connect(args) as client:
        files, report = fetch(client, args.number, REPORT)
        contents = {REPORT: report}
        for name in files:
            if name != REPORT:
                contents[name] = fetch(client, args.number, name)[1]
    try:
        # Not through a link: in another's folder it leads to a file of the other's choice.
        opened = safe_files.open_own(Path(args.file), os.O_WRONLY | os.O_CREAT, 0o644)
        os.ftruncate(opened, 0)
        with (
            os.fdopen(opened, "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            for name, data in contents.items():
                entry = tarfile.TarInfo(f"incident-{args.number}/{name}")
                entry.size, entry.mtime = len(data), int(time.time())
                archive.addfile(entry, io.BytesIO(data))
    except OSError as problem:
        raise CommandError(
            Exit.FAILED, f"cannot write {args.file}: {problem.strerror}", "name another file"
        ) from problem
    print(f"{args.file}: {', '.join(contents)}")
    return Exit.DONE


VERB = Verb(
    name="bundle",
    help="pack one incident",
    description="Pack one incident as a .tar.gz file.",
    epilog="example: caovanctl incidents bundle 3 incident.tar.gz",
    arguments=arguments,
    run=run,
)
