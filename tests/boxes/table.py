"""A file of the table: people write the rows and what an expert would run, the rest is planned.

A row begins with `## MODEL` and what its expert says, which is kept when the file is written anew;
from "plan:" or "refused:" on it is the plan's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from textwrap import wrap

from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.gguf import Gguf
from caovand.core.facts.inventory import Inventory, ModelCard
from caovand.core.plan import Plan, Unplannable
from caovand.engines.vllm.memory.settings import gpus_of
from caovand.engines.vllm.planning.decisions import forecast
from tests.boxes.machines import BOXES, box_with
from tests.boxes.models import derived, model
from tests.core.machines import DEFAULT, plan

EXPERT = "expert:"
WORKLOADS = ("batch", "long")
"""A row's name ends in one of these, behind a comma, if that is its workload."""
PLANNED = ("plan:", "refused:")
WIDTH = 120


def played(text: str, box: str, plan_of: Callable[[str, str], list[str]] | None = None) -> str:
    """The file as it should be today, with vLLM's plans where no others are named."""
    plan_of = plan_of or planned
    lines: list[str] = []
    row, ours = "", True
    for line in [*text.splitlines(), "## "]:
        if line.startswith("## "):
            lines += [*plan_of(row, box), ""] if row else []
            row = line.removeprefix("## ").removesuffix(" (derived sizes)")
            sizes = " (derived sizes)" if derived(_split(row)[0]) else ""
            lines += [f"## {row}{sizes}"] if row else []
            ours = True
        elif line.startswith(PLANNED):
            ours = False
        elif ours and (line or not row):
            lines.append(line)
    return "\n".join(lines).rstrip() + "\n"


def rows(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith("## "):
            yield _split(line.removeprefix("## ").removesuffix(" (derived sizes)"))[0]


def _split(row: str) -> tuple[str, str]:
    """The model and the workload of a row's name."""
    name, _, workload = row.partition(", ")
    return (name, workload) if workload in WORKLOADS else (row, "chat")


def planned(name: str, box: str) -> list[str]:
    """The plan of a model on a box, in a few lines."""
    own, workload = _split(name)
    engine = DEFAULT if BOXES[box] else None
    machine = box_with(box, _gguf(own) if own.endswith(".gguf") else model(own), engine)
    try:
        found = plan(machine, policy={"workload": workload})
    except Unplannable as problem:
        return [f"refused: {problem}"]
    memory = forecast(found, machine)
    lines = [_settings(found, machine), _room(found, memory), *_reasons(found)]
    return [part for line in lines for part in wrap(line, WIDTH, subsequent_indent=" " * 10)]


def _gguf(name: str) -> ModelCard:
    """The card of a GGUF file, of which nothing but its name counts here."""
    card = ModelCard(f"/srv/models/{name}", "llama", "llama", (), 0)
    return replace(card, gguf=Gguf((), 0, 0, 0, (), ()))


def _settings(found: Plan, machine: Inventory) -> str:
    size, gpus = f"tp {found.value('tensor_parallel_size')}", gpus_of(found, machine)
    if stages := found.value("pipeline_parallel_size"):
        size += f" in {stages} stages"
    if replicas := found.value("data_parallel_size"):
        size = f"dp {replicas} of {size}"
    if found.value("enable_expert_parallel"):
        size += " + ep"
    config = found.value("compilation_config")
    graphs = "eager" if found.value("enforce_eager") else config["cudagraph_mode"]
    kind = found.value("kv_cache_dtype") or "auto"
    parts = [
        f"plan:   {size} of {len(BOXES[_name(machine)])}" if gpus else "plan:   CPU",
        graphs,
        f"MTP {found.mtp}" if machine.model.mtp_layers else "no MTP head",
        f"{kind} cache",
        _counted(found.value("max_num_seqs")),
        f"context {found.value('max_model_len')}",
    ]
    if machine.model.vision:
        seen = "images without videos" if found.value("limit_mm_per_prompt") else "with vision"
        parts.append("text only" if found.value("language_model_only") else seen)
    if found.value("cpu_offload_gb"):
        parts.append(f"offload {found.value('cpu_offload_gb')} GiB a card")
    return ", ".join(parts)


def _counted(sequences: int | None) -> str:
    return f"{sequences or 'any'} sequence{'s' * (sequences != 1)}"


def _name(machine: Inventory) -> str:
    return next(name for name, gpus in BOXES.items() if gpus == machine.gpus)


def _room(found: Plan, memory: MemoryEstimate) -> str:
    share = found.value("gpu_memory_utilization")
    return (
        f"        {'fits' if memory.fits else 'does not fit' if memory.fits is False else '?'}"
        f"{f': GMU {share}' if share else ''}, weights {memory.weights_mib / 1024:.2f} GiB,"
        f" cache of {memory.kv_tokens} tokens"
    )


def _reasons(found: Plan) -> Iterator[str]:
    for name in (
        "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_model_len",
        "max_num_seqs",
    ):  # fmt: skip
        setting = found.settings.get(name)
        alone = name == "tensor_parallel_size" and setting and setting.value == 1
        if setting and setting.origin == "policy" and not alone:
            yield f"        {name}: {setting.reason}"
    for warning in found.warnings:
        yield f"        warning: {warning}"
