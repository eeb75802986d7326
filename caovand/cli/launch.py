"""`caovanctl launch`: start a chat or coding client with the served model."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from caovand.adapters.engine.choice import chosen_engine
from caovand.adapters.files import config_file, secret_file, trust
from caovand.adapters.network import http
from caovand.cli.common.client import ask
from caovand.cli.common.client_programs import KEY, PROGRAMS, ClientEndpoint, ProgramLaunch
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.verb import Group, Verb
from caovand.core import api_key
from caovand.core.config.key import ConfigError
from caovand.core.gateway import protocol

ANSWER_S = 10.0
REFUSED = (401, 403)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("client", metavar="CLIENT", choices=[*PROGRAMS], help=", ".join(PROGRAMS))
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="arguments for the client, after --"
    )
    parser.add_argument("--model", default="", metavar="NAME", help="default: the served model")
    parser.add_argument(
        "--url",
        default="",
        metavar="URL",
        help="address of another machine's server; default: "
        "this machine's gateway, else its engine",
    )
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file that holds the key; default: "
        f"${KEY}, or [server] api_key_file if you can read it",
    )
    parser.add_argument(
        "--print", action="store_true", help="print the command for a shell, and start nothing"
    )


def run(args: argparse.Namespace) -> int:
    program = PROGRAMS[args.client]
    executable = trust.program(program.name, os.environ)
    if executable is None and not args.print:
        raise CommandError(
            Exit.FAILED,
            f"cannot start {program.name}: it is not installed, or not on PATH",
            f"{program.install}; or see its command with --print",
        )
    endpoint = _verify(_remote_endpoint(args) if args.url else _local_endpoint(args), args)
    added = program.run(endpoint)
    words = [program.name, *added.words, *args.words]
    if executable is None or args.print:
        print("env", *_settings(added, endpoint.key), shlex.join(words))
        if endpoint.key:
            print(f"the key is not shown: set it in ${KEY}", file=sys.stderr)
        return Exit.DONE
    os.execve(executable, words, {**os.environ, **added.env})
    return Exit.FAILED  # never reached: this process has become the client


def _settings(added: ProgramLaunch, key: str) -> Iterator[str]:
    """The variables in shell syntax; the key is left out, because it would end up in the shell's
    history."""
    for name, value in added.env.items():
        yield f'{name}="${KEY}"' if key and value == key else f"{name}={shlex.quote(value)}"


def _remote_endpoint(args: argparse.Namespace) -> ClientEndpoint:
    return ClientEndpoint(
        url=args.url.rstrip("/").removesuffix("/v1"), model="", key=_key(args, None)
    )


def _local_endpoint(args: argparse.Namespace) -> ClientEndpoint:
    """The gateway if there is one, because it also answers while the engine restarts."""
    status = ask(args, "status")
    gateway, served = status.get("gateway"), status["served"]
    if gateway and gateway["serving"]:
        url = gateway["url"]
    elif served is not None:
        url = served["url"].removesuffix("/v1")
    else:
        raise CommandError(
            Exit.NOT_SERVING,
            f"cannot start {args.client}: no model is served, the state is {status['state']}",
            "wait for it with `caovanctl wait`, or see `caovanctl status`",
        )
    host = urlsplit(url).hostname or ""
    url = url.replace(f"//{host}:", f"//{http.Endpoint(host, 0).address}:")
    return ClientEndpoint(url=url.rstrip("/"), model="", key=_key(args, status))


def _key(args: argparse.Namespace, status: Mapping[str, Any] | None) -> str:
    """The named key, else the engine's own; "" without one."""
    try:
        if args.api_key_file is not None:
            path = str(args.api_key_file.absolute())
            return secret_file.read(path, secret_file.API_KEY_FILE)
        if named := os.environ.get(KEY, ""):
            if not api_key.is_usable(named):
                raise ConfigError([f"cannot use ${KEY}: it must be one line of plain ASCII"])
            return named
        if status is None:
            return ""
    except ConfigError as problem:
        raise CommandError(Exit.FAILED, str(problem), "name a file with --api-key-file") from None
    try:
        config = config_file.load(Path(status["daemon"]["config"]))
        rules = chosen_engine(config).arguments
        return config_file.api_key(config, config.engine.extra_args, os.environ, rules)
    except ConfigError:
        return ""  # not readable for this user; if a key is needed, the response will show it


def _verify(endpoint: ClientEndpoint, args: argparse.Namespace) -> ClientEndpoint:
    """The endpoint with the model and context from its model list; raises CommandError."""
    cannot = f"cannot start {args.client}"
    split = urlsplit(endpoint.url)
    try:
        port = split.port or (443 if split.scheme == "https" else 80)
    except ValueError:
        port = 0
    if split.scheme not in ("http", "https") or not split.hostname or not port:
        raise CommandError(
            Exit.USAGE, f"{cannot}: {endpoint.url} is not an address", "use --url http://HOST:PORT"
        )
    server = http.Endpoint(split.hostname, port, endpoint.key, tls=split.scheme == "https")
    try:
        answer = http.call(server, f"{split.path}/v1/models", ANSWER_S)
    except http.Unanswered as problem:
        raise CommandError(
            Exit.FAILED,
            f"{cannot}: {endpoint.url} does not answer: {problem}",
            "see `caovanctl status`",
        ) from None
    if answer.status in REFUSED:
        which = "the server refuses the key" if endpoint.key else "the server requires a key"
        raise CommandError(
            Exit.FAILED,
            f"{cannot}: {which} ({endpoint.url})",
            f"set {KEY}, or name a file with --api-key-file; `sudo caovanctl key add NAME` makes a"
            " client's key for the gateway",
        )
    models = protocol.contexts(answer.body) if answer.status == 200 else {}
    if not models:
        raise CommandError(
            Exit.FAILED,
            f"{cannot}: {endpoint.url} lists no model (status {answer.status})",
            "see `caovanctl status`",
        )
    name = args.model or next(iter(models))
    if name not in models and name.rpartition(":")[0] not in models:
        raise CommandError(
            Exit.FAILED,
            f'{cannot}: "{name}" is not served',
            f"choose one of {', '.join(models)}",
        )
    context = models.get(name) or models.get(name.rpartition(":")[0]) or 0
    return ClientEndpoint(url=endpoint.url, model=name, key=endpoint.key, context=context)


VERB = Verb(
    name="launch",
    group=Group.SETUP,
    help="start a chat or coding client with the served model",
    description="Start a client program with the served model, its address, key and context, "
    "passed as environment variables and options for this run only: the client's files do not "
    "change. If the gateway runs, its address is used. The client starts only after the "
    "endpoint has answered.",
    epilog="""\
examples:
  caovanctl launch claude
  caovanctl launch codex -- exec "explain this folder"
  caovanctl launch --print opencode
  CAOVAN_API_KEY=sk-... caovanctl launch --url http://server:8080 aider
""",
    arguments=arguments,
    effects=True,
    run=run,
)
