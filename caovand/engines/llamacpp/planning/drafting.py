"""Whether and how far ahead the model drafts."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from caovand.core.config import AUTO_SPEC, MODES, Config, Mode, auto_spec
from caovand.core.facts.inventory import Inventory
from caovand.core.plan import Setting, Unplannable
from caovand.engines.llamacpp.planning import options

DEPTHS: dict[Mode, int] = {"auto": 3, "stable": 3, "fast": 4}
MTP, LOOKUP = "draft-mtp", "ngram-simple"
MOST = 8
TYPED = ("spec_type", "spec_draft_n_max", "model_draft", "md", "spec_draft_model")
"""Verbatim options that set the drafting themselves."""


def overruling(config: Config, environ: Mapping[str, str]) -> str:
    """What sets the depth instead of a chosen mode; "" for nothing."""
    given = options.values(options.read(config.engine.extra_args))
    for name in TYPED:
        if name in given:
            return f"{options.option(name)} is among [engine] extra_args"
    text = (auto_spec(config, environ) or "").strip()
    if text:
        return f"{AUTO_SPEC} is {text}"
    if config.policy.mtp is not None:
        return f"[policy] mtp is {config.policy.mtp}"
    return ""


def speculative_config(
    config: Config,
    inventory: Inventory,
    mode: Mode,
    environ: Mapping[str, str],
    given: Collection[str],
    *,
    on_cards: bool,
) -> Setting:
    """The way to draft and its depth; no value without drafting."""
    if any(name in given for name in TYPED):
        return Setting(None, "user", "drafting is set by options passed verbatim")
    depth, setting = _wanted(config, mode, (auto_spec(config, environ) or "").strip())
    has_head, typed = inventory.model.mtp_layers > 0, setting.origin == "user"
    method = MTP if has_head else LOOKUP
    if not depth:
        return setting
    if not has_head and (not typed or config.policy.mtp is None):
        return Setting(None, "policy", "the model has no MTP head, so nothing is drafted")
    if has_head and not typed and not on_cards:
        return Setting(
            None,
            "policy",
            "no drafts on a processor, which takes as long to verify a token as to generate it",
        )
    known = dict(inventory.engine.choices).get("--spec-type")
    if known is not None and method not in known:
        return Setting(None, "policy", f"this llama-server cannot draft with {method}")
    reason = setting.reason
    if method == LOOKUP:
        reason += (
            "; the model has no MTP head, so drafts are copied from earlier text of the request"
        )
    return Setting({"method": method, "num_speculative_tokens": depth}, setting.origin, reason)


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
