"""Sizing a draft: the load its settings amount to, and what may give way for the context.

TurboQuant caches are never chosen here: k8v4 unpacks whole contexts beside the cache, and in the
published runs it held no more tokens than an 8-bit one. They are there for who names them.
"""

from __future__ import annotations

from dataclasses import replace

from caovand.core.draft import Draft
from caovand.core.kv_cache import element_bytes
from caovand.core.memory import Load, free_share
from caovand.core.sizing import Sizing, Wishes, choose, wishes_of


def sized(draft: Draft) -> Draft:
    """The draft with its sizing; the vision tower may give way to context."""
    wishes = _realistic(wishes_of(draft.config, draft.given), draft)
    base = _base(draft)
    best = _choose(base, draft, wishes)
    if base.vision and _text_only_may_help(draft) and not _enough(best, draft):
        without = _choose(replace(base, vision=False), draft, wishes)
        if without.rank > best.rank:
            base, best = replace(base, vision=False), without
    return replace(draft, sizing=best)


def _choose(base: Load, draft: Draft, wishes: Wishes) -> Sizing:
    return choose(base, draft.model, draft.gpus, wishes, draft.host.ram_mib)


def _realistic(wishes: Wishes, draft: Draft) -> Wishes:
    """A typed share is a goal: no more than what is free, unless it is pinned or verbatim."""
    typed = "gpu_memory_utilization" not in draft.given
    room = int(free_share(draft.gpus) * 1000) / 1000
    if wishes.utilization is None or not typed or draft.pinned("gpu_memory_utilization"):
        return wishes
    return replace(wishes, utilization=min(wishes.utilization, room))


def _base(draft: Draft) -> Load:
    model = draft.model
    text_only = draft.given.get("language_model_only", draft.config.model.text_only)
    return Load(
        context=0,
        sequences=1,
        batch_tokens=0,
        utilization=0.0,
        tensor_parallel=draft.count("tensor_parallel_size"),
        mtp=draft.mtp,
        kv_dtype=str(draft.value("kv_cache_dtype") or "auto"),
        activation=element_bytes(str(draft.value("dtype") or model.dtype)),
        aligned_states=draft.value("mamba_cache_mode") == "align",
        vision=model.vision and not text_only and model.size("vision") > 0,
        turing=draft.turing,
        version=draft.engine.version,
    )


def _text_only_may_help(draft: Draft) -> bool:
    return "language_model_only" not in draft.given and draft.config.model.text_only is None


def _enough(sizing: Sizing, draft: Draft) -> bool:
    if not sizing.fits or sizing.step == "offloaded":
        return False
    asked = draft.config.model.max_model_len is not None or "max_model_len" in draft.given
    return asked or sizing.load.context >= draft.model.max_model_len // 2
