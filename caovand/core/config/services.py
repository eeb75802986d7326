"""The configuration sections for servers, history, logs and the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from caovand.core.config.key import StringPairs, key
from caovand.core.gateway.naming import EFFORTS, MAX_TEMPERATURE, MAX_TOKENS
from caovand.core.gateway.requests import ConnectionLimits


@dataclass(frozen=True)
class ControlSection:
    """The users who may control the daemon."""

    group: str = key("caovan", "Group whose members may use every caovanctl verb.", once=True)


@dataclass(frozen=True)
class MetricsSection:
    """Prometheus metrics of the daemon."""

    listen: str = key(
        "", "ADDRESS:PORT to serve metrics on; empty is off.", example='"127.0.0.1:9400"', once=True
    )


@dataclass(frozen=True)
class PageSection:
    """The web page, which shows and never changes anything."""

    listen: str = key(
        "", "ADDRESS:PORT to serve the page on; empty is off.", example='"127.0.0.1:9480"'
    )
    token_file: str = key(
        "",
        "File with the token that readers must enter, at least 16 characters, closed to other "
        "users (mode 640); required unless `listen` is a loopback address.",
        private=True,
    )


@dataclass(frozen=True)
class AliasDefaults:
    """Defaults of requests that name an alias."""

    temperature: float | None = key(
        None, "Temperature of requests that set none.", low=0, high=MAX_TEMPERATURE
    )
    max_tokens: int | None = key(
        None, "Limit of generated tokens in requests that set none.", low=1, high=MAX_TOKENS
    )
    reasoning_effort: str | None = key(
        None, "Reasoning effort of requests that set none.", choices=EFFORTS
    )


AliasTable = tuple[tuple[str, AliasDefaults], ...]
"""The defaults of each alias, sorted by its name."""


@dataclass(frozen=True)
class GatewaySection:
    """An address for clients that survives engine restarts: requests wait for the next engine."""

    listen: str = key(
        "", "ADDRESS:PORT to serve the gateway on; empty is off.", example='"127.0.0.1:8080"'
    )
    hold_s: float = key(
        300.0,
        "Seconds that a request may wait for an engine; after that the gateway refuses it with "
        "503.",
        low=1,
        high=3600,
    )
    drain_s: float = key(
        60.0,
        "Seconds that answers in progress get to finish before a planned restart.",
        low=0,
        high=3600,
    )
    max_waiting: int = key(
        1000, "Maximum waiting requests; more are refused with 429.", low=1, high=100_000
    )
    max_body_mib: int = key(
        64,
        "Maximum MiB of a request's body; all waiting bodies together may use eight times as much.",
        low=1,
        high=4096,
        once=True,
    )
    max_connections: int = key(
        ConnectionLimits.max_connections,
        "Maximum connections; above it, those that have been idle longest are closed.",
        low=16,
        high=8000,
    )
    head_s: float = key(
        ConnectionLimits.head_s,
        "Seconds within which a request's header must arrive; after that its connection is closed.",
        low=1,
        high=3600,
    )
    max_headers: int = key(
        ConnectionLimits.max_headers,
        "Maximum headers of a request; more are refused with 431.",
        low=16,
        high=1000,
    )
    min_body_kib_s: int = key(
        ConnectionLimits.min_body_kib_s,
        "Minimum KiB per second of a request's body, in addition to 30 s; a slower one is refused"
        " with 408.",
        low=1,
        high=1_048_576,
    )
    aliases: StringPairs = key(
        (),
        "More model names that clients may use, each with the served name it maps to.",
        example='{ "gpt-4o" = "my-model", "thinker" = "my-model:high" }',
    )
    temperature: float | None = key(
        None,
        'Temperature of requests that set none; "auto" leaves it to the engine.',
        low=0,
        high=MAX_TEMPERATURE,
    )
    max_tokens: int | None = key(
        None,
        'Limit of generated tokens in requests that set none; "auto" leaves it to the engine.',
        low=1,
        high=MAX_TOKENS,
    )
    reasoning_effort: str | None = key(
        None,
        'Reasoning effort of requests that set none; "auto" leaves it to the engine.',
        choices=EFFORTS,
    )
    alias_defaults: AliasTable = key(
        (),
        "temperature, max_tokens and reasoning_effort of requests that name an alias and set "
        "none; they override those of this section.",
        example='{ "thinker" = { temperature = 1, max_tokens = 32768 } }',
    )


@dataclass(frozen=True)
class ClusterSection:
    """Several machines that serve one model together."""

    role: str = key(
        "off",
        "head: plans, and answers clients; worker: runs its part of the head's plan; off: this"
        " machine serves alone.",
        choices=("off", "head", "worker"),
        once=True,
    )
    head: str = key(
        "",
        "HOST:PORT where the head listens for workers.",
        example='"10.0.0.1:7070"',
        once=True,
    )
    key_file: str = key(
        "/etc/caovan/cluster.key",
        "File with the cluster's key, the same on all nodes; `caovanctl cluster init` creates it.",
        once=True,
    )
    name: str | None = key(None, 'Name of this node; "auto" is its host name.', once=True)
    nodes: int = key(
        2, "Number of nodes that serve the model, including the head.", low=2, high=64, once=True
    )
    min_nodes: int | None = key(
        None,
        "Minimum number of nodes to serve with while others are missing, including the head; "
        '"auto": all.',
        low=1,
        high=64,
        once=True,
    )
    wait_s: float = key(
        60.0,
        "Seconds that nodes must be missing before the rest serve without them, and back before "
        "all serve again.",
        low=0,
        high=86_400,
        once=True,
    )
    executor: str = key(
        "mp",
        "What starts vLLM's ranks; the head's value applies; mp: vLLM itself; ray: Ray, which "
        "every node's engine must have in its environment.",
        choices=("mp", "ray"),
        once=True,
    )
    interface: str | None = key(
        None,
        'Network interface towards the other nodes; "auto" is the one that the route to them uses.',
        once=True,
    )


@dataclass(frozen=True)
class HistorySection:
    """Metrics by the minute, kept in the state folder for `caovanctl history`."""

    days: int = key(30, "Days to keep the metrics; 0 keeps none.", low=0, high=366, once=True)


@dataclass(frozen=True)
class LogSection:
    """The daemon's own log."""

    level: str = key(
        "info",
        "Minimum severity of caovand's own messages; the engine's lines are always logged.",
        choices=("debug", "info", "warning", "error"),
        once=True,
    )
    format: str | None = key(
        None,
        'Format; "auto" is console on a terminal, journald under systemd, else json.',
        choices=("console", "json", "journald"),
        once=True,
    )
