"""Whether the lm_head is int8: on SM75 with caovan's kernels, and only if it is configured.

Each row of the vocabulary has a scale, so that a logit moves by 0.9 % of a row's deviation with
normal weights and by up to 7 % with columns that stand out (csrc/NOTEBOOK.md): less than a layer
of 4-bit weights moves its output, but no real model was measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.plan import Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.tensors import FLOATS
from caovand.engines.vllm.flags.spelling import INT8, LM_HEAD
from caovand.engines.vllm.machine.capabilities import TURING
from caovand.engines.vllm.planning.partial_plan import PartialPlan, policy
from caovand.engines.vllm.planning.precision import kernels_wanted

MULTIPLE = 64
"""Hidden sizes must be a multiple of it for the kernel."""
FORCED = "CAOVAN_SM75_FORCE"


def lm_head(partial: PartialPlan) -> Setting | None:
    """The variable that lets the plugin quantise the head; [engine] env wins over it."""
    typed = partial.config.policy.lm_head
    if LM_HEAD in dict(partial.config.engine.env):
        return None
    refused = _refusal(partial)
    if typed == INT8 and refused:
        raise Unplannable(str(refused))
    if typed == INT8:
        return policy(INT8, f"[policy] lm_head is int8: {_saved(partial)}")
    if typed:
        return policy(None, f"[policy] lm_head is {typed}")
    if refused:
        return None
    why = f'half: [policy] lm_head = "int8" {_saved(partial)}, but moves logits by 1 to 7 %'
    return policy(None, f"{why}, which was not measured on real models")


def lm_head_warnings(partial: PartialPlan) -> Iterator[str]:
    """Warnings about settings that [engine] env overrides, or that it sets in vain."""
    own, typed = dict(partial.config.engine.env).get(LM_HEAD), partial.config.policy.lm_head
    if own is None:
        return
    if typed and typed != {"off": "half"}.get(own, own):
        yield f"[policy] lm_head is {typed}, but [engine] env sets {LM_HEAD} to {own}"
    refused = _refusal(partial) if own == INT8 else None
    if refused:
        yield f"{refused.message}; remove {LM_HEAD} from [engine] env"


def _saved(partial: PartialPlan) -> str:
    count = partial.count("tensor_parallel_size") or 1
    size = sum(w.size / FLOATS[w.dtype] for w in partial.model.weights if w.part == "head")
    return f"saves {size / count / (1 << 30):.2f} GiB a card, and reads as much less for a token"


def _refusal(partial: PartialPlan) -> Problem | None:
    """Why the head cannot be int8 here; None if it can."""
    found = _of_machine(partial) or _of_model(partial)
    if found is None:
        return None
    fact, other = found
    auto = 'set [policy] lm_head = "auto"'
    return Problem("use an int8 lm_head", fact, ", or ".join(filter(None, (auto, other))))


def _of_machine(partial: PartialPlan) -> tuple[str, str] | None:
    """The fact and the remedy, if cards or the engine prevent it."""
    engine, env = partial.engine, dict(partial.config.engine.env)
    if not partial.cuda:
        return "its kernel is for CUDA", ""
    others = [gpu for gpu in partial.cards if gpu.compute_capability != TURING]
    if others and env.get(FORCED) != "1":
        return f"its kernel is for SM75, and GPU {others[0].index} is not", ""
    if not engine.plugin:
        return "caovan's kernels are not installed in the engine", "install them"
    if not kernels_wanted(partial):
        return "caovan's kernels are switched off", "switch them on"
    if engine.library_problem:
        return f"the kernels cannot be loaded: {engine.library_problem}", ""
    if engine.lm_head != "pass":
        why = engine.lm_head.removeprefix("fail: ") or "it could not be probed"
        return f"the plugin does not support how this vLLM computes logits ({why})", ""
    return None


def _of_model(partial: PartialPlan) -> tuple[str, str] | None:
    """The fact and the remedy, if the model or the way it is loaded prevents it."""
    model, verbatim = partial.model, partial.verbatim
    if not model.architecture:
        return "the model is not on this machine yet", "pull it first (`caovanctl model pull`)"
    heads = [weights for weights in model.weights if weights.part == "head"]
    if not sum(weights.size for weights in heads):
        return "its weights are the embedding's, too, which is looked up in 16 bits", ""
    if any(weights.dtype not in FLOATS for weights in heads):
        return "its weights are quantised in the checkpoint", ""
    if model.hidden_size % MULTIPLE:
        return f"the hidden size is {model.hidden_size}, and not a multiple of {MULTIPLE}", ""
    if verbatim.get("enable_lora"):
        return "adapters may change it", "remove --enable-lora"
    if verbatim.get("load_format") == "ipc_cache":
        return "another process loads the weights", "remove --load-format ipc_cache"
    return None
