"""How deep the model drafts for itself (MTP): DynamicTP, the modes and who overrules whom.

Verbatim `--speculative-config` wins over CAOVAN_AUTO_SPEC, that over `[policy] mtp`, that over
the mode. The planner never asks a model with no MTP head to draft.
"""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core import flags, releases
from caovand.core.config import MODES, Config, Mode
from caovand.core.draft import Draft, Unplannable, policy, user
from caovand.core.plan import Setting

AUTO_SPEC = "CAOVAN_AUTO_SPEC"
DEEPEST = 8
OTHER_WAYS = ("spec_method", "spec_model", "spec_tokens")
"""Flags of newer engines that stand for parts of `--speculative-config`."""


def depth_of_mode(mode: Mode, gpus: int) -> tuple[int, str]:
    """The table of the modes: depth and reason."""
    if mode == "stable":
        return 3, "mode stable drafts 3 tokens on any number of GPUs"
    if mode == "fast":
        return 4, "mode fast drafts 4 tokens on any number of GPUs"
    if gpus > 2:
        return 4, f"mode auto drafts 4 tokens on more than 2 GPUs, here {gpus}"
    return 3, f"mode auto drafts 3 tokens on 1 or 2 GPUs, here {gpus}"


def spec_of_environment(config: Config, auto_spec: str | None) -> str | None:
    """CAOVAN_AUTO_SPEC of our own environment, else of the one that the engine is given."""
    return auto_spec if auto_spec is not None else dict(config.engine.env).get(AUTO_SPEC)


def overruling(config: Config, auto_spec: str | None) -> str:
    """What sets the depth in the place of a chosen mode, known before any plan; "" for nothing."""
    given = flags.values(flags.read(config.engine.extra_args))
    for name in ("speculative_config", *OTHER_WAYS):
        if name in given:
            return f"{flags.option(name)} is among [engine] extra_args"
    text = (spec_of_environment(config, auto_spec) or "").strip()
    if text:
        return f"{AUTO_SPEC} is {text}"
    if config.policy.mtp is not None:
        return f"[policy] mtp is {config.policy.mtp}"
    own = given.get("additional_config")
    if isinstance(own, Mapping) and "caovan_mode" in own:
        return f"caovan_mode of --additional-config is {own['caovan_mode']}"
    return ""


def speculative_config(draft: Draft) -> Setting | None:
    wanted, setting = _wanted(draft)
    if any(name in draft.given for name in OTHER_WAYS):
        return policy(None, "speculation is set by flags given verbatim")
    if not draft.model.mtp_layers and draft.model.architecture:
        if wanted and setting.origin == "user" and draft.pinned("mtp"):
            raise Unplannable(
                f"cannot draft {wanted} tokens with MTP: the model has no MTP head; "
                'set mtp = "auto" or serve a checkpoint that has one'
            )
        asked = f", though {setting.reason}" if wanted and setting.origin == "user" else ""
        return policy(None, f"the model has no MTP head, so nothing is drafted{asked}")
    if not draft.model.architecture:
        return policy(None, "the model is not on this machine yet: unknown whether it can draft")
    if not wanted:
        return Setting(None, setting.origin, setting.reason)
    config = {"method": "mtp", "num_speculative_tokens": wanted}
    return Setting(config, setting.origin, setting.reason)


def async_scheduling(draft: Draft) -> Setting | None:
    if not _spoils_neighbours(draft):
        return None
    return policy(
        False,
        f"with it, vLLM {draft.engine.vllm} may let a request that drafts go on from a wrong state"
        " when others come and go beside it, and says nothing (vllm#51571)",
    )


def spoiling_warnings(draft: Draft) -> list[str]:
    """What the operator asks for where it spoils answers."""
    known = {
        "async_scheduling": (
            _spoils_neighbours(draft),
            "vllm#51571",
            "serve one request at a time ([policy] max_num_seqs = 1)",
        ),
        "enable_prefix_caching": (
            draft.drafts_spoil_states,
            "vllm#43559",
            "draft nothing ([policy] mtp = 0)",
        ),
    }
    mended = releases.name(releases.DRAFTS_KEEP_STATES)
    return [
        f"{flags.option(name)} while a hybrid model drafts: vLLM {draft.engine.vllm} can spoil"
        f" answers, and says nothing ({where}); remove it, {remedy}, or use vLLM {mended} or newer"
        for name, (spoils, where, remedy) in known.items()
        if spoils and draft.given.get(name)
    ]


def _spoils_neighbours(draft: Draft) -> bool:
    """Whether requests that spoil each other's states will run beside each other."""
    return draft.drafts_spoil_states and draft.value("max_num_seqs") != 1


def _wanted(draft: Draft) -> tuple[int, Setting]:
    """The depth and where it comes from; the setting's value is not used."""
    gpus = draft.count("tensor_parallel_size")
    if draft.auto_spec is not None and draft.auto_spec.strip():
        return _from_environment(draft.auto_spec.strip().lower(), gpus)
    typed = draft.config.policy.mtp
    if typed is not None:
        return typed, user(typed, f"[policy] mtp is {typed}")
    depth, reason = depth_of_mode(draft.mode, gpus)
    return depth, Setting(depth, draft.mode_setting.origin, reason)


def _from_environment(text: str, gpus: int) -> tuple[int, Setting]:
    if text in MODES:
        depth, reason = depth_of_mode(next(mode for mode in MODES if mode == text), gpus)
        return depth, user(depth, f"{AUTO_SPEC} is {text}: {reason}")
    depths = {"off": 0, "none": 0, **{str(n): n for n in range(DEEPEST + 1)}}
    if text not in depths:
        raise Unplannable(
            f'cannot use {AUTO_SPEC}="{text}": it is no depth and no mode; '
            f"set it to 0-{DEEPEST}, off, auto, stable or fast, or unset it"
        )
    return depths[text], user(depths[text], f"{AUTO_SPEC} is {text}")
