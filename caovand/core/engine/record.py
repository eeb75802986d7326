"""The interface of an engine: one frozen record of functions and data.

`core`, `daemon`, `adapters` and `cli` see an engine only through this record; only
`engines.registry` names one. All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from caovand.core.cluster.node import NodeFacts
from caovand.core.config.schema import Config
from caovand.core.engine.install import Install
from caovand.core.engine.log import Explanation, Log
from caovand.core.engine.named_models import NamedModels
from caovand.core.engine.planning import Planning
from caovand.core.engine.probe import ProbeScripts
from caovand.core.engine.serve_words import ServeWords
from caovand.core.facts.inventory import EngineInfo, Gpu, Inventory
from caovand.core.figures.counters import Reading
from caovand.core.healing.rung import Healing
from caovand.core.model_task import ModelTask
from caovand.core.plan import Plan
from caovand.core.problem import Problem

UNTITLED = "rank"
"""The name of a rank that has not been identified."""


@dataclass(frozen=True)
class NodePlace:
    """The place of a node's part of a plan: its rank, and its address on its interface.

    `others` are the addresses of the other nodes, known only to the head; with `token` the
    cluster's processes authenticate each other.
    """

    rank: int
    address: str
    interface: str
    others: tuple[str, ...] = ()
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Package:
    """A Python package: its display `name`, its `pip` requirement, and its `release` in a node's
    facts, "" if it is not installed."""

    name: str
    pip: str
    release: Callable[[NodeFacts], str]


class SpreadPlan(Protocol):
    """Spreads a plan over the nodes of its inventory; raises Unplannable.

    Ranks rendezvous at `host` and `port`. `no_rdma` says why they cannot use InfiniBand and RoCE,
    "" if they can; `own` is the head's address on the other nodes' network, "" if unknown.
    """

    def __call__(
        self,
        plan: Plan,
        inventory: Inventory,
        host: str,
        port: int,
        no_rdma: str,
        executor: str,
        own: str,
        /,
    ) -> Plan: ...


@dataclass(frozen=True, kw_only=True)
class MultiNode:
    """Runs an engine on several machines."""

    usable_cards: Callable[[Config, Inventory], tuple[Gpu, ...]]
    """Cards that ranks may use on a node, in order of use; raises Unplannable."""
    refusal: Callable[[str, EngineInfo], Problem | None]
    """Why an engine cannot start its ranks with this [cluster] executor; None if it can."""
    packages: Mapping[str, Package]
    """The package that each executor needs on every node."""
    spread: SpreadPlan
    adapt: Callable[[Plan, Config, Inventory], Plan]
    """Adapts a spread plan to another node; raises Unplannable."""
    place: Callable[[Plan, NodePlace], Plan]
    """Adapts a local plan to the node's place."""
    all_reduces_over_link: Callable[[Plan], bool]
    """Whether such a plan does all-reduces over the link between nodes."""
    no_rdma: Callable[[Mapping[str, str]], str]
    """Why [engine] env keeps ranks from InfiniBand and RoCE; "" if it does not."""
    by_host_name: Callable[[Mapping[str, str], str], bool]
    """Whether this [engine] env and interface make ranks listen at the host name's address."""
    rank_of: Callable[[str], str]
    """The rank in a process title: "" if the process is no rank, UNTITLED if its title does not say
    which."""
    ranks_in: Callable[[Sequence[str]], Mapping[int, str]]
    """Ranks named in log lines, by pid."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Interprets the operator's verbatim flags."""

    redact: Callable[[Sequence[str]], tuple[str, ...]]
    """Replaces the secrets in the flags."""
    secrets: Callable[[Sequence[str]], tuple[str, ...]]
    """The secrets in the flags."""
    api_keys: Callable[[Sequence[str]], tuple[str, ...] | None]
    """The API keys in a flag, any of which clients may send; None without such a flag."""
    api_key_variable: str
    """The environment variable for an API key; "" for an engine that checks none."""
    chat_template: Callable[[Config], str]
    """A template file or the template itself; "" for the model's own."""
    invents_weights: Callable[[Config], bool]
    """Whether the flags select dummy weights."""
    drafter: Callable[[Config], str] | None = None
    """The folder of the drafter to plan with; "" without one. None for an engine whose drafters
    caovan does not plan."""
    check: Callable[[Sequence[str], EngineInfo], Sequence[Problem]] = lambda words, engine: ()
    """Problems with the flags, for a probed engine."""


@dataclass(frozen=True, kw_only=True)
class Tokenize:
    """The endpoint that counts the tokens of a text."""

    path: str
    body: Callable[[str, str], Mapping[str, Any]]
    """The request body for a model and a text."""
    count: Callable[[Any], int | None]
    """The count in the response."""


@dataclass(frozen=True)
class Upload:
    """A multipart form with a file as the request body."""

    fields: Mapping[str, str]
    file: str
    data: bytes


@dataclass(frozen=True)
class TaskRequest:
    """The request for a model that does not generate text, built from its name and a text or token
    ids.

    `noun` names the answer for people; `flaw` says what is wrong with the response's JSON, "" if
    nothing is.
    """

    noun: str
    path: str
    body: Callable[[str, Sequence[int] | str], Mapping[str, Any] | Upload]
    flaw: Callable[[Any], str]


class ReadMetrics(Protocol):
    """Parses the response of Api.metrics, with the pending requests from another endpoint, at a
    time."""

    def __call__(self, text: str, pending: int | None, at: float, /) -> Reading: ...


@dataclass(frozen=True, kw_only=True)
class Api:
    """Paths of the engine's HTTP server, and how to parse its responses."""

    health: str
    metrics: str
    read_metrics: ReadMetrics
    pending: str
    """Path that returns the number of pending requests; "" without one."""
    pending_key: str
    """The number's key in that response."""
    completions: str
    """Path of OpenAI completions."""
    prompt: Callable[[Sequence[int]], Sequence[int] | str] = tuple
    """Encodes token ids for a completion."""
    exact: bool = True
    """Whether a completion returns exactly max_tokens tokens; otherwise at least one."""
    logprobs: bool = False
    """Whether a completion can return the logprobs of the top tokens."""
    tokenize: Tokenize | None = None
    """None for an engine that counts tokens only in completions."""
    constrained: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Fields of a request whose answer must follow a JSON schema; None if unsupported."""
    task_requests: Mapping[ModelTask, TaskRequest] = field(default_factory=dict)
    """The request for each task other than text generation that the engine is planned for."""
    chat: str = "/v1/chat/completions"
    """Path of OpenAI chats."""
    scraped: str = ""
    """Suffix of the line that the engine prints for each scrape of its metrics; "" without one."""
    keep_alive_s: float = 0.0
    """Seconds that its server keeps an idle connection open; 0 if unknown."""
    reuses_connections: bool = True
    """Whether its server answers several requests on a connection, one after the other."""
    keep_alive_variable: str = ""
    """The environment variable that changes keep_alive_s; "" without one."""

    def keeps_alive_s(self, *environments: Mapping[str, str]) -> float:
        """Return keep_alive_s, or 0 if one of these environments changes it."""
        changed = any(self.keep_alive_variable in environment for environment in environments)
        return 0.0 if changed else self.keep_alive_s

    def polled(self, line: str) -> bool:
        """Whether a log line reports a successful poll; caovan makes many."""
        if self.scraped and line.endswith(self.scraped):
            return True
        if "GET " not in line:
            return False
        words = [word.strip('"') for word in line.split()]
        asked = {path for get, path in pairwise(words) if get == "GET"}
        return "200" in words and not asked.isdisjoint((self.health, self.metrics, self.pending))


@dataclass(frozen=True, kw_only=True)
class CompiledKernel:
    """A kernel that the engine would compile during a start.

    `generator` is "package.module:function" in the engine's environment; among its `arguments`,
    "torch.float16" stands for the dtype.
    """

    label: str
    generator: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Kernels that can be built before any start, without a card."""

    needed: Callable[[tuple[int, ...], tuple[int, int]], tuple[CompiledKernel, ...]] = (
        lambda release, capability: ()
    )
    """Kernels of an engine release for cards with a compute capability."""
    compilers: Callable[[int, int], int] = lambda cores, free_mib: 1
    """Maximum concurrent compiler processes, by cores and free host memory."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A kind of inference server."""

    name: str
    """Its name in [engine] kind and in folders."""
    title: str
    """Display name."""
    prefers: Callable[[str, Collection[str]], bool] = lambda path, files: False
    """Whether it serves the model at a path, in a folder with these file names, when no kind is
    set."""
    install: Install
    probe: ProbeScripts
    planning: Planning
    kernels: Kernels = Kernels()
    arguments: Arguments
    log: Log
    explain: Callable[[str], Explanation]
    """Explains a complete log after the fact."""
    api: Api
    healing: Healing
    models: NamedModels | None = None
    """Models that the engine stores by name; None if [model] path is a file or folder."""
    at_home: tuple[str, ...] = ()
    """Folders in its user's HOME that it writes to regardless of its variables."""
    caches: tuple[str, ...] = ()
    """Folders in XDG_CACHE_HOME, by default ~/.cache, that it writes to."""
    folders: tuple[str, ...] = ()
    """Its own variables that name a folder it writes to."""
    dependents: re.Pattern[str]
    """Matches command lines that only its server or caovan starts: such a process is an orphan once
    both have ended."""
    writes: tuple[str, ...] = ()
    """Options that name a folder or file it writes to."""
    nodes: MultiNode | None = None
    """None if it runs on one machine only."""
    serve_words: ServeWords | None = None
    """None if `caovanctl serve` does not stand in for its command."""
