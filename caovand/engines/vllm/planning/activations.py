"""The rule for int8 activations, by which Marlin multiplies 4-bit weights.

vLLM asserts that weights are symmetric, has no such kernel for experts or for weights stored in
another order (desc_act), and passes no scale if all weights are one group; it silently turns
negative scales into garbage. On Hopper it prefers other kernels (Machete, Humming). 0.21 and 0.32
agree in all of this.

`auto` is half wherever int8 may run: its bound is an error of 1 % a layer, a tenth of what four
bits cost the weights, and where one channel in 500 stands out, as in real models, int8 activations
err by 9 to 12 % (csrc/NOTEBOOK.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.facts.inventory import ModelCard
from caovand.core.plan import Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.vllm.flags.spelling import INT8, MARLIN_INPUT
from caovand.engines.vllm.machine.capabilities import HOPPER, TURING, first_of, first_outside
from caovand.engines.vllm.planning.partial_plan import PartialPlan, policy

BITS = 4
_HALF = (
    "half: on an H200 int8 read prompts 1.01 to 1.17 times as fast, took 2 to 3 times as long for a"
    " few tokens without graphs, and erred by 9 to 12 % where single channels stand out, as in"
    ' real models; [policy] activations = "int8" chooses it anyway'
)
_OTHER = "serve a GPTQ checkpoint with 4-bit symmetric weights in groups"
_AUTO = 'set [policy] activations = "auto"'


def marlin_input(partial: PartialPlan) -> Setting | None:
    """The variable that lets Marlin quantise its input; [engine] env wins over it."""
    typed = partial.config.policy.activations
    if MARLIN_INPUT in dict(partial.config.engine.env):
        return None
    refused = _int8_refusal(partial)
    if typed == INT8 and refused:
        raise Unplannable(str(refused))
    if typed:  # a goal that the ladder may give up, unlike a value of [engine] env
        return policy(INT8 if typed == INT8 else None, f"[policy] activations is {typed}")
    return None if refused else policy(None, _HALF)


def activation_warnings(partial: PartialPlan) -> Iterator[str]:
    """Warnings about settings that [engine] env overrides, or that it sets in vain."""
    own, typed = (
        dict(partial.config.engine.env).get(MARLIN_INPUT),
        partial.config.policy.activations,
    )
    if own is None:
        return
    if typed and typed != own:
        yield f"[policy] activations is {typed}, but [engine] env sets {MARLIN_INPUT} to {own}"
    refused = _int8_refusal(partial) if own == INT8 else None
    if refused:
        yield f"{refused.message}; remove {MARLIN_INPUT} from [engine] env"


def _int8_refusal(partial: PartialPlan) -> Problem | None:
    """Why int8 activations cannot be used here; None if they can."""
    found = _of_weights(partial.model)
    if found is None and partial.verbatim.get("quantization") == "gptq":
        found = "--quantization gptq chooses a kernel that cannot use them", "remove that flag"
    if found is None:
        found = _of_machine(partial) or _of_scales(partial)
    if found is None:
        return None
    fact, other = found
    return Problem("use int8 activations", fact, ", or ".join(filter(None, (_AUTO, other))))


def _of_weights(model: ModelCard) -> tuple[str, str] | None:
    """The fact and the remedy, if the weights prevent int8 activations."""
    stored = model.gptq
    if not model.architecture:
        return "the model is not on this machine yet", "pull it first (`caovanctl model pull`)"
    if stored is None:
        how = model.quantization
        zeros = ", and AWQ weights have zero points" if how == "awq" else ""
        how = f"the weights are {how}" if how else "the weights are not quantised"
        return f"{how}; vLLM multiplies only symmetric GPTQ weights by them{zeros}", _OTHER
    if model.experts:
        return "vLLM has no int8 kernel for 4-bit experts", "serve a model without experts"
    if stored.bits != BITS or stored.mixed:
        bits = "of several kinds" if stored.mixed else f"of {stored.bits} bits"
        return f"the weights are {bits}, and vLLM multiplies only 4-bit weights by them", _OTHER
    if not stored.symmetric or stored.act_order:
        why = (
            "stored in the order of the activations (desc_act)"
            if stored.symmetric
            else "not symmetric"
        )
        return f"the weights are {why}, and vLLM has no int8 kernel for that", _OTHER
    if not model.group_size:
        return (
            "each column of the weights has a single scale, which vLLM's int8 kernel cannot use",
            _OTHER,
        )
    return None


def _of_machine(partial: PartialPlan) -> tuple[str, str] | None:
    if not partial.cuda:
        return "the engine is a CPU build", ""
    card = first_outside(partial.cards, TURING, HOPPER)
    if card:
        hopper = first_of(partial.cards, HOPPER[0])
        why = (
            "where vLLM prefers another kernel"
            if card == hopper
            else "on which they were never tried"
        )
        return f"{card}, {why}", ""
    return None


def _of_scales(partial: PartialPlan) -> tuple[str, str] | None:
    if partial.model.negative_scale:
        return (
            f"{partial.model.negative_scale} has negative scales, which vLLM would turn into"
            " garbage",
            _OTHER,
        )
    typed = partial.config.policy.activations == INT8  # nobody has read them otherwise
    if (
        typed
        and partial.model.negative_scale is None
        and partial.verbatim.get("load_format") != "dummy"
    ):
        return (
            "the scales could not be read, and may be negative",
            "convert the weights to safetensors",
        )
    return None
