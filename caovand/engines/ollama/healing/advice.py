"""Advice for people about a failure of Ollama, in sentences with known figures.

The settings to change come from the ladder's tables, in its order and words.
"""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.healing.failure import Failure, Finding
from caovand.core.healing.ladder import DISK, LIMIT, REACTIONS
from caovand.engines.ollama.healing.cures import HEALING

# One row a failure; a sentence with an unknown {name} is left out.
_GENERAL: Mapping[Failure, tuple[str, ...]] = {
    "device-oom-load": ("The weights do not fit the card: pull a tag of fewer bits.",),
    "kv-cache-none": ("No memory is left on the card for the cache.",),
    "device-oom-run": ("A step needed more memory than the card has left.",),
    "host-oom": (
        "The machine has too little memory: {wanted} are needed, {free} are free.",
        "Close other programs, add memory or swap, or pull a tag of fewer bits.",
    ),
    "gpu-absent": ("Ollama found no usable card: run nvidia-smi.",),
    "gpu-lost": ("The driver lost a card. Only a reboot recovers it.",),
    "illegal-access": (
        "A kernel accessed invalid memory. Check the kernel log: journalctl -k | grep -i xid",
    ),
    "launch-failure": (
        "A kernel could not be launched. Check the kernel log: journalctl -k | grep -i xid",
    ),
    "backend-unsupported": ("This Ollama has no kernels for the card: install a newer release.",),
    "bad-arguments": ("Ollama cannot run this model with these settings.",),
    "model-missing": ("The model cannot be read: remove it and pull it again (`ollama pull`).",),
    "access-denied": (
        "Let the engine's user read {path} and the folders above it, or set OLLAMA_MODELS in"
        " [engine] env to a folder that it may read.",
    ),
    "port-busy": (
        "Another program listens on port {port}, or this machine has no address {host}: `ss -ltnp`"
        " names it. Ollama's own service is ended by `sudo systemctl disable --now ollama`.",
    ),
    "start-stall": ("The model's runner did not come up in time: its disk may be slow.",),
    "engine-died": ("A runner ended by itself, or something killed it; the line shows how.",),
    "unknown": ("This failure is unknown; the line shows where it began. Please report the log.",),
}
_SPECIAL: Mapping[str, tuple[str, ...]] = {
    "ollama.ram.killed": (
        "The kernel killed the model's runner, most likely for lack of memory: journalctl -k | grep"
        " -i oom",
    ),
    "ollama.model.architecture": (
        "This Ollama does not know the architecture {architecture}: install a newer release, or"
        " use another model.",
    ),
    "ollama.home": ("Ollama needs a home folder: set HOME in [engine] env.",),
    "disk.full": ("The disk is full: free some space, then start again.",),
}


def advise(finding: Finding) -> tuple[str, ...]:
    """What happened and what to do, most promising first; settings to change come last."""
    sentences = _SPECIAL.get(finding.signature) or _GENERAL.get(finding.failure, ())
    advice = [text for text in (_fill(one, finding.captures) for one in sentences) if text]
    return (*advice, *_of_ladder(finding))


def _of_ladder(finding: Finding) -> list[str]:
    if finding.signature in DISK or LIMIT in finding.captures:
        return []
    rungs = HEALING.against(finding)
    changes = "; ".join(
        f"{rung.does} ({rung.key or HEALING.option(rung.touches[0])})" for rung in rungs
    )
    if not changes:
        return []
    at_once = REACTIONS[finding.failure].kind == "rung"
    return [f"{'What helps' if at_once else 'If it comes back'}, in this order: {changes}."]


def _fill(sentence: str, known: Mapping[str, str]) -> str:
    try:
        return sentence.format_map(known)
    except KeyError:
        return ""
