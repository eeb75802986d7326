"""Drafting with a separate model that the configuration names; and whether drafting keeps a hybrid
model's recurrent states right.

All tokens of a block come from one pass of the drafter (DFlash), so another depth saves neither
weights nor cache: a drafter drafts as deep as it was trained to, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from caovand.core.facts.drafter import Drafter
from caovand.core.facts.inventory import ModelCard
from caovand.core.plan import Setting, Unplannable, is_lookup
from caovand.core.problem import Problem
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import PLUGIN, PLUGINS
from caovand.engines.vllm.machine.plugin import verdict
from caovand.engines.vllm.machine.ranks import PIPELINE, TENSOR
from caovand.engines.vllm.memory.load_peak import lacking_to_load_gib
from caovand.engines.vllm.memory.shards import stages_of
from caovand.engines.vllm.planning.fit import asked_candidate
from caovand.engines.vllm.planning.partial_plan import PartialPlan

METHOD = "dflash"
MAX_TYPED = 8
"""The deepest that [policy] mtp can be set to."""
REMOVE = "remove [model] drafter"
CANNOT_LOAD = "the card has no room for the drafter while it is loaded, so nothing is drafted"


def trained_depth(drafter: Drafter) -> tuple[int, str]:
    """The depth that the drafter was trained for, and the reason."""
    return drafter.depth, (
        f"{_name(drafter)} was trained on blocks of {drafter.block} tokens, whose first token is "
        "known; it drafts all others in one pass"
    )


def config_for(partial: PartialPlan, drafter: Drafter, setting: Setting, depth: int) -> Setting:
    """The setting that drafts `depth` tokens with this drafter. Raises Unplannable if it cannot."""
    for problem in _problems(partial, drafter, depth):
        raise Unplannable(str(problem))
    config = {"method": METHOD, "model": drafter.path, "num_speculative_tokens": depth}
    return Setting(config, setting.origin, setting.reason)


def cannot_be_loaded(partial: PartialPlan) -> bool:
    """Whether the cards have no room for what vLLM loads with a drafter and then drops."""
    asked = asked_candidate(partial)
    return lacking_to_load_gib(stages_of(partial.model, asked, partial.cards)) > 0


def unused_warnings(partial: PartialPlan) -> Iterator[str]:
    """A warning that the named drafter does not draft, by the policy's choice."""
    drafter, setting = partial.model.drafter, partial.settings.get("speculative_config")
    if drafter and setting and setting.value is None and setting.origin == "policy":
        yield (
            f"[model] drafter is set, but {setting.reason}; set [policy] mtp = "
            f"{min(drafter.depth, MAX_TYPED)} to draft anyway, or {REMOVE}"
        )


def _problems(partial: PartialPlan, drafter: Drafter, depth: int) -> Iterator[Problem]:
    """Why this drafter cannot draft here, or not so deep."""
    cannot, engine = f"draft with {_name(drafter)}", partial.engine
    newer = releases.name(releases.DRAFTERS_EVERYWHERE)
    if not partial.cuda:
        yield Problem(cannot, "vLLM's CPU build has never been tested with a drafter", REMOVE)
    elif engine.release < releases.DRAFTERS_EVERYWHERE:
        fact = (
            f"in vLLM {engine.version} only FlashAttention and FlexAttention attend to a whole"
            " block, and neither reads every cache"
        )
        yield Problem(cannot, fact, f"use vLLM {newer} or newer, or {REMOVE}")
    elif not engine.knows(drafter.architecture):
        fact = f"vLLM {engine.version} has no {drafter.architecture}"
        yield Problem(cannot, fact, f"use a newer vLLM, or {REMOVE}")
    if drafter.from_anchor:
        fact = "it also drafts the first token of a block (sample_from_anchor), which vLLM rejects"
        yield Problem(cannot, fact, REMOVE)
    if wrong := _mismatch(partial.model, drafter):
        yield Problem(cannot, wrong, "set [model] drafter to the one made for this model")
    if partial.count(PIPELINE) > 1:
        fact = (
            "it reads hidden states of layers on several pipeline stages, which has never been "
            "tested"
        )
        yield Problem(cannot, fact, f"use --pipeline-parallel-size 1, or {REMOVE}")
    ranks = partial.count(TENSOR)
    if drafter.heads % ranks or (drafter.kv_heads % ranks and ranks % drafter.kv_heads):
        fact = f"its {drafter.heads} heads ({drafter.kv_heads} for keys) do not divide by {ranks}"
        yield Problem(cannot, fact, f"set tensor_parallel_size = 1, or {REMOVE}")
    if depth > drafter.depth:
        fact = f"it was trained on blocks of {drafter.block} tokens, including the known first one"
        yield Problem(
            f"draft {depth} tokens with {_name(drafter)}", fact, f"set mtp = {drafter.depth}"
        )


def _mismatch(model: ModelCard, drafter: Drafter) -> str:
    """How the drafter shows that it was made for another model; empty if it does not."""
    layers = len(model.layer_types)
    if drafter.target_layers and drafter.target_layers != layers:
        return f"it is for a model of {drafter.target_layers} layers, but this one has {layers}"
    if max(drafter.reads) >= layers:
        return f"it reads layer {max(drafter.reads)}, but the model has {layers}"
    if drafter.target_width != model.hidden_size:
        return (
            f"it reads hidden states of width {drafter.target_width}, but the model's have "
            f"{model.hidden_size}"
        )
    if drafter.vocab_size and model.vocab_size and drafter.vocab_size != model.vocab_size:
        return (
            f"its vocabulary has {drafter.vocab_size} tokens, but the model's has "
            f"{model.vocab_size}"
        )
    return ""


def _name(drafter: Drafter) -> str:
    return drafter.path.rstrip("/").rpartition("/")[2]


def drafting_corrupts_states(partial: PartialPlan) -> bool:
    """Whether requests that draft may continue from wrong states, as `DRAFTS_KEEP_STATES` says.

    A verbatim flag may leave the depth to vLLM, and a model that is not here yet may be a hybrid.
    """
    config = partial.value("speculative_config")
    if not isinstance(config, Mapping) or is_lookup(config.get("method")):
        return False
    own_head = str(config.get("method")).endswith("mtp") and not config.get("model")
    return _may_corrupt_states(partial) and not (own_head and not why_unfixed(partial))


def own_head_would_corrupt_states(partial: PartialPlan) -> bool:
    """Whether drafting with its own head would corrupt this model's states in this engine."""
    return _may_corrupt_states(partial) and bool(why_unfixed(partial))


def plugin_keeps_states(partial: PartialPlan) -> bool:
    """Whether this model drafts, and only the plugin keeps the states it continues from right.

    The plugin fixes vLLM's errors at block borders, so only with a prefix cache.
    """
    drafts = isinstance(partial.value("speculative_config"), Mapping)
    fixed = _may_corrupt_states(partial) and not why_unfixed(partial)
    return drafts and fixed and not drafting_corrupts_states(partial)


def _may_corrupt_states(partial: PartialPlan) -> bool:
    old = partial.engine.release < releases.DRAFTS_KEEP_STATES
    hybrid = partial.model.hybrid or not partial.model.architecture
    return partial.cuda and hybrid and old


def why_unfixed(partial: PartialPlan) -> str:
    """Why the plugin's fixes are not active, or not proven to be; empty if they are."""
    engine, plugins = partial.engine, partial.plugins
    if not engine.plugin:
        return "the plugin that fixes it is not installed (package caovan-kernels)"
    fixed = verdict(engine, "states")
    if not fixed.ok:
        reason = fixed.reason or "the plugin could not be probed"
        return f"the plugin's fixes do not match this engine: {reason}"
    if plugins is not None and PLUGIN not in plugins.split(","):
        return f"{PLUGINS} leaves out the plugin that fixes it"
    if not partial.model.linear or partial.stages > 1:
        return "the plugin's fixes are not proven for this kind of model or for pipeline stages"
    return ""
