"""The status document as Prometheus metrics: names and units follow its conventions.

An unknown value has no series, rather than a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from caovand.core.healing.failure import FAILURES
from caovand.core.health.observation import THROTTLES
from caovand.core.lifecycle.cause import CAUSES
from caovand.core.lifecycle.state import State
from caovand.core.units import GIB, MIB

LABELS = ["slot", "model"]

StatusDocument = Mapping[str, Any]
Value = float | int | bool | None
Labelled = Iterator[tuple[tuple[str, ...], Value]]


def metrics(status: StatusDocument) -> Iterator[Metric]:
    """All metrics of a status document."""
    slots = [((slot["name"], slot["model"] or ""), slot) for slot in status["slots"]]
    version = GaugeMetricFamily("caovan_build_info", "The running version.", labels=["version"])
    version.add_metric([status["daemon"]["version"]], 1)
    yield version
    for name, help, value in GAUGES:
        yield _family(GaugeMetricFamily, name, help, LABELS, _one(slots, value))
    for name, help, value in COUNTERS:
        yield _family(CounterMetricFamily, name, help, LABELS, _one(slots, value))
    for name, help, label, values in BY_LABEL:
        kind = CounterMetricFamily if name in TOTALS else GaugeMetricFamily
        yield _family(kind, name, help, [*LABELS, label], _each(slots, values))
    for name, help, key in TIMES:
        yield _histogram(name, help, slots, key)
    yield from _cards(status["gpus"])
    parts = "Memory of a card by part: reported by the engine, else forecast."
    yield _family(
        GaugeMetricFamily, "gpu_memory_part_bytes", parts, [*LABELS, "gpu", "part"], _parts(slots)
    )
    if gateway := status.get("gateway"):
        for name, help, key in GATEWAY:
            yield _family(GaugeMetricFamily, name, help, [], iter([((), gateway[key])]))
        yield from _gateway_totals(gateway["totals"])


def _figures(name: str) -> Callable[[StatusDocument], Value]:
    return lambda slot: slot["figures"][name]


def _total(name: str) -> Callable[[StatusDocument], Value]:
    return lambda slot: slot["figures"]["totals"][name]


def _compared(name: str, which: str) -> Callable[[StatusDocument], Value]:
    """A size in the forecast or in the engine's report; None unless both exist."""
    return lambda slot: slot["forecast"].get(name, {}).get(which)


GAUGES: tuple[tuple[str, str, Callable[[StatusDocument], Value]], ...] = (
    ("engine_up", "Whether the engine is serving.", lambda slot: slot["state"] == "SERVING"),
    ("mtp_depth", "Tokens drafted per step.", lambda slot: slot["mtp"] or 0),
    ("degraded", "Whether the plan is degraded.", lambda slot: slot["degraded"] is not None),
    ("warnings", "Warnings in the status.", lambda slot: len(slot["warnings"])),
    ("requests_running", "Requests being computed.", _figures("running")),
    ("requests_waiting", "Requests that wait to be computed.", _figures("waiting")),
    ("kv_cache_usage_ratio", "Fraction of the KV cache in use.", _figures("kv_cache_usage")),
    (
        "kv_cache_forecast_tokens",
        "Size of the KV cache as forecast.",
        _compared("kv_tokens", "forecast"),
    ),
    (
        "kv_cache_reported_tokens",
        "Size of the KV cache as the engine reports it.",
        _compared("kv_tokens", "reported"),
    ),
)
COUNTERS: tuple[tuple[str, str, Callable[[StatusDocument], Value]], ...] = (
    (
        "log_lost_bytes",
        "Engine output missing from engine.log.",
        lambda slot: slot["log_bytes_lost"],
    ),
    ("prompt_tokens", "Prompt tokens read.", _total("prompt_tokens")),
    ("generation_tokens", "Tokens generated.", _total("generation_tokens")),
    ("requests", "Requests finished.", _total("requests")),
    ("preemptions", "Requests preempted for lack of KV cache.", _total("preemptions")),
    ("engine_steps", "Engine steps.", _total("steps")),
    (
        "prefix_cache_query_tokens",
        "Prompt tokens looked up in the prefix cache.",
        _total("prefix_queries"),
    ),
    (
        "prefix_cache_hit_tokens",
        "Prompt tokens found in the prefix cache.",
        _total("prefix_hits"),
    ),
    ("drafts", "Drafts made.", _total("drafts")),
    ("drafted_tokens", "Tokens drafted.", _total("drafted_tokens")),
)


def _states(slot: StatusDocument) -> Labelled:
    return (((state.value,), slot["state"] == state.value) for state in State)


def _accepted(slot: StatusDocument) -> Labelled:
    counts = slot["figures"]["totals"]["accepted"]
    return (((str(position),), count) for position, count in enumerate(counts, 1))


def _counted(counts: StatusDocument, known: Iterable[str]) -> Labelled:
    return (((name,), counts.get(name, 0)) for name in known)


def _sizes(which: str) -> Callable[[StatusDocument], Labelled]:
    """The sizes in the forecast or in the engine's report, in bytes."""

    def sizes(slot: StatusDocument) -> Labelled:
        for part, name in (("weights", "weights_gib"), ("kv", "kv_gib")):
            gib = slot["forecast"].get(name, {}).get(which)
            yield (part,), None if gib is None else gib * GIB

    return sizes


TOTALS = frozenset({"restarts", "failures", "accepted_tokens"})
BY_LABEL: tuple[tuple[str, str, str, Callable[[StatusDocument], Labelled]], ...] = (
    ("state", "1 for the current state.", "state", _states),
    (
        "rung_in_force",
        "1 for each active rung of the ladder.",
        "rung",
        lambda slot: (((rung,), 1) for rung in slot["rungs"]),
    ),
    (
        "restarts",
        "Engine starts after the first, by what ended the previous engine.",
        "cause",
        lambda slot: _counted(slot["figures"]["restarts"], CAUSES),
    ),
    (
        "failures",
        "Failures, by id.",
        "failure",
        lambda slot: _counted(slot["failed"], FAILURES),
    ),
    ("accepted_tokens", "Drafted tokens accepted, by position.", "position", _accepted),
    ("memory_forecast_bytes", "Forecast memory, by part.", "part", _sizes("forecast")),
    (
        "memory_reported_bytes",
        "Memory that the engine reports, by part.",
        "part",
        _sizes("reported"),
    ),
)


def _hundredth(gpu: StatusDocument) -> Value:
    return None if gpu["utilization"] is None else gpu["utilization"] / 100


def _hertz(mhz: float | None) -> Value:
    return None if mhz is None else mhz * 1e6


def _gateway_totals(totals: StatusDocument) -> Iterator[Metric]:
    ended = (((status,), count) for status, count in sorted(totals["ended"].items()))
    text = "Finished requests at the gateway, by HTTP status; 0: the client disconnected first."
    yield _family(CounterMetricFamily, "gateway_requests", text, ["status"], ended)
    for name, help, key in GATEWAY_TOTALS:
        yield _family(CounterMetricFamily, name, help, [], iter([((), totals[key])]))


GATEWAY_TOTALS = (
    ("gateway_waited_seconds", "Time that requests have waited for an engine.", "waited_s"),
    ("gateway_requests_resent", "Requests sent again because an engine exited.", "resent"),
)
GATEWAY = (
    ("gateway_up", "Whether the gateway is serving.", "serving"),
    ("gateway_requests_waiting", "Requests that wait for an engine.", "waiting"),
    ("gateway_requests_running", "Requests that the gateway has sent to the engine.", "at_engine"),
)
TIMES = (
    ("time_to_first_token_seconds", "Time from a request to its first token.", "first_token_s"),
    ("time_per_output_token_seconds", "Time per token of each finished request.", "token_s"),
    ("step_duration_seconds", "Time between two consecutive outputs of a request.", "step_s"),
)
CARDS: tuple[tuple[str, str, Callable[[StatusDocument], Value]], ...] = (
    ("gpu_memory_used_bytes", "Memory in use.", lambda gpu: gpu["used_mib"] * MIB),
    ("gpu_memory_total_bytes", "Memory of the card.", lambda gpu: gpu["total_mib"] * MIB),
    ("gpu_utilization_ratio", "Fraction of the time that the card was busy.", _hundredth),
    ("gpu_temperature_celsius", "Temperature.", lambda gpu: gpu["temperature"]),
    ("gpu_power_watts", "Power drawn.", lambda gpu: gpu["power_w"]),
    ("gpu_power_limit_watts", "Effective power limit.", lambda gpu: gpu["power_limit_w"]),
    ("gpu_sm_clock_hertz", "Clock of the cores.", lambda gpu: _hertz(gpu["sm_clock_mhz"])),
    ("gpu_memory_clock_hertz", "Memory clock.", lambda gpu: _hertz(gpu["memory_clock_mhz"])),
    ("gpu_faulty", "1 if the driver reports a fault.", lambda gpu: bool(gpu["fault"])),
    (
        "gpu_pcie_sent_bytes_per_second",
        "Bytes per second sent over PCIe, as measured by the driver.",
        lambda gpu: gpu["pcie_sent_bytes_per_s"],
    ),
    (
        "gpu_pcie_received_bytes_per_second",
        "Bytes per second received over PCIe, as measured by the driver.",
        lambda gpu: gpu["pcie_received_bytes_per_s"],
    ),
)
CARD_COUNTERS: tuple[tuple[str, str, Callable[[StatusDocument], Value]], ...] = (
    ("gpu_energy_joules", "Energy used since the driver was loaded.", lambda gpu: gpu["energy_j"]),
    ("gpu_nvlink_sent_bytes", "Bytes sent over NVLink.", lambda gpu: gpu["nvlink_sent_bytes"]),
    (
        "gpu_nvlink_received_bytes",
        "Bytes received over NVLink.",
        lambda gpu: gpu["nvlink_received_bytes"],
    ),
)


def _cards(gpus: Iterable[StatusDocument]) -> Iterator[Metric]:
    # A card with a fault reports nothing else.
    cards = [((str(gpu["index"]),), gpu) for gpu in gpus]
    well = [card for card in cards if not card[1]["fault"]]
    for name, help, value in CARDS:
        shown = cards if name == "gpu_faulty" else well
        yield _family(GaugeMetricFamily, name, help, ["gpu"], _one(shown, value))
    for name, help, value in CARD_COUNTERS:
        yield _family(CounterMetricFamily, name, help, ["gpu"], _one(well, value))
    slow = "1 for each reason that throttles a card."
    yield _family(
        GaugeMetricFamily, "gpu_throttled", slow, ["gpu", "reason"], _each(well, _throttled)
    )


def _throttled(gpu: StatusDocument) -> Labelled:
    now = gpu["throttled"].split(", ")
    return (((reason,), reason in now) for reason in THROTTLES)


def _parts(slots: Iterable[tuple[tuple[str, ...], StatusDocument]]) -> Labelled:
    for names, slot in slots:
        for card in slot["figures"]["memory"]:
            for part, size in card["parts"].items():
                yield (*names, str(card["gpu"]), part), size["mib"] * MIB
            if card["others_mib"] is not None:
                yield (*names, str(card["gpu"]), "others"), card["others_mib"] * MIB


# -- families -------------------------------------------------------------------------------


def _family(
    kind: type[Metric], name: str, help: str, labels: list[str], values: Labelled
) -> Metric:
    family: Any = kind(f"caovan_{name}", help, labels=labels)  # type: ignore[call-arg]
    for names, value in values:
        if value is not None:
            family.add_metric(names, float(value))
    return family  # type: ignore[no-any-return]


def _one(
    documents: Iterable[tuple[tuple[str, ...], StatusDocument]],
    value: Callable[[StatusDocument], Value],
) -> Labelled:
    return ((names, value(document)) for names, document in documents)


def _each(
    documents: Iterable[tuple[tuple[str, ...], StatusDocument]],
    values: Callable[[StatusDocument], Labelled],
) -> Labelled:
    for names, document in documents:
        yield from (((*names, *more), value) for more, value in values(document))


def _histogram(
    name: str, help: str, slots: Iterable[tuple[tuple[str, ...], StatusDocument]], key: str
) -> Metric:
    family = HistogramMetricFamily(f"caovan_{name}", help, labels=LABELS)
    for names, slot in slots:
        totals = slot["figures"]["totals"][key]
        if totals["bounds"]:
            edges = [*map(str, totals["bounds"]), "+Inf"]
            buckets = list(zip(edges, accumulate(totals["counts"]), strict=True))
            family.add_metric(names, buckets, totals["sum"])
    return family
