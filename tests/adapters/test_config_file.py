"""Files as people leave them: missing, binary, half-edited."""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from caovand.adapters.files import config_file, secret_file
from caovand.adapters.files.config_file import check_secret_files, check_secrets, load
from caovand.core.config.key import ConfigError
from caovand.core.config.parser import parse
from caovand.core.config.schema import Config
from caovand.engines.registry import engine_of
from tests.secret_files import secret_file as written


def api_key(config: Config, extra_args: Sequence[str], environ: Mapping[str, str]) -> str:
    return config_file.api_key(config, extra_args, environ, engine_of().arguments)


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    (finding,) = caught.value.findings
    assert str(path) in finding
    return finding


def test_the_shipped_file_loads() -> None:
    assert load(Path(__file__).parents[2] / "etc/caovan.toml") == Config()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "not UTF-8 text"),
        (b"[model", "not valid TOML"),
        (b"[model]\n[model]\n", "line 2: [model] appears twice; move its keys to the first"),
        (
            b"[model]\npath = /srv/x\n",
            'line 2: the value of "path" is neither a number nor in',
        ),
        (b"[model]\npath = /srv/x\n", 'quotes; write path = "..."'),
        (b"[server]\nhost = 127.0.0.1\n", '; write host = "..."'),
        ("[model]\npath = “/srv/x”\n".encode(), "has typographic quotes; write path ="),
        (b'[model]\npath = "a"\npath = "b"\n', 'line 3: "path" is set twice; remove one'),
        (b'[model]\npath = "C:\\x"\n', "line 2: a backslash in"),
        (b"[engine]\nplugin = True\n", '"plugin" must be true or false, in lower case'),
        (b"[model]\npath =\n", '"path" has no value; write one after the ='),
        (b'[model]\npath = "abc\n', 'quotes of "path" are not closed; write'),
        (b"path\n", "; write KEY = VALUE: text in"),
        (b"a = " + b"9" * 5000, "not valid TOML"),
        (b"a = " + b"[" * 50_000, "not valid TOML"),
        (b"[server]\nprot = 1", 'unknown key "prot" in [server]; did you mean "port"?'),
        (b"[server]\nport = 1979-05-27", "[server] port must be a whole number, is 1979-05-27"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.toml").write_bytes(content)
    assert words in refused(tmp_path / "a.toml")


@pytest.mark.parametrize("text", ["sk-hunter2==", "api_key = sk-hunter2", 'x = "hunter2'])
def test_a_line_that_is_not_toml_is_never_repeated(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(f"[server]\n{text}\n")
    assert "hunter2" not in refused(tmp_path / "a.toml")


def test_a_file_that_cannot_be_read_has_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "caovan.toml").touch()
    found = refused(tmp_path / "caovna.toml")
    assert f'No such file or directory; did you mean "{tmp_path}/caovan.toml"?' in found
    assert "; pass the configuration file, which only" in refused(tmp_path / "other" / "x.toml")
    assert refused(tmp_path).endswith("Is a directory; pass a configuration file")


def test_a_file_that_is_closed_to_this_user_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(config_file.safe_files, "read", closed)
    assert refused(tmp_path / "a.toml").endswith(
        "a.toml: Permission denied; run this as a user who can read it, or correct its permissions"
    )


def test_windows_line_ends_are_fine(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"[server]\r\nport = 1\r\n")
    assert load(tmp_path / "a.toml").server.port == 1


def test_a_byte_order_mark_is_fine(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbf[server]\nport = 1\n")
    assert load(tmp_path / "a.toml").server.port == 1


def test_a_secret_is_the_one_line_of_its_file(tmp_path: Path) -> None:
    written(tmp_path / "key", "sk-1 2\n")
    assert secret_file.read(str(tmp_path / "key"), secret_file.API_KEY_FILE) == "sk-1 2"


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"a\nb\n", b"\xff", "schlüssel".encode(), b"a\x00b", b"a\rb"]
)
def test_a_key_that_no_header_can_carry_is_refused(tmp_path: Path, content: bytes) -> None:
    written(tmp_path / "key", "").write_bytes(content)
    with pytest.raises(ConfigError, match="api_key_file"):
        secret_file.read(str(tmp_path / "key"), secret_file.API_KEY_FILE)


def test_a_key_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file") as caught:
        secret_file.read(str(tmp_path / "key"), secret_file.API_KEY_FILE)
    assert str(tmp_path / "key") in str(caught.value)
    assert "Errno" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602])
@pytest.mark.parametrize("section", ["server", "page"])
def test_a_secret_that_every_user_can_open_is_refused_with_the_remedy(
    tmp_path: Path, section: str, mode: int
) -> None:
    """As the cluster's key is: by who reads it, and by who plans and may not read it."""
    file = written(tmp_path / "key", "long-enough-for-both")
    keys = {"server": {"api_key_file": str(file)},
            "page": {"listen": "127.0.0.1:1", "token_file": str(file)}}  # fmt: skip
    config = parse({section: keys[section]})
    for used in (check_secrets, lambda config, _: check_secret_files(config)):
        used(config, Path("a.toml"))
        file.chmod(mode)
        with pytest.raises(ConfigError, match=rf"can open it \(mode {mode:04o}\)") as caught:
            used(config, Path("a.toml"))
        assert f"run `sudo chmod 640 {file}`" in str(caught.value)
        file.chmod(0o640)


@pytest.mark.parametrize(("owner", "group", "needed"), [(0, 0, True), (0, 7, False), (5, 0, False)])
def test_a_file_of_root_is_also_given_to_the_service_which_could_not_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, group: int, needed: bool
) -> None:
    file = written(tmp_path / "key", "a key")
    values = list(os.stat(file))
    values[stat.ST_MODE], values[stat.ST_UID], values[stat.ST_GID] = 0o100644, owner, group
    found = os.stat_result(values)
    with monkeypatch.context() as system:
        system.setattr(os, "stat", lambda path: found)
        system.setattr(grp, "getgrnam", lambda name: grp.struct_group((name, "x", 7, [])))
        with pytest.raises(ConfigError, match="sudo chmod 640") as caught:
            secret_file.check(str(file), secret_file.API_KEY_FILE)
    assert (f"and `sudo chgrp caovan {file}`" in str(caught.value)) == needed


def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it has 9 characters, fewer than 16; generate one with"):
        secret_file.read(str(written(tmp_path / "token", "password1")), secret_file.TOKEN_FILE)


@pytest.mark.parametrize("path", ["sk-SECRET", "SECRET/with+a/slash=", "SECRET" * 60])
def test_a_key_in_the_place_of_its_file_is_not_repeated(path: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot read \[server\] api_key_file: ") as caught:
        secret_file.read(path, secret_file.API_KEY_FILE)
    assert "SECRET" not in str(caught.value)


def test_the_key_is_the_one_vllm_will_ask_for(tmp_path: Path) -> None:
    written(tmp_path / "key", "from-file\n")
    bare = parse({})
    file = parse({"server": {"api_key_file": str(tmp_path / "key")}})
    typed = parse({"engine": {"env": {"VLLM_API_KEY": "typed"}}})
    ours = {"VLLM_API_KEY": "ours"}
    assert api_key(bare, (), {}) == ""
    assert api_key(bare, (), ours) == "ours"
    assert api_key(typed, (), ours) == "typed"
    assert api_key(file, (), ours) == "from-file"
    assert api_key(file, ("--api-key", "1e5"), ours) == "1e5"
    assert api_key(file, ("--api-key=word", "--seed", "1"), ours) == "word"


BAD_KEYS = ["SECRET\r\nX: y", "SECRET\n", "SECRET-ключ", "SECRET\x1b[m", " SECRET", "SECRET "]
BAD_KEYS += ["SECRET\udce8", "SECRET\x7f", "\tSECRET"]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_key_of_any_source_is_checked_as_the_file_s_is_and_never_repeated(
    tmp_path: Path, key: str
) -> None:
    in_env = parse({"engine": {"env": {"VLLM_API_KEY": key}}})
    typed = parse({"engine": {"extra_args": ["--api-key", key]}})
    second = parse({"engine": {"extra_args": ["--api-key", "good", key]}})
    inline = parse({"engine": {"extra_args": [f"--api_key={key}"]}})
    sources = {"[engine] env": in_env, "--api-key": typed, "in [engine] extra_args": second}
    for name, config in {**sources, "extra_args": inline}.items():
        with pytest.raises(ConfigError) as caught:
            api_key(config, config.engine.extra_args, {"VLLM_API_KEY": "good"})
        assert name in str(caught.value)
        assert "SECRET" not in str(caught.value)
        with pytest.raises(ConfigError, match=r"a\.toml: cannot use"):
            check_secrets(config, Path("a.toml"))
    with pytest.raises(ConfigError, match="daemon's environment") as caught:
        api_key(parse({}), (), {"VLLM_API_KEY": key})
    assert "SECRET" not in str(caught.value)


def test_a_bad_key_that_another_source_overrules_is_nobody_s_affair(tmp_path: Path) -> None:
    written(tmp_path / "key", "good\n")
    config = parse({
        "server": {"api_key_file": str(tmp_path / "key")},
        "engine": {"env": {"VLLM_API_KEY": "a\nb"}},
    })  # fmt: skip
    assert api_key(config, (), {"VLLM_API_KEY": "a\nb"}) == "good"
    assert api_key(config, ("--api-key", ""), {}) == ""
