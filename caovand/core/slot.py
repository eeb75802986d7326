"""Names of slots: a slot is one served model with everything that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.config.schema import Config

MAIN_SLOT = "main"
"""The slot of a configuration file, which describes one model."""


def slots_of(config: Config) -> Mapping[str, Config]:
    """The slots of a configuration file, each with its configuration."""
    return {MAIN_SLOT: config}
