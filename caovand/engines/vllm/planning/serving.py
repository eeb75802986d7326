"""Rules for settings that clients see: the model's task, address, names and templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from caovand.core.checkpoint.model_task import is_written_reranker
from caovand.core.facts.inventory import Inventory, ModelCard
from caovand.core.model_task import POOLING, TITLES, ModelTask
from caovand.core.plan import Setting, Unplannable
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import RANKS_BY_YES
from caovand.engines.vllm.planning.partial_plan import PartialPlan, policy, user

HEALTH, LOAD, METRICS = "/health", "/load", "/metrics"
"""The paths that caovan polls while the engine serves."""
KEEP_ALIVE_S = 15
"""nginx and AWS' load balancers wait for 60 s, Cloudflare for 100; some proxies only for 30."""


def host(partial: PartialPlan) -> Setting | None:
    return as_configured(partial, "server", "host")


def port(partial: PartialPlan) -> Setting | None:
    return as_configured(partial, "server", "port")


def served_model_name(partial: PartialPlan) -> Setting | None:
    typed = partial.config.model.served_name
    if typed:
        return user(typed, "[model] served_name")
    name = partial.model.path.rstrip("/").rpartition("/")[2]
    return policy(name, "the last part of the model's path")


def revision(partial: PartialPlan) -> Setting | None:
    typed = partial.config.model.revision
    return user(typed, "[model] revision") if typed else None


def chat_template(partial: PartialPlan) -> Setting | None:
    typed = partial.config.model.chat_template
    return user(typed, "[model] chat_template") if typed else None


def trust_remote_code(partial: PartialPlan) -> Setting | None:
    if not partial.config.model.trust_remote_code:
        return None
    return user(True, "[model] trust_remote_code")


def enable_server_load_tracking(partial: PartialPlan) -> Setting | None:
    return policy(True, "/load shows whether work is pending, even when the engine is stuck")


def disable_access_log_for_endpoints(partial: PartialPlan) -> Setting | None:
    """Clients list models, too, so /v1/models stays in the log."""
    if {"disable_uvicorn_access_log", "log_config_file"} & partial.verbatim.keys():
        return None
    return policy(
        ",".join((HEALTH, LOAD, METRICS)),
        "caovan polls these paths every few seconds: the access log is of clients' requests alone",
    )


def sse_keep_alive_interval(partial: PartialPlan) -> Setting | None:
    if not partial.generates or partial.engine.release < releases.KEEP_ALIVE_LINES:
        return None
    return policy(
        KEEP_ALIVE_S,
        "a comment line after this many seconds of silence: proxies cut streams that are silent "
        "for a minute, for example while a long prompt is read",
    )


def shutdown_timeout(partial: PartialPlan) -> Setting | None:
    seconds = ceil(partial.config.watch.shutdown_timeout_s)
    reason = "[watch] shutdown_timeout_s: requests may finish when asked to stop"
    return Setting(seconds, partial.config.origin("watch", "shutdown_timeout_s"), reason)


def as_configured(partial: PartialPlan, section: str, key: str) -> Setting:
    value = getattr(getattr(partial.config, section), key)
    return Setting(value, partial.config.origin(section, key), f"[{section}] {key}")


def task_of(model: ModelCard, verbatim: Mapping[str, Any]) -> ModelTask:
    """The task, as vLLM interprets the operator's flags --runner and --convert."""
    runner, convert, own = verbatim.get("runner"), verbatim.get("convert"), model.task
    if runner == "generate":
        return "generate" if own in POOLING else own
    if convert == "embed":
        return "embed"
    if convert == "classify":
        return own if own in ("classify", "score") else "classify"
    return "embed" if runner == "pooling" and own not in POOLING else own


def refuse_deaf(inventory: Inventory) -> None:
    """Raise Unplannable for a speech model if vLLM cannot decode audio files."""
    engine = inventory.engine
    if inventory.model.task == "transcription" and engine.decodes_sound is False:
        raise Unplannable(
            f"cannot serve model {inventory.model.path}: it transcribes, and the environment of"
            f" vLLM {engine.version} has no package that decodes audio files; install one with"
            f" `{engine.python} -m pip install soundfile`"
        )


def runner(partial: PartialPlan) -> Setting | None:
    if partial.task not in POOLING:
        return None
    return policy("pooling", f"the model is for {TITLES[partial.task]}, and generates no text")


def hf_overrides(partial: PartialPlan) -> Setting | None:
    model = partial.model
    name = model.path.rstrip("/").rpartition("/")[2]
    if partial.task != "score" or not is_written_reranker(model.architecture, name):
        return None
    return policy(dict(RANKS_BY_YES), 'it ranks by the probability of the answer "yes"')


def prompt_warnings(partial: PartialPlan) -> Iterator[str]:
    """A warning if vLLM would score texts without the prompt that the model was trained on."""
    name = partial.model.path.rstrip("/").rpartition("/")[2]
    if partial.task != "score" or not is_written_reranker(partial.model.architecture, name):
        return
    if not partial.values.get("chat_template"):
        yield (
            f"{name} was trained on a prompt of its own, and without a template vLLM scores query"
            " and document without it: set [model] chat_template to vLLM's"
            " examples/pooling/score/template/qwen3_reranker.jinja"
        )
