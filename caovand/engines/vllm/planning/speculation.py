"""The number of tokens that the model drafts for itself (MTP), and the obstacles to drafting.

Verbatim `--speculative-config` wins over CAOVAN_AUTO_SPEC, which wins over `[policy] mtp`, which
wins over the mode. The planner never makes a model without an MTP head draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from caovand.core.config.schema import AUTO_SPEC, MAX_DRAFT_DEPTH, MODES, Config, Mode, auto_spec
from caovand.core.plan import Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.drafting import billions_active, contested
from caovand.engines.common.tensors import has_few_active
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags import command_line
from caovand.engines.vllm.flags.spelling import PARTS_OF_SPECULATION, SPECULATION, count, option
from caovand.engines.vllm.machine.attention import cuts_latent_graphs
from caovand.engines.vllm.planning import drafters
from caovand.engines.vllm.planning.drafters import (
    drafting_corrupts_states,
    own_head_would_corrupt_states,
    plugin_keeps_states,
)
from caovand.engines.vllm.planning.parallel import why_stages_refuse_drafts
from caovand.engines.vllm.planning.partial_plan import PartialPlan, PlanOnCards, policy, user
from caovand.engines.vllm.sizing.space import WORKLOADS

LEAVES_MEMORY = "leaves memory for other settings, which is worth more here"
MANY_USERS = 16
"""The number of concurrent sequences from which the engine is a service: its cards compute, and
rejected drafts cost what others could use."""
ONE_DRAFT = ("deepseek", "glm")
"""Model types for which the publishers' vLLM recipes draft 1 token."""


def depth_of_mode(mode: Mode, gpus: int) -> tuple[int, str]:
    """The table of the modes: depth and reason."""
    if mode == "stable":
        return 3, "mode stable drafts 3 tokens on any number of GPUs"
    if mode == "fast":
        return 4, "mode fast drafts 4 tokens on any number of GPUs"
    if gpus > 2:
        return 4, f"mode auto drafts 4 tokens on more than 2 GPUs, here {gpus}"
    return 3, f"mode auto drafts 3 tokens on 1 or 2 GPUs, here {gpus}"


def _published_depth(partial: PartialPlan, depth: int) -> tuple[int, str]:
    """The depth that published results favour, if the policy is free to choose, and the reason."""
    if cuts_latent_graphs(partial.model, partial.engine, partial.cards):
        newer = releases.name(releases.LATENT_IN_WHOLE_GRAPHS)
        return 0, (
            f"vLLM {partial.engine.version} verifies drafts as it reads prompts in"
            f" TRITON_MLA, the only attention for MLA on these cards; {newer} does not"
        )
    flag = count(partial.verbatim.get("max_num_seqs")) or 0
    if flag >= MANY_USERS:
        reason = f"--max-num-seqs {flag} is for many users, whose throughput drafts can lower"
        return 0, f"{reason}; pass --speculative-config, or set [policy] mtp, to draft"
    users = partial.config.policy.max_num_seqs or WORKLOADS[partial.config.policy.workload].users
    if partial.model.model_type.startswith(ONE_DRAFT):
        return 1, "drafting 1 token, as the model's publishers do in their recipes for many users"
    few_active = has_few_active(partial.model)
    if users >= MANY_USERS and few_active:
        return 0, (
            f"with about {billions_active(partial.model)} active parameters drafts gained little "
            f"for one user in published runs, and {users} users keep the cards busy"
        )
    if users >= MANY_USERS:
        return (
            1,
            f"drafting 1 token: {users} users keep the cards busy, and rejected drafts cost them",
        )
    if few_active:
        return 1, (
            f'drafting 1 token: {contested(partial.model)}; [policy] tune = "suggest" measures it'
            " here"
        )
    return depth, ""


def speculative_config(partial: PartialPlan) -> Setting | None:
    wanted, setting = _requested_depth(partial)
    if any(name in partial.verbatim for name in PARTS_OF_SPECULATION):
        return policy(None, "verbatim flags control drafting")
    if not partial.generates and not partial.pinned("mtp"):
        return None
    if partial.model.drafter and wanted:
        return drafters.config_for(partial, partial.model.drafter, setting, wanted)
    if not partial.model.mtp_layers and partial.model.architecture:
        if wanted and setting.origin == "user" and partial.pinned("mtp"):
            raise Unplannable(
                f"cannot draft {wanted} tokens with MTP: the model has no MTP head; "
                'set mtp = "auto" or serve a checkpoint that has one'
            )
        asked = f", though {setting.reason}" if wanted and setting.origin == "user" else ""
        return policy(None, f"the model has no MTP head, so drafting is off{asked}")
    if not partial.model.architecture:
        return policy(
            None, "the model is not on this machine yet, so whether it can draft is unknown"
        )
    if not wanted:
        return Setting(None, setting.origin, setting.reason)
    refused = why_stages_refuse_drafts(partial.values, partial.inventory)
    if refused and setting.origin == "user" and partial.pinned("mtp"):
        raise Unplannable(f'cannot draft {wanted} tokens with MTP: {refused}; set mtp = "auto"')
    if refused:
        return policy(None, f"{refused}, so drafting is off")
    ends = uneven_drafts_end(partial)
    if ends and setting.origin != "user":
        return policy(None, f"{ends}, so drafting is off; [policy] mtp = {wanted} drafts anyway")
    whole, reason = _whole_rounds(wanted, partial.model.mtp_layers)
    if reason and setting.origin == "user" and partial.pinned("mtp"):
        raise Unplannable(f"cannot draft {wanted} tokens with MTP: {reason}; set mtp = {whole}")
    config = {"method": "mtp", "num_speculative_tokens": whole}
    reason = f"{setting.reason}, but {reason}" if reason else setting.reason
    return Setting(config, setting.origin, reason + _lost_prefixes(partial))


def _whole_rounds(wanted: int, layers: int) -> tuple[int, str]:
    """The depth that vLLM accepts for a head of `layers` layers, and why it is less than
    requested."""
    rest = wanted % layers if wanted > layers else 0
    reason = f"vLLM drafts multiples of the {layers} layers of this head" if rest else ""
    return wanted - rest, reason


def uneven_drafts_end(partial: PartialPlan) -> str:
    """Why a request may end the engine while this model drafts; empty if none can."""
    if partial.cuda or partial.model.linear is None:
        return ""
    return (
        f"the CPU build of vLLM {partial.engine.version} crashes on a Gated DeltaNet hybrid when"
        " requests of one step have different numbers of drafts, as JSON answers cause"
    )


def _lost_prefixes(partial: PartialPlan) -> str:
    """The cost of drafting if long prompts recur; the modelled time ignores prefix caching."""
    long = (
        partial.config.policy.workload == "long" and "enable_prefix_caching" not in partial.verbatim
    )
    if not long or not own_head_would_corrupt_states(partial):
        return ""
    return (
        "; while the model drafts, prefix caching is off and every prompt is read in full: "
        "[policy] mtp = 0 turns it on again"
    )


def async_scheduling(partial: PartialPlan) -> Setting | None:
    if not _corrupts_other_states(partial):
        return None
    return policy(
        False,
        f"with it, vLLM {partial.engine.version} can silently corrupt a request's state when"
        " drafting runs with other requests (vllm#51571)",
    )


def corruption_warnings(partial: PartialPlan) -> list[str]:
    """Warnings about the operator's settings that make this vLLM answer wrongly."""
    known = {
        "async_scheduling": (
            _corrupts_other_states(partial),
            "vllm#51571",
            "serve one request at a time ([policy] max_num_seqs = 1)",
        ),
        "enable_prefix_caching": (
            drafting_corrupts_states(partial),
            "vllm#43559",
            "turn drafting off ([policy] mtp = 0)",
        ),
    }
    fixed = releases.name(releases.DRAFTS_KEEP_STATES)
    ends = uneven_drafts_end(partial) if partial.mtp else ""
    return [
        *([f"{ends}; to be safe, turn drafting off ([policy] mtp = 0)"] if ends else []),
        *(
            f"{option(name)} while a hybrid model drafts: vLLM {partial.engine.version} can"
            f" silently corrupt answers ({where}); remove it, {remedy}, or use vLLM {fixed} or"
            " newer"
            for name, (corrupts, where, remedy) in known.items()
            if corrupts and partial.verbatim.get(name)
        ),
    ]


def _corrupts_other_states(partial: PartialPlan) -> bool:
    """Whether requests that corrupt each other's states will run together."""
    unfixed = plugin_keeps_states(partial) and not partial.value("enable_prefix_caching")
    return (drafting_corrupts_states(partial) or unfixed) and partial.value("max_num_seqs") != 1


def _requested_depth(partial: PartialPlan) -> tuple[int, Setting]:
    """The depth and its origin; the setting's value is not used."""
    gpus = partial.count("tensor_parallel_size")
    if partial.auto_spec is not None and partial.auto_spec.strip():
        return _from_environment(partial.auto_spec.strip().lower(), gpus)
    typed = partial.config.policy.mtp
    if typed is not None and partial.trial.depth is not None:
        return partial.trial.depth, policy(0, drafters.CANNOT_LOAD)
    if typed is not None:
        return typed, user(typed, f"[policy] mtp is {typed}")
    depth, reason = depth_of_mode(partial.mode, gpus)
    if partial.model.drafter:
        depth, reason = drafters.trained_depth(partial.model.drafter)
    elif partial.mode_setting.origin == "policy":
        depth, published = _published_depth(partial, depth)
        reason = published or reason
    fewer = partial.trial.depth
    if fewer is not None and partial.mode_setting.origin != "policy":
        return fewer, policy(fewer, f"{reason}, but {drafters.CANNOT_LOAD}")
    if fewer is not None:
        tokens = "1 token" if fewer == 1 else f"{fewer} tokens"
        drafts = f"drafting {tokens} instead of {depth}" if fewer else "drafting nothing"
        doubt = f"; {contested(partial.model)}" if has_few_active(partial.model) else ""
        return fewer, policy(fewer, f"{drafts} {LEAVES_MEMORY}{doubt}")
    return depth, Setting(depth, partial.mode_setting.origin, reason)


def smaller_depths(partial: PartialPlan) -> tuple[int, ...]:
    """Depths below the planned one that the policy may use instead, the deepest first."""
    ours = partial.settings.get("speculative_config")
    if ours is not None and ours.origin == "user" and _depth_is_the_modes(partial):
        return (0,) if drafters.cannot_be_loaded(partial) else ()
    if ours is None or ours.origin != "policy":
        return ()
    return (0,) if partial.model.drafter else tuple(n for n in (1, 0) if n < partial.mtp)


def _depth_is_the_modes(partial: PartialPlan) -> bool:
    """Whether the depth follows from a mode that the operator chose, and from nothing else."""
    return may_draft_nothing(partial) and partial.config.policy.mtp is None


def may_draft_nothing(partial: PartialPlan) -> bool:
    """Whether the operator's depth gives way if the cards cannot load a drafter: that of a mode or
    of [policy] mtp, unless it is pinned."""
    named = any(name in partial.verbatim for name in PARTS_OF_SPECULATION)
    demanded = (partial.auto_spec or "").strip() or partial.pinned("mtp")
    return partial.mtp > 0 and not named and not demanded


def _from_environment(text: str, gpus: int) -> tuple[int, Setting]:
    if text in MODES:
        depth, reason = depth_of_mode(next(mode for mode in MODES if mode == text), gpus)
        return depth, user(depth, f"{AUTO_SPEC} is {text}: {reason}")
    depths = {"off": 0, "none": 0, **{str(n): n for n in range(MAX_DRAFT_DEPTH + 1)}}
    if text not in depths:
        raise Unplannable(
            f'cannot use {AUTO_SPEC}="{text}": it is neither a depth nor a mode; '
            f"set it to 0-{MAX_DRAFT_DEPTH}, off, auto, stable or fast, or unset it"
        )
    return depths[text], user(depths[text], f"{AUTO_SPEC} is {text}")


def overruling(config: Config, environ: Mapping[str, str]) -> str:
    """The setting that overrides a chosen mode's depth, known before any plan; "" if none does."""
    verbatim = command_line.values(command_line.read(config.engine.extra_args))
    for name in SPECULATION:
        if name in verbatim:
            return f"{option(name)} is among [engine] extra_args"
    text = (auto_spec(config, environ) or "").strip()
    if text:
        return f"{AUTO_SPEC} is {text}"
    if config.policy.mtp is not None:
        return f"[policy] mtp is {config.policy.mtp}"
    own = verbatim.get("additional_config")
    if isinstance(own, Mapping) and "caovan_mode" in own:
        return f"caovan_mode of --additional-config is {own['caovan_mode']}"
    return ""


def drafting(placed: PlanOnCards) -> Iterator[Problem]:
    config, model = placed.plan.value("speculative_config"), placed.inventory.model
    if not isinstance(config, Mapping) or not model.architecture:
        return
    if str(config.get("method", "")).endswith("mtp") and not config.get("model"):
        fact = why_stages_refuse_drafts(placed.plan.values, placed.inventory)
        fact = fact if model.mtp_layers else "the model has no MTP head"
        if fact:
            yield Problem("draft with MTP", fact, "remove --speculative-config")
