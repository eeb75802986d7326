"""Where an engine may read and write: all that others of its user may, but what is caovan's."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from caovand.adapters.confinement import Confinement
from caovand.adapters.files.directories import Directories
from caovand.adapters.launch import PROC
from caovand.core.config.schema import Config
from caovand.core.engine.record import Engine

CACHES = re.compile(
    r"(?:^|_)CACHE(?:_(?:DIR|ROOT|PATH|HOME))?$|^(?:HF|TORCH|TRITON)_HOME$|_MODELS$"
    r"|^(?:RAY_)?TMPDIR$|^TE?MP$|_PROFILER_DIR$|^CUDA_MPS_\w+_DIRECTORY$|^CCACHE_DIR$"
    r"|^XDG_(?:CONFIG|DATA)_HOME$|^VLLM_(?:CONFIG_ROOT|RPC_BASE_PATH|DEBUG_DUMP_PATH)$"
    r"|^FLASHINFER_(?:WORKSPACE_BASE|CUBIN_DIR)$|^TRITON_DUMP_DIR$"
    r"|^TORCH_(?:EXTENSIONS_DIR|TRACE|COMPILE_DEBUG_DIR)$"
)
"""Variables of engines and their libraries that name a folder to write to."""
OF_ALL = ("/tmp", "/var/tmp", "/dev/shm", PROC)
AT_HOME = (".ccache", ".config/vllm", ".cupy", ".deep_gemm", ".nv", ".tilelang", ".triton")
"""Where libraries write if no variable names a folder; none is made but the usual one, unless
XDG_CACHE_HOME names another."""
USUAL = ".cache"
PRIVATE = (
    ".aws", ".azure", ".bash_history", ".boto", ".config/containers", ".config/gcloud",
    ".config/gh", ".config/git/credentials", ".config/rclone", ".docker", ".git-credentials",
    ".gnupg", ".kube", ".local/share/keyrings", ".my.cnf", ".netrc", ".npmrc", ".oci",
    ".password-store", ".pgpass", ".pypirc", ".python_history", ".s3cfg", ".ssh", ".vault-token",
    ".zsh_history",
)  # fmt: skip
"""What its user keeps at home for other programs than engines; a store's keys go into variables."""
CUDA_CACHE = "CUDA_CACHE_PATH"
REPLACED = Path("/etc")
"""Where files that an engine reads are replaced while it runs, such as resolv.conf. To hide one
file there is to hide all that come later, which only a cluster's key is worth."""


def confinement(
    engine: Engine,
    config: Config,
    places: Directories,
    program: str,
    env: Mapping[str, str],
    model: str = "",
) -> Confinement | None:
    """What an engine's program may reach; None if it is not to be confined.

    `model` is what it serves, if it serves.
    """
    if not config.engine.confine:
        return None
    # Whoever puts all into one folder wants the engine's caches there, which it must write.
    ours = (
        place
        for place in (places.runtime, places.state, places.logs)
        if places.cache not in (place, *place.parents)
    )
    keys = filter(_can_be_hidden, (config.server.api_key_file, config.page.token_file))
    others = (config.cluster.key_file, *keys, *_at_home(env, PRIVATE))
    hidden = (*ours, *filter(os.path.exists, others))
    readable = (model, str(Path(program).parent.parent), config.model.chat_template)
    elsewhere = os.path.isabs(env.get("XDG_CACHE_HOME", ""))
    own = tuple(_at_home(env, engine.at_home if elsewhere else (USUAL, *engine.at_home)))
    common = filter(os.path.isdir, _at_home(env, (USUAL, *AT_HOME)))
    asked = _written(config.engine.extra_args, engine.writes)
    named = (value for name, value in env.items() if CACHES.search(name) and os.path.isabs(value))
    writable = (str(places.cache), *named, *own, *common, *OF_ALL, *asked, *config.engine.writable)
    return Confinement(tuple(map(str, hidden)), tuple(filter(os.path.isabs, readable)), writable)


def of_a_server(config: Config, places: Directories, readable: str = "") -> Confinement:
    """What the page or the gateway may reach: no file of ours but one that is named to it."""
    # In /etc, too: it reads nothing there that is replaced.
    named = (config.cluster.key_file, config.server.api_key_file, config.page.token_file)
    keys = (key for key in named if os.path.exists(key) and key != readable)
    hidden = (*map(str, (places.runtime, places.state, places.cache, places.logs)), *keys)
    # Who is sooner chosen when memory runs out: a number that it writes of itself.
    return Confinement(hidden, (readable,) if readable else (), ("/proc/self",), alone=True)


def readable_keys(config: Config) -> list[str]:
    """Files with keys that an engine has no use for, and cannot be kept from reading."""
    keys = (config.page.token_file,)
    return [key for key in keys if key and not _can_be_hidden(key)]


def _can_be_hidden(key: str) -> bool:
    return REPLACED not in Path(key).parents


def _written(words: Sequence[str], options: Collection[str]) -> Iterator[str]:
    """The folders that the operator's flags name for the engine to write to."""
    for word, following in zip(words, (*words[1:], ""), strict=False):
        name, equals, value = word.partition("=")
        path = value if equals else following
        if name in options and os.path.isabs(path):
            yield os.path.dirname(path) if name.endswith(("file", "uds")) else path


def _at_home(env: Mapping[str, str], names: Iterable[str]) -> Iterator[str]:
    home = env.get("HOME", "")
    return (os.path.join(home, name) for name in names if os.path.isabs(home))
