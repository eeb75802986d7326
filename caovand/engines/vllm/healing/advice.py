"""Advice for people about a failure, in sentences with the values from its log.

The settings to change come from the ladder's tables, in its order and words, so that no sentence
here can contradict it. The sentences say what happened, and what only a person can do.
"""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.healing.answer import suspects
from caovand.core.healing.failure import Failure, Finding
from caovand.core.healing.ladder import CONFIGURATION
from caovand.core.healing.rung import Rung
from caovand.core.plan import Plan
from caovand.engines.common.healing.advice import ladder_changes, sentences
from caovand.engines.vllm.flags.spelling import option
from caovand.engines.vllm.flags.table import known_of
from caovand.engines.vllm.healing.advice_texts import GENERAL, SPECIAL
from caovand.engines.vllm.healing.cures import HEALING
from caovand.engines.vllm.healing.sizes import BLOCK

Figures = Mapping[str, float | int | str]

# The component in a failure's traceback comes first.
_WHERE: Mapping[str, str] = {
    "plugin": "It happened in a plugin.",
    "drafter": "It happened while drafting.",
    "prefix-cache": "It happened in prefix caching.",
    CONFIGURATION: "vLLM refused its arguments or the model's configuration before it loaded "
    "anything, so starting again cannot help; the line has its own reason.",
    "shape": "The first request failed on the size of a layer: usually the model cannot "
    "be split this way (tensor_parallel_size); drafting is not to blame.",
    "weights": "The weights do not fit config.json, or this release cannot read them: check that "
    "both are of the same model and revision, then try a newer release of the engine.",
}
_ARGUMENTS = frozenset({"args.cli", "engine.mismatch"})
_FILE_FAILURES: frozenset[Failure] = frozenset({"model-missing", "access-denied"})
_OTHER_NODE = "A worker on another node ({node}) wrote the line: it applies to that machine."
_FILES_ELSEWHERE = (
    "A worker on another node ({node}) wrote the line, and reads its own files: have the model "
    "there under the same path (download it on every node, or mount one folder on all of them), "
    "or name it as the hub does (OWNER/NAME), so that each node downloads it."
)
_KILLED = (
    "SIGKILL ended a process while the engine started: usually the kernel sent it, because the "
    "host's memory (not the card's) was full, or a container's limit reached. `sudo dmesg | grep "
    "-i 'killed process'`, or State.OOMKilled in `docker inspect`, shows it: give the machine or "
    "the container (docker --memory, a pod's limits.memory) more."
)
_SAY_MORE = frozenset(
    {"model.head", "model.lacking", "model.tied", "model.tensor", "drafts.vocabulary"}
)
"""Texts that name what in the checkpoint, or its drafts, does not fit."""


def advise(finding: Finding, figures: Figures, plan: Plan | None = None) -> list[str]:
    """Say what happened and what to do, most promising first; settings to change come last.

    For a known plan, only settings that it can change; those that were passed to the engine come
    first.
    """
    known = {**figures, **finding.captures}
    if finding.signature in _ARGUMENTS:
        known |= known_of(finding.captures)
    if known.keys() & {"gone", "later", "foreign"}:
        known.pop("unknown", None)
    if "owner" in known:
        known.pop("argument", None)
    if "fits" in finding.captures:
        known["context"] = usable_context(finding.captures["fits"])
    where = _WHERE.get(finding.captures.get("component", ""))
    refused = finding.captures.get("component") == CONFIGURATION  # `where` covers all that is known
    advice = [] if refused else sentences(finding, known, SPECIAL, GENERAL)
    advice += _settings_passed(finding, plan) if plan else []
    advice += ladder_changes(finding, HEALING, _setting, plan)
    if where and finding.failure != "plugin-error" and finding.signature not in _SAY_MORE:
        advice.insert(0, where)
    if "killed" in known:
        advice.insert(0, _KILLED)
    if "node" in known:
        there = _FILES_ELSEWHERE if finding.failure in _FILE_FAILURES else _OTHER_NODE
        advice.insert(0, there.format(node=known["node"]))
    if finding.failure == "start-stall" and _host_is_short(figures):
        advice.insert(
            0,
            f"The checkpoint has {figures['checkpoint_gib']} GiB and only "
            f"{figures['available_ram_gib']} GiB of host memory were free: reading it drives the "
            "host into swap.",
        )
    return advice


def usable_context(fits: str) -> int:
    """The longest context that fits, as a whole number of blocks."""
    return int(fits) // BLOCK * BLOCK


def _settings_passed(finding: Finding, plan: Plan) -> list[str]:
    """The settings that were passed to the engine, among those that matter here."""
    rungs = [rung for rung in suspects(finding, HEALING) if rung.step(plan, finding)]
    names = dict.fromkeys(name for rung in rungs for name in (rung.key, *rung.touches))
    passed = [f"{option(name)} {plan.value(name)}" for name in names if name in plan.settings]
    if not passed:
        return []
    return [f"These were passed to the engine and matter here: {', '.join(passed)}."]


def _setting(rung: Rung) -> str:
    """The key of caovan.toml, the flag or the variable by which a person makes the rung's
    change."""
    name = rung.key or rung.touches[0]
    if rung.key or name.isupper():
        return name
    return option(f"no_{name}" if name.startswith("enable_") else name)  # no rung turns one on


def _host_is_short(figures: Figures) -> bool:
    free, needed = figures.get("available_ram_gib"), figures.get("checkpoint_gib")
    return isinstance(free, float) and isinstance(needed, float) and free < needed
