"""The record of vLLM: its functions and data for the rest of caovan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from caovand.core.config.schema import Config
from caovand.core.engine.planning import Modelled, Planning
from caovand.core.engine.record import Api, Arguments, Engine, Kernels, Tokenize
from caovand.core.facts.inventory import Inventory
from caovand.core.plan import Plan
from caovand.core.problem import Problem
from caovand.engines.common.caches import PYTORCH_CACHES
from caovand.engines.common.options import chat_template
from caovand.engines.common.processors import read_seconds
from caovand.engines.common.task_probes import WORKS
from caovand.engines.common.tensors import experts_read
from caovand.engines.vllm import command, kernels
from caovand.engines.vllm.all_reduce import all_reduce
from caovand.engines.vllm.doctor import checkup
from caovand.engines.vllm.flags import command_line
from caovand.engines.vllm.flags.command_line import argument_problems
from caovand.engines.vllm.flags.spelling import INT8, LM_HEAD, SPECULATION, count
from caovand.engines.vllm.healing.cures import HEALING
from caovand.engines.vllm.installation import INSTALL
from caovand.engines.vllm.log.explain import explain
from caovand.engines.vllm.log.reader import LOG
from caovand.engines.vllm.machine.link_time import nodes_of
from caovand.engines.vllm.memory.settings import candidate_of_plan, cards_of_plan, gpus_of
from caovand.engines.vllm.metrics import parse_metrics
from caovand.engines.vllm.nodes import NODES
from caovand.engines.vllm.planning import serving
from caovand.engines.vllm.planning.decisions import conflicts, forecast
from caovand.engines.vllm.planning.foreseen import foreseen_failure
from caovand.engines.vllm.planning.planner import longest_context, make_plan
from caovand.engines.vllm.planning.speculation import overruling
from caovand.engines.vllm.probe import PROBE
from caovand.engines.vllm.serve_words import SERVE_WORDS
from caovand.engines.vllm.sizing.pace import CandidatePace
from caovand.engines.vllm.sizing.space import WORKLOADS, Workload

PLAIN_CACHES = (None, "auto", "half", "float16", "bfloat16")


def _conflicts(plan: Plan, inventory: Inventory) -> Sequence[Problem]:
    return conflicts(plan, inventory, cards_of_plan(plan, inventory))


def _context(plan: Plan) -> int | None:
    return count(plan.value("max_model_len"))


def _at_once(plan: Plan) -> int | None:
    each = count(plan.value("max_num_seqs"))
    return each and each * (count(plan.value("data_parallel_size")) or 1)


def _speed(plan: Plan, inventory: Inventory) -> float | None:
    if plan.device == "cpu":
        return _on_processor(inventory)
    return _model_pace(plan, inventory, WORKLOADS["chat"], 1).decode


def _on_processor(inventory: Inventory) -> float | None:
    """Modelled speed on the CPU, by the weights that a token reads, without drafts; None for an
    unknown model."""
    model, host = inventory.model, inventory.host
    if not model.weights:
        return None
    head = model.size("head") or model.size("embedding")
    experts = model.size("experts") * experts_read(model, 1)
    seconds = read_seconds(host, model.size("layers") + head, experts)
    return 1 / seconds if seconds else None


def _modelled(plan: Plan, inventory: Inventory, prompt: int, at_once: int) -> Modelled:
    return _model_pace(plan, inventory, replace(WORKLOADS["chat"], prompt=prompt), at_once)


def _model_pace(plan: Plan, inventory: Inventory, workload: Workload, at_once: int) -> Modelled:
    gpus = cards_of_plan(plan, inventory)
    if not gpus or not forecast(plan, inventory).parts:
        return Modelled()
    candidate = candidate_of_plan(plan, inventory)
    if at_once > candidate.sequences:  # some wait for others, which the model ignores
        return Modelled()
    pace = CandidatePace(inventory.model, candidate, gpus, workload, nodes_of(inventory))
    return Modelled(pace.reading(candidate), pace.answering(candidate, at_once))


def _is_quantised(plan: Plan, inventory: Inventory) -> bool:
    quantised = inventory.model.quantization or plan.value("quantization")
    head = plan.env.get(LM_HEAD)
    quantised = quantised or (head is not None and head.value == INT8)
    return bool(quantised) or plan.value("kv_cache_dtype") not in PLAIN_CACHES


def _chat_template(config: Config) -> str:
    return chat_template(config, command_line.values(command_line.read(config.engine.extra_args)))


def _drafter(config: Config) -> str:
    """The drafter that the key names, unless verbatim flags configure speculation."""
    verbatim = command_line.values(command_line.read(config.engine.extra_args))
    return "" if verbatim.keys() & SPECULATION else config.model.drafter


def _invents_weights(config: Config) -> bool:
    verbatim = command_line.values(command_line.read(config.engine.extra_args))
    return verbatim.get("load_format") == "dummy"


ENGINE = Engine(
    name="vllm",
    title="vLLM",
    caches=(*PYTORCH_CACHES, "vllm"),
    writes=("--download-dir", "--uds"),
    install=INSTALL,
    probe=PROBE,
    planning=Planning(
        make=make_plan,
        conflicts=_conflicts,
        forecast=forecast,
        cards=gpus_of,
        context=_context,
        at_once=_at_once,
        command=command.build,
        overruling=overruling,
        checks=checkup,
        speed=_speed,
        modelled=_modelled,
        foreseen=foreseen_failure,
        longest=longest_context,
        all_reduce=all_reduce,
        is_quantised=_is_quantised,
    ),
    kernels=Kernels(needed=kernels.kernels, compilers=kernels.compilers),
    arguments=Arguments(
        redact=command_line.redact,
        secrets=command_line.secret_values,
        api_keys=command_line.api_keys,
        api_key_variable="VLLM_API_KEY",
        chat_template=_chat_template,
        invents_weights=_invents_weights,
        drafter=_drafter,
        check=argument_problems,
    ),
    log=LOG,
    explain=explain,
    api=Api(
        health=serving.HEALTH,
        metrics=serving.METRICS,
        read_metrics=parse_metrics,
        pending=serving.LOAD,
        pending_key="server_load",
        completions="/v1/completions",
        logprobs=True,
        tokenize=Tokenize(
            path="/tokenize",
            body=lambda model, text: {"model": model, "prompt": text},
            count=lambda answer: answer["count"],
        ),
        constrained=lambda schema: {"structured_outputs": {"json": schema}},
        task_requests=WORKS,
        keep_alive_s=5.0,
        keep_alive_variable="VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
    ),
    healing=HEALING,
    dependents=re.compile("VLLM::"),
    nodes=NODES,
    serve_words=SERVE_WORDS,
)
