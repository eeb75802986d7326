"""The engine to measure: its address, key and plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caovand.adapters.files import config_file, secret_file
from caovand.adapters.network.http import Endpoint
from caovand.cli.common.client import DaemonClient
from caovand.cli.common.errors import CommandError, Exit
from caovand.core.config.key import ConfigError
from caovand.core.engine.record import Api, TaskRequest
from caovand.core.model_task import TITLES
from caovand.engines import registry


@dataclass(frozen=True)
class Target:
    """The engine to measure; `context` is its maximum request in tokens, None if it chooses that
    itself."""

    endpoint: Endpoint
    api: Api
    model: str
    context: int | None
    generation: int
    described: Mapping[str, Any]
    """The facts about the engine that a result records."""
    work: TaskRequest | None = None
    """The request, if the model generates no text."""


def find(client: DaemonClient, key_file: Path | None, verb: str = "bench") -> Target:
    """The engine that serves now, for this verb; raises CommandError without one."""
    status = client.ask("status")
    cluster = status.get("cluster")  # earlier releases have none
    if cluster and cluster["role"] == "worker":
        raise CommandError(
            Exit.FAILED,
            f"cannot {verb}: this machine is a worker, and the head at {cluster['head']} answers"
            " clients",
            f"run `caovanctl {verb}` on the head",
        )
    if status["served"] is None:
        reason = f": {status['reason']}" if status["reason"] else ""
        raise CommandError(
            Exit.NOT_SERVING,
            f"cannot {verb}: no model is served, the state is {status['state']}{reason}",
            "wait for it with `caovanctl wait`, or see `caovanctl status`",
        )
    plan = client.ask("plan")
    task = plan.get("task", "generate")  # earlier releases do not report it
    if task != "generate" and (verb != "bench" or task == "transcription"):
        raise CommandError(
            Exit.FAILED,
            f"cannot {verb}: the model is for {TITLES[task]}, but {verb} sends "
            f"texts{'' if verb == 'bench' else ' to continue'}",
            "serve a model that generates text",
        )
    served = status["served"]
    endpoint = Endpoint(
        served["host"],
        served["port"],
        _key(status, plan, key_file, verb),
        tls=served["url"].startswith("https:"),
    )
    described = {
        "fingerprint": plan["fingerprint"],
        "engine": plan["engine"],
        "model": plan["model"],
        "served_name": served["name"],
        "mode": status["engine_mode"],
        "mtp": status["mtp"],
        "rungs": plan["rungs"],
        "context": plan["context"],
        "task": task,
    }
    api = registry.engine_of(plan["engine"]).api
    name, context = served["name"], plan["context"]
    work = api.task_requests.get(task)
    return Target(endpoint, api, name, context, status["generation"], described, work)


def _key(
    status: Mapping[str, Any], plan: Mapping[str, Any], key_file: Path | None, verb: str
) -> str:
    """The key that the engine requires; "" if there is none."""
    config = Path(status["daemon"]["config"])
    try:
        if key_file is not None:
            return secret_file.read(str(key_file.absolute()), secret_file.API_KEY_FILE)
        read = config_file.load(config)
        arguments = registry.engine_of(plan["engine"]).arguments
        return config_file.api_key(read, read.engine.extra_args, os.environ, arguments)
    except ConfigError as problem:
        if key_file is None and not os.access(config, os.R_OK):
            return ""  # most engines require none; if this one does, its response will show it
        raise CommandError(
            Exit.FAILED,
            f"cannot {verb}: {problem}",
            "run this as a user who can read that file, or name another with --api-key-file",
        ) from problem


def refused_key(verb: str, status: int) -> CommandError:
    """The error of a verb whose key the engine refuses."""
    return CommandError(
        Exit.FAILED,
        f"cannot {verb}: the engine refused the API key (HTTP {status})",
        "run it as a user who may read the daemon's configuration, or name the key's file with"
        " --api-key-file",
    )


def lengths(
    target: Target, requested: Sequence[int] | None, usual: Sequence[int], tokens: int
) -> tuple[int, ...]:
    """Prompt lengths to measure: the requested ones, or the defaults that fit."""
    if target.context is None:
        return tuple(requested or usual[:1])
    fit = tuple(length for length in requested or usual if length + tokens <= target.context)
    if not fit or (requested and len(fit) < len(requested)):
        too_long = next(length for length in requested or usual if length + tokens > target.context)
        raise CommandError(
            Exit.FAILED,
            f"cannot bench: a prompt of {too_long:,} tokens and {tokens:,} generated ones need a "
            f"context of {too_long + tokens:,}, but the plan's is {target.context:,}",
            "choose shorter --prompts or --tokens, or raise [model] max_model_len",
        )
    return fit
