"""What an engine is to the rest of caovan: one frozen record of functions and data.

`core`, `daemon`, `adapters` and `cli` know an engine by this record alone; `engines.registry` is
the only place that names one. All its functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Protocol

from caovand.core.cluster.node import NodeFacts
from caovand.core.config import Config, Mode
from caovand.core.facts.all_reduce import AllReduce
from caovand.core.facts.checks import CheckResult, DoctorFacts
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import EngineInfo, Gpu, Host, Inventory, ModelCard
from caovand.core.figures.counters import Reading
from caovand.core.healing.failure import Foreseen
from caovand.core.healing.rung import Healing
from caovand.core.install import Install
from caovand.core.log import Explanation, Log
from caovand.core.plan import Plan
from caovand.core.probe import Probe
from caovand.core.problem import Problem


@dataclass(frozen=True)
class Command:
    """What to run, what to add to its environment, and whether its stack must be unlimited.

    `shown` is the command line as it may be printed, secrets hidden. `links` are pairs of paths:
    before the start the first is to lead to the second, a folder that several plans use.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    shown: tuple[str, ...]
    unlimited_stack: bool = False
    links: tuple[tuple[str, str], ...] = ()


class MakePlan(Protocol):
    """Makes a plan; raises Unplannable.

    `mode` is the one set by `caovanctl mode`, None if the file decides; `environ` what an engine
    inherits from us; `remembered` a degraded plan whose rungs are kept.
    """

    def __call__(
        self,
        config: Config,
        inventory: Inventory,
        *,
        mode: Mode | None = None,
        environ: Mapping[str, str] = MappingProxyType({}),
        remembered: Plan | None = None,
    ) -> Plan: ...


@dataclass(frozen=True)
class Modelled:
    """Modelled throughput in tokens/s over all requests.

    `prefill` counts prompt tokens, `decode` answer tokens; None if not modelled.
    """

    prefill: float | None = None
    decode: float | None = None


@dataclass(frozen=True, kw_only=True)
class Planning:
    """From configuration and inventory to a running command.

    `conflicts` are settings that cannot run, however much memory there is. `foreseen` is the
    failure that a start is known to end in, None where nothing is known against it. `command` takes
    the folder for compiled code, None for the engine's default. `cards` are those a plan uses,
    `context` its longest request in tokens, None if the engine chooses it, `at_once` how many
    requests it answers at a time, None where that is not planned. `overruling` names the setting
    that decides the drafting depth instead of a mode, "" for none. `checks` are the doctor's.
    `speed` is the modelled tokens a second of one answer after a chat's prompt while
    nobody else asks, None where that is not modelled: it orders engines, and promises nothing.
    `modelled` is the same for prompts of so many tokens, so many requests at once.
    `alternative` is how this engine would serve a model that the chosen one serves with so many
    tokens a second, 0 if it cannot; empty if it would not, or hardly faster. `all_reduce` is how
    the plan sums over several cards, None where it does not; `coarse` is whether
    weights, activations or the KV cache are quantised.
    """

    make: MakePlan
    conflicts: Callable[[Plan, Inventory], Sequence[Problem]]
    forecast: Callable[[Plan, Inventory], MemoryEstimate]
    cards: Callable[[Plan, Inventory], tuple[Gpu, ...]]
    context: Callable[[Plan], int | None]
    command: Callable[[Plan, EngineInfo, str | None], Command]
    overruling: Callable[[Config, Mapping[str, str]], str]
    checks: Callable[[DoctorFacts], tuple[CheckResult, ...]]
    speed: Callable[[Plan, Inventory], float | None] = lambda plan, inventory: None
    modelled: Callable[[Plan, Inventory, int, int], Modelled] = (
        lambda plan, inventory, prompt, at_once: Modelled()
    )
    at_once: Callable[[Plan], int | None] = lambda plan: None
    alternative: Callable[[ModelCard, tuple[Gpu, ...], Host, float], tuple[CheckResult, ...]] = (
        lambda model, gpus, host, tokens_s: ()
    )
    foreseen: Callable[[Plan, Inventory], Foreseen | None] = lambda plan, inventory: None
    all_reduce: Callable[[Plan, Inventory], AllReduce | None] = lambda plan, inventory: None
    coarse: Callable[[Plan, Inventory], bool] = lambda plan, inventory: True


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


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """How an engine serves from several machines.

    `offered` are the cards that ranks may use on a node, in the order in which they are taken.
    `refusal` is why an engine cannot start its ranks with [cluster] executor, None if it can;
    `packages` are those that executors need on every node, by the executor.
    `spread` takes a plan, the inventory with the other nodes that it was made from, the host and
    port where they meet, why they cannot use InfiniBand or RoCE ("" if they can), the executor, and
    the head's own address towards them ("" if unknown). `local` adapts that plan to another node,
    `own` to a node's place. `offered`, `spread` and `local` raise Unplannable.
    `sums` says whether such a plan adds up the results of layers over the link. `no_rdma` takes
    [engine] env: why that keeps ranks from InfiniBand and RoCE, "" if it does not.
    `by_host_name` takes [engine] env and the interface: whether ranks then listen where the host's
    name leads. `rank_of` reads the title of a process: "" for one without a rank, UNTITLED for one
    whose rank it does not say; `ranks_in` has the ranks that lines of the log name, by pid.
    """

    offered: Callable[[Config, Inventory], tuple[Gpu, ...]]
    refusal: Callable[[str, EngineInfo], Problem | None]
    packages: Mapping[str, Package]
    spread: Callable[[Plan, Inventory, str, int, str, str, str], Plan]
    local: Callable[[Plan, Config, Inventory], Plan]
    own: Callable[[Plan, Place], Plan]
    sums: Callable[[Plan], bool]
    no_rdma: Callable[[Mapping[str, str]], str]
    by_host_name: Callable[[Mapping[str, str], str], bool]
    rank_of: Callable[[str], str]
    ranks_in: Callable[[Sequence[str]], Mapping[int, str]]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The operator's verbatim flags, as this engine reads them.

    `shown` are the flags without secrets, `secrets` the secrets in them. `api_keys` are the keys
    named by a flag, any of which clients may send; None without such a flag. `api_key_variable` is
    the environment variable for a key, "" for an engine that asks for none. `chat_template` is a
    file or the template itself, "" for the model's own. `invents_weights` if the flags tell the
    engine to load dummy weights. `refused` are those that a probed engine will not take.
    """

    shown: Callable[[Sequence[str]], tuple[str, ...]]
    secrets: Callable[[Sequence[str]], tuple[str, ...]]
    api_keys: Callable[[Sequence[str]], tuple[str, ...] | None]
    api_key_variable: str
    chat_template: Callable[[Config], str]
    invents_weights: Callable[[Config], bool]
    refused: Callable[[Sequence[str], EngineInfo], Sequence[Problem]] = lambda words, engine: ()


@dataclass(frozen=True, kw_only=True)
class Tokenize:
    """Where the engine counts the tokens of a text: `body` takes model and text."""

    path: str
    body: Callable[[str, str], Mapping[str, Any]]
    count: Callable[[Any], int | None]


@dataclass(frozen=True, kw_only=True)
class Api:
    """Paths of the engine's HTTP server, and how its answers are read.

    `pending_key` is the key of the count in the answer at `pending`; both are empty if the engine
    has no such count. `chat` takes OpenAI's chats, `completions` its completions;
    `prompt` encodes token ids. An `exact` server returns exactly max_tokens, others at least one
    token; `logprobs` is whether it can return those of the best tokens. `tokenize` is
    None for an engine that counts only what it completes. `constrained` makes a JSON schema the
    fields of a request whose answer must follow it, None for an engine that cannot do that.
    `scraped` ends the line that the engine prints each time its metrics are read, "" for none.
    """

    health: str
    metrics: str
    read_metrics: Callable[[str, int | None, float], Reading]
    pending: str
    pending_key: str
    completions: str
    prompt: Callable[[Sequence[int]], Sequence[int] | str] = tuple
    exact: bool = True
    logprobs: bool = False
    tokenize: Tokenize | None = None
    constrained: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    chat: str = "/v1/chat/completions"
    scraped: str = ""

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
    """What can be built before any start, without a card.

    `needed` takes the engine's release and the cards' compute capability; `compilers` cores and the
    host's free MiB, and is how many compilers may run at once.
    """

    needed: Callable[[tuple[int, ...], tuple[int, int]], tuple[Kernel, ...]]
    compilers: Callable[[int, int], int]


@dataclass(frozen=True)
class PullStep:
    """How far a download is: `text`, bytes where they are known, or the error that ended it."""

    text: str = ""
    done: int = 0
    total: int = 0
    error: str = ""
    complete: bool = False


@dataclass(frozen=True, kw_only=True)
class NamedPull:
    """How an engine's own server downloads a model.

    It is the program with `words` and the `variables` for an address and a folder; it is up once
    `ready` answers. `body` is posted to `path`, and each line of the answer is a table for `read`.
    `by_hand` is the command that does the same.
    """

    words: tuple[str, ...]
    variables: Callable[[str, str], Mapping[str, str]]
    ready: str
    path: str
    body: Callable[[str], Mapping[str, Any]]
    read: Callable[[Mapping[str, Any]], PullStep]
    by_hand: str


@dataclass(frozen=True, kw_only=True)
class NamedModels:
    """Models that an engine keeps itself: each name has an entry, a JSON file, and a GGUF file.

    `folders` are where they may be, by configuration and our environment; the first that has the
    name counts. `entry` is the entry's path there, "" for what cannot be a name; `weights` the GGUF
    file's, "" if the entry names none. `missing` is the problem of a name that is in no folder,
    `pull` how one is downloaded.
    """

    folders: Callable[[Config, Mapping[str, str]], Sequence[str]]
    entry: Callable[[str], str]
    weights: Callable[[Mapping[str, Any]], str]
    missing: Callable[[str], Problem]
    pull: NamedPull


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A kind of inference server; `name` is for [engine] kind and folders, `title` for people.

    `prefers` takes a model's path and the names in that folder: whether this engine serves it where
    no kind is set. `explain` reads a whole log after the fact. `models` are those it keeps under
    names, None if [model] path is where a model lies; `nodes` is None where one machine must do.
    """

    name: str
    title: str
    prefers: Callable[[str, Collection[str]], bool]
    install: Install
    probe: Probe
    planning: Planning
    kernels: Kernels
    arguments: Arguments
    log: Log
    explain: Callable[[str], Explanation]
    api: Api
    healing: Healing
    models: NamedModels | None = None
    nodes: Nodes | None = None
