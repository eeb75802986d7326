"""What an engine is to the rest of caovan: one frozen record of functions and data.

`core`, `daemon`, `adapters` and `cli` know an engine by this record alone; `engines.registry` is
the only place that names one. All its functions are pure.
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
from caovand.core.engine.probe import Probe
from caovand.core.facts.inventory import EngineInfo, Gpu, Inventory
from caovand.core.figures.counters import Reading
from caovand.core.healing.rung import Healing
from caovand.core.model_task import ModelTask
from caovand.core.plan import Plan
from caovand.core.problem import Problem

UNTITLED = "rank"
"""What a rank is called while nothing says which one it is."""


@dataclass(frozen=True)
class Place:
    """Where a node's part of a plan runs: its rank, and its address on its interface.

    `others` are the addresses of the other nodes, which the head alone knows; `token` is what the
    processes of this cluster can prove to each other that they belong to it.
    """

    rank: int
    address: str
    interface: str
    others: tuple[str, ...] = ()
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Package:
    """A Python package: its `name` for people, what `pip` calls it, and its `release` in a node's
    facts, "" where the engine's environment has none."""

    name: str
    pip: str
    release: Callable[[NodeFacts], str]


class Spread(Protocol):
    """Spreads a plan over the nodes of the inventory that it was made from; raises Unplannable.

    Ranks meet at `host` and `port`. `no_rdma` is why they cannot use InfiniBand and RoCE, "" if
    they can; `own` is the head's address towards the other nodes, "" if unknown.
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
class Nodes:
    """How an engine serves from several machines."""

    offered: Callable[[Config, Inventory], tuple[Gpu, ...]]
    """The cards that ranks may use on a node, in the order in which they are taken; raises
    Unplannable."""
    refusal: Callable[[str, EngineInfo], Problem | None]
    """Why an engine cannot start its ranks with this [cluster] executor, None if it can."""
    packages: Mapping[str, Package]
    """What each executor needs on every node."""
    spread: Spread
    local: Callable[[Plan, Config, Inventory], Plan]
    """Adapts a spread plan to another node; raises Unplannable."""
    own: Callable[[Plan, Place], Plan]
    """Adapts a local plan to the node's place."""
    all_reduces_over_link: Callable[[Plan], bool]
    """Whether such a plan does all-reduces over the link."""
    no_rdma: Callable[[Mapping[str, str]], str]
    """Why [engine] env keeps ranks from InfiniBand and RoCE, "" if it does not."""
    by_host_name: Callable[[Mapping[str, str], str], bool]
    """Whether, with this [engine] env and interface, ranks listen at the host name's address."""
    rank_of: Callable[[str], str]
    """The rank in a process title: "" for a process without one, UNTITLED if it does not say."""
    ranks_in: Callable[[Sequence[str]], Mapping[int, str]]
    """The ranks that lines of the log name, by pid."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The operator's verbatim flags, as this engine reads them."""

    shown: Callable[[Sequence[str]], tuple[str, ...]]
    """The flags without secrets."""
    secrets: Callable[[Sequence[str]], tuple[str, ...]]
    """The secrets in the flags."""
    api_keys: Callable[[Sequence[str]], tuple[str, ...] | None]
    """The keys that a flag names, any of which clients may send; None without such a flag."""
    api_key_variable: str
    """The environment variable for a key, "" for an engine that asks for none."""
    chat_template: Callable[[Config], str]
    """A file or the template itself, "" for the model's own."""
    invents_weights: Callable[[Config], bool]
    """Whether the flags tell the engine to load dummy weights."""
    refused: Callable[[Sequence[str], EngineInfo], Sequence[Problem]] = lambda words, engine: ()
    """The flags that a probed engine rejects."""


@dataclass(frozen=True, kw_only=True)
class Tokenize:
    """Where the engine counts the tokens of a text."""

    path: str
    body: Callable[[str, str], Mapping[str, Any]]
    """The request for a model and a text."""
    count: Callable[[Any], int | None]
    """The count in the answer."""


@dataclass(frozen=True)
class Upload:
    """The body of a request that is a form with a file."""

    fields: Mapping[str, str]
    file: str
    data: bytes


@dataclass(frozen=True)
class TaskRequest:
    """A request of a model that does not generate text, made from its name and a text or token ids.

    `noun` is the answer for people; `flaw` says what is wrong with its JSON, "" for nothing.
    """

    noun: str
    path: str
    body: Callable[[str, Sequence[int] | str], Mapping[str, Any] | Upload]
    flaw: Callable[[Any], str]


class ReadMetrics(Protocol):
    """Reads the answer at Api.metrics, with the pending requests counted elsewhere, at a time."""

    def __call__(self, text: str, pending: int | None, at: float, /) -> Reading: ...


@dataclass(frozen=True, kw_only=True)
class Api:
    """Paths of the engine's HTTP server, and how its answers are read."""

    health: str
    metrics: str
    read_metrics: ReadMetrics
    pending: str
    """The path that answers with the count of pending requests, "" if there is none."""
    pending_key: str
    """The count's key in that answer."""
    completions: str
    """Where OpenAI's completions go."""
    prompt: Callable[[Sequence[int]], Sequence[int] | str] = tuple
    """Encodes token ids for a completion."""
    exact: bool = True
    """Whether a completion returns exactly max_tokens; others return at least one token."""
    logprobs: bool = False
    """Whether a completion can return those of the best tokens."""
    tokenize: Tokenize | None = None
    """None for an engine that counts only what it completes."""
    constrained: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """The fields of a request whose answer must follow a JSON schema; None if it cannot."""
    works: Mapping[ModelTask, TaskRequest] = field(default_factory=dict)
    """The request of each task but generating text that the engine is planned for."""
    chat: str = "/v1/chat/completions"
    """Where OpenAI's chats go."""
    scraped: str = ""
    """How the line ends that the engine prints each time its metrics are read, "" for none."""
    keep_alive_s: float = 0.0
    """How long its server keeps an idle connection open; 0 if each request needs its own."""
    keep_alive_variable: str = ""
    """The environment variable that changes keep_alive_s, "" for none."""

    def keeps_alive_s(self, *environments: Mapping[str, str]) -> float:
        """keep_alive_s, and 0 where one of these environments changes it."""
        changed = any(self.keep_alive_variable in environment for environment in environments)
        return 0.0 if changed else self.keep_alive_s

    def polled(self, line: str) -> bool:
        """Whether a line of the log reports a successful poll, of which caovan makes many."""
        if self.scraped and line.endswith(self.scraped):
            return True
        if "GET " not in line:
            return False
        words = [word.strip('"') for word in line.split()]
        asked = {path for get, path in pairwise(words) if get == "GET"}
        return "200" in words and not asked.isdisjoint((self.health, self.metrics, self.pending))


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Something that the engine would compile at a start.

    `generator` makes it, "package.module:function" in the engine's environment, with `arguments`,
    in which "torch.float16" is what it names.
    """

    label: str
    generator: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """What can be built before any start, without a card."""

    needed: Callable[[tuple[int, ...], tuple[int, int]], tuple[Kernel, ...]] = (
        lambda release, capability: ()
    )
    """The kernels of the engine's release for cards of a compute capability."""
    compilers: Callable[[int, int], int] = lambda cores, free_mib: 1
    """How many compilers may run at once, by cores and the host's free memory."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A kind of inference server."""

    name: str
    """Its name in [engine] kind and in folders."""
    title: str
    """Its name for people."""
    prefers: Callable[[str, Collection[str]], bool] = lambda path, files: False
    """Whether it serves the model at a path, in a folder with these names, if no kind is set."""
    install: Install
    probe: Probe
    planning: Planning
    kernels: Kernels = Kernels()
    arguments: Arguments
    log: Log
    explain: Callable[[str], Explanation]
    """Explains a whole log after the fact."""
    api: Api
    healing: Healing
    models: NamedModels | None = None
    """The models that it keeps under names, None if [model] path is a file or folder."""
    at_home: tuple[str, ...] = ()
    """Folders in its user's HOME that it writes to, whatever its variables name."""
    caches: tuple[str, ...] = ()
    """Folders that it writes to in XDG_CACHE_HOME, by default ~/.cache."""
    folders: tuple[str, ...] = ()
    """Variables of its own that name a folder which it writes to."""
    dependents: re.Pattern[str]
    """Matches the beginning of a command line that only its server or caovan starts: a process
    that has outlived both is an orphan."""
    writes: tuple[str, ...] = ()
    """Options that name a folder or file which it writes."""
    nodes: Nodes | None = None
    """None if it serves from one machine only."""
