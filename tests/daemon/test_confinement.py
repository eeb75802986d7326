"""Which folders an engine may write to, and what it must not read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from caovand.adapters.files.directories import Directories
from caovand.core.config.schema import Config
from caovand.preparation.confinement import confinement, readable_keys, server_confinement
from tests.fake_engine import ENGINE


def test_it_writes_to_caches_and_reads_no_key(tmp_path: Path) -> None:
    names = ("run", "state", "cache", "log")
    places = Directories(*[tmp_path / name for name in names])
    (tmp_path / "key").touch()
    for name in (".triton", ".ssh", ".aws", ".config/gcloud"):
        (tmp_path / name).mkdir(parents=True)
    config = Config()
    config = replace(
        config,
        model=replace(config.model, chat_template="/srv/chat.jinja", drafter="/srv/drafter"),
        server=replace(config.server, api_key_file=str(tmp_path / "key")),
        engine=replace(
            config.engine,
            writable=("/srv/loras",),
            extra_args=("--download-dir", "/srv/hub", "--uds=/srv/run/socket", "--port", "/no"),
        ),
    )
    env = {
        "HOME": str(tmp_path), "HF_HOME": "/srv/hf", "FLASHINFER_CACHE_DIR": "/srv/fi",
        "TMPDIR": "/srv/tmp", "CUDA_HOME": "/usr/local/cuda", "PATH": "/usr/bin",
        "VLLM_CACHE_ROOT": "relative", "TORCH_EXTENSIONS_DIR": "/srv/ext",
    }  # fmt: skip
    engine = replace(
        ENGINE, at_home=(".tabby",), caches=("hub",), writes=("--download-dir", "--uds")
    )
    found = confinement(engine, config, places, "/opt/engine/bin/python", env)
    assert found is not None
    assert set(found.hidden) == {
        str(tmp_path / name)
        for name in ("run", "state", "log", "key", ".ssh", ".aws", ".config/gcloud")
    }
    assert {"/opt/engine", "/srv/chat.jinja", "/srv/drafter"} <= set(found.readable)
    asked = {
        *(str(tmp_path / name) for name in ("cache", ".cache/hub", ".tabby", ".triton")),
        "/srv/hf",
        "/srv/fi",
        "/srv/tmp",
        "/srv/ext",
        "/srv/hub",
        "/srv/run",
    }
    assert set(found.writable) == asked | {"/srv/loras", "/tmp", "/var/tmp", "/dev/shm", "/proc"}


def written(tmp_path: Path, env: dict[str, str], **engine: tuple[str, ...]) -> set[str]:
    """The folders that an engine may write to with these variables, but those of all."""
    places = Directories(*[tmp_path / name for name in ("run", "state", "cache", "log")])
    env = {"HOME": str(tmp_path), **env}
    found = confinement(replace(ENGINE, **engine), Config(), places, "/opt/e/bin/python", env)
    assert found is not None
    return {*found.writable} - {str(places.cache), "/tmp", "/var/tmp", "/dev/shm", "/proc"}


def test_of_the_cache_at_home_it_writes_to_what_engines_keep_there(tmp_path: Path) -> None:
    """uv links installed programs to files in its cache: whoever writes there, writes programs."""
    for name in ("uv", "pip", "go-build", "ccache", "torch", "flashinfer", "xdg/uv", "xdg/torch"):
        (tmp_path / ".cache" / name).mkdir(parents=True)
    home = {str(tmp_path / ".cache" / name) for name in ("torch", "flashinfer")}
    assert written(tmp_path, {}, caches=("hub",)) == home | {str(tmp_path / ".cache/hub")}
    xdg = tmp_path / ".cache/xdg"
    env = {"XDG_CACHE_HOME": str(xdg)}
    named = written(tmp_path, env, caches=("hub",))
    assert named == home | {str(xdg / name) for name in ("hub", "torch")}
    # A service's, whose folder that is: each library makes its own.
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path / "cache")}
    assert written(tmp_path, env, caches=("hub",), at_home=(".tabby",)) == set()


CACHES = ("UV_CACHE_DIR", "PIP_CACHE_DIR", "NPM_CONFIG_CACHE", "MY_CACHE")
FOLDERS = ("CAOVAN_MODELS", "OLLAMA_MODELS", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


@pytest.mark.parametrize("name", [*CACHES, *FOLDERS])
def test_no_variable_of_other_programs_opens_a_folder(name: str, tmp_path: Path) -> None:
    """Models that others serve, units of a `systemd --user`, what a shell reads, programs."""
    assert written(tmp_path, {name: "/srv/theirs"}) == set()
    assert written(tmp_path, {"ITS_MODELS": "/srv/its"}, folders=("ITS_MODELS",)) == {"/srv/its"}


def test_of_the_settings_it_writes_to_vllms(tmp_path: Path) -> None:
    for name in ("vllm", "systemd"):
        (tmp_path / "settings" / name).mkdir(parents=True)
    env = {"XDG_CONFIG_HOME": str(tmp_path / "settings")}
    assert written(tmp_path, env) == {str(tmp_path / "settings/vllm")}


def test_a_variable_of_the_configurations_names_the_engines_cache(tmp_path: Path) -> None:
    config = Config()
    config = replace(config, engine=replace(config.engine, env=(("MY_CACHE", "/srv/mine"),)))
    places = Directories(*[tmp_path / name for name in ("run", "state", "cache", "log")])
    env = dict(config.engine.env)
    found = confinement(ENGINE, config, places, "/opt/e/bin/python", env)
    assert found is not None
    assert "/srv/mine" in found.writable


def test_one_folder_for_all_is_the_engines_too_and_nothing_is_confined_where_that_is_off(
    tmp_path: Path,
) -> None:
    places = Directories(*[tmp_path] * 4)
    config = Config()
    found = confinement(ENGINE, config, places, "/opt/engine/bin/python", {})
    assert found is not None
    assert found.hidden == ()
    off = replace(config, engine=replace(config.engine, confine=False))
    assert confinement(ENGINE, off, places, "/opt/engine/bin/python", {}) is None


def test_a_server_reads_its_own_token_and_no_other_file_of_ours(tmp_path: Path) -> None:
    places = Directories(*[tmp_path / name for name in ("run", "state", "cache", "log")])
    config = Config()
    for name in ("token", "key"):
        (tmp_path / name).touch()
    token, key = str(tmp_path / "token"), str(tmp_path / "key")
    config = replace(
        config,
        server=replace(config.server, api_key_file=key),
        page=replace(config.page, token_file=token),
    )
    ours = {str(tmp_path / name) for name in ("run", "state", "cache", "log")}
    page, gateway = server_confinement(config, places, token), server_confinement(config, places)
    assert set(page.hidden) == ours | {key}
    assert page.readable == (token,)
    assert set(gateway.hidden) == ours | {key, token}
    assert gateway.readable == ()
    assert page.writable == gateway.writable == ("/proc/self",)


def test_etc_whose_files_others_replace_stays_readable_but_for_a_clusters_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hidden is what a folder has when the engine starts: a new resolv.conf would be, too."""
    there: set[str] = {"/etc/caovan.key", "/etc/caovan.token"}
    monkeypatch.setattr("os.path.exists", there.__contains__)
    config = Config()
    config = replace(
        config,
        server=replace(config.server, api_key_file="/etc/caovan.key"),
        page=replace(config.page, token_file="/etc/caovan.token"),
    )
    places = Directories(*[Path("/srv") / name for name in ("run", "state", "cache", "log")])
    for key in (set(), {config.cluster.key_file}):
        there |= key
        found = confinement(ENGINE, config, places, "/opt/engine/bin/python", {})
        assert found is not None
        assert {path for path in found.hidden if path.startswith("/etc/")} == key
    assert readable_keys(config) == ["/etc/caovan.token"]
    gateway, page = (
        server_confinement(config, places),
        server_confinement(config, places, "/etc/caovan.token"),
    )
    assert {*gateway.hidden} - {*page.hidden} == {"/etc/caovan.token"}
    assert {"/etc/caovan.key", config.cluster.key_file} < {*page.hidden}
