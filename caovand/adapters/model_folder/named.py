"""Read a model that its engine stores under a name: its entry, and the GGUF file's header."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from caovand.adapters.model_folder.folder import no_model_problem, read_gguf
from caovand.adapters.model_folder.tables import ModelProblem, read_table
from caovand.core.checkpoint.budget import Budget
from caovand.core.config.schema import Config
from caovand.core.engine.named_models import NamedModels
from caovand.core.facts.inventory import ModelCard


def read_named(models: NamedModels, config: Config, environ: Mapping[str, str]) -> ModelCard:
    """The card for [model] path, the name of one of `models`; its path is the GGUF file's.

    Raises ModelProblem.
    """
    name = config.model.path
    if not name:
        raise no_model_problem()
    entry = models.entry(name)
    for folder in models.folders(config, environ) if entry else ():
        place = Path(os.path.abspath(folder))
        table = read_table(place, entry, Budget(time.thread_time))
        if table is None:
            continue
        weights = models.weights(table)
        if not weights:
            raise ModelProblem(
                f"serve model {name}", f"{place / entry} names no GGUF file", "choose another model"
            )
        return read_gguf(place / weights)
    problem = models.missing(name)
    raise ModelProblem(problem.cannot, problem.fact, problem.remedy)
