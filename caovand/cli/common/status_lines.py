"""The status as lines for people, shared by the verbs that show it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from caovand.core.model_task import TITLES
from caovand.core.reporting import card_text, starts

COLOURS = {"SERVING": "green", "FAILED": "red", "HOLD": "yellow", "BACKOFF": "yellow"}
MAX_FAILURE_TEXT = 120  # characters of a past failure; its incident has the full text
FAILING = ("RECYCLING", "BACKOFF", "HOLD", "FAILED")
"""States in which the engine does not serve because of the last failure."""


def lines(answer: Mapping[str, Any]) -> Iterator[Text]:
    """Format the status for people, line by line."""
    yield head(answer)
    yield from outlook(answer)
    yield from identity(answer)
    yield from nodes(answer)
    if lost := answer.get("log_bytes_lost"):  # earlier releases do not count
        text = f"engine.log lacks {lost:,} bytes: its disk was full or too slow"
        yield row("log", text, "yellow")
    if start := answer.get("start"):  # earlier releases do not time their starts
        yield from _start(start)
    if answer["forecast"]:
        yield row("memory", memory(answer["forecast"]))
    if figures := answer.get("figures"):  # earlier releases have none
        yield from _activity(figures)
    for gpu in answer["gpus"]:
        yield row(f"GPU {gpu['index']}", card_text.reading(gpu), "red" if gpu["fault"] else "")
    yield from troubles(answer)


def head(answer: Mapping[str, Any]) -> Text:
    """The state, with the served model or the start's progress."""
    text = Text(answer["state"], style=f"bold {COLOURS.get(answer['state'], 'cyan')}")
    text.append(f" for {duration(answer['since_s'])}", style="")
    if answer["served"]:
        text.append(f"  {answer['served']['name']} on {answer['served']['url']}")
    elif answer["phase"]:
        done = f" {answer['progress']:.0%}" if answer["progress"] is not None else ""
        text.append(f"  {answer['phase']}{done} {answer['detail']}".rstrip())
    return text


def outlook(answer: Mapping[str, Any]) -> Iterator[Text]:
    """The reason for the state, and what happens next."""
    if answer["reason"]:
        yield row("why", answer["reason"])
    if answer["looking"]:
        yield row("next", "checking whether it can start")
    elif answer["retry_in_s"] is not None:
        yield row("next", f"attempt in {answer['retry_in_s']:.0f} s")
    elif answer["state"] == "FAILED":
        yield row("next", "no automatic retry; fix the cause, then `caovanctl start`")


def identity(answer: Mapping[str, Any]) -> Iterator[Text]:
    """Mode, model and the engine's process."""
    depth = "" if answer["mtp"] is None else f", MTP {answer['mtp'] or 'off'}"
    now, later = answer["engine_mode"], ""
    if now and now != answer["mode"]:
        later = f"; applies from the next start (the engine runs with {now})"
    yield row("mode", f"{answer['mode']} (from {answer['mode_origin']}){depth}{later}")
    if answer["model"]:
        task = answer.get("task") or "generate"  # earlier releases have none
        what = "" if task == "generate" else f", for {TITLES[task]}"
        yield row("model", answer["model"] + what)
    if answer["engine_pid"]:
        yield row("engine", f"pid {answer['engine_pid']}, restarts {answer['restarts']}")
    for name in ("page", "gateway"):
        if server := answer.get(name):  # earlier releases have none
            url = server["url"]
            yield row(name, url if server["serving"] else f"{url} (not served)")
    if "totals" in (gateway := answer.get("gateway") or {}):  # before an upgrade there are none
        yield row("clients", _requests(gateway))


def _requests(gateway: Mapping[str, Any]) -> str:
    """The requests at the gateway now, and those that have ended since the daemon's start."""
    now = f"{gateway['waiting']:,} waiting, {gateway['at_engine']:,} at the engine"
    totals = gateway["totals"]
    ended = [
        f"{count:,} {f'with {code}' if code != '0' else 'left by the client'}"
        for code, count in sorted(totals["ended"].items(), key=lambda item: (item[0] == "0", item))
        if count
    ]
    resent = f", {totals['resent']:,} sent again" if totals["resent"] else ""
    return f"{now}; ended: {', '.join(ended)}{resent}" if ended else now


def nodes(answer: Mapping[str, Any]) -> Iterator[Text]:
    """The role in a cluster: the head's name, and each node's state, missing nodes first."""
    cluster = answer.get("cluster")
    if cluster:  # earlier releases have none
        words = _of_worker(cluster) if cluster["role"] == "worker" else _of_head(cluster)
        yield row(
            "cluster",
            words,
            "yellow" if any(map(cluster.get, ("missing", "refused", "lost"))) else "",
        )


def _of_worker(cluster: Mapping[str, Any]) -> str:
    head = f"head {cluster['head_name']}" if cluster["head_name"] else "the head"
    silent = ", which does not answer" if cluster["lost"] else ""
    return f"worker {cluster['name']} of {head} at {cluster['head']}{silent}"


def _of_head(cluster: Mapping[str, Any]) -> str:
    never = cluster["missing"] - len(cluster["lost"])
    states = [f"{never} missing"] if never > 0 else []
    for state in ("refused", "lost", "joined"):
        if cluster[state]:
            states.append(f"{', '.join(cluster[state])} {state}")
    if 0 < cluster["serving"] < cluster["nodes"]:
        states.append(f"serves on {cluster['serving']} until all are here")
    return f"head {cluster['name']} of {cluster['nodes']} nodes: {'; '.join(states)}"


def troubles(answer: Mapping[str, Any]) -> Iterator[Text]:
    """Current and past problems."""
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


def row(name: str, text: str, style: str = "") -> Text:
    """One line below the state."""
    return Text().append(f"  {name:<9} ", style="dim").append(text, style=style or "default")


def _start(start: Mapping[str, Any]) -> Iterator[Text]:
    """The last start by phase, with the durations in the engine's log, and the start before."""
    yield row("start", starts.duration_text(start["seconds"], start["phases"]))
    if start["reported"]:
        known = start["reported"].items()
        parts = (f"{name.removesuffix('_s').replace('_', ' ')} {spent:g}" for name, spent in known)
        yield row("", f"from the engine's log, in seconds: {', '.join(parts)}", "dim")
    if before := start["before"]:
        which = "" if before["same_plan"] else " (another plan)"
        yield row(
            "", f"before{which}: {starts.duration_text(before['seconds'], before['phases'])}", "dim"
        )


def memory(compared: Mapping[str, Any]) -> str:
    """The engine's reported memory, next to the forecast."""
    return "; ".join(
        f"{_figure(name)} {pair['reported']:,} (forecast {pair['forecast']:,})"
        for name, pair in compared.items()
    )


def _figure(name: str) -> str:
    """A forecast value in words: "stage 0's weights GiB" for `stage_0_weights_gib`."""
    words = {"weights_gib": "weights GiB", "kv_gib": "KV GiB", "kv_tokens": "KV tokens"}
    if match := re.fullmatch(r"stage_(\d+)_(\w+)", name):
        return f"stage {match[1]}'s {_figure(match[2])}"
    return words.get(name, name.replace("_", " "))  # from a newer daemon


def _activity(figures: Mapping[str, Any]) -> Iterator[Text]:
    """The engine's current activity, and the recent requests' latencies."""
    if figures["running"] is None:
        return  # no engine answers
    rates = figures["per_s"]
    if rates["generation_tokens"] is not None:
        text = f"{rates['generation_tokens']:.1f} tokens/s generated"
        yield row("speed", f"{text}, {rates['prompt_tokens']:.1f} tokens/s of prompts")
    used = figures["kv_cache_usage"]
    text = f"{figures['running']:.0f} running, {figures['waiting']:.0f} waiting, KV {used:.0%}"
    if figures["prefix_hits"] is not None:
        text += f", prefix hits {figures['prefix_hits']:.0%}"
    yield row("activity", text)
    yield from pace(figures)


def pace(figures: Mapping[str, Any], width: int | None = None) -> Iterator[Text]:
    """Latencies and drafts of the recent requests, in rows of this width."""
    if figures["first_token_s"]["p50"] is not None:
        known = _latency(figures)
        whole = row("latency", "; ".join(known))
        if width is None or whole.cell_len <= width:
            yield whole
        else:
            for number, text in enumerate(known):
                yield row("" if number else "latency", text)
    if drafting := figures["drafting"]:
        shares = " ".join(f"{share:.0%}" for share in drafting["accepted"])
        steps = drafting["tokens_per_step"]
        yield row("drafts", f"accepted {shares} by position, {steps:.2f} tokens per step")
    if tuning := figures.get("tuning"):  # earlier releases have none
        yield row("tune", tuning["text"])


def _latency(figures: Mapping[str, Any]) -> list[str]:
    """Medians, and 99th percentiles of requests."""
    words = (("first_token_s", "first token"), ("token_s", "per token"))
    known = ((figures[name], text) for name, text in words if figures[name]["p50"] is not None)
    return [
        f"{text} {_seconds(latency['p50'])}, 99 % within {_seconds(latency['p99'])}"
        for latency, text in known
    ]


def _seconds(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.1f} s"


def _failure(answer: Mapping[str, Any]) -> str:
    failure, age_s = answer["last_failure"], answer["last_failure_s"]
    count = f" ({answer['failures']} in a row)" if answer["failures"] else ""
    if answer["state"] in FAILING:
        # The "why" row usually contains the text already.
        text = "" if failure["text"] in answer["reason"] else f": {failure['text']}"
        return f"{failure['failure']}{text}{count}"
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - age_s))
    text = failure["text"]
    text = text if len(text) <= MAX_FAILURE_TEXT else f"{text[:MAX_FAILURE_TEXT]}..."
    return f"last one {duration(age_s)} ago ({moment}): {failure['failure']}: {text}"


def duration(seconds: float) -> str:
    """Format a duration in the largest unit that gives at least 2."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
