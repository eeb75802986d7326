"""The CPU build: a modest cache, sized from the machine's memory so that it stays the same."""

from __future__ import annotations

from caovand.core.facts.inventory import ModelCard
from caovand.core.plan import Setting
from caovand.engines.vllm.memory.estimate import MIB, layout_for
from caovand.engines.vllm.memory.kv_cache import Layout
from caovand.engines.vllm.planning.draft import Draft, policy
from caovand.engines.vllm.planning.resize import asked_load
from caovand.engines.vllm.planning.spelling import count

MAX_OF_RAM = 16
REQUESTS = 2
STEP_MIB = 64
UNKNOWN_LIMIT = "config.json does not tell the model's limit: vLLM takes the longest that fits"


def _layout(draft: Draft, model: ModelCard) -> Layout:
    return layout_for(model, asked_load(draft))


def _most_bytes(draft: Draft) -> int:
    return max(draft.inventory.least_ram_mib // MAX_OF_RAM // STEP_MIB, 1) * STEP_MIB * MIB


def max_model_len(draft: Draft) -> Setting | None:
    model = draft.model
    if not model.layer_types or "kv_cache_memory_bytes" in draft.given:
        return None
    if not model.limit_known:
        return policy("auto", UNKNOWN_LIMIT)
    longest = _layout(draft, model).longest(_most_bytes(draft), model.max_model_len)
    if longest in (0, model.max_model_len):
        return None
    return policy(longest, f"the longest that fits {_most_bytes(draft) // MIB} MiB of cache")


def kv_cache_memory_bytes(draft: Draft) -> Setting | None:
    if draft.cuda:
        return None
    if not draft.model.layer_types:
        return policy(_most_bytes(draft), f"a {MAX_OF_RAM}th of the memory; the model is unknown")
    asked = count(draft.value("max_model_len"))
    if not asked and not draft.model.limit_known:
        return policy(_most_bytes(draft), f"a {MAX_OF_RAM}th of the memory; {UNKNOWN_LIMIT}")
    context = asked or draft.model.max_model_len
    one = _layout(draft, draft.model).needed(context)
    whole = -(-one * REQUESTS // (STEP_MIB * MIB)) * STEP_MIB * MIB
    if whole <= _most_bytes(draft):
        return policy(whole, f"room for {REQUESTS} requests of {context} tokens")
    least = -(-one // (STEP_MIB * MIB)) * STEP_MIB * MIB
    amount = max(least, _most_bytes(draft))
    return policy(amount, f"room for {amount / one:.1f} requests of {context} tokens")
