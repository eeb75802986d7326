"""Model types that Transformers does not know, and packages that a model's own code imports."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.engines.common.logs.signature import SERVED, signature

ROWS = (
    # Transformers logs it before it lists the packages that the model's own code needs
    signature("python.asked", "generic", "bad-arguments",
         r"Encountered exception while importing (?P<asked>[\w.]{1,80}): No module named "
         r"'(?P<lacking>\w{1,60})", SERVED),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "python.asked": (
        "The model's own code imports {asked}, and the package {lacking} is not installed: pip "
        "install {lacking} into the engine's environment, in a container into an image built on "
        "the engine's (FROM ... RUN pip install {lacking}). The model's page names the packages "
        "whose name differs from the module's.",
    ),
}

OF_PART = (
    "{model_type} is not the type of a model, but of its part ({part}): config.json comes from "
    "a fine-tune that was saved without the rest. If the base model (of type {whole} or alike) "
    "can be served here, upgrading does not help: save the fine-tune with its whole "
    "configuration, its weights named accordingly, or ask who published it for such a one."
)
OF_TEXT = (
    "{text_part} may also be the type of the text part of a multimodal model, saved by a "
    "fine-tune without the rest: then its config.json needs the base model's configuration."
)
NEWER_ENGINE = (
    OF_PART,
    "The installed Transformers does not know the model type {model_type}, and a release of the "
    "engine that is as old usually has no code for the model either: install a newer release or "
    "image of the engine first, which brings the Transformers that it needs.",
    "Upgrade Transformers alone (pip install --upgrade transformers) only if the engine's release "
    "supports the model, and as far as the engine's requirements allow (`pip check`). For a model "
    "of the last days both may have to come from a nightly build or their sources. If other models "
    "fail likewise, check model_type in config.json.",
    OF_TEXT,
)
"""Advice on a model type that is unknown to the Transformers of an engine."""
