"""The record of Ollama: its functions and data for the rest of caovan."""

from __future__ import annotations

import re
from collections.abc import Sequence

from caovand.core.engine.planning import Planning
from caovand.core.engine.record import Api, Arguments, Engine
from caovand.core.plan import Plan
from caovand.engines.common.plans import context_of
from caovand.engines.common.speeds import one_answer
from caovand.engines.ollama import command
from caovand.engines.ollama.doctor import checkup
from caovand.engines.ollama.healing.cures import HEALING
from caovand.engines.ollama.log.explain import explain
from caovand.engines.ollama.log.reader import LOG
from caovand.engines.ollama.metrics import read_ps
from caovand.engines.ollama.names import NAMED_MODELS
from caovand.engines.ollama.planning.alternative import alternative
from caovand.engines.ollama.planning.forecast import cards_of, forecast, speed
from caovand.engines.ollama.planning.planner import conflicts, make_plan
from caovand.engines.ollama.planning.variables import PARALLEL, number
from caovand.engines.ollama.probe import INSTALL, PROBE


def _at_once(plan: Plan) -> int | None:
    return number(plan, PARALLEL) or None


def _prompt_of(tokens: Sequence[int]) -> str:
    """A text of about as many tokens: Ollama's completions do not accept token ids."""
    return " ".join(chr(ord("a") + token % 26) for token in tokens)


# It serves the same models as llama.cpp: it is chosen by hand, so it prefers no model.
ENGINE = Engine(
    name="ollama",
    title="Ollama",
    at_home=(".ollama",),
    folders=("OLLAMA_MODELS",),
    install=INSTALL,
    probe=PROBE,
    planning=Planning(
        make=make_plan,
        conflicts=conflicts,
        forecast=forecast,
        cards=cards_of,
        context=context_of,
        at_once=_at_once,
        command=command.build,
        overruling=lambda config, environ: "",
        checks=checkup,
        speed=speed,
        modelled=one_answer(speed),
        alternative=alternative,
    ),
    arguments=Arguments(
        redact=tuple,
        secrets=lambda words: (),
        api_keys=lambda words: None,
        api_key_variable="",
        chat_template=lambda config: "",
        invents_weights=lambda config: False,
    ),
    log=LOG,
    explain=explain,
    api=Api(
        health="/api/version",
        metrics="/api/ps",
        read_metrics=read_ps,
        pending="",
        pending_key="",
        completions="/v1/completions",
        prompt=_prompt_of,
        exact=False,
        keep_alive_s=60.0,  # Go's HTTP server closes no idle connection by default
    ),
    healing=HEALING,
    dependents=re.compile(r"\A(?:\S*/)?(?:ollama runner|lib/ollama/(?:[^/\s]+/)?llama-server)\s"),
    models=NAMED_MODELS,
)
