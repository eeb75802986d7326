"""Paths that an engine may read and write: all that its user can, except caovan's."""

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
"""Libraries to whose caches an engine may write; caches of package managers hold other programs'
code."""
CACHES = re.compile(r"(?:^|_)CACHE(?:_(?:DIR|ROOT|PATH|HOME))?$|_PROFILER_DIR$")
FOLDERS = re.compile(
    r"^(?:(?:HF|TORCH|TRITON)_HOME|(?:RAY_)?TMPDIR|TE?MP|CUDA_MPS_\w+_DIRECTORY"
    r"|CCACHE_DIR|VLLM_(?:CONFIG_ROOT|RPC_BASE_PATH|DEBUG_DUMP_PATH)"
    r"|FLASHINFER_(?:WORKSPACE_BASE|CUBIN_DIR)|TRITON_DUMP_DIR"
    r"|TORCH_(?:EXTENSIONS_DIR|TRACE|COMPILE_DEBUG_DIR))$"
)
"""Other variables of engines and their libraries that name a folder to write to."""
SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", PROC)
AT_HOME = (".cupy", ".deep_gemm", ".nv", ".tilelang", ".triton")
IN_CACHE = (
    "comgr", "cuda-python", "cutile-python", "deep_gemm", "flashinfer", "huggingface", "lmcache",
    "miopen", "modelscope", "numba", "nvidia", "outlines", "tilelang", "torch", "torch_extensions",
    "torch_inductor", "triton", "tvm-ffi", "vllm",
)  # fmt: skip
IN_CONFIG = ("vllm",)
"""Folders where libraries write if no variable names one: at home, and in ~/.cache and ~/.config or
the folders in XDG_CACHE_HOME and XDG_CONFIG_HOME; only the engine's own are created. Access to all
of ~/.cache would be too much: uv links installed programs to it."""
PRIVATE = (
    ".aws", ".azure", ".bash_history", ".boto", ".config/containers", ".config/gcloud",
    ".config/gh", ".config/git/credentials", ".config/rclone", ".docker", ".git-credentials",
    ".gnupg", ".kube", ".local/share/keyrings", ".my.cnf", ".netrc", ".npmrc", ".oci",
    ".password-store", ".pgpass", ".pypirc", ".python_history", ".s3cfg", ".ssh", ".vault-token",
    ".zsh_history",
)  # fmt: skip
"""Files in its user's home that belong to programs other than engines; credentials for a store are
passed as variables."""
OWN_CACHES = {"CUDA_CACHE_PATH": "cuda", "CCACHE_DIR": "ccache"}
"""Variables that point to folders in caovan's cache unless set otherwise: builds of other programs
use objects from the default ccache."""
REPLACED = Path("/etc")
"""Folder whose files are replaced while an engine reads them, such as resolv.conf. Hiding one file
there also hides all files created later, which only a cluster's key justifies."""


def confinement(
    engine: Engine,
    config: Config,
    places: Directories,
    program: str,
    env: Mapping[str, str],
    model: str = "",
) -> Confinement | None:
    """Return the paths that an engine's program may access; None if it is not confined.

    `model` is the served model, if any.
    """
    if not config.engine.confine:
        return None
    # If everything is in one folder, the engine's caches are too, and it must write to them.
    ours = (
        place
        for place in (places.runtime, places.state, places.logs)
        if places.cache not in (place, *place.parents)
    )
    keys = filter(_can_be_hidden, (config.server.api_key_file, config.page.token_file))
    others = (config.cluster.key_file, *keys, *_at_home(env, PRIVATE))
    hidden = (*ours, *filter(os.path.exists, others))
    readable = (
        model,
        str(Path(program).parent.parent),
        config.model.chat_template,
        config.model.drafter,
    )
    asked = _flag_folders(config.engine.extra_args, engine.writes)
    named = _variable_folders(env, engine.folders, dict(config.engine.env))
    # In caovan's cache each library creates its own folder.
    usual = (
        path for path in _default_folders(engine, env) if places.cache not in Path(path).parents
    )
    writable = (str(places.cache), *named, *usual, *SHARED_FOLDERS, *asked, *config.engine.writable)
    return Confinement(tuple(map(str, hidden)), tuple(filter(os.path.isabs, readable)), writable)


def server_confinement(config: Config, places: Directories, readable: str = "") -> Confinement:
    """Return the paths that the page or the gateway may access: of caovan's files only the named
    one."""
    # Hide those in /etc too: it reads no file there that is replaced.
    named = (config.cluster.key_file, config.server.api_key_file, config.page.token_file)
    keys = (key for key in named if os.path.exists(key) and key != readable)
    hidden = (*map(str, (places.runtime, places.state, places.cache, places.logs)), *keys)
    # It writes its own oom_score_adj, so that it is killed first when memory runs out.
    return Confinement(hidden, (readable,) if readable else (), ("/proc/self",), alone=True)


def readable_keys(config: Config) -> list[str]:
    """Key files that an engine does not need, but that cannot be hidden from it."""
    keys = (config.page.token_file,)
    return [key for key in keys if key and not _can_be_hidden(key)]


def _can_be_hidden(key: str) -> bool:
    return REPLACED not in Path(key).parents


def _flag_folders(words: Sequence[str], options: Collection[str]) -> Iterator[str]:
    """Folders that the operator's flags let the engine write to."""
    for word, following in zip(words, (*words[1:], ""), strict=False):
        name, equals, value = word.partition("=")
        path = value if equals else following
        if name in options and os.path.isabs(path):
            yield os.path.dirname(path) if name.endswith(("file", "uds")) else path


def _variable_folders(
    env: Mapping[str, str], own: Collection[str], chosen: Collection[str]
) -> Iterator[str]:
    """Folders named by variables: the engine's `own`, its libraries', and caches in `chosen`.

    Only variables set in the configuration count, because those are for the engine alone.
    """
    for name, value in env.items():
        cache = CACHES.search(name) and (LIBRARIES.match(name) or name in chosen)
        written = name in own or cache or FOLDERS.match(name)
        if written and name != "XDG_CACHE_HOME" and os.path.isabs(value):
            yield value


def _default_folders(engine: Engine, env: Mapping[str, str]) -> Iterator[str]:
    """Folders to which the engine and its libraries write if no variable names another."""
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
    """The folder in XDG_`kind`_HOME, and the default one, because not all libraries read the
    variable."""
    named = env.get(f"XDG_{kind}_HOME", "")
    return [*filter(os.path.isabs, (named,)), *_at_home(env, (f".{kind.lower()}",))]


def _at_home(env: Mapping[str, str], names: Iterable[str]) -> Iterator[str]:
    home = env.get("HOME", "")
    return (os.path.join(home, name) for name in names if os.path.isabs(home))
