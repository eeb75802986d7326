"""The record of SGLang: its functions and data for the rest of caovan."""

from __future__ import annotations

import json
import re

from caovand.core.config.schema import Config
from caovand.core.engine.planning import Planning
from caovand.core.engine.record import Api, Arguments, Engine
from caovand.engines.common.caches import PYTORCH_CACHES
from caovand.engines.common.options import chat_template
from caovand.engines.common.plans import context_of
from caovand.engines.sglang import command, options
from caovand.engines.sglang.doctor import checkup
from caovand.engines.sglang.healing.cures import HEALING
from caovand.engines.sglang.installation import INSTALL
from caovand.engines.sglang.log.explain import explain
from caovand.engines.sglang.log.reader import LOG
from caovand.engines.sglang.memory.forecast import forecast, gpus_of
from caovand.engines.sglang.metrics import parse_metrics
from caovand.engines.sglang.planning.drafting import overruling
from caovand.engines.sglang.planning.planner import at_once, make_plan
from caovand.engines.sglang.probe import PROBE


def _chat_template(config: Config) -> str:
    return chat_template(config, options.values(config.engine.extra_args))


def _invents_weights(config: Config) -> bool:
    return options.values(config.engine.extra_args).get("load_format") == "dummy"


# vLLM serves the same models, also on older cards and CPUs: SGLang is chosen by hand, and prefers
# no model.
ENGINE = Engine(
    name="sglang",
    title="SGLang",
    caches=(*PYTORCH_CACHES, "sglang"),
    folders=("SGLANG_CACHE_DIR", "SGLANG_DG_CACHE_DIR", "SGLANG_TORCH_PROFILER_DIR"),
    writes=("--crash-dump-folder", "--download-dir", "--file-storage-path"),
    install=INSTALL,
    probe=PROBE,
    planning=Planning(
        make=make_plan,
        conflicts=lambda plan, inventory: (),
        forecast=forecast,
        cards=gpus_of,
        context=context_of,
        at_once=at_once,
        command=command.build,
        overruling=overruling,
        checks=checkup,
    ),
    arguments=Arguments(
        redact=options.redact,
        secrets=options.secret_values,
        api_keys=options.api_keys,
        api_key_variable="",
        chat_template=_chat_template,
        invents_weights=_invents_weights,
        check=options.refused,
    ),
    log=LOG,
    explain=explain,
    # /health_generate would generate a token at each check, every few seconds: a card would never
    # idle, and the counters would always move. Proofs and test completions are caovan's own.
    api=Api(
        health="/health",
        metrics="/metrics",
        read_metrics=parse_metrics,
        pending="",
        pending_key="",
        completions="/v1/completions",
        constrained=lambda schema: {"json_schema": json.dumps(schema)},
        keep_alive_s=5.0,
        keep_alive_variable="SGLANG_TIMEOUT_KEEP_ALIVE",
    ),
    healing=HEALING,
    dependents=re.compile("sglang::"),
)
