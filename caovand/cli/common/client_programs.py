"""Point client programs at an endpoint, by variables and arguments of a single run, never by files.

A program started in any other way is unaffected, so there is nothing to undo. Source: each
program's documentation of its variables and options.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain

KEY = "CAOVAN_API_KEY"
NO_KEY = "none"
"""Placeholder key for an endpoint that needs none: clients refuse to start without a key."""


@dataclass(frozen=True, kw_only=True)
class ClientEndpoint:
    """The endpoint for a client; `url` ends before /v1, `context` is in tokens, 0 if unknown."""

    url: str
    model: str
    key: str = field(default="", repr=False)
    context: int = 0


@dataclass(frozen=True, kw_only=True)
class ProgramLaunch:
    """Additions to a program's environment, and arguments that precede the user's."""

    env: Mapping[str, str]
    words: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClientProgram:
    """A client program: `name` is the executable, `install` the command that installs it."""

    name: str
    install: str
    run: Callable[[ClientEndpoint], ProgramLaunch]


def _claude(to: ClientEndpoint) -> ProgramLaunch:
    window = str(to.context)
    limits = ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_AUTO_COMPACT_WINDOW")
    models = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{x}_MODEL" for x in _TIERS))
    return ProgramLaunch(
        env={
            "ANTHROPIC_BASE_URL": to.url,
            "ANTHROPIC_AUTH_TOKEN": to.key or NO_KEY,
            # An account's key, which the client would send to this endpoint.
            "ANTHROPIC_API_KEY": "",
            # Either variable would redirect all requests to a cloud service.
            "CLAUDE_CODE_USE_BEDROCK": "",
            "CLAUDE_CODE_USE_VERTEX": "",
            **dict.fromkeys(models, to.model),
            **(dict.fromkeys(limits, window) if to.context else {}),
            # A line in the system prompt that differs in each request, so no prefix would be
            # cached.
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
    )


_TIERS = ("OPUS", "SONNET", "HAIKU")


def _codex(to: ClientEndpoint) -> ProgramLaunch:
    provider = {"name": "caovan", "base_url": f"{to.url}/v1", "env_key": KEY}
    settings = {
        "model": to.model,
        "model_provider": "caovan",
        **({"model_context_window": to.context} if to.context else {}),
        **{f"model_providers.caovan.{name}": value for name, value in provider.items()},
        "model_providers.caovan.wire_api": "responses",
    }
    # JSON strings and numbers are valid TOML.
    words = (("-c", f"{name}={json.dumps(value)}") for name, value in settings.items())
    return ProgramLaunch(env={KEY: to.key or NO_KEY}, words=tuple(chain.from_iterable(words)))


def _opencode(to: ClientEndpoint) -> ProgramLaunch:
    limit = {"context": to.context, "output": min(to.context, _OUTPUT)}
    model = {"name": to.model, **({"limit": limit} if to.context else {})}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "caovan",
        "options": {"baseURL": f"{to.url}/v1", "apiKey": f"{{env:{KEY}}}"},
        "models": {to.model: model},
    }
    chosen = f"caovan/{to.model}"
    config = {"model": chosen, "small_model": chosen, "provider": {"caovan": provider}}
    return ProgramLaunch(env={KEY: to.key or NO_KEY, "OPENCODE_CONFIG_CONTENT": json.dumps(config)})


_OUTPUT = 32_768
"""Longest answer that opencode plans for, in tokens."""


def _qwen(to: ClientEndpoint) -> ProgramLaunch:
    return ProgramLaunch(
        env={
            "OPENAI_BASE_URL": f"{to.url}/v1",
            "OPENAI_API_KEY": to.key or NO_KEY,
            "OPENAI_MODEL": to.model,
        },
        words=("--auth-type", "openai"),
    )


def _aider(to: ClientEndpoint) -> ProgramLaunch:
    env = {"OPENAI_API_BASE": f"{to.url}/v1", "OPENAI_API_KEY": to.key or NO_KEY}
    # Pass the address as an option too: a repository's .env overrides variables.
    words = ["--openai-api-base", f"{to.url}/v1", "--model", f"openai/{to.model}"]
    words.append("--no-show-model-warnings")
    if to.context:
        words += ["--max-chat-history-tokens", str(to.context // 4)]
    return ProgramLaunch(env=env, words=tuple(words))


def _open_webui(to: ClientEndpoint) -> ProgramLaunch:
    return ProgramLaunch(
        env={
            "OPENAI_API_BASE_URL": f"{to.url}/v1",
            "OPENAI_API_KEY": to.key or NO_KEY,
            "ENABLE_OLLAMA_API": "false",
            "DEFAULT_MODELS": to.model,
            # Otherwise its database keeps the first address and key, and ignores later ones.
            "ENABLE_PERSISTENT_CONFIG": "False",
        },
        # Its own default port is the one suggested for the gateway.
        words=("serve", "--host", "127.0.0.1", "--port", "3000"),
    )


PROGRAMS: Mapping[str, ClientProgram] = {
    "claude": ClientProgram(
        name="claude",
        install="npm install -g @anthropic-ai/claude-code",
        run=_claude,
    ),
    "codex": ClientProgram(name="codex", install="npm install -g @openai/codex", run=_codex),
    "opencode": ClientProgram(name="opencode", install="npm install -g opencode-ai", run=_opencode),
    "qwen": ClientProgram(name="qwen", install="npm install -g @qwen-code/qwen-code", run=_qwen),
    "aider": ClientProgram(name="aider", install="pipx install aider-chat", run=_aider),
    "open-webui": ClientProgram(
        name="open-webui", install="pipx install open-webui", run=_open_webui
    ),
}
