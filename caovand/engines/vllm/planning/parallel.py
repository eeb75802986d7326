"""How cards share a model: tensor parallelism and pipeline stages, over one node or more.

vLLM's refusals were read in 0.32: `supports_pp` of its model classes, and vllm#46994, by which MTP
drafts over stages with the heads of Qwen3.5 and DeepSeek.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caovand.core.facts.inventory import Inventory
from caovand.core.plan import Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.speeds import BANDWIDTH_REACHED, card_speed
from caovand.engines.common.tensors import element_bytes, experts_read, of_rank
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import count, option
from caovand.engines.vllm.machine.link_time import TokenWork, compare_tensor_parallel
from caovand.engines.vllm.machine.ranks import (
    PIPELINE,
    REPLICAS,
    TENSOR,
    are_alike,
    ranks_here,
    shape_problem,
    shards_whole_experts,
)
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.estimate import estimate
from caovand.engines.vllm.memory.settings import dealt_layers
from caovand.engines.vllm.memory.shards import PARTITION, own_partition
from caovand.engines.vllm.planning import devices
from caovand.engines.vllm.planning.partial_plan import PartialPlan, policy
from caovand.engines.vllm.sizing.partition import Stages, anchors, has_anchors, spans
from caovand.engines.vllm.sizing.space import WORKLOADS

WITHOUT_STAGES = frozenset({
    "AriaForConditionalGeneration", "DeepseekV4ForConditionalGeneration",
    "DiffusionGemmaForBlockDiffusion", "Gemma3nForCausalLM", "Gemma3nForConditionalGeneration",
    "HrmTextForCausalLM", "IQuestLoopCoderForCausalLM", "Idefics3ForConditionalGeneration",
    "Mamba2ForCausalLM", "NemotronH_Nano_Omni_Reasoning_V3", "NemotronH_Nano_VL_V2",
    "NemotronH_Omni_Reasoning_V3", "NemotronH_Super_Omni_Reasoning_V3",
    "NemotronParseForConditionalGeneration", "PaddleOCRVLForConditionalGeneration",
    "Phi4MMForCausalLM", "SmolVLMForConditionalGeneration", "WhisperForConditionalGeneration",
    "Zamba2ForCausalLM",
})  # fmt: skip
DRAFTS_OVER_STAGES = frozenset({
    "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_k2", "qwen3_5", "qwen3_5_moe",
    "qwen3_5_moe_text", "qwen3_5_text",
})  # fmt: skip


def stages_problem(
    values: Mapping[str, Any], env: Mapping[str, Any], machine: Inventory
) -> Problem | None:
    """Why vLLM does not serve the model in these stages; None if it does, or without stages."""
    model, stages = machine.model, count(values.get(PIPELINE)) or 1
    if stages == 1 or not model.architecture:
        return None
    cannot = f"serve the model in {stages} pipeline stages"
    if model.architecture in WITHOUT_STAGES:
        fact = f"vLLM {machine.engine.version} does not support stages for {model.architecture}"
        return Problem(cannot, fact, "use --tensor-parallel-size, or serve another model")
    layers = len(model.layer_types)
    if stages > layers:
        return Problem(cannot, f"it has {layers} layers", "use fewer stages")
    dealt = dealt_layers(values, env, layers)
    if not dealt:
        fact = f"{PARTITION} is {env.get(PARTITION)}, but the model has {layers} layers"
        remedy = f"use {stages} numbers whose sum is {layers}, or remove it from [engine] env"
        return Problem(cannot, fact, remedy)
    if not has_anchors(dealt, anchors(model)):
        shown = ",".join(map(str, dealt))
        fact = f"with {shown} layers, one stage has no attention layer, which vLLM 0.32 refuses"
        return Problem(cannot, fact, f"use fewer stages, or distribute the layers with {PARTITION}")
    return None


def why_stages_refuse_drafts(values: Mapping[str, Any], machine: Inventory) -> str:
    """Why MTP does not draft over these stages; empty if it does, or without stages."""
    if (count(values.get(PIPELINE)) or 1) == 1:
        return ""
    if machine.engine.release < releases.DRAFTS_OVER_STAGES:
        since = releases.name(releases.DRAFTS_OVER_STAGES)
        return (
            f"vLLM {machine.engine.version} does not support MTP with pipeline stages; {since} "
            "is the first release that does"
        )
    if machine.model.model_type not in DRAFTS_OVER_STAGES:
        return (
            f"vLLM {machine.engine.version} drafts over pipeline stages only with the MTP heads "
            "of Qwen3.5 and DeepSeek V3"
        )
    return ""


def tensor_parallel_size(partial: PartialPlan) -> Setting | None:
    """The split inside each node, or over all of them if their link is fast enough."""
    inside = devices.tensor_parallel_in_node(partial)
    spans = _compare_spanning(partial, inside)
    if not inside or not spans or not spans[0]:
        return inside
    return policy(inside.value * (1 + len(partial.inventory.others)), spans[1])


def pipeline_parallel_size(partial: PartialPlan) -> Setting | None:
    """A stage on each of several nodes, unless the split spans them all. Raises Unplannable."""
    if not partial.cuda:
        return _stages_without_cards(partial)
    if typed := _stages_by_node(partial):
        return typed
    if (split := partial.trial.split) and split.stages > 1:
        return policy(split.stages, _why_staged(partial))
    spans = _compare_spanning(partial, devices.tensor_parallel_in_node(partial))
    if spans is None or spans[0]:
        return None
    nodes = 1 + len(partial.inventory.others)
    refused = stages_problem({PIPELINE: nodes}, dict(partial.config.engine.env), partial.inventory)
    if refused:
        raise Unplannable(f"cannot plan for {nodes} nodes: {refused}")
    return policy(nodes, f"one stage on each of {nodes} nodes, [cluster]: {spans[1]}")


def _why_staged(partial: PartialPlan) -> str:
    """Why the cards of one node are the stages of a pipeline."""
    cards, whole = len(partial.gpus), shards_whole_experts(partial.verbatim)
    if not all(are_alike(partial.gpus[0], gpu) for gpu in partial.gpus):
        return "the cards differ, and each stage has as many layers as its cards hold"
    problem = shape_problem(
        partial.model, cards, whole_experts=whole, whole_tiles=partial.whole_tiles
    )
    return f"{cards} cards hold more than fewer would{f': {problem.fact}' if problem else ''}"


def _stages_by_node(partial: PartialPlan) -> Setting | None:
    """A stage on each node, if a configured split has room inside one: over their link it would use
    one card of each, and leave the others idle."""
    nodes, size = 1 + len(partial.inventory.others), count(partial.verbatim.get(TENSOR)) or 0
    fits = 0 < size <= _cards_each(partial)
    if nodes == 1 or not fits or {PIPELINE, REPLICAS} & partial.verbatim.keys():
        return None
    refused = stages_problem({PIPELINE: nodes}, dict(partial.config.engine.env), partial.inventory)
    if refused and size % nodes:
        raise Unplannable(f"cannot plan for {nodes} nodes: {refused}")
    if refused:
        return None
    reason = f"{option(TENSOR)} {size} fits into each of them"
    return policy(nodes, f"one stage on each of {nodes} nodes, [cluster]: {reason}")


def _cards_each(partial: PartialPlan) -> int:
    """The minimum number of cards that a node has for the engine; 0 for a CPU build."""
    ours = devices.choose_gpus(partial.config, partial.inventory, partial.verbatim)
    return min([len(ours), *(len(node.gpus) for node in partial.inventory.others)])


def idle_cards(partial: PartialPlan) -> list[str]:
    """A warning if a configured split spans the nodes and leaves cards of each idle."""
    nodes, size = 1 + len(partial.inventory.others), count(partial.verbatim.get(TENSOR)) or 0
    here = ranks_here(partial.values, nodes)
    if nodes == 1 or not here < size or here >= (each := _cards_each(partial)):
        return []
    refused = stages_problem({PIPELINE: nodes}, dict(partial.config.engine.env), partial.inventory)
    fact = f"{option(TENSOR)} {size} spans {nodes} nodes: only {here} of {each} cards on each serve"
    if refused:
        return [f"{fact}, as {refused.fact}; use {each * nodes}, or remove it"]
    return [f"{fact}; use {option(PIPELINE)} {nodes}, or remove both"]


def _stages_without_cards(partial: PartialPlan) -> Setting | None:
    """A stage on each of several nodes with a CPU build, which has one rank per node, if the model
    cannot be split over all of them. Raises Unplannable if neither is possible."""
    nodes = 1 + len(partial.inventory.others)
    if nodes == 1 or {TENSOR, PIPELINE} & partial.verbatim.keys():
        return None
    problem, refused = _lone_rank_problems(partial, nodes)
    if problem is None:
        return None
    if refused is None:
        return policy(nodes, f"one stage on each of {nodes} nodes, [cluster]: {problem.fact}")
    fits = next(n for n in range(nodes - 1, 0, -1) if None in _lone_rank_problems(partial, n))
    remedy = f"set nodes = {fits} in [cluster]" if fits > 1 else "serve it on one machine"
    raise Unplannable(
        f"cannot plan for {nodes} nodes: {problem.fact}, and in stages {refused.fact}; {remedy}"
    )


def _lone_rank_problems(partial: PartialPlan, nodes: int) -> tuple[Problem | None, Problem | None]:
    """Why ranks that are alone in their nodes cannot split the model, nor be its stages."""
    whole = shards_whole_experts(partial.verbatim)
    refused = stages_problem({PIPELINE: nodes}, dict(partial.config.engine.env), partial.inventory)
    return shape_problem(partial.model, nodes, whole_experts=whole), refused


def _compare_spanning(partial: PartialPlan, inside: Setting | None) -> tuple[bool, str] | None:
    """Whether tensor parallelism spans the nodes, and why; None for a single node, or if the
    operator configured a split."""
    machine, verbatim = partial.inventory, partial.verbatim
    if (
        not machine.others
        or not partial.cuda
        or inside is None
        or {TENSOR, PIPELINE} & verbatim.keys()
    ):
        return None
    nodes, each = 1 + len(machine.others), inside.value
    if partial.config.policy.tensor_parallel_size is not None:
        return False, "[policy] tensor_parallel_size is the split inside each node"
    whole = shards_whole_experts(verbatim)
    ranks = nodes * each
    problem = shape_problem(
        partial.model, ranks, whole_experts=whole, whole_tiles=partial.whole_tiles
    )
    refused = stages_problem({PIPELINE: nodes}, dict(partial.config.engine.env), machine)
    if refused and not problem:
        return True, f"tensor parallel over {nodes} nodes, [cluster]: {refused.fact}"
    gpus_by_node = [partial.gpus, *(node.gpus for node in machine.others)]
    cards = [gpu for gpus in gpus_by_node for gpu in gpus[:each]]
    if machine.link is None:
        return False, "the speed of their link is unknown, and stages use it least"
    if not cards or not partial.model.architecture:
        return False, "stages use their link least, and the model is unknown"
    if not all(are_alike(cards[0], gpu) for gpu in cards) or len(cards) < nodes * each:
        return (
            False,
            "their cards differ, and tensor parallel needs the same amount of memory on each",
        )
    if problem:
        return False, problem.fact
    speeds = [sum(card_speed(gpu).gb_s for gpu in gpus[:each]) * 1e9 for gpus in gpus_by_node]
    speeds = [speed * BANDWIDTH_REACHED for speed in speeds]
    faster, reason = compare_tensor_parallel(_token_work(partial), machine.link, speeds)
    return faster, f"tensor parallel over {nodes} nodes, [cluster]: {reason}" if faster else reason


def _token_work(partial: PartialPlan) -> TokenWork:
    """The work of one token of the usual request."""
    model, usual = partial.model, WORKLOADS[partial.config.policy.workload]
    parts = {"layers": 1.0, "experts": experts_read(model, 1), "head": 1.0}
    if not model.size("head"):
        parts["embedding"] = 1.0
    read = sum(
        of_rank(tensor.size, tensor, model, 1) * parts.get(tensor.part, 0.0)
        for tensor in model.weights
    )
    return TokenWork(
        hidden=model.hidden_size,
        layers=len(model.layer_types),
        vocabulary=model.vocab_size,
        element=element_bytes(str(partial.value("dtype") or model.dtype)),
        read=read,
        prompt=usual.prompt,
        answer=usual.answer,
        users=usual.users,
    )


def layer_partition(partial: PartialPlan) -> Setting | None:
    """The variable that assigns the layers, if vLLM's own rule is not the best."""
    candidate = partial.choice.candidate if partial.choice and not partial.why_unmodelled else None
    if candidate is None or not candidate.stages or PARTITION in dict(partial.config.engine.env):
        return None
    own = own_partition(len(partial.model.layer_types), len(candidate.stages))
    if candidate.stages == own:
        return None
    return policy(_comma_separated(candidate.stages), _why_dealt(partial, candidate, own))


def _why_dealt(partial: PartialPlan, candidate: Candidate, own: tuple[int, ...]) -> str:
    """Why the layers are dealt this way: more of the cache, or a faster slowest stage."""
    by_rule = candidate.but(stages=own)
    stages = Stages(partial.model, candidate, partial.cards)
    cards = ", ".join(
        f"{count} on {gpus[0].name} of {gpus[0].total_mib / 1024:.0f} GiB"
        for count, gpus in zip(candidate.stages, stages.gpus, strict=True)
    )
    tokens = [
        estimate(partial.model, each, partial.cards).kv_tokens for each in (candidate, by_rule)
    ]
    dealt = f"layers distributed by the cards' memory, {cards}"
    if tokens[0] > tokens[1]:
        rule_tokens = f"{tokens[1]}" if tokens[1] > 0 else "none"
        rule = f"vLLM's own rule ({_comma_separated(own)})"
        return f"{dealt}: the cache holds {tokens[0]} tokens, by {rule} {rule_tokens}"
    slow = [
        max(stages.seconds(*each) for each in spans(counts)) * 1e3
        for counts in (candidate.stages, own)
    ]
    return (
        f"{dealt}: the slowest stage reads its weights in {slow[0]:.3g} ms, with vLLM's own rule "
        f"({_comma_separated(own)}) in {slow[1]:.3g} ms (modelled)"
    )


def _comma_separated(stages: Sequence[int]) -> str:
    return ",".join(map(str, stages))
