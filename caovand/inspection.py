"""Looking before an engine is started: leftovers, port, engine, model, cards; then the plan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from caovand.adapters import (
    chat_template,
    child,
    host,
    model_folder,
    nvml,
    ports,
    private_tmp,
    probe,
    trust,
)
from caovand.adapters.directories import Directories
from caovand.adapters.environment import places
from caovand.adapters.processes import Process
from caovand.core import good_plan, limits, neighbours
from caovand.core.config import Config, Mode
from caovand.core.failure import Failure, Finding
from caovand.core.inventory import Inventory, ModelCard, device_name
from caovand.core.plan import Plan
from caovand.core.policy import Unplannable, make_plan


class Obstacle(Exception):
    """The engine cannot be started now; with `hold` waiting may help."""

    def __init__(self, failure: Failure, text: str, *, hold: bool, phase: str = "plan") -> None:
        super().__init__(text)
        self.finding, self.hold = Finding(failure, text, phase), hold


@dataclass(frozen=True)
class Prepared:
    """A plan, what it was made from, and what its ladder steps are remembered under."""

    plan: Plan
    inventory: Inventory
    fingerprint: str
    mode: Mode


@dataclass(frozen=True)
class Wishes:
    """What a plan is made from beside the machine: configuration, chosen mode, environment."""

    config: Config
    mode: Mode | None
    environ: Mapping[str, str]
    good_plan: Any = None
    before: Inventory | None = None
    """The inventory before the living engine took its share of memory."""
    source: Path | None = None
    """The file the configuration comes from."""

    @property
    def chosen_mode(self) -> Mode:
        """The mode in force."""
        return self.mode or self.config.policy.mode

    @property
    def python(self) -> str:
        """The engine's Python."""
        installed = places.root_from(None, self.environ) / "current/bin/python"
        return str(places.settled(Path(self.config.engine.python or installed)))


async def end_leftovers(
    ledger: Path, before_kill: Callable[[Sequence[int]], Awaitable[None]]
) -> tuple[Process, ...]:
    """End what a killed daemon left; what that was. Raises Obstacle where it outlives KILL."""
    found, left = await child.end_leftovers(ledger, before_kill)
    if left:
        raise Obstacle(
            "vram-busy",
            f"cannot start: {child.named(left)} of an earlier engine cannot be killed;"
            " look for a hung driver in the kernel log, reboot if it stays",
            hold=True,
            phase="ending",
        )
    return found


def check_cards(plan: Plan, before: Inventory) -> None:
    """Raise Obstacle where a card of a plan made from this inventory is gone (blocking)."""
    visible = plan.env.get("CUDA_VISIBLE_DEVICES")
    used = str(visible.value).split(",") if visible else ()
    cards = [gpu for gpu in before.gpus if device_name(gpu) in used]
    present = {gpu.uuid or gpu.index for gpu in nvml.read_gpus()} if cards else ()
    gone = [str(gpu.index) for gpu in cards if (gpu.uuid or gpu.index) not in present]
    if gone:
        raise Obstacle(
            "gpu-absent",
            f"cannot start: GPU {', '.join(gone)} does not answer; check `nvidia-smi` and the"
            " kernel log; a lost card needs a reset or a reboot",
            hold=True,
        )


def check_port(port: int) -> None:
    """Raise Obstacle where somebody listens on the engine's port already."""
    others = ports.listeners(port)
    if others:
        who = ", ".join(str(other) for other in others)
        raise Obstacle(
            "port-busy",
            f"cannot use port {port}: {who} listens there; stop it, or choose another [server]"
            " port",
            hold=True,
        )


def wants_no_weights(config: Config) -> bool:
    """Whether vLLM is told to make weights up (--load-format dummy)."""
    words = " ".join(config.engine.extra_args)
    return "load-format dummy" in words or "load-format=dummy" in words


def read_model(config: Config) -> ModelCard:
    """The configured model, with the chat template it is served with. Raises ModelProblem."""
    card = model_folder.read_model(config.model.path, weights=not wants_no_weights(config))
    return chat_template.effective(card, config)


def _reachable(problem: Exception, path: str) -> str:
    """The problem with this path, with another remedy where only the service does not see it."""
    remedy = private_tmp.remedy(path)
    return f"{str(problem).partition('; ')[0]}; {remedy}" if remedy else str(problem)


def prepare(wishes: Wishes, directories: Directories) -> Prepared:
    """Look at engine, model and machine (blocking, a second or so), and plan.

    Raises Obstacle with what is missing.
    """
    config = wishes.config
    try:
        trust.require(wishes.python, wishes.source)
        engine = probe.probe_engine(wishes.python, directories.cache)
    except trust.Distrusted as problem:
        raise Obstacle("unknown", str(problem), hold=True) from problem
    except probe.EngineMissing as problem:
        raise Obstacle("unknown", _reachable(problem, wishes.python), hold=True) from problem
    if not config.model.path:
        raise Obstacle(
            "model-missing",
            "cannot start: [model] path is empty; set it to a model folder",
            hold=False,
        )
    try:
        model = read_model(config)
    except model_folder.ModelProblem as problem:
        text = _reachable(problem, config.model.path)
        hold = bool(limits.reached(problem))
        raise Obstacle("model-missing", text, hold=hold) from problem
    gpus = wishes.before.gpus if wishes.before else nvml.read_gpus()
    if engine.build == "cuda" and not gpus:
        raise Obstacle(
            "gpu-absent",
            "cannot start a CUDA engine: no NVIDIA GPU is visible; check `nvidia-smi`, or install"
            " the CPU build: `caovanctl engine install --build cpu`",
            hold=True,
        )
    machine = wishes.before.host if wishes.before else host.read_host(directories.cache)
    inventory = Inventory(gpus, machine, engine, model)
    mark = good_plan.fingerprint(config, inventory)
    # The steps of an engine that runs are its own, whatever others have freed since.
    used = None if wishes.before else neighbours.used(gpus)
    try:
        plan = _planned(wishes, inventory, mark, used)
    except Unplannable as problem:
        hold = problem.failure in ("gpu-absent", "vram-busy")
        raise Obstacle(problem.failure, str(problem), hold=hold) from problem
    return Prepared(plan, inventory, mark, wishes.chosen_mode)


def _planned(wishes: Wishes, inventory: Inventory, mark: str, used: neighbours.Used | None) -> Plan:
    """The plan, with the steps that served last time where a plan can be made of them."""
    kept = good_plan.from_document(wishes.good_plan, mark, wishes.chosen_mode, used)

    def plan(remembered: Plan | None) -> Plan:
        auto_spec = wishes.environ.get("CAOVAN_AUTO_SPEC")
        return make_plan(
            wishes.config, inventory, mode=wishes.mode, auto_spec=auto_spec, remembered=remembered
        )

    try:
        return plan(kept)
    except Unplannable:
        raise
    except Exception as problem:  # a file that another version wrote, and that looked usable
        if kept is None:
            raise
        text = f"the lowered plan that served is not used: {type(problem).__name__}: {problem}"
        full = plan(None)
        return replace(full, warnings=(*full.warnings, text))
