"""`caovanctl explain LOGFILE`: show what went wrong according to a log, and what to do, without a
daemon.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from caovand.adapters.confinement import read_only
from caovand.adapters.log_excerpt import excerpt_of
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.verb import Group, Verb
from caovand.core.engine.log import Explanation
from caovand.core.healing.answer import FailureAnswer
from caovand.core.healing.failure import Finding
from caovand.core.reporting import answer_text
from caovand.engines.common.logs.whole_log import plan_from_log
from caovand.engines.writer import answer_for, engines, explain_log, starts

SHOWN = (
    ("machine", "machine", ""),
    ("architecture", "architecture", ""),
    ("max_model_len", "context", "tokens"),
    ("weights_gib", "weights per GPU", "GiB"),
    ("kv_gib", "KV cache per GPU", "GiB"),
    ("kv_tokens", "KV cache", "tokens"),
    ("concurrency", "concurrent full-length requests", ""),
    ("graph_gib", "CUDA graphs", "GiB"),
    ("attention_backend", "attention backend", ""),
    ("gdn_backend", "GDN prefill", ""),
    ("gdn_kernels", "caovan's kernels", ""),
    ("attention_kernels", "caovan's attention", ""),
    ("lm_head", "lm_head", ""),
    ("kernels_refusal", "caovan's kernels are not used", ""),
    ("checkpoint_gib", "checkpoint on disk", "GiB"),
    ("available_ram_gib", "free host memory while loading", "GiB"),
    ("generation_tps", "generation while busy", "tokens/s"),
    ("generation_best_tps", "peak generation", "tokens/s"),
    ("acceptance_length", "tokens accepted per step", ""),
)
"""Figures for people, in this order, with labels and units."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logfile", help="log file to read; - for standard input")
    parser.add_argument("--json", action="store_true", help="print the explanation as JSON")
    parser.set_defaults(own_process=False)  # main overrides it


def run(args: argparse.Namespace) -> int:
    """Explain the log that `args` names."""
    try:
        with sys.stdin.buffer if args.logfile == "-" else open(args.logfile, "rb") as log:
            if args.own_process:
                read_only.confine()
            excerpt = excerpt_of(log, starts())
    except OSError as problem:
        message = f"cannot read {args.logfile}: {problem.strerror}"
        raise CommandError(
            Exit.FAILED, message, "name a log file, or - for standard input"
        ) from None
    if excerpt.left_out:
        text = f"{args.logfile} is large: {excerpt.left_out} lines of normal operation are omitted"
        print(text, file=sys.stderr)
    explained = explain_log(excerpt.text)
    if explained is None:
        message = f"{args.logfile} is neither an engine's log nor the kernel's"
        raise CommandError(Exit.FAILED, message, f"name a log of {engines()}")
    writer, explanation = explained
    answer = None
    if explanation.finding is not None:
        finding = replace(explanation.finding, line=excerpt.number(explanation.finding.line))
        explanation = replace(explanation, finding=finding)
        answer = answer_for(writer, finding, plan_from_log(explanation.configured))
    if args.json:
        document = as_json(explanation, writer.name, answer)
        print(json.dumps(document, indent=2, default=str))
    else:
        print("\n".join(page(explanation, writer.title, answer)))
    return Exit.DONE


def as_json(
    explanation: Explanation, writer: str, answer: FailureAnswer | None = None
) -> dict[str, Any]:
    """The explanation for programs; missing values are null or empty."""
    finding = explanation.finding
    return {
        "writer": writer or None,
        "engine_version": explanation.engine_version,
        "phases": [{"phase": p.phase, "seconds": p.seconds} for p in explanation.phases],
        "reached": explanation.reached,
        "failure": finding.failure if finding else None,
        "signature": finding.signature if finding else None,
        "line": finding.line if finding else None,
        "text": finding.text if finding else None,
        "captures": dict(finding.captures) if finding else {},
        "advice": list(explanation.advice),
        "answer": asdict(answer) if answer else None,
        "figures": dict(explanation.figures),
        "configured": dict(explanation.configured),
        "harmless": dict(explanation.harmless),
    }


def page(
    explanation: Explanation, title: str, answer: FailureAnswer | None = None
) -> Iterator[str]:
    """The explanation for people, line by line; `title` is the engine's display name."""
    yield _heading(explanation, title)
    finding = explanation.finding
    if finding:
        shown = explanation.phases or finding.phase == "serving"
        yield f"{_class(finding, answer)}{_phase_suffix(finding) if shown else ''}"
        yield f"  line {finding.line}: {finding.text}"
        yield from answer_text.evidence(asdict(answer)) if answer else ()
    elif explanation.reached == "serving":
        yield "no failure: the engine served"
    elif explanation.reached not in ("", "resolve"):
        yield f"no known failure: the log ends in phase {explanation.reached}"
    else:
        yield "no known failure"
    if explanation.advice:
        yield ""
        yield "What to do"
        yield from (f"  {number}. {text}" for number, text in enumerate(explanation.advice, 1))
    if answer:
        yield ""
        yield "Remedy"
        yield from answer_text.remedy(asdict(answer))
    yield from _table("Phases", {p.phase: _seconds(p.seconds) for p in explanation.phases})
    yield from _table("Figures", _figures(explanation))
    yield from _table("Configured", {k: str(v) for k, v in explanation.configured.items()})
    yield from _table(
        "Alarming, but harmless",
        {name.split(".", 1)[1]: f"{count} x" for name, count in explanation.harmless.items()},
    )


def _heading(explanation: Explanation, title: str) -> str:
    """The engine with version and model; only `title` for the kernel's log or an unknown writer."""
    if not explanation.reached:
        return title
    version = explanation.engine_version or "(version not in the log)"
    model = explanation.figures.get("model")
    return f"{title} {version}{f', model {model}' if model else ''}"


def _class(finding: Finding, answer: FailureAnswer | None) -> str:
    """The failure's class; the signature of a known cause that has none, such as a full disk."""
    unnamed = answer is not None and answer.certainty == "certain"
    return finding.signature if finding.failure == "unknown" and unnamed else finding.failure


def _phase_suffix(finding: Finding) -> str:
    if finding.phase == "serving":
        return " while serving"
    return f" in phase {finding.phase}" if finding.phase else ""


def _figures(explanation: Explanation) -> dict[str, str]:
    rows = ((label, unit, explanation.figures.get(name)) for name, label, unit in SHOWN)
    return {label: f"{v:,} {unit}".rstrip() if not isinstance(v, str) else v
            for label, unit, v in rows if v is not None}  # fmt: skip


def _table(title: str, rows: Mapping[str, str]) -> Iterator[str]:
    if not rows:
        return
    width = max(len(name) for name in rows)
    yield ""
    yield title
    yield from (f"  {name:<{width}}  {value}" for name, value in rows.items())


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.0f} s"


VERB = Verb(
    name="explain",
    group=Group.OFFLINE,
    help="explain an engine's log: phases, memory, the failure and its fix",
    description="Read an engine's log, whatever supervised it, and explain what happened.",
    epilog="example: journalctl -u vllm | caovanctl explain -",
    arguments=arguments,
    run=run,
)
