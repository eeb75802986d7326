"""The configurations that a field test compares; each changes one thing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from caovand.core.config.schema import Config

FORCE = "CAOVAN_SM75_FORCE"
"""Set to 1 in [engine] env, it enables caovan's kernels on cards they were not made for."""
TURING = (7, 5)


@dataclass(frozen=True)
class FieldTrial:
    """One way of serving the model, as a configuration."""

    name: str
    title: str
    config: Config


def quiet(config: Config, port: int) -> Config:
    """The same configuration with its own address, and nothing that interferes with a
    measurement."""
    return replace(
        config,
        server=replace(config.server, host="127.0.0.1", port=port),
        policy=replace(config.policy, tune="off"),
        watch=replace(config.watch, idle_probe_s=0.0),
        metrics=replace(config.metrics, listen=""),
        page=replace(config.page, listen=""),
        history=replace(config.history, days=0),
    )


ATTENTION_OFF = ("CAOVAN_ATTENTION", "off")
"""Leaves attention and the cache's writes to vLLM, and the other kernels on."""
CACHES = {"int4_per_token_head": "cache of 4 bits", "int8_per_token_head": "cache of 8 bits"}
"""vLLM's types that caovan's attention reads and writes; older releases of vLLM lack them."""
DRAFTS = (("CAOVAN_DRAFTER", "int8"), ("CAOVAN_DRAFT_VOCABULARY", "65536"))
"""Makes the plugin draft with fewer bytes."""


def trials(config: Config, cards: Sequence[int]) -> Iterator[FieldTrial]:
    """Every trial worth planning; `cards` are indices of the usable cards."""
    engine, policy = config.engine, config.policy
    yield FieldTrial("configured", "as configured", config)
    if engine.plugin:
        off = replace(engine, plugin=False)
        plain = replace(policy, lm_head=None)  # an int8 lm_head needs the kernels
        without = replace(config, engine=off, policy=plain)
        yield FieldTrial("kernels-off", "caovan's kernels off", without)
    if engine.kind in (None, "vllm"):
        for cache, title in CACHES.items():
            stored = replace(config, policy=replace(policy, kv_cache_dtype=cache))
            yield FieldTrial(f"{cache}-cache", title, stored)
            if engine.plugin:
                vllms = replace(engine, env=(*engine.env, ATTENTION_OFF))
                yield FieldTrial(
                    f"{cache}-cache-vllm", f"{title}, vLLM's attention",
                    replace(stored, engine=vllms),
                )  # fmt: skip
    other = "half" if policy.activations == "int8" else "int8"
    rounded = replace(policy, activations=other)
    yield FieldTrial(
        f"{other}-activations", f"{other} activations", replace(config, policy=rounded)
    )
    if engine.plugin:
        other = "half" if policy.lm_head == "int8" else "int8"
        yield FieldTrial(
            f"{other}-head", f"{other} lm_head",
            replace(config, policy=replace(policy, lm_head=other)),
        )  # fmt: skip
        drafts = replace(engine, env=(*engine.env, *DRAFTS))
        yield FieldTrial(
            "int8-drafts", "int8 lm_head and MTP layer, drafts of 65,536 tokens",
            replace(config, engine=drafts, policy=replace(policy, lm_head="int8")),
        )  # fmt: skip
    for count, title in ((1, "one card"), (2, "two cards")):
        if count < len(cards):
            fewer = replace(config, engine=replace(engine, gpus=tuple(cards[:count])))
            # Tensor parallelism in the file is meant for all cards.
            if policy.tensor_parallel_size is not None:
                fewer = replace(fewer, policy=replace(policy, tensor_parallel_size=count))
            yield FieldTrial(title.replace(" ", "-"), title, fewer)


def kernels_act(config: Config, capabilities: Sequence[tuple[int, int]]) -> bool:
    """Whether caovan's kernels are used on a card with one of these compute capabilities."""
    return (
        config.engine.plugin
        and bool(capabilities)
        and (TURING in capabilities or dict(config.engine.env).get(FORCE) == "1")
    )
