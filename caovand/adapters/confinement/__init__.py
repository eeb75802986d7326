"""Programs of an engine's environment, kept from what is caovan's."""

from caovand.adapters.confinement.confinement import Confinement, launching

__all__ = ["Confinement", "launching"]
