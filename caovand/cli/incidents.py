"""`caovanctl incidents [show N | bundle N FILE]`: what was kept of each failure."""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from caovand.adapters import safe_files
from caovand.cli.client import Client, Exit, Problem, connect

REPORT = "incident.json"


def add_parser(subparsers: Any) -> None:
    """Add the verb with its two actions."""
    parser = subparsers.add_parser(
        "incidents",
        help="what was kept of each failure",
        description="List the failures of which evidence was kept, show one, or pack one for"
        " whoever helps you. Keys and tokens are removed; the engine's log is in it.",
        epilog="examples: caovanctl incidents; caovanctl incidents show 3;"
        " caovanctl incidents bundle 3 incident.tar.gz",
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(run=run_list)
    actions = parser.add_subparsers(metavar="ACTION")
    show = actions.add_parser(
        "show",
        help="one incident",
        description="Show one incident.",
        epilog="example: caovanctl incidents show 3",
    )
    show.add_argument("number", type=int)
    # Its default must not overwrite a --json that stands before the action.
    show.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print it as JSON"
    )
    show.set_defaults(run=run_show)
    bundle = actions.add_parser(
        "bundle",
        help="pack one incident",
        description="Pack one incident as a .tar.gz file.",
        epilog="example: caovanctl incidents bundle 3 incident.tar.gz",
    )
    bundle.add_argument("number", type=int)
    bundle.add_argument("file", type=Path)
    bundle.set_defaults(run=run_bundle)


def run_list(args: argparse.Namespace) -> int:
    """incidents."""
    with connect(args) as client:
        rows = client.ask("incidents")["incidents"]
    if args.json:
        print(json.dumps(rows))
    elif not rows:
        print("no incidents")
    for row in () if args.json else rows:
        action = f" -> {row['action']}" if row["action"] else ""
        phase = f" in phase {row['phase']}" if row["phase"] else ""
        print(f"{row['number']:>4}  {row['at'][:19]}  {row['failure']}{phase}{action}")
        print(f"      {row['text']}")
    return Exit.DONE


def run_show(args: argparse.Namespace) -> int:
    """incidents show."""
    with connect(args) as client:
        files, report = fetch(client, args.number, REPORT)
    if args.json:
        print(report.decode("utf-8", "replace"), end="")
    else:
        print("\n".join(lines(json.loads(report), files)))
    return Exit.DONE


def run_bundle(args: argparse.Namespace) -> int:
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
        raise Problem(
            Exit.FAILED, f"cannot write {args.file}: {problem.strerror}", "name another file"
        ) from problem
    print(f"{args.file}: {', '.join(contents)}")
    return Exit.DONE


def fetch(client: Client, number: int, name: str) -> tuple[Mapping[str, int], bytes]:
    """A file of an incident, and the names and sizes of all of its files."""
    parts: list[bytes] = []
    offset: int | None = 0
    while offset is not None:
        answer = client.ask("incident", number=number, file=name, offset=offset)
        parts.append(base64.b64decode(answer["data"]))
        offset = answer["next"]
    return answer["files"], b"".join(parts)


def lines(report: Mapping[str, Any], files: Mapping[str, int]) -> Iterator[str]:
    """An incident for people."""
    finding = report["finding"]
    yield f"incident {report['number']}, {report['at']}: {report['failure']}"
    yield f"  phase     {finding['phase'] or '-'}"
    yield f"  what      {finding['text']}"
    decision = report["decision"]
    if decision:
        yield f"  action    {decision['text'] or decision['verdict']}"
        for obstacle in decision["obstacles"]:
            yield f"            {obstacle}"
    plan = report["plan"]
    if plan:
        yield f"  plan      {plan['model']}, rungs: {', '.join(plan['rungs']) or 'none'}"
    for process in report["processes"]:
        yield f"  process   {process['name']} (pid {process['pid']}) {process.get('State', '')}"
    cause = report["cause"]
    if cause:
        yield "  log"
        yield from (f"    {line}" for line in cause["before"][-5:])
        yield f"  > {cause['line']}"
        yield from (f"    {line}" for line in cause["after"][:5])
    yield f"  files     {', '.join(f'{name} ({size} B)' for name, size in files.items())}"
