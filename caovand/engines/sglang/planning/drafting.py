"""Whether the model drafts with its own head (MTP, which SGLang calls NEXTN), and how many
tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from caovand.core.config.schema import Config, Mode
from caovand.core.facts.inventory import Inventory
from caovand.core.plan import Setting, Unplannable
from caovand.engines.common import drafting
from caovand.engines.common.tensors import has_few_active
from caovand.engines.sglang import options

METHOD = "NEXTN"
ALGORITHM = "speculative_algorithm"
TYPED = (ALGORITHM, "speculative_num_steps", "speculative_num_draft_tokens",
         "speculative_eagle_topk", "speculative_draft_model_path")  # fmt: skip
"""Verbatim options that configure drafting themselves, such as EAGLE with a draft model."""


def overruling(config: Config, environ: Mapping[str, str]) -> str:
    """The setting that overrides a chosen mode's depth; "" if none does."""
    typed = options.values(config.engine.extra_args)
    written = [options.option(name) for name in TYPED if name in typed]
    return drafting.overruling(config, environ, written)


def speculative_config(
    config: Config,
    inventory: Inventory,
    mode: Mode | None,
    environ: Mapping[str, str],
    typed: Mapping[str, Any],
) -> Setting:
    """The drafting method and its depth; no value without drafting."""
    if any(name in typed for name in TYPED):
        return Setting(None, "user", "verbatim options control drafting")
    depth, setting = drafting.depth(config, mode or config.policy.mode, environ)
    if not depth:
        return setting
    if not inventory.model.mtp_layers:
        if config.policy.mtp is not None:
            raise Unplannable(
                "cannot draft: the model has no MTP head; set [policy] mtp = 0, or pass"
                " --speculative-algorithm EAGLE3 and --speculative-draft-model-path in [engine]"
                " extra_args"
            )
        return Setting(None, "policy", "the model has no MTP head, so drafting is off")
    if setting.origin == "policy" and has_few_active(inventory.model):
        depth, reason = 1, f"drafting 1 token: {drafting.contested(inventory.model)}"
        setting = replace(setting, reason=reason)
    value = {"method": METHOD, "num_speculative_tokens": depth}
    return Setting(value, setting.origin, setting.reason)
