"""What is redacted, by name and in every notation; and what is not."""

from __future__ import annotations

import json
import re
import shlex
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.secrets import (
    HIDDEN,
    escaped_forms,
    hide,
    hide_in,
    is_secret_entry,
    is_secret_name,
    redact_home_paths,
    secrets_of,
    shown_value,
)
from caovand.engines.vllm.flags import command_line

SECRET = [
    "WANDB_APIKEY",
    "WANDB_API_KEY",
    "REDIS_AUTH",
    "REDIS_PASS",
    "MYSQL_PWD",
    "SENTRY_DSN",
    "GITHUB_PAT",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "SSH_PASSPHRASE",
    "SESSION_COOKIE",
    "DB_CREDS",
    "api_key",
    "api_keys",
    "apiKey",
    "accessToken",
    "clientSecret",
    "x-api-key",
    "redis.password",
    "dbpassword",
    "passwd",
    "password",
    "secret",
    "secrets",
    "credential",
    "credentials",
    "auth",
    "basic_auth",
    "Authorization",
    "set-cookie",
    "jwt",
    "AZURE_SAS_KEY",
    "SLACK_WEBHOOK_URL",
    "STORAGE_CONNECTION_STRING",
    "private_key",
    "PRIVKEY",
    "WANDB_APIKEY_PROD",
    "pwd",
    "key",
    "token",
    "from_token",
    "eos_token_url",
]
PUBLIC = [
    "author",
    "authors",
    "tokens",
    "max_tokens",
    "max_num_batched_tokens",
    "tokenizer",
    "tokenizer_mode",
    "keyboard",
    "monkey",
    "turkey",
    "hotkey",
    "keys",
    "keyfile",
    "ssl_keyfile",
    "authority",
    "XAUTHORITY",
    "SSH_AUTH_SOCK",
    "PWD",
    "OLDPWD",
    "compass",
    "bypass",
    "passthrough",
    "pass_config",
    "pathlib",
    "pattern",
    "ignore_patterns",
    "secretary",
    "cookiecutter",
    "cookie_file",
    "dsnx",
    "num_tokens",
    "tokens_only",
    "auth_type",
    "connection",
    "model",
    "KeyError",
    "classifier_from_token",
    "eos_token",
]


@pytest.mark.parametrize("name", SECRET)
def test_a_text_under_this_name_is_secret(name: str) -> None:
    assert is_secret_name(name)
    assert shown_value(name, "hunter2") == "***"
    assert secrets_of({name: "hunter2-4711"}) == ("hunter2-4711",)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_text_under_this_name_is_not(name: str) -> None:
    assert not is_secret_name(name)
    assert shown_value(name, "hunter2") == "hunter2"
    text = json.dumps({name: "hunter2", "n": 1})
    assert hide(text) == text


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("redis_password", True), ("api_key", True), ("redis_auth", True), ("apikey", True),
        ("auth_token", True), ("num_key_value_heads", False), ("eos_token_id", False),
        ("bytes_per_token", False), ("num_shared_tokens", False), ("PWD", False),
    ],
)  # fmt: skip
def test_of_numbers_few_are_secret(name: str, hidden: bool) -> None:
    assert is_secret_entry(name, 4711) is hidden
    assert not is_secret_entry(name, True)


# Long enough to stand nowhere by chance, with whatever is escaped somewhere.
_KEYS = st.text(
    st.sampled_from("abXY01 \"'\\/+%&é中\n\t\x7f😀"), min_size=4, max_size=12
).map(lambda text: f"qz{text}zq")  # fmt: skip
_QUOTED: dict[str, Callable[[str], str]] = {
    "JSON": json.dumps,
    "repr": repr,
    "ascii": ascii,
    "repr with others": lambda text: repr([text + "\"'"]),
    "shell": shlex.quote,
}
_WRITTEN: dict[str, Any] = {
    **{
        f"{a} in {b}": lambda key, a=a, b=b: _QUOTED[b](_QUOTED[a](key))
        for a in _QUOTED
        for b in _QUOTED
    },
    "plain": str,
    "JSON": json.dumps,
    "JSON with letters": lambda key: json.dumps(key, ensure_ascii=False),
    "JSON in JSON": lambda key: json.dumps(json.dumps({"a": key})),
    "repr": repr,
    "repr in a list": lambda key: repr([key, '"', "'"]),
    "ascii": ascii,
    "address": lambda key: urllib.parse.quote(key, safe=""),
    "path": urllib.parse.quote,
    "form": urllib.parse.quote_plus,
    "lower": lambda key: re.sub(
        "%..", lambda found: found[0].lower(), urllib.parse.quote(key, safe="")
    ),
}


@given(_KEYS, st.sampled_from(sorted(_WRITTEN)), st.text(max_size=20))
def test_a_known_key_is_hidden_in_whatever_way_it_is_written(
    key: str, way: str, around: str
) -> None:
    text = around + _WRITTEN[way](key) + around
    shown = hide(text, (key,))
    assert "qz" not in shown.replace(around, "")
    assert HIDDEN in shown


@given(_KEYS)
def test_the_longest_form_of_a_key_comes_first(key: str) -> None:
    lengths = [len(form) for form in escaped_forms((key, ""))]
    assert lengths == sorted(lengths, reverse=True)
    assert "" not in escaped_forms((key, ""))


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def planted(name: str, secret: Any, around: Any, depth: int) -> Any:
    """`secret` under `name`, deep in other data."""
    value: Any = {name: secret, "port": 6379, "around": around}
    for level in range(depth):
        value = {"inner": value} if level % 2 else [around, value]
    return value


_NAMES = st.sampled_from([name for name in SECRET if name not in ("Authorization",)])


@given(_NAMES, _KEYS, _PLAIN, st.integers(0, 5), st.booleans())
def test_a_secret_in_json_is_hidden_however_deep_and_the_rest_is_kept(
    name: str, secret: str, around: Any, depth: int, letters: bool
) -> None:
    value = planted(name, secret, around, depth)
    assert "qz" not in json.dumps(hide_in(value))
    for text in (json.dumps(value, ensure_ascii=letters), repr(value)):
        assert "qz" not in hide(text), text
        for level in range(3):
            deeper = text
            for _ in range(level):
                deeper = json.dumps(deeper)
            assert "qz" not in hide(deeper), deeper
            assert "6379" in hide(deeper)


@given(_NAMES, _KEYS, st.integers(0, 40))
def test_a_secret_whose_text_was_cut_is_hidden_to_the_end(name: str, secret: str, cut: int) -> None:
    text = json.dumps({"a": {name: secret + "zq" * 20}})
    assert "qz" not in hide(text[: len(text) - cut])


@given(_NAMES, _KEYS, _PLAIN, st.integers(0, 4), st.booleans())
def test_a_secret_in_a_flag_is_hidden(
    name: str, secret: str, around: Any, depth: int, inline: bool
) -> None:
    # The name may be written with escapes, too, which the engine reads as the same.
    text = json.dumps(planted(name, secret, around, depth))
    text = text.replace(f'"{name}"', '"' + f"\\u{ord(name[0]):04x}{name[1:]}" + '"')
    words = (f"--hf-overrides={text}",) if inline else ("--hf-overrides", text)
    shown = " ".join(command_line.redact(("--seed", "1", *words, "--port", "8000")))
    assert "qz" not in shown
    assert "6379" in shown
    assert shown.startswith("--seed 1 --hf-overrides")
    assert shown.endswith("--port 8000")
    assert secret in command_line.secret_values(words)


@pytest.mark.parametrize(
    "words",
    [
        ("--kv-transfer-config", '{"kv_connector_extra_config": {"redis_password": "hunter2"}}'),
        ("--kv-transfer-config.kv_connector_extra_config.redis_password", "hunter2"),
        ("--kv-transfer-config.redis_password=hunter2",),
        ("--hf-overrides={'api_key': 'hunter2'}",),
        ("--hf-overrides", '{"text": "{\\"api_key\\": \\"hunter2\\"}"}'),
        ("--hf-overrides", '{"api_key": "hunter2'),
        ("--wandb-api-key", "hunter2"),
        ("--redis-auth=hunter2",),
        ("--otlp-traces-endpoint", "https://me:hunter2@host/"),
        ("--api-key", "one", "hunter2"),
    ],
)
def test_a_command_line_is_shown_without_secrets(words: tuple[str, ...]) -> None:
    shown = command_line.redact(("serve", "/m", *words))
    assert "hunter2" not in " ".join(shown)
    assert shown[:2] == ("serve", "/m")
    assert shown[2].startswith(words[0].partition("=")[0])


def test_a_command_line_without_secrets_is_shown_as_it_is() -> None:
    words = (
        "serve", "/m", "--hf-overrides", '{"max_tokens":  12, "tokenizer": "x"}', "--tokenizer",
        "/m", "--max-num-batched-tokens=8192", "--ssl-keyfile", "/k",
        "--return-tokens-as-token-ids", "--additional-config",
        '{"caovan":true,"caovan_mode":"auto"}', "--seed", "1",
    )  # fmt: skip
    assert command_line.redact(words) == words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("api_key: 'hunter2', n=1", "api_key: '[secret]', n=1"),
        ("Config(hf_token='hunter2', n=1)", "Config(hf_token='[secret]', n=1)"),
        ("WANDB_APIKEY=hunter2 PWD=/root", "WANDB_APIKEY=[secret] PWD=/root"),
        ("GET /v1?api_key=hunter2&n=1", "GET /v1?api_key=[secret]&n=1"),
        ("{'api_key': ['hunter2', 'hunter2'], 'n': 1}",
         "{'api_key': ['[secret]', '[secret]'], 'n': 1}"),
        ("['--hf-token', 'hunter2', '--port']", "['--hf-token', '[secret]', '--port']"),
        ("--hf-token hunter2 --port 1", "--hf-token [secret] --port 1"),
        ("--api-key --port 1", "--api-key --port 1"),
        ("{'password': b'hunter2'}", "{'password': b'[secret]'}"),
        ("{'password': ''}, 'x': 'y'", "{'password': ''}, 'x': 'y'"),
        ("'password': None, 'x': 'y'", "'password': None, 'x': 'y'"),
        ("Authorization: Basic aHVudGVyMjpo", "Authorization: Basic [secret]"),
        ("KeyError: 'model.layers.0'", "KeyError: 'model.layers.0'"),
        ("max_tokens=16, eos_token_id=5", "max_tokens=16, eos_token_id=5"),
    ],
)  # fmt: skip
def test_what_is_named_in_text_is_hidden_and_nothing_else(text: str, shown: str) -> None:
    assert hide(text) == shown


FORMS = [
    ("X-Api-Key: hunter2-4711", "X-Api-Key: [secret]"),
    ("x-api-key:12345678 next", "x-api-key:[secret] next"),
    ("> X-Auth-Token: hunter2", "> X-Auth-Token: [secret]"),
    ("Cookie: a=hunter2; b=\"hunter2\"; c", "Cookie: [secret]"),
    ("set-cookie: sid=hunter2; Path=/", "set-cookie: [secret]"),
    ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.hunter2_-x!", "got [secret]!"),
    ("AKIAIOSFODNN7EXAMPLE, ASIAIOSFODNN7EXAMPLE.", "[secret], [secret]."),
    ("xoxb-1234-5678-hunter2 xoxe.xoxp-1-hunter2hunter2", "xoxb-[secret] xoxe.[secret]"),
    ("glpat-hunter2hunter2hunt.01.abc", "glpat-[secret]"),
    ("github_pat_11ABCDEFG0hunter2_x", "github_pat_[secret]"),
    ("AIzaSyhunter2hunter2hunter2hunter2hunter2", "[secret]"),
    ("nvapi-hunter2hunter2", "nvapi-[secret]"),
    ("https://b/x?X-Amz-Credential=AK%2F2&X-Amz-Signature=hunter2&X-Amz-Date=1",
     "https://b/x?X-Amz-Credential=[secret]&X-Amz-Signature=[secret]&X-Amz-Date=1"),
    ("https://b/x?sv=1&sig=hunter2%3D&se=2", "https://b/x?sv=1&sig=[secret]&se=2"),
    ("{'X-Api-Key': 'hunter2', 'cookie': 'a=hunter2'}",
     "{'X-Api-Key': '[secret]', 'cookie': '[secret]'}"),
    ("ended by sig=9, signature: (self, x)", "ended by sig=9, signature: (self, x)"),
    ("cookiecutter: a, eyJ.x, AKIA", "cookiecutter: a, eyJ.x, AKIA"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shown"), FORMS)
def test_a_secret_of_a_known_form_is_hidden_once(text: str, shown: str) -> None:
    assert hide(text) == shown
    assert hide(shown) == shown
    for deeper in (json.dumps(text), json.dumps(json.dumps({"line": text}))):
        assert "hunter2" not in hide(deeper)


def test_home_folders_name_no_user() -> None:
    text = 'cannot load "/home/alice/venv/lib.so": /root/x, /homeless/b, /srv/home/c/d'
    hidden = 'cannot load "~/venv/lib.so": ~/x, /homeless/b, /srv/home/c/d'
    assert redact_home_paths(text, "/root") == hidden
