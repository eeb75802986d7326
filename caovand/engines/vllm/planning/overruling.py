"""What sets the drafting depth instead of the mode that `caovanctl mode` chooses."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.config import AUTO_SPEC, Config, auto_spec
from caovand.engines.vllm.planning import flags
from caovand.engines.vllm.planning.spelling import PARTS_OF_SPECULATION, option


def overruling(config: Config, environ: Mapping[str, str]) -> str:
    """What sets the depth in the place of a chosen mode, known before any plan; "" for nothing."""
    given = flags.values(flags.read(config.engine.extra_args))
    for name in ("speculative_config", *PARTS_OF_SPECULATION):
        if name in given:
            return f"{option(name)} is among [engine] extra_args"
    text = (auto_spec(config, environ) or "").strip()
    if text:
        return f"{AUTO_SPEC} is {text}"
    if config.policy.mtp is not None:
        return f"[policy] mtp is {config.policy.mtp}"
    own = given.get("additional_config")
    if isinstance(own, Mapping) and "caovan_mode" in own:
        return f"caovan_mode of --additional-config is {own['caovan_mode']}"
    return ""
