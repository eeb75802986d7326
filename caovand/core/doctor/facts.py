"""The facts that the doctor's checks read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from caovand.core.facts.all_reduce import AllReduceResult
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import EngineInfo, Gpu, Host, ModelCard
from caovand.core.problem import Problem


@dataclass(frozen=True)
class DoctorFacts:
    """Everything that the checks read; a fact that cannot be determined is a problem.

    `orphans` are unsupervised engine processes; `listeners` are the processes on the port (None if
    another machine has it); `own_port` says whether only the daemon's own engine does.
    `plan_problem` says why there is no plan. An engine is `half_asked` while its flags are unknown.
    `engine_env` names the variables of [engine] env. `dtype` is the plan's, empty without a plan or
    if unset; `mtp` is its draft depth, `tokens_s` its modelled speed, None if not modelled.
    `all_reduce` is the result of the last check of it, `link_errors` the PCIe errors corrected
    since boot, by card.
    """

    gpus: tuple[Gpu, ...]
    host: Host
    engine: EngineInfo | None
    engine_problem: Problem | None
    model: ModelCard | None
    model_problem: Problem | None
    memory: MemoryEstimate | None
    plan_problem: str
    caveats: tuple[Problem, ...]
    port: int
    listeners: tuple[str, ...] | None
    orphans: tuple[tuple[int, str], ...]
    python_version: str
    wants_gpu: bool
    wants_plugin: bool
    unreadable: str = ""
    service_user: str = ""
    cache_dir: str = ""
    cache_writable: bool = True
    as_root: bool = False
    half_asked: bool = False
    engine_env: frozenset[str] = frozenset()
    dtype: str = ""
    mtp: int | None = None
    tokens_s: float | None = None
    all_reduce: AllReduceResult | None = None
    own_port: bool = False
    link_errors: Mapping[int, int] = field(default_factory=dict)
