"""The record of llama.cpp: its functions and data for the rest of caovan."""

from __future__ import annotations

import re
from collections.abc import Collection

from caovand.core.config.schema import Config
from caovand.core.engine.planning import Planning
from caovand.core.engine.record import Api, Arguments, Engine, Tokenize
from caovand.engines.common import task_probes as works
from caovand.engines.common.options import chat_template, values
from caovand.engines.common.plans import context_of
from caovand.engines.common.speeds import one_answer
from caovand.engines.llamacpp import command
from caovand.engines.llamacpp.doctor import checkup
from caovand.engines.llamacpp.healing.cures import HEALING
from caovand.engines.llamacpp.installation import INSTALL
from caovand.engines.llamacpp.log.explain import explain
from caovand.engines.llamacpp.log.reader import LOG
from caovand.engines.llamacpp.memory.forecast import forecast, gpus_of, speed
from caovand.engines.llamacpp.metrics import parse_metrics
from caovand.engines.llamacpp.planning import options
from caovand.engines.llamacpp.planning.alternative import alternative
from caovand.engines.llamacpp.planning.conflicts import conflicts
from caovand.engines.llamacpp.planning.drafting import overruling
from caovand.engines.llamacpp.planning.foreseen import foreseen
from caovand.engines.llamacpp.planning.planner import at_once, make_plan
from caovand.engines.llamacpp.probe import PROBE

SUFFIX = ".gguf"


def _prefers(path: str, files: Collection[str]) -> bool:
    if path.endswith(SUFFIX):
        return True
    return "config.json" not in files and any(name.endswith(SUFFIX) for name in files)


def _chat_template(config: Config) -> str:
    return chat_template(config, values(options.read(config.engine.extra_args)))


ENGINE = Engine(
    name="llamacpp",
    title="llama.cpp",
    prefers=_prefers,
    caches=("huggingface", "llama.cpp"),
    folders=("LLAMA_CACHE",),
    writes=("--log-file", "--slot-save-path"),
    install=INSTALL,
    probe=PROBE,
    planning=Planning(
        make=make_plan,
        conflicts=conflicts,
        forecast=forecast,
        cards=gpus_of,
        context=context_of,
        at_once=at_once,
        command=command.build,
        overruling=overruling,
        checks=checkup,
        speed=speed,
        modelled=one_answer(speed),
        alternative=alternative,
        foreseen=foreseen,
    ),
    arguments=Arguments(
        redact=options.redact,
        secrets=options.secret_values,
        api_keys=options.api_keys,
        api_key_variable="LLAMA_API_KEY",
        chat_template=_chat_template,
        invents_weights=lambda config: False,
        check=options.refused,
    ),
    log=LOG,
    explain=explain,
    api=Api(
        health="/health",
        metrics="/metrics",
        scraped="update_slots: all slots are idle",
        read_metrics=parse_metrics,
        pending="",
        pending_key="",
        completions="/v1/completions",
        tokenize=Tokenize(
            path="/tokenize",
            body=lambda _model, text: {"content": text, "add_special": True},
            count=lambda answer: len(answer["tokens"]),
        ),
        constrained=lambda schema: {"json_schema": schema},
        task_requests={"embed": works.EMBED, "score": works.RERANK},
        keep_alive_s=5.0,
        # After a stream it closes a connection that it has promised to keep open.
        reuses_connections=False,
    ),
    healing=HEALING,
    # Its server is a single process: it belongs to caovan for certain only in caovan's environment.
    dependents=re.compile(r"\A\S*/(?:current-)?llamacpp[^/\s]*/bin/llama-server\s"),
)
