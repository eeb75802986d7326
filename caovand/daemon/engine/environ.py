"""The environment of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from caovand.adapters.privileges import engine_user
from caovand.preparation.confinement import OWN_CACHES


def engine_environ(
    inherited: Mapping[str, str], cache: str, temporary: Path | None, planned: Mapping[str, str]
) -> dict[str, str]:
    """Combine inherited and planned variables with the caches in `cache`, the folder for temporary
    files and the engines' user."""
    env = dict(inherited)
    if temporary is not None:
        env["TMPDIR"] = str(temporary)
    for variable, name in OWN_CACHES.items():
        env.setdefault(variable, f"{cache}/{name}")
    if user := engine_user.current():
        env.update(USER=user.name, LOGNAME=user.name)
    return {**env, **planned}
