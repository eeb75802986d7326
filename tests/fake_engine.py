"""The definition of a second engine, "tabby", whose server is tests/standin/tabby.py.

Its settings, log lines and endpoints differ from vLLM's, and its ladder has a rung of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from caovand.core.config.schema import Config, Mode
from caovand.core.engine.install import Install, ProofServer, Source
from caovand.core.engine.log import Explanation, Log, Phase
from caovand.core.engine.planning import Command, Planning
from caovand.core.engine.probe import ProbeScripts
from caovand.core.engine.record import Api, Arguments, Engine
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import EngineInfo, Inventory
from caovand.core.figures.counters import Counters, Reading
from caovand.core.healing.failure import Finding
from caovand.core.healing.rung import ANY, Healing, Rung, RungStep
from caovand.core.health.observation import LogMark, ProgressCounters
from caovand.core.plan import Plan, Setting

SERVER = Path(__file__).with_name("standin") / "tabby.py"
WIDE = 8
CAUSE = "tabby: out of memory at width"


def make_plan(
    config: Config,
    inventory: Inventory,
    *,
    mode: Mode | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
    remembered: Plan | None = None,
) -> Plan:
    settings: dict[str, Any] = {
        "host": config.server.host, "port": config.server.port, "served_model_name": "cat",
        "max_model_len": 64, "width": WIDE,
    }  # fmt: skip
    decided = {name: Setting(value, "policy", "it purrs") for name, value in settings.items()}
    plan = Plan(config.model.path, decided, {}, device="tabby")
    if remembered is None:
        return plan
    settings = {**plan.settings, **remembered.settings}
    return replace(plan, settings=settings, taken=remembered.taken)


def command(plan: Plan, engine: EngineInfo, cache: str | None) -> Command:
    argv = [engine.python, str(SERVER), str(plan.value("port")), str(plan.value("width"))]
    return Command(tuple(argv), {}, tuple(argv))


def forecast(plan: Plan, inventory: Inventory) -> MemoryEstimate:
    return MemoryEstimate(None, None, 0, 0, 0, 0, 0, 0, 0, (), reason="nobody weighs a cat")


def read_line(text: str) -> tuple[LogMark | None, Mapping[str, Any]]:
    if text == "tabby: ready":
        return LogMark("listen", progress=1.0), {"ready": True}
    loading = re.match(r"tabby: loading (\d+)%", text)
    return (LogMark("load", progress=int(loading[1]) / 100) if loading else None), {}


def find_cause(lines: Sequence[str], phase: str, *, alive: bool = False) -> Finding | None:
    for number, line in enumerate(lines, 1):
        if line.startswith(CAUSE):
            return Finding("device-oom-load", line, phase, signature="tabby.oom", line=number)
    return None


def read_stats(text: str, pending: int | None, at: float) -> Reading:
    found = json.loads(text)
    tokens, served = found["tokens"], found["served"]
    progress = ProgressCounters(tokens, 0, served, 0, 0, 0, 0, 0, 0, found["busy"], at)
    return Reading(progress, Counters(generation_tokens=tokens, requests=served))


def narrower(plan: Plan, finding: Finding) -> RungStep | None:
    width = plan.value("width") // 2
    change = f"width {width * 2} -> {width}"
    return RungStep({"width": width}, value=str(width), change=change) if width else None


VERSIONS = 'import json; print(MARK + json.dumps({"tabby": "1.0", "stamp": 1}))'
LOG = Log(
    module=__name__, plain=lambda line: (line,), read=read_line, near=5,
    phases=(Phase("load", "milk", "load"), Phase("listen", "ears", "prove")), listening="listen",
    announces=lambda line: line.startswith("tabby: failed"), find_cause=find_cause,
    fingerprint=re.compile(r"tabby\b"), named=re.compile(r"\btabby\b"),
)  # fmt: skip
PROBE = ProbeScripts(
    module=__name__, name="tabby", install="adopt tabby", versions=VERSIONS,
    details='print(MARK + "{}")', asked=frozenset(), env={}, lacking=lambda found: "",
    read=lambda python, found, more: EngineInfo(python, found["tabby"], "", "cpu"),
)  # fmt: skip
INSTALL = Install(
    versions={"cpu": "1.0"},
    source=Source(
        package="tabby", folder="cat", target="tabby", compiler_mib={"cpu": 64, "cuda": 64},
        options=lambda build, version: (f"-DPURR={version}",), prelude="set(PURR loud)",
    ),
    trial=ProofServer(
        version=("--version",), model=lambda: b"milk", suffix=".cat",
        command=lambda program, model, port: (program, str(port), "4"),
    ),
)  # fmt: skip
ENGINE = Engine(
    name="tabby",
    title="Tabby",
    install=INSTALL,
    probe=PROBE,
    planning=Planning(
        make=make_plan, conflicts=lambda plan, inventory: (), forecast=forecast,
        cards=lambda plan, inventory: (), context=lambda plan: 64, command=command,
        overruling=lambda config, environ: "", checks=lambda facts: (),
    ),
    arguments=Arguments(
        redact=tuple, secrets=lambda words: (), api_keys=lambda words: None,
        api_key_variable="TABBY_KEY", chat_template=lambda config: "",
        invents_weights=lambda config: True,
    ),
    log=LOG,
    explain=lambda text: Explanation(None, (), "", None, (), {}, {}, {}),
    api=Api(
        health="/alive", metrics="/stats", read_metrics=read_stats, pending="", pending_key="",
        completions="/complete",
    ),
    dependents=re.compile("FAKE::"),
    healing=Healing(
        rungs=(Rung("narrow", "be narrower", "", ("width",), narrower),),
        cures={("device-oom-load", ANY): ("narrow",)},
        option=lambda name: f"+{name}",
        kinds={"width": (int,)},
    ),
)  # fmt: skip
