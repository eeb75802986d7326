"""Whether the model drafts, and how many tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from caovand.core.config.schema import Config, Mode
from caovand.core.facts.inventory import Inventory
from caovand.core.plan import Setting
from caovand.engines.common import drafting
from caovand.engines.common.options import values
from caovand.engines.llamacpp.planning import options

MTP, LOOKUP = "draft-mtp", "ngram-simple"
ONE_DRAFT = (
    "one draft: every further draft reads its own experts (GLM-4.5-Air on four 3090s was 1.17 to"
    " 1.20 times as fast with one; llama.cpp pull request 26534)"
)
TYPED = ("spec_type", "spec_draft_n_max", "model_draft", "md", "spec_draft_model")
"""Verbatim options that configure drafting themselves."""


def overruling(config: Config, environ: Mapping[str, str]) -> str:
    """The setting that overrides a chosen mode's depth; "" if none does."""
    typed = values(options.read(config.engine.extra_args))
    written = [options.option(name) for name in TYPED if name in typed]
    return drafting.overruling(config, environ, written)


def speculative_config(
    config: Config,
    inventory: Inventory,
    mode: Mode,
    environ: Mapping[str, str],
    verbatim: Collection[str],
    *,
    on_cards: bool,
) -> Setting:
    """The drafting method and its depth; no value without drafting."""
    if any(name in verbatim for name in TYPED):
        return Setting(None, "user", "verbatim options control drafting")
    depth, setting = drafting.depth(config, mode, environ)
    has_head, typed = inventory.model.mtp_layers > 0, setting.origin == "user"
    method = MTP if has_head else LOOKUP
    if not depth:
        return setting
    if not has_head and (not typed or config.policy.mtp is None):
        return Setting(None, "policy", "the model has no MTP head, so drafting is off")
    if has_head and not typed and not on_cards:
        return Setting(
            None,
            "policy",
            "no drafts on the CPU, where verifying a token takes as long as generating it",
        )
    known = dict(inventory.engine.choices).get("--spec-type")
    if known is not None and method not in known:
        return Setting(None, "policy", f"this llama-server cannot draft with {method}")
    reason = setting.reason
    if has_head and inventory.model.experts and not typed:
        depth, reason = 1, ONE_DRAFT
    if method == LOOKUP:
        reason += (
            "; the model has no MTP head, so drafts are copied from earlier text of the request"
        )
    return Setting({"method": method, "num_speculative_tokens": depth}, setting.origin, reason)
