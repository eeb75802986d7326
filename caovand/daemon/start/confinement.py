"""Where an engine may read and write: all that others of its user may, but what is caovan's."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from caovand.adapters.confinement.launch import PROC
from caovand.adapters.confinement.popen import Confinement
from caovand.adapters.files.directories import Directories
from caovand.core.config.schema import Config
from caovand.core.engine.record import Engine

LIBRARIES = re.compile(
    r"^(?:AMD_COMGR|CUDA|CUPY|CUTE_DSL|DATA_GYM|DEEP_GEMM|DG|FLASHINFER|FLASH_ATTENTION|FLYDSL|HELION"
    r"|HF|HUGGINGFACE|LMCACHE|MIOPEN|MODELSCOPE|NUMBA|OUTLINES|PYTORCH|QUACK|TIKTOKEN"
    r"|TILELANG|TORCH|TORCHINDUCTOR|TRANSFORMERS|TRITON|TVM|VLLM|XGRAMMAR)_"
)
"""Whose caches an engine may write to: those of package managers hold other programs' code."""
CACHES = re.compile(r"(?:^|_)CACHE(?:_(?:DIR|ROOT|PATH|HOME))?$|_PROFILER_DIR$")
FOLDERS = re.compile(
    r"^(?:(?:HF|TORCH|TRITON)_HOME|(?:RAY_)?TMPDIR|TE?MP|CUDA_MPS_\w+_DIRECTORY"
    r"|CCACHE_DIR|VLLM_(?:CONFIG_ROOT|RPC_BASE_PATH|DEBUG_DUMP_PATH)"
    r"|FLASHINFER_(?:WORKSPACE_BASE|CUBIN_DIR)|TRITON_DUMP_DIR"
    r"|TORCH_(?:EXTENSIONS_DIR|TRACE|COMPILE_DEBUG_DIR))$"
)
"""Other variables of engines and their libraries that name a folder to write to."""
OF_ALL = ("/tmp", "/var/tmp", "/dev/shm", PROC)
AT_HOME = (".cupy", ".deep_gemm", ".nv", ".tilelang", ".triton")
IN_CACHE = (
    "comgr", "cuda-python", "cutile-python", "deep_gemm", "flashinfer", "huggingface", "lmcache",
    "miopen", "modelscope", "numba", "nvidia", "outlines", "tilelang", "torch", "torch_extensions",
    "torch_inductor", "triton", "tvm-ffi", "vllm",
)  # fmt: skip
IN_CONFIG = ("vllm",)
"""Where libraries write if no variable names a folder, at home and in ~/.cache and ~/.config or
what XDG_CACHE_HOME and XDG_CONFIG_HOME name; only the engine's own are made. All of ~/.cache would
be too much: uv links installed programs to it."""
PRIVATE = (
    ".aws", ".azure", ".bash_history", ".boto", ".config/containers", ".config/gcloud",
    ".config/gh", ".config/git/credentials", ".config/rclone", ".docker", ".git-credentials",
    ".gnupg", ".kube", ".local/share/keyrings", ".my.cnf", ".netrc", ".npmrc", ".oci",
    ".password-store", ".pgpass", ".pypirc", ".python_history", ".s3cfg", ".ssh", ".vault-token",
    ".zsh_history",
)  # fmt: skip
"""What its user keeps at home for other programs than engines; a store's keys go into variables."""
OWN_CACHES = {"CUDA_CACHE_PATH": "cuda", "CCACHE_DIR": "ccache"}
"""Variables that lead to folders of caovan's cache, if nobody set them: builds of other programs
take objects from ccache's usual one."""
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
    asked = _written(config.engine.extra_args, engine.writes)
    named = _named(env, engine.folders, dict(config.engine.env))
    # In caovan's cache each library makes its own.
    usual = (path for path in _usual(engine, env) if places.cache not in Path(path).parents)
    writable = (str(places.cache), *named, *usual, *OF_ALL, *asked, *config.engine.writable)
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


def _named(env: Mapping[str, str], own: Collection[str], chosen: Collection[str]) -> Iterator[str]:
    """The folders that variables name: the engine's `own`, its libraries', caches in `chosen`.

    Those that the configuration sets are chosen, for the engine alone.
    """
    for name, value in env.items():
        cache = CACHES.search(name) and (LIBRARIES.match(name) or name in chosen)
        written = name in own or cache or FOLDERS.match(name)
        if written and name != "XDG_CACHE_HOME" and os.path.isabs(value):
            yield value


def _usual(engine: Engine, env: Mapping[str, str]) -> Iterator[str]:
    """Where the engine and its libraries write if no variable names a folder."""
    caches, settings = _xdg(env, "CACHE"), _xdg(env, "CONFIG")
    yield from (os.path.join(folder, name) for folder in caches[:1] for name in engine.caches)
    yield from _at_home(env, engine.at_home)
    libraries = (
        *_at_home(env, AT_HOME),
        *(os.path.join(folder, name) for folder in caches for name in IN_CACHE),
        *(os.path.join(folder, name) for folder in settings for name in IN_CONFIG),
    )
    yield from filter(os.path.isdir, libraries)


def _xdg(env: Mapping[str, str], kind: str) -> list[str]:
    """The folder that XDG_`kind`_HOME names, and the usual one: not all libraries ask for it."""
    named = env.get(f"XDG_{kind}_HOME", "")
    return [*filter(os.path.isabs, (named,)), *_at_home(env, (f".{kind.lower()}",))]


def _at_home(env: Mapping[str, str], names: Iterable[str]) -> Iterator[str]:
    home = env.get("HOME", "")
    return (os.path.join(home, name) for name in names if os.path.isabs(home))
