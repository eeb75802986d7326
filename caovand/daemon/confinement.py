"""Where an engine may read and write: all that others of its user may, but what is caovan's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from caovand.adapters.child import Confinement
from caovand.adapters.directories import Directories
from caovand.core.config import Config
from caovand.core.plan import Plan

CACHES = re.compile(
    r"(?:^|_)CACHE(?:_(?:DIR|ROOT|PATH|HOME))?$|^(?:HF|TORCH|TRITON)_HOME$|^OLLAMA_MODELS$"
    r"|^TMPDIR$|_PROFILER_DIR$"
)
"""Variables of engines and their libraries that name a folder to write to."""
OF_ALL = ("/tmp", "/var/tmp", "/dev/shm")
AT_HOME = (".cache", ".config/vllm", ".nv", ".ollama", ".triton")
"""Where libraries write if no variable names a folder."""
CUDA_CACHE = "CUDA_CACHE_PATH"


def confinement(
    config: Config, places: Directories, plan: Plan, python: str, env: Mapping[str, str]
) -> Confinement | None:
    """What an engine with this environment may reach; None where it is not to be confined."""
    if not config.engine.confine:
        return None
    keys = (config.server.api_key_file, config.page.token_file, config.cluster.key_file)
    hidden = (places.runtime, places.state, places.logs, *filter(os.path.exists, keys))
    readable = (plan.model, str(Path(python).parent.parent), config.model.chat_template)
    writable = (str(places.cache), *_named(env), *_at_home(env), *OF_ALL, *config.engine.writable)
    return Confinement(
        tuple(map(str, hidden)), tuple(filter(os.path.isabs, readable)), tuple(writable)
    )


def _named(env: Mapping[str, str]) -> Iterator[str]:
    return (value for name, value in env.items() if CACHES.search(name) and os.path.isabs(value))


def _at_home(env: Mapping[str, str]) -> Iterator[str]:
    home = env.get("HOME", "")
    places = (os.path.join(home, name) for name in AT_HOME)
    return (place for place in places if os.path.isabs(place) and os.path.isdir(place))
