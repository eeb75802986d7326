"""Compare two nodes' copies of a model by file digests."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from caovand.core.addresses import url_host
from caovand.core.cluster.finding import finding
from caovand.core.cluster.node import NodeFacts
from caovand.core.facts.checks import CheckResult

MAX_NAMED = 3
"""The number of files that a finding names."""


def model_checks(head: NodeFacts, worker: NodeFacts) -> Iterator[CheckResult]:
    """Find files that only one of the nodes has, and files whose contents differ."""
    at_head, at_worker = head.model, worker.model
    if not at_head and not at_worker:
        yield finding(
            "WARN",
            f"neither {head.name} nor {worker.name} has the model: each would download its own "
            "copy",
            "download it on both: sudo caovanctl model pull OWNER/NAME",
        )
        return
    if not at_head:
        yield finding(
            "FAIL",
            f"{head.name} has no file of the model, {worker.name} has"
            f" {name_some(sorted(at_worker))}",
            _copy(worker, head),
            head,
        )
        return
    missing = sorted(at_head.keys() - at_worker.keys())
    extra = sorted(at_worker.keys() - at_head.keys())
    changed = sorted(
        name for name in at_head.keys() & at_worker.keys() if at_head[name] != at_worker[name]
    )
    fix = _copy(head, worker, contents=bool(changed), delete=bool(extra))
    if missing:
        text = f"{worker.name} lacks {name_some(missing)} of the model that {head.name} has"
        yield finding("FAIL", text, fix, worker)
    if extra:
        text = f"{worker.name} has {name_some(extra)} of the model that {head.name} lacks"
        yield finding("FAIL", text, fix, worker)
    if changed:
        text = f"{name_some(changed)} of the model on {worker.name} and {head.name} differ"
        yield finding("FAIL", text, fix, worker)


def count_text(number: int) -> str:
    """Format a number of files, such as "1 file"."""
    return f"{number} file" if number == 1 else f"{number} files"


def name_some(names: list[str]) -> str:
    """The number of names, and the first of them."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{count_text(len(names))} ({', '.join(names[:MAX_NAMED])}{more})"


def _copy(
    source: NodeFacts, target: NodeFacts, *, contents: bool = False, delete: bool = False
) -> str:
    """The command that makes one folder equal to the other; `L` follows the links of a hub's cache.

    With `contents`, rsync compares contents: a damaged file may have the original's size and time.
    """
    options = "-aLc" if contents else "-aL"
    if delete:
        options += " --delete"
    here = quote(f"{target.model_folder or source.model_folder}/")
    there = quote(f"USER@{url_host(source.address)}:{source.model_folder}/")
    return f"sudo rsync {options} {there} {here}"
