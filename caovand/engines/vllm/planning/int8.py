"""The goals that compute in int8: [policy] activations and [policy] lm_head.

Activations: Marlin then multiplies 4-bit weights by int8 activations. vLLM asserts that weights are
symmetric, has no such kernel for experts or for weights stored in another order (desc_act), and
passes no scale if all weights are one group; it silently turns negative scales into garbage. On
Hopper it prefers other kernels (Machete, Humming). 0.21 and 0.32 agree in all of this. `auto` is
half wherever int8 may run: its bound is an error of 1 % a layer, a tenth of what four bits cost the
weights, and where one channel in 500 stands out, as in real models, int8 activations err by 9 to
12 % (csrc/NOTEBOOK.md).

The lm_head: int8 on SM75 with caovan's kernels, if it is configured or, for weights in 4 bits, if
the plan is worth more so (`CandidatePace`); never by the policy in mode stable. Each row of the
vocabulary has a scale, so that a logit moves by 0.9 % of a row's deviation with normal weights and
by up to 7 % with columns that stand out (csrc/NOTEBOOK.md): less than a layer of 4-bit weights
moves its output, but no real model was measured.

An int8 MTP layer comes with an int8 head: drafts are verified, so that it changes no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from caovand.core.facts.inventory import ModelCard
from caovand.core.plan import Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.tensors import FLOATS
from caovand.engines.vllm.flags.spelling import DRAFTER, INT8, LM_HEAD, MARLIN_INPUT
from caovand.engines.vllm.machine.capabilities import HALF, HOPPER, TURING, first_of, first_outside
from caovand.engines.vllm.machine.plugin import verdict
from caovand.engines.vllm.memory.load_peak import loads_drafter
from caovand.engines.vllm.memory.shards import BYTES_EACH
from caovand.engines.vllm.planning.partial_plan import PartialPlan, policy
from caovand.engines.vllm.planning.precision import allows_kernels

BITS = 4
MULTIPLE = 64
"""Hidden sizes must be a multiple of it for the head's kernel."""
FORCED = "CAOVAN_SM75_FORCE"
_OTHER = "serve a GPTQ checkpoint with 4-bit symmetric weights in groups"


@dataclass(frozen=True, kw_only=True)
class Int8Goal:
    """A key of [policy] that `variable` carries to the engine; [engine] env wins over it.

    `find_refusal` yields the fact and the remedy, if int8 cannot run here. `gain` completes the
    reason for int8, `why_half` is the reason against it where the operator leaves the choice, and
    `why_int8` the one for it if the policy `tried` it and it is worth more. `spelled` are values of
    the variable that the key spells otherwise.
    """

    key: str
    variable: str
    purpose: str
    find_refusal: Callable[[PartialPlan], tuple[str, str] | None]
    why_half: Callable[[PartialPlan], str]
    gain: Callable[[PartialPlan], str] = lambda partial: ""
    tried: Callable[[PartialPlan], bool] = lambda partial: False
    why_int8: Callable[[PartialPlan], str] = lambda partial: ""
    spelled: Mapping[str, str] = field(default_factory=dict)

    def setting(self, partial: PartialPlan) -> Setting | None:
        """The variable's rule. Raises Unplannable for a configured int8 that cannot run."""
        typed = getattr(partial.config.policy, self.key)
        if self.variable in dict(partial.config.engine.env):
            return None
        problem = self._refusal(partial)
        if typed == INT8 and problem:
            raise Unplannable(str(problem))
        if self.tried(partial):
            return policy(INT8, self.why_int8(partial))
        if typed:  # a goal that the ladder may give up, unlike a value of [engine] env
            value, gain = (INT8, self.gain(partial)) if typed == INT8 else (None, "")
            return policy(value, f"[policy] {self.key} is {typed}{gain}")
        return None if problem else policy(None, self.why_half(partial))

    def warnings(self, partial: PartialPlan) -> Iterator[str]:
        """Warnings about settings that [engine] env overrides, or that it sets in vain."""
        own = dict(partial.config.engine.env).get(self.variable)
        typed = getattr(partial.config.policy, self.key)
        if own is None:
            return
        if typed and typed != self.spelled.get(own, own):
            yield f"[policy] {self.key} is {typed}, but [engine] env sets {self.variable} to {own}"
        problem = self._refusal(partial) if own == INT8 else None
        if problem:
            yield f"{problem.message}; remove {self.variable} from [engine] env"

    def _refusal(self, partial: PartialPlan) -> Problem | None:
        problem = self.find_refusal(partial)
        if problem is None:
            return None
        fact, other = problem
        auto = f'set [policy] {self.key} = "auto"'
        return Problem(self.purpose, fact, ", or ".join(filter(None, (auto, other))))


def _why_no_activations(partial: PartialPlan) -> tuple[str, str] | None:
    if reason := _why_not_weights(partial.model):
        return reason
    if partial.verbatim.get("quantization") == "gptq":
        return "--quantization gptq chooses a kernel that cannot use them", "remove that flag"
    return _why_not_on_cards(partial) or _why_not_scales(partial)


def _why_not_weights(model: ModelCard) -> tuple[str, str] | None:
    """The fact and the remedy, if the weights prevent int8 activations."""
    stored = model.gptq
    if not model.architecture:
        return "the model is not on this machine yet", "pull it first (`caovanctl model pull`)"
    if stored is None:
        how = model.quantization
        zeros = ", but AWQ weights have zero points" if how == "awq" else ""
        how = f"the weights are {how}" if how else "the weights are not quantised"
        return f"{how}; vLLM multiplies only symmetric GPTQ weights by them{zeros}", _OTHER
    if model.experts:
        return "vLLM has no int8 kernel for 4-bit experts", "serve a model without experts"
    if stored.bits != BITS or stored.mixed:
        bits = "of several kinds" if stored.mixed else f"of {stored.bits} bits"
        return f"the weights are {bits}, but vLLM multiplies only 4-bit weights by them", _OTHER
    if not stored.symmetric or stored.act_order:
        reason = (
            "stored in the order of the activations (desc_act)"
            if stored.symmetric
            else "not symmetric"
        )
        return f"the weights are {reason}, but vLLM has no int8 kernel for that", _OTHER
    if not model.group_size:
        return (
            "each column of the weights has a single scale, which vLLM's int8 kernel cannot use",
            _OTHER,
        )
    return None


def _why_not_on_cards(partial: PartialPlan) -> tuple[str, str] | None:
    """The fact and the remedy, if cards or the engine prevent int8 activations."""
    if not partial.cuda:
        return "the engine is a CPU build", ""
    card = first_outside(partial.cards, TURING, HOPPER)
    if card:
        hopper = first_of(partial.cards, HOPPER[0])
        reason = (
            "where vLLM prefers another kernel"
            if card == hopper
            else "on which they have never been tested"
        )
        return f"{card}, {reason}", ""
    return None


def _why_not_scales(partial: PartialPlan) -> tuple[str, str] | None:
    """The fact and the remedy, if scales of the weights prevent int8 activations."""
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
            "the scales could not be read and may be negative",
            "convert the weights to safetensors",
        )
    return None


ACTIVATIONS = Int8Goal(
    key="activations",
    variable=MARLIN_INPUT,
    purpose="use int8 activations",
    find_refusal=_why_no_activations,
    why_half=lambda partial: (
        "half: on an H200 int8 read prompts 1.01 to 1.17 times as fast, took 2 to 3 times as long"
        " for a few tokens without graphs, and erred by 9 to 12 % where single channels stand out,"
        ' as in real models; [policy] activations = "int8" chooses it anyway'
    ),
)


def _why_no_head_here(partial: PartialPlan) -> tuple[str, str] | None:
    """The fact and the remedy, if cards or the engine prevent an int8 head."""
    engine, env = partial.engine, dict(partial.config.engine.env)
    if not partial.cuda:
        return "its kernel is for CUDA", ""
    others = [gpu for gpu in partial.cards if gpu.compute_capability != TURING]
    if others and env.get(FORCED) != "1":
        return f"its kernel is for SM75, but GPU {others[0].index} is not", ""
    if not engine.plugin:
        return "caovan's kernels are not installed in the engine", "install them"
    if not allows_kernels(partial):
        return "caovan's kernels are switched off", "switch them on"
    if engine.library_problem:
        return f"the kernels cannot be loaded: {engine.library_problem}", ""
    supported = verdict(engine, "lm_head")
    if not supported.ok:
        reason = supported.reason or "the engine could not be probed"
        return f"the plugin does not support how this vLLM computes logits ({reason})", ""
    return None


def _why_no_head(partial: PartialPlan) -> tuple[str, str] | None:
    """The fact and the remedy, if the model or the way it is loaded prevents an int8 head."""
    model, verbatim = partial.model, partial.verbatim
    if not model.architecture:
        return "the model is not on this machine yet", "pull it first (`caovanctl model pull`)"
    heads = [weights for weights in model.weights if weights.part == "head"]
    if not sum(weights.size for weights in heads):
        return "it shares its weights with the embedding, which is looked up in 16 bits", ""
    if any(weights.dtype not in FLOATS for weights in heads):
        return "its weights are quantised in the checkpoint", ""
    if model.hidden_size % MULTIPLE:
        return f"the hidden size, {model.hidden_size}, is not a multiple of {MULTIPLE}", ""
    if verbatim.get("enable_lora"):
        return "adapters can change it", "remove --enable-lora"
    if verbatim.get("load_format") == "ipc_cache":
        return "another process loads the weights", "remove --load-format ipc_cache"
    drafts = verbatim.get("speculative_config")
    if isinstance(drafts, Mapping) and drafts.get("draft_lm_head_quantization"):
        return "drafts have a quantised copy of it", "remove draft_lm_head_quantization"
    if dict(partial.config.engine.env).get("VLLM_BATCH_INVARIANT", "0") != "0":
        return "large batches are multiplied in another way", "remove VLLM_BATCH_INVARIANT"
    return None


def _saved(partial: PartialPlan) -> str:
    count = partial.count("tensor_parallel_size") or 1
    size = sum(w.size / FLOATS[w.dtype] for w in partial.model.weights if w.part == "head")
    return f"saves {size / count / (1 << 30):.2f} GiB per card, and reads that much less per token"


HEAD = Int8Goal(
    key="lm_head",
    variable=LM_HEAD,
    purpose="use an int8 lm_head",
    find_refusal=lambda partial: _why_no_head_here(partial) or _why_no_head(partial),
    why_half=lambda partial: (
        f'half: [policy] lm_head = "int8" {_saved(partial)}, but changes logits by 1 to 7 %, '
        "which was not measured on real models"
    ),
    gain=lambda partial: f": {_saved(partial)}",
    tried=lambda partial: partial.trial.int8_head,
    why_int8=lambda partial: (
        f"{_saved(partial)}; logits move by 1 to 7 %, less than what a layer of 4-bit weights moves"
        ' by, but no real model was measured: [policy] lm_head = "half" keeps 16 bits'
    ),
    spelled={"off": "half"},
)


def may_round_head(partial: PartialPlan) -> bool:
    """Whether the policy may try an int8 head: of weights that somebody rounded to 4 bits already,
    computing in float16, which the kernel takes."""
    decided = (
        partial.config.policy.lm_head
        or LM_HEAD in dict(partial.config.engine.env)
        or LM_HEAD in partial.dropped_variables
        or partial.steers_plugin
        or partial.pinned("lm_head")
        or partial.mode == "stable"
    )
    rounded = partial.model.quantization not in BYTES_EACH and partial.value("dtype") in HALF
    return not decided and rounded and HEAD.find_refusal(partial) is None


def int8_drafter(partial: PartialPlan) -> Setting | None:
    """The variable for the MTP layer's type, as far as the forecast counts on it."""
    sized = partial.choice and partial.choice.candidate
    own = DRAFTER in dict(partial.config.engine.env)
    if own or not sized or not sized.rounds_drafter or not loads_drafter(partial.model, sized):
        return None
    return policy(
        INT8,
        "the MTP layer takes half the memory and time; its drafts are verified, so that no answer"
        f' changes; [engine] env {DRAFTER} = "off" keeps 16 bits',
    )
