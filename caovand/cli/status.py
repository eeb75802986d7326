"""`caovanctl status | wait | version`: what anybody may ask."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from caovand import __version__
from caovand.cli.client import Exit, Problem, connect, follow
from caovand.cli.console import console

COLOURS = {"SERVING": "green", "FAILED": "red", "HOLD": "yellow", "BACKOFF": "yellow"}
LONGEST_PAST = 120  # characters of a failure that is over; its incident has them all
# Where the last failure is why the engine does not serve now.
FAILING = ("RECYCLING", "BACKOFF", "HOLD", "FAILED")


def add_parsers(subparsers: Any) -> None:
    """Add the three verbs."""
    status = subparsers.add_parser(
        "status",
        help="state, what is served, mode, failures",
        description="Show what the daemon and its engine do. Exit status 3 when not serving.",
        epilog="example: caovanctl status --json | jq .state",
    )
    status.add_argument("--json", action="store_true", help="print it as JSON")
    status.set_defaults(run=run_status)
    wait = subparsers.add_parser(
        "wait",
        help="wait until the engine serves",
        description="Wait until the engine serves (or has settled: serving, failed, held or"
        " stopped). Exit status 3 when it does not serve in time.",
        epilog="example: caovanctl wait --serving --timeout 600 && curl ...",
    )
    kind = wait.add_mutually_exclusive_group()
    kind.add_argument("--serving", action="store_true", help="until it serves (the default)")
    kind.add_argument("--settled", action="store_true", help="until nothing changes by itself")
    wait.add_argument("--timeout", type=float, default=600.0, metavar="S", help="default 600")
    wait.add_argument("--json", action="store_true", help="print the last status as JSON")
    wait.set_defaults(run=run_wait)
    version = subparsers.add_parser(
        "version",
        help="versions of caovanctl and caovand",
        description="Show the versions of caovanctl and of the caovand that runs, if any.",
        epilog="example: caovanctl version --json | jq -r .caovand",
    )
    version.add_argument("--json", action="store_true", help="print them as JSON")
    version.set_defaults(run=run_version)


def run_status(args: argparse.Namespace) -> int:
    """status."""
    with connect(args) as client:
        answer = client.ask("status")
    if args.json:
        print(json.dumps(answer))
    else:
        out = console()
        for line in lines(answer):
            out.print(line)
    return Exit.DONE if answer["state"] == "SERVING" else Exit.NOT_SERVING


def lines(answer: Mapping[str, Any]) -> Iterator[Text]:
    """The status for people, line by line, as rich texts."""
    head = Text(answer["state"], style=f"bold {COLOURS.get(answer['state'], 'cyan')}")
    head.append(f" for {_duration(answer['since_s'])}", style="")
    if answer["served"]:
        head.append(f"  {answer['served']['name']} on {answer['served']['url']}")
    elif answer["phase"]:
        done = f" {answer['progress']:.0%}" if answer["progress"] is not None else ""
        head.append(f"  {answer['phase']}{done} {answer['detail']}".rstrip())
    yield head

    def row(name: str, text: str, style: str = "") -> Text:
        return Text(f"  {name:<9} ", style="dim").append(text, style=style or "default")

    if answer["reason"]:
        yield row("why", answer["reason"])
    if answer["looking"]:
        yield row("next", "looking now whether it can start")
    elif answer["retry_in_s"] is not None:
        yield row("next", f"attempt in {answer['retry_in_s']:.0f} s")
    depth = "" if answer["mtp"] is None else f", MTP {answer['mtp'] or 'off'}"
    now = answer["engine_mode"]
    later = f"; from the next start on, now {now}" if now and now != answer["mode"] else ""
    yield row("mode", f"{answer['mode']} (from {answer['mode_origin']}){depth}{later}")
    if answer["model"]:
        yield row("model", answer["model"])
    if answer["engine_pid"]:
        yield row("engine", f"pid {answer['engine_pid']}, restarts {answer['restarts']}")
    memory = answer["forecast"]
    if memory:
        words = {"weights_gib": "weights GiB", "kv_gib": "KV GiB", "kv_tokens": "KV tokens"}
        yield row(
            "memory",
            "; ".join(
                f"{words[name]} {pair['reported']:,} (forecast {pair['forecast']:,})"
                for name, pair in memory.items()
            ),
        )
    activity = answer["activity"]
    if activity:
        used = activity["kv_cache_usage"]
        text = (
            f"{activity['running']:.0f} running, {activity['waiting']:.0f} waiting, KV {used:.0%}"
        )
        if activity["drafted_tokens"]:
            share = activity["accepted_tokens"] / activity["drafted_tokens"]
            text += f", drafts accepted {share:.0%}"
        yield row("activity", text)
    for gpu in answer["gpus"]:
        yield row(f"GPU {gpu['index']}", _gpu(gpu), "red" if gpu["fault"] else "")
    degraded = answer["degraded"]
    if degraded:
        since = degraded["since"]
        moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(since)) if since else ""
        text = ", ".join(degraded["rungs"]) + (f"; since {moment}" if moment else "")
        yield row("degraded", text, "yellow")
        for reason in degraded["why"]:
            yield row("", reason)
        yield row("", f"back: {degraded['back']}")
    for warning in answer["warnings"]:
        yield row("warning", warning, "yellow")
    if answer["refusal"]:
        yield row("refused", answer["refusal"]["text"], "yellow")
    if answer["last_failure"]:
        yield row("failure", _failure(answer), "" if answer["state"] in FAILING else "dim")


def _failure(answer: Mapping[str, Any]) -> str:
    failure, age_s = answer["last_failure"], answer["last_failure_s"]
    count = f" ({answer['failures']} in a row)" if answer["failures"] else ""
    if answer["state"] in FAILING:
        return f"{failure['failure']}: {failure['text']}{count}"
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - age_s))
    text = failure["text"]
    text = text if len(text) <= LONGEST_PAST else f"{text[:LONGEST_PAST]}..."
    return f"the last one {_duration(age_s)} ago ({moment}): {failure['failure']}: {text}"


def _gpu(gpu: Mapping[str, Any]) -> str:
    if gpu["fault"]:
        return str(gpu["fault"])
    parts = [f"{gpu['used_mib']:,} of {gpu['total_mib']:,} MiB"]
    for name, unit in (("utilization", "% busy"), ("temperature", " °C"), ("power_w", " W")):
        if gpu[name] is not None:
            parts.append(f"{gpu[name]:.0f}{unit}")
    if gpu["throttled"]:
        parts.append(f"slowed down by {gpu['throttled']}")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def run_wait(args: argparse.Namespace) -> int:
    """wait."""
    until = "settled" if args.settled else "serving"
    with connect(args) as client:
        answer = follow(client, until, args.timeout, quiet=args.json)
    if args.json:
        print(json.dumps(answer))
    if answer["state"] == "SERVING" or (args.settled and answer["reached"]):
        return Exit.DONE
    # Out of FAILED nothing comes by itself: that was not waited for.
    waited = "" if answer["state"] == "FAILED" else f" after {args.timeout:.0f} s"
    raise Problem(
        Exit.NOT_SERVING,
        f"not serving{waited}: {answer['state']} {answer['reason']}".rstrip(),
        "caovanctl status; caovanctl logs",
    )


def run_version(args: argparse.Namespace) -> int:
    """version: ours, and the daemon's where one runs."""
    try:
        with connect(args) as client:
            daemon = client.ask("version", answer_s=2.0)["version"]
    except Problem:
        daemon = None
    if args.json:
        print(json.dumps({"caovanctl": __version__, "caovand": daemon}))
    else:
        print(f"caovanctl {__version__}\ncaovand {daemon or 'not running'}")
    return Exit.DONE
