"""Rules across keys: contradictions in a configuration whose keys are valid one by one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields

from caovand.core import addresses
from caovand.core.config.schema import Config, ModelSection, PolicySection
from caovand.core.config.text import toml

Rungs = Callable[[Config], Collection[str]]
ConfigRule = Callable[[Config], Iterable[str]]
PORT_IN_HOST = re.compile(r"([A-Za-z0-9._-]+):([0-9]+)")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LISTENERS = (("metrics", 9400), ("page", 9480), ("gateway", 8080))
"""Sections with an address on which caovan itself listens, and a port to suggest."""


def contradictions(config: Config, kinds: Collection[str], rungs: Rungs) -> Iterable[str]:
    """A sentence for each broken rule; arguments as in `parse`."""
    yield from _engine(config, kinds, rungs)
    for rule in RULES:
        yield from rule(config)


def suggest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that was probably meant; "" if none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else ""


def without_value(name: str) -> str:
    """Hide everything after "=" in a table's key: it may be a password."""
    head, sign, _ = name.partition("=")
    return f'"{head}{sign}..."' if sign else f'"{name}"'


def _engine(config: Config, kinds: Collection[str], rungs: Rungs) -> Iterable[str]:
    """The engine's kind must exist, and the ladder's rungs must be that engine's."""
    kind = config.engine.kind
    if kinds and kind is not None and kind not in kinds:
        hint = suggest(kind, kinds) or f"; kinds are {', '.join(kinds)}"
        yield f'[engine] kind is "{kind}", which is not a kind of engine{hint}'
        return
    known = rungs(config) if config.policy.ladder else ()
    for name in config.policy.ladder or ():
        if known and name not in known:
            hint = suggest(name, known) or f"; rungs are {', '.join(known)}"
            yield f'[policy] ladder names "{name}", which is not a rung{hint}'


def _pinned(config: Config) -> Iterable[str]:
    lowerable = [key.name for section in (ModelSection, PolicySection) for key in fields(section)]
    for name in config.policy.pinned:
        if name not in lowerable:
            hint = suggest(name, lowerable)
            yield f'[policy] pinned names "{name}", which is not a key of [model] or [policy]{hint}'


def _cards(config: Config) -> Iterable[str]:
    gpus = config.engine.gpus
    if gpus == ():
        yield '[engine] gpus must not be empty; omit the key for "auto"'
    if gpus is not None and len(set(gpus)) != len(gpus):
        yield f"[engine] gpus names a card twice: {list(gpus)}"
    if any(index < 0 for index in gpus or ()):
        yield f"[engine] gpus must be card indices from 0, is {list(gpus or ())}"


def _listeners(config: Config) -> Iterable[str]:
    for section, port in LISTENERS:
        listen = getattr(config, section).listen
        if listen and not addresses.is_endpoint(listen):
            rule = f'must be ADDRESS:PORT, such as "127.0.0.1:{port}"'
            yield f"[{section}] listen {rule}, is {toml(listen)}"


def _page(config: Config) -> Iterable[str]:
    listen = config.page.listen
    if not addresses.is_endpoint(listen) or config.page.token_file:
        return
    if not addresses.is_loopback(addresses.split_address(listen)[0]):
        yield (
            f"[page] listen is {toml(listen)}, which other machines can reach, and there is no"
            " token_file; write a token to a file and name it there, or listen on 127.0.0.1"
        )


def _gateway(config: Config) -> Iterable[str]:
    for alias, name in config.gateway.aliases:
        if not alias.strip() or not name.strip():
            yield "[gateway] aliases must not be empty, nor map to an empty name"
    known = dict(config.gateway.aliases)
    for alias, _ in config.gateway.alias_defaults:
        if alias not in known:
            hint = suggest(alias, known) or "; add it to `aliases`"
            yield f"[gateway] alias_defaults: {toml(alias)} is not an alias{hint}"
    listen, port = config.gateway.listen, config.server.port
    if not addresses.is_endpoint(listen):
        return
    if addresses.split_address(listen)[1] == port:
        yield f"[gateway] listen must not use {port}, the engine's [server] port"
    if config.cluster.role == "worker":
        yield "[gateway] listen is for the head: a worker does not serve clients"


def _head(config: Config) -> Iterable[str]:
    head, port = config.cluster.head, config.server.port
    if config.cluster.role == "off" and not head:
        return
    if not addresses.is_endpoint(head):
        rule = 'must be HOST:PORT of the head, such as "10.0.0.1:7070"'
        yield f"[cluster] head {rule}, is {toml(head)}"
        return
    host, listens = addresses.split_address(head)
    if not addresses.is_host(host):
        yield f"[cluster] head must be a host's name or address with a port, is {toml(head)}"
    elif port in (listens, listens + 1):
        yield (
            f"[cluster] head must not use {port}, the [server] port of clients, and neither may "
            "the port after it"
        )
    elif listens == 65535:
        yield "[cluster] head must leave the next port free for vLLM: use a port below 65535"


def _nodes(config: Config) -> Iterable[str]:
    fewest, nodes = config.cluster.min_nodes, config.cluster.nodes
    if config.cluster.role == "head" and fewest is not None and fewest > nodes:
        yield f"[cluster] min_nodes must be at most nodes, {nodes}, is {fewest}"


def _variables(config: Config) -> Iterable[str]:
    for name, _ in config.engine.env:
        if not VARIABLE.fullmatch(name):
            yield (
                f"[engine] env: {without_value(name)} is not a valid variable name; use letters, "
                "digits and _"
            )


def _host(config: Config) -> Iterable[str]:
    host = config.server.host
    if with_port := PORT_IN_HOST.fullmatch(host):
        yield (
            f"[server] host must be an address without a port, is {toml(host)}; write host ="
            f" {toml(with_port[1])} and port = {with_port[2]}"
        )
    elif not addresses.is_host(host):
        everywhere = "" if host.strip() else '; "0.0.0.0" means every address'
        yield (
            '[server] host must be an address or a name, such as "127.0.0.1" or "::1", is'
            f" {toml(host)}{everywhere}"
        )


RULES: tuple[ConfigRule, ...] = (
    _pinned, _cards, _listeners, _page, _gateway, _head, _nodes, _variables, _host,
)  # fmt: skip
