"""Whether and how far ahead the model drafts with its own head (MTP, which SGLang calls NEXTN)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.config import AUTO_SPEC, MODES, Config, Mode, auto_spec
from caovand.core.facts.inventory import Inventory
from caovand.core.plan import Setting, Unplannable
from caovand.engines.sglang.planning import options

DEPTHS: dict[Mode, int] = {"auto": 3, "stable": 3, "fast": 4}
METHOD = "NEXTN"
MOST = 8
ALGORITHM = "speculative_algorithm"
TYPED = (ALGORITHM, "speculative_num_steps", "speculative_num_draft_tokens",
         "speculative_eagle_topk", "speculative_draft_model_path")  # fmt: skip
"""Verbatim options that set the drafting themselves, such as EAGLE with a draft model."""


def overruling(config: Config, environ: Mapping[str, str]) -> str:
    """What sets the depth instead of a chosen mode; "" for nothing."""
    typed = options.values(config.engine.extra_args)
    for name in TYPED:
        if name in typed:
            return f"{options.option(name)} is among [engine] extra_args"
    text = (auto_spec(config, environ) or "").strip()
    if text:
        return f"{AUTO_SPEC} is {text}"
    return "" if config.policy.mtp is None else f"[policy] mtp is {config.policy.mtp}"


def speculative_config(
    config: Config,
    inventory: Inventory,
    mode: Mode | None,
    environ: Mapping[str, str],
    typed: Mapping[str, Any],
) -> Setting:
    """The way to draft and its depth; no value without drafting."""
    if any(name in typed for name in TYPED):
        return Setting(None, "user", "drafting is set by options passed verbatim")
    text = (auto_spec(config, environ) or "").strip()
    depth, setting = _wanted(config, mode or config.policy.mode, text)
    if not depth:
        return setting
    if not inventory.model.mtp_layers:
        if config.policy.mtp is not None:
            raise Unplannable(
                "cannot draft: the model has no MTP head; set [policy] mtp = 0, or pass"
                " --speculative-algorithm EAGLE3 and --speculative-draft-model-path in [engine]"
                " extra_args"
            )
        return Setting(None, "policy", "the model has no MTP head, so nothing is drafted")
    value = {"method": METHOD, "num_speculative_tokens": depth}
    return Setting(value, setting.origin, setting.reason)


def _wanted(config: Config, mode: Mode, text: str) -> tuple[int, Setting]:
    if text.isdecimal() and int(text) <= MOST:
        return int(text), Setting(None, "user", f"{AUTO_SPEC} is {text}")
    if text in MODES:
        return DEPTHS[text], Setting(None, "policy", f"{AUTO_SPEC} is {text}")
    if text:
        raise Unplannable(
            f"cannot use {AUTO_SPEC}={text}: it is neither a depth from 0 to {MOST} nor a mode;"
            f" use one of {', '.join(MODES)}"
        )
    if config.policy.mtp is not None:
        return config.policy.mtp, Setting(None, "user", f"[policy] mtp is {config.policy.mtp}")
    reason = f"mode {mode} drafts {DEPTHS[mode]} tokens"
    if mode != "auto":
        return DEPTHS[mode], Setting(None, "user", reason)
    if config.policy.workload == "batch":
        return 0, Setting(None, "policy", "many users fill each step without drafts")
    return DEPTHS[mode], Setting(None, "policy", reason)
