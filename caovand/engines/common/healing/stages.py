"""Find what used up a card's memory if the line of the failed allocation does not prove it.

Weights, a measured step, CUDA graphs and other processes fail in the same words. Only the stage of
the start, or PyTorch's own numbers, tell them apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.core.healing.failure import Failure, Finding

UNSTAGED = "oom.unstaged"
"""Key of the sentences about memory that ran out at an unknown step."""
ALONE = "oom.alone"
"""The same, if the failed process uses nearly all the memory that is in use."""
GRAPHED = "oom.graphed"
"""The same, if it had captured CUDA graphs before."""
OTHER_PROCESSES = "oom.others"
"""Key of the sentences about memory that other processes use."""
MEASURED = "oom.measured"
"""Key of the sentences about a step that the engine measures before it sizes the cache."""
WEIGHTS = "oom.weights"
"""Key of the sentences about weights that are larger than the card."""
_WEIGHTS_ROWS = frozenset({WEIGHTS, "oom.load"})
ADVICE: Mapping[str, tuple[str, ...]] = {
    OTHER_PROCESSES: ("Without them the model may fit as it is configured.",),
    MEASURED: (
        "The step that the engine measures before it sizes the cache did not fit next to the "
        "weights: a shorter context, fewer tokens and requests in a step, smaller images, a "
        "smaller quantization or more cards.",
    ),
    WEIGHTS: (
        "The weights do not fit: by PyTorch's own figures this process alone uses {alone} of the "
        "card's {card} GiB.",
        "Use a smaller or quantized model, or split it over more cards (tensor_parallel_size, "
        "--tp).",
    ),
    GRAPHED: (
        "By PyTorch's own figures CUDA graphs were there already, so weights and cache fit, and a "
        "step found no room next to them: this process uses {alone} of the card's {card} GiB.",
        "Other programs, a display among them, use the remaining {rest} GiB: nvidia-smi names "
        "them.",
        "Lower the engine's share of the card (gpu_memory_utilization, --mem-fraction-static), "
        "which leaves a step more; then compute less at once (fewer requests, "
        "max_num_batched_tokens, --chunked-prefill-size, smaller images).",
    ),
    ALONE: (
        "By PyTorch's own figures this process alone uses {alone} of the card's {card} GiB. These "
        "lines do not show at which step the memory ran out; the lines before them do.",
        "Other programs, a display among them, use the remaining {rest} GiB: nvidia-smi names "
        "them.",
        "Most probable first: the weights are larger than the card (a smaller or quantized model, "
        "more cards: tensor_parallel_size, --tp); a step is too large (a shorter context, fewer "
        "requests and tokens at once, smaller images); or the engine's share of the card leaves "
        "too little for it.",
    ),
    UNSTAGED: (
        "The card's memory ran out; these lines do not show at which step. The lines before them "
        "do: loading the weights, measuring a step, capturing CUDA graphs, or serving.",
        "Most probable first: another process uses the card (nvidia-smi before the start); the "
        "weights are larger than the card (a smaller quantization, more cards); a step is too "
        "large (a shorter context, fewer requests and tokens at once, smaller images); or the "
        "engine's share of the card leaves too little for it.",
    ),
}
_STEPLESS_ROWS = frozenset({"oom.cuda", "sglang.oom", "sglang.oom.plain"})
_LOADING = ("load", "drafter")
_CARD_FAILURES: frozenset[Failure] = frozenset(
    {"device-oom-load", "device-oom-capture", "device-oom-run", "kv-cache-none"}
)
_FIGURES = re.compile(
    r"total capacity of (?P<total>[\d.]{1,12} [KMG]iB) of which (?P<free>[\d.]{1,12} [KMG]iB) is "
    r"free\."
)
_OWN = re.compile(r"\bthis process has (?P<own>[\d.]{1,12} (?:[KMG]iB|bytes)) memory in use")
_OF_TORCH = re.compile(
    r"Of the allocated memory (?P<allocated>[\d.]{1,12} [KMG]iB) is allocated by PyTorch, "
    r"(?:with (?P<pools>[\d.]{1,12} [KMG]iB) allocated in private pools.{0,40}?, )?"
    r"and (?P<reserved>[\d.]{1,12} [KMG]iB) is reserved by PyTorch"
)
_IN_GIB: Mapping[str, float] = {"bytes": 2.0**-30, "KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0}
_MIN_OTHERS_SHARE = 0.125
"""The part of a card that a driver and its context never use: above it, other processes are
involved.
"""
_MIN_REST_GIB = 0.75
"""What a driver keeps for itself at most: more is of other programs, which may be a display's."""
_MAX_GRAPHS = 0.5
"""The part of the allocated memory that graphs never take: larger pools are of sleep mode."""


def key_of(finding: Finding) -> str:
    """The key of a finding's sentences: its signature, unless its line proves another cause than
    that, or no step."""
    signature, users = finding.signature, users_of(finding)
    if finding.phase == "profile" and signature in _STEPLESS_ROWS:
        return OTHER_PROCESSES if "others" in users else MEASURED
    if finding.failure != "device-oom-load" or signature not in _STEPLESS_ROWS | _WEIGHTS_ROWS:
        return signature
    if "others" in users:
        return OTHER_PROCESSES
    if signature in _WEIGHTS_ROWS or finding.phase in _LOADING:
        return WEIGHTS if "alone" in users else signature
    if "alone" not in users:
        return UNSTAGED
    return GRAPHED if has_graphs(finding.text) else ALONE


def users_of(finding: Finding) -> Mapping[str, str]:
    """The card's size and what uses it, in GiB, as far as the line proves it: `others` if that is
    other processes, else `alone`, what the failed process uses by itself."""
    figures = _FIGURES.search(finding.text) if finding.failure in _CARD_FAILURES else None
    own = _own(finding.text)
    if figures is None or own is None:
        return {}
    total, free = _gib(figures["total"]), _gib(figures["free"])
    others, card = total - free - own, f"{total:.1f}"
    if others > _MIN_OTHERS_SHARE * total:
        return {"others": f"{others:.1f}", "card": card}
    rest = {"rest": f"{others:.1f}"} if others > _MIN_REST_GIB else {}
    return {"alone": f"{own:.1f}", "card": card, **rest}


def _own(text: str) -> float | None:
    """What the failed process uses, in GiB; None if the line does not say.

    In a container the driver does not know which process it is, and what PyTorch holds remains.
    """
    process, torch = _OWN.search(text), _OF_TORCH.search(text)
    if process is None and torch is None:
        return None
    of_torch = _gib(torch["allocated"]) + _gib(torch["reserved"]) if torch else 0.0
    return max(of_torch, _gib(process["own"]) if process else 0.0)


def has_graphs(text: str) -> bool:
    """Whether PyTorch's figures show pools of CUDA graphs: the start had captured them."""
    torch = _OF_TORCH.search(text)
    if torch is None or torch["pools"] is None:
        return False
    return 0 < _gib(torch["pools"]) < _MAX_GRAPHS * _gib(torch["allocated"])


def _gib(size: str) -> float:
    number, unit = size.split(" ")
    return float(number) * _IN_GIB[unit]
