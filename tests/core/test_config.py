"""The configuration: accepted and refused values, with the exact wording."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.config.key import ConfigError, StringPairs
from caovand.core.config.parser import parse
from caovand.core.config.schema import (
    MODES,
    Config,
    ModelSection,
    PolicySection,
    WatchSection,
    unapplied,
)
from caovand.core.config.services import AliasDefaults, LogSection
from caovand.core.config.text import render
from caovand.engines.vllm.healing.cures import HEALING
from tests.examples import examples

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
SECTIONS: Mapping[str, type] = typing.get_type_hints(Config)
KEYS = [(name, key) for name, kind in SECTIONS.items() for key in dataclasses.fields(kind)]
FREE_TEXTS = {
    "path", "revision", "chat_template", "drafter", "host", "api_key_file", "group", "token_file",
    "key_file",
}  # fmt: skip
HEADS_PORTS = (7070, 7071)
TAKEN = (*HEADS_PORTS, 1, 9400)
KEY_IDS = [f"{name}.{key.name}" for name, key in KEYS]


def findings_of(document: Mapping[str, Any]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse(document, "f.toml", ("vllm", "llamacpp"), lambda _: HEALING.by_name)
    return caught.value.findings


def kind_of(section: str, key: str) -> Any:
    return typing.get_type_hints(SECTIONS[section])[key]


def is_auto(section: str, key: str) -> bool:
    return type(None) in typing.get_args(kind_of(section, key))


# -- what is taken ---


def test_an_empty_file_is_valid_and_means_the_defaults() -> None:
    assert parse({}) == Config()


def test_the_shipped_file_is_what_render_makes_of_the_defaults() -> None:
    assert (ROOT / "etc/caovan.toml").read_text(encoding="utf-8") == render()


def test_the_shipped_file_is_valid_and_means_the_defaults() -> None:
    shipped = tomllib.loads((ROOT / "etc/caovan.toml").read_text(encoding="utf-8"))
    assert parse(shipped) == Config()


def test_the_shipped_file_has_every_key_with_its_help() -> None:
    text = render()
    shipped = tomllib.loads(text)
    assert [(s, k) for s in shipped for k in shipped[s]] == [(s, k.name) for s, k in KEYS]
    for _, key in KEYS:
        assert f"# {key.metadata['help']}" in text


@pytest.mark.parametrize(("section", "key"), KEYS, ids=KEY_IDS)
def test_auto_is_taken_exactly_where_the_policy_can_decide(section: str, key: Any) -> None:
    document = {section: {key.name: "auto"}}
    if is_auto(section, key.name):
        assert getattr(getattr(parse(document), section), key.name) is None
    elif key.name == "mode" or key.name in FREE_TEXTS:
        assert getattr(getattr(parse(document), section), key.name) == "auto"  # a mere word
    else:
        assert f"[{section}] {key.name} must be" in findings_of(document)[0]


def test_the_modes_are_named_once() -> None:
    assert dataclasses.fields(PolicySection)[0].metadata["choices"] == MODES


@pytest.mark.parametrize(("section", "key"), KEYS, ids=KEY_IDS)
def test_every_key_has_help_and_only_numbers_have_bounds(section: str, key: Any) -> None:
    numeric = {int, float} & {
        kind_of(section, key.name),
        *typing.get_args(kind_of(section, key.name)),
    }
    assert key.metadata["help"].endswith(".")
    assert (key.metadata["low"] is not None) == bool(numeric)


BOUNDED = [(s, k) for s, k in KEYS if k.metadata["low"] is not None]


@pytest.mark.parametrize(("section", "key"), BOUNDED, ids=[f"{s}.{k.name}" for s, k in BOUNDED])
def test_both_bounds_are_taken_and_what_lies_beyond_is_refused(section: str, key: Any) -> None:
    low, high = key.metadata["low"], key.metadata["high"]
    for bound in (low, high):
        assert getattr(getattr(parse({section: {key.name: bound}}), section), key.name) == bound
    whole = int in (kind_of(section, key.name), *typing.get_args(kind_of(section, key.name)))
    for value in (low - 1, high + 1, 10**400) if whole else (low - 0.01, high * 2, float("inf")):
        assert "must be from" in findings_of({section: {key.name: value}})[0]


def test_changed_keys_that_only_the_daemons_start_reads_are_named() -> None:
    changed = {
        "watch": {"log_lines": 100, "hang_s": 90}, "metrics": {"listen": "127.0.0.1:9400"},
        "log": {"level": "debug"},
    }  # fmt: skip
    names = ["[watch] log_lines", "[metrics] listen", "[log] level"]
    assert list(unapplied(Config(), parse(changed))) == names
    assert list(unapplied(parse(changed), parse(changed))) == []


def test_a_whole_number_is_fine_where_a_fraction_may_stand() -> None:
    hang_s = parse({"watch": {"hang_s": 90}}).watch.hang_s
    assert (hang_s, type(hang_s)) == (90.0, float)


def test_tables_and_lists_are_frozen() -> None:
    config = parse({"engine": {"env": {"B": "2", "A": "1"}, "extra_args": ["--seed", "1"]}})
    assert config.engine.env == (("A", "1"), ("B", "2"))
    assert config.engine.extra_args == ("--seed", "1")


# -- what is refused, and how ---


@pytest.mark.parametrize(
    ("document", "finding"),
    [
        (
            {"model": {"max_model_length": 8192}},
            'f.toml: unknown key "max_model_length" in [model]; did you mean "max_model_len"?',
        ),
        ({"serve": {}}, 'f.toml: unknown section [serve]; did you mean "server"?'),
        ({"xyzzy": {}}, "f.toml: unknown section [xyzzy]"),
        ({"model": {"mtp": 3}}, 'f.toml: unknown key "mtp" in [model]; it belongs in [policy]'),
        ({"model": {"xyzzy": 3}}, 'f.toml: unknown key "xyzzy" in [model]'),
        ({"model": "m"}, "f.toml: model must be a section: write [model] on a line of its own"),
        ({"server": [{}]}, "f.toml: [[server]] must be written [server], and only once"),
        ({"port": 5}, 'f.toml: "port" is outside any section; it belongs in [server]'),
        ({"prot": 5}, 'f.toml: "prot" is outside any section; did you mean "port"?'),
        ({"env": {}}, "f.toml: unknown section [env]; it belongs in [engine]"),
        (
            {"server": {"port": "80"}},
            '[server] port must be a whole number, is "80"; write 80, without quotes',
        ),
        (
            {"model": {"max_model_len": "32k"}},
            '[model] max_model_len must be a whole number or "auto", is "32k"; write 32768,',
        ),
        ({"server": {"port": True}}, "[server] port must be a whole number, is true"),
        ({"server": {"port": 80.0}}, "[server] port must be a whole number, is 80.0; write 80"),
        ({"server": {"port": 65536}}, "[server] port must be from 1 to 65535, is 65536"),
        ({"watch": {"hang_s": "1"}}, '[watch] hang_s must be a number, is "1"'),
        ({"watch": {"hang_s": float("nan")}}, "[watch] hang_s must be a number, is nan"),
        ({"watch": {"hang_s": True}}, "[watch] hang_s must be a number, is true"),
        ({"policy": {"strict": 1}}, "[policy] strict must be true or false, is 1"),
        ({"policy": {"mtp": "many"}}, '[policy] mtp must be a whole number or "auto", is "many"'),
        ({"policy": {"mtp": 9}}, "[policy] mtp must be from 0 to 8, is 9"),
        (
            {"policy": {"mode": "fats"}},
            '[policy] mode must be one of auto, stable, fast; is "fats"; did you mean "fast"?',
        ),
        ({"policy": {"mode": ["fast"]}}, '[policy] mode must be a string, is a list'),
        (
            {"policy": {"dtype": "bf16"}},
            "[policy] dtype must be one of auto, half, float16, bfloat16, float32, float; is"
            ' "bf16"',
        ),
        ({"policy": {"pinned": "mtp"}}, '[policy] pinned must be a list, is "mtp"'),
        (
            {"policy": {"pinned": ["mtp", 3]}},
            "[policy] pinned entry 2 must be a string, is 3",
        ),
        ({"policy": {"pinned": {"mtp": 1}}}, "[policy] pinned must be a list, is a table"),
        (
            {"policy": {"pinned": ["mpt"]}},
            '[policy] pinned names "mpt", which is not a key of [model] or [policy]; did you mean'
            ' "mtp"?',
        ),
        (
            {"policy": {"ladder": ["mtp_off"]}},
            '[policy] ladder names "mtp_off", which is not a rung; did you mean "mtp-off"?',
        ),
        ({"policy": {"ladder": ["?"]}}, 'names "?", which is not a rung; rungs are context, '),
        (
            {"engine": {"kind": "llamacp"}},
            '[engine] kind is "llamacp", which is not a kind of engine; did you mean "llamacpp"?',
        ),
        (
            {"engine": {"kind": "?"}, "policy": {"ladder": ["?"]}},
            '[engine] kind is "?", which is not a kind of engine; kinds are vllm, llamacpp',
        ),
        ({"engine": {"gpus": [0, 0]}}, "[engine] gpus names a card twice: [0, 0]"),
        ({"engine": {"gpus": []}}, "[engine] gpus must not be empty; omit the key"),
        ({"engine": {"python": ""}}, "[engine] python must not be empty; omit the key"),
        ({"model": {"served_name": " "}}, "[model] served_name must not be empty; omit the key"),
        ({"server": {"host": ""}}, "is \"\"; \"0.0.0.0\" means every address"),
        ({"server": {"host": "0.0.0.0 "}}, '[server] host must be an address or a name, such as'),
        ({"server": {"host": "[::1]"}}, 'such as "127.0.0.1" or "::1", is "[::1]"'),
        ({"server": {"host": "localhost:8000"}}, 'write host = "localhost" and port = 8000'),
        ({"server": {"host": "http://h"}}, "[server] host must be an address or a name"),
        ({"engine": {"gpus": [-1]}}, "[engine] gpus must be card indices from 0, is [-1]"),
        ({"engine": {"env": {"A": 1}}}, '[engine] env must be a table of strings, such as { NAME'),
        ({"engine": {"env": {"A": "x\0"}}}, "[engine] env must be a table of strings, such as"),
        ({"engine": {"env": {"": "1"}}}, '[engine] env: "" is not a valid variable name'),
        ({"engine": {"env": {"A B": "1"}}}, 'env: "A B" is not a valid variable name'),
        ({"engine": {"env": {"A=B": "1"}}}, 'env: "A=..." is not a valid variable name'),
        (
            {"engine": {"extra_args": ["a\0"]}},
            "[engine] extra_args entry 1 must be a string, is a string with a NUL in it",
        ),
        ({"metrics": {"listen": "9400"}}, '[metrics] listen must be ADDRESS:PORT, such as "127'),
        ({"metrics": {"listen": "h:0"}}, "[metrics] listen must be ADDRESS:PORT"),
        ({"metrics": {"listen": "h:" + "9" * 5000}}, "[metrics] listen must be ADDRESS:PORT"),
        ({"cluster": {"role": "head"}}, '[cluster] head must be HOST:PORT of the head, such as'),
        ({"cluster": {"head": "10.0.0.1"}}, "[cluster] head must be HOST:PORT"),
        (
            {"cluster": {"role": "head", "head": "h:7070", "min_nodes": 3}},
            "[cluster] min_nodes must be at most nodes, 2, is 3",
        ),
        ({"cluster": {"head": "h:65535"}}, "[cluster] head must leave the next port free"),
        (
            {"cluster": {"head": "h:7999"}, "server": {"port": 8000}},
            "[cluster] head must not use 8000, the [server] port of clients",
        ),
        ({"cluster": {"head": "-x:7070"}}, "[cluster] head must be a host's name or address"),
        ({"page": {"listen": "9480"}}, '[page] listen must be ADDRESS:PORT, such as "127'),
        ({"page": {"listen": ":9480"}}, "[page] listen must be ADDRESS:PORT"),
        ({"page": {"listen": "0.0.0.0:9480"}}, "and there is no token_file"),
        ({"page": {"listen": "[::]:9480"}}, "and there is no token_file"),
        ({"page": {"listen": "box.example:9480"}}, "and there is no token_file"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_words(document: dict[str, Any], finding: str) -> None:
    (said,) = findings_of(document)
    assert finding in said
    assert said.startswith("f.toml: ")


def test_every_finding_is_told_at_once() -> None:
    said = findings_of({"model": {"a": 1, "path": 2}, "sever": {}, "watch": {"hang_s": 1}})
    assert len(said) == 4


def test_what_no_single_key_shows_is_told_with_the_rest() -> None:
    said = findings_of(
        {"policy": {"pinned": ["a"], "ladder": ["b"]}, "engine": {"gpus": [1, 1]}, "port": 1}
    )
    assert len(said) == 4


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("engine", "env", {"VLLM_API_KEY": "sk-SECRET", "X": 1}, '"X" is a whole number'),
        ("engine", "env", {"VLLM_API_KEY": "sk-SECRET\0"}, '"VLLM_API_KEY" is a string with a NUL'),
        (
            "engine",
            "env",
            {"VLLM_API_KEY=sk-SECRET": ""},
            '"VLLM_API_KEY=..." is not a valid variable name',
        ),
        ("engine", "env", {"VLLM_API_KEY=sk-SECRET": 1}, '"VLLM_API_KEY=..." is a whole number'),
        ("engine", "env", ["VLLM_API_KEY=sk-SECRET"], "is a list"),
        ("engine", "extra_args", "--api-key sk-SECRET", "must be a list, is a string"),
        ("engine", "extra_args", ["--api-key", ["sk-SECRET"]], "entry 2 must be a string, is a l"),
        ("server", "api_key_file", ["sk-SECRET"], "must be a string, is a list"),
        ("server", "api_key_file", "sk-SECRET\0", "must be a string, is a string with a NUL"),
        ("server", "tool_call_parser", {"key": "sk-SECRET"}, 'must be a string or "auto", is a t'),
    ],
)
def test_what_may_be_a_password_is_not_repeated(
    section: str, key: str, value: Any, said: str
) -> None:
    (finding,) = findings_of({section: {key: value}})
    assert f"[{section}] {key}" in finding
    assert said in finding
    assert "SECRET" not in finding


# -- any document, any configuration ---

WORDS = st.sampled_from([*SECTIONS, *(key.name for _, key in KEYS), "auto", "", "x"])
SCALARS = (
    st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | WORDS
    | st.dates()
    | st.just(10**400)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(WORDS, st.dictionaries(WORDS, VALUES, max_size=4) | VALUES, max_size=4))
@examples(300)
def test_any_document_is_either_a_configuration_or_refused(document: dict[str, Any]) -> None:
    findings: tuple[str, ...] | None = None
    try:
        parse(document)
    except ConfigError as problem:
        findings = problem.findings
    assert findings != ()


def values_of(section: str, key: Any) -> st.SearchStrategy[Any]:
    """Valid values of a key."""
    kind, meta = kind_of(section, key.name), key.metadata
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    plain = next(option for option in options if option is not type(None))
    # "auto" is no text but the absence of one, and TOML files hold no lone surrogates.
    texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).filter(
        lambda text: text != "auto"
    )
    names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True)
    by_kind: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        str: texts,
        StringPairs: st.dictionaries(names, texts).map(lambda d: tuple(sorted(d.items()))),
        tuple[str, ...]: st.lists(texts).map(tuple),
    }
    if meta["choices"]:
        found: st.SearchStrategy[Any] = st.sampled_from(meta["choices"])
    elif key.name == "port":  # a cluster's head needs two ports of its own
        found = st.integers(meta["low"], meta["high"]).filter(lambda port: port not in TAKEN)
    elif key.name == "min_nodes":  # no cluster has fewer nodes
        found = st.integers(1, 2)
    elif plain is int:
        found = st.integers(meta["low"], meta["high"])
    elif plain is float:
        found = st.floats(meta["low"], meta["high"])
    elif key.name == "listen":
        found = st.sampled_from(["", "127.0.0.1:9400", "[::1]:1"])
    elif key.name == "head":
        found = st.sampled_from(["10.0.0.1:7070", "[fe80::1]:7070", "box.lan:7070"])
    elif key.name == "host":
        found = st.sampled_from(["0.0.0.0", "::1", "fe80::1%eth0", "my-host_1.lan", "::"])
    elif key.name == "gpus":
        found = st.lists(st.integers(0, 99), unique=True, min_size=1).map(tuple)
    elif key.name == "aliases":
        entries = st.dictionaries(names, texts.filter(str.strip))
        found = entries.map(lambda d: tuple(sorted(d.items())))
    elif key.name == "alias_defaults":  # each needs its alias
        found = st.just(())
    elif key.name == "ladder":
        found = st.lists(st.sampled_from(list(HEALING.by_name))).map(tuple)
    elif key.name == "pinned":
        goals = [f.name for s in (ModelSection, PolicySection) for f in dataclasses.fields(s)]
        found = st.lists(st.sampled_from(goals)).map(tuple)
    else:
        found = by_kind[plain]
        if plain is str and is_auto(section, key.name):
            found = found.filter(str.strip)
    return st.none() | found if is_auto(section, key.name) else found


CONFIGS = st.builds(
    Config,
    **{
        section: st.builds(
            kind, **{k.name: values_of(section, k) for k in dataclasses.fields(kind)}
        )
        for section, kind in SECTIONS.items()
    },
).filter(lambda config: not config.gateway.listen or config.cluster.role != "worker")


@given(CONFIGS)
@examples(60)
def test_every_configuration_survives_being_written_and_read(config: Config) -> None:
    assert parse(tomllib.loads(render(config))) == config


def test_sections_compare_by_value() -> None:
    assert WatchSection() == WatchSection()
    assert LogSection(level="debug") != LogSection()


@pytest.mark.parametrize("listen", ["127.0.0.1:9480", "localhost:1", "[::1]:9480", "127.8.8.8:9"])
def test_a_page_on_a_loopback_address_needs_no_token(listen: str) -> None:
    assert parse({"page": {"listen": listen}}).page.listen == listen


def test_a_gateway_needs_a_port_of_its_own_and_clients() -> None:
    section = {"listen": "127.0.0.1:8000"}
    assert "[server] port" in findings_of({"gateway": section})[0]
    worker = {"role": "worker", "head": "10.0.0.1:7070"}
    section = {"listen": "0.0.0.0:8080"}
    refused = findings_of({"gateway": section, "cluster": worker})
    assert "a worker does not serve clients" in refused[0]
    assert parse({"gateway": section}).gateway.listen == "0.0.0.0:8080"
    for aliases in ({"": "tiny"}, {"gpt-4o": " "}):
        assert "aliases" in findings_of({"gateway": {"aliases": aliases}})[0]


def test_the_defaults_of_an_alias_are_a_table_of_its_own() -> None:
    aliases = {"thinker": "m:high", "gpt": "m"}
    thinker = {"temperature": 1, "max_tokens": 9, "reasoning_effort": "max"}
    written = {"gateway": {"aliases": aliases, "alias_defaults": {"thinker": thinker, "gpt": {}}}}
    found = parse(written)
    assert found.gateway.alias_defaults == (
        ("gpt", AliasDefaults()), ("thinker", AliasDefaults(1.0, 9, "max")),
    )  # fmt: skip
    assert parse(tomllib.loads(render(found))) == found


@pytest.mark.parametrize(
    ("table", "finding"),
    [
        (7, "[gateway] alias_defaults must be a table of tables"),
        ({"gpt": 7}, "[gateway] alias_defaults must be a table of tables"),
        ({"gpt": {"temperature": 3}}, '[gateway.alias_defaults."gpt"] temperature must be from 0'),
        ({"gpt": {"max_tokens": 0}}, "max_tokens must be from 1"),
        ({"gpt": {"reasoning_effort": "huge"}}, "reasoning_effort must be one of"),
        ({"gpt": {"top_p": 1}}, 'unknown key "top_p"'),
        ({"gtp": {}}, 'alias_defaults: "gtp" is not an alias; did you mean "gpt"?'),
        ({"x": {}}, 'alias_defaults: "x" is not an alias; add it to `aliases`'),
    ],
)
def test_defaults_of_an_alias_that_make_no_sense_are_refused(table: Any, finding: str) -> None:
    section = {"aliases": {"gpt": "m"}, "alias_defaults": table}
    (found,) = findings_of({"gateway": section})
    assert finding in found


def test_a_page_for_other_machines_needs_a_token() -> None:
    section = {"listen": "0.0.0.0:9480", "token_file": "/etc/caovan.token"}
    assert parse({"page": section}).page.listen == "0.0.0.0:9480"
