"""A verb is one file: nothing lists it, and help, completion and man page have it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import caovand.cli
from caovand.cli.common.verb import Verb, verbs_of
from tests.cli.conftest import Ctl
from tests.daemon_process import ROOT

sys.path.insert(0, str(ROOT / "packaging/man"))
import make as man

FOLDERS = {file.parent for file in (ROOT / "caovand/cli").rglob("*.py")}
PACKAGES = sorted(str(folder.relative_to(ROOT)).replace("/", ".") for folder in FOLDERS)
NEW = '''"""`caovanctl dance`: dance."""
from caovand.cli.common.verb import Verb


def arguments(parser):
    parser.add_argument("--style", choices=("waltz", "tango"))


def run(args):
    print(f"dancing a {args.style}")
    return 0


VERB = Verb(
    name="dance", help="dance a while", epilog="example: caovanctl dance --style waltz",
    arguments=arguments, run=run,
)
'''


@pytest.fixture
def dance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """caovanctl with one file more."""
    (tmp_path / "dance.py").write_text(NEW)
    monkeypatch.setattr(caovand.cli, "__path__", [*caovand.cli.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    yield
    sys.modules.pop("caovand.cli.dance", None)


@pytest.mark.usefixtures("dance")
def test_a_new_verb_is_one_file(ctl: Ctl) -> None:
    assert ctl("dance", "--style", "tango").out == "dancing a tango\n"
    assert "dance a while" in ctl("--help").out
    assert "example: caovanctl dance --style waltz" in ctl("dance", "--help").out
    assert "Dance a while." in ctl("dance", "--help").out
    assert '" dance --style") choices="waltz tango"' in ctl("completion", "bash").out
    assert ".B dance\nDance a while." in "\n".join(man.verbs())


@pytest.mark.parametrize("package", PACKAGES)
def test_each_verb_has_a_file_of_its_own_named_as_the_verb(package: str) -> None:
    for verb in verbs_of(package):
        module = importlib.import_module(f"{package}.{verb.name.replace('-', '_')}")
        assert module.__dict__["VERB"] is verb
        found = [name for name, value in vars(module).items() if isinstance(value, Verb)]
        assert found == ["VERB"]


def test_the_verbs_that_people_have_in_scripts_are_there() -> None:
    assert {verb.name for verb in verbs_of("caovand.cli")} >= {
        "status", "wait", "version", "logs", "events", "incidents", "start", "stop", "restart",
        "reload", "reset", "retry", "mode", "plan", "doctor", "explain", "inventory", "serve",
        "check-config", "engine", "completion",
    }  # fmt: skip
    engine = {verb.name for verb in verbs_of("caovand.cli.engine")}
    assert engine >= {"install", "fetch", "list", "use", "rollback", "remove", "verify"}
    assert {verb.name for verb in verbs_of("caovand.cli.incidents")} == {"show", "bundle"}
    cluster = {verb.name for verb in verbs_of("caovand.cli.cluster")}
    assert cluster == {"init", "join", "leave", "nodes", "check"}


def test_help_lists_the_verbs_by_purpose_then_by_name() -> None:
    verbs = verbs_of("caovand.cli")
    assert verbs == sorted(verbs, key=lambda verb: (verb.group, verb.name))
    assert len({verb.group for verb in verbs}) > 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["stauts"],
            'caovanctl: cannot do "stauts": no such verb; did you mean "status"?',
        ),
        (["xyzzy"], '"xyzzy": no such verb; `caovanctl --help` lists all'),
        (["engine", "instal"], 'caovanctl engine: cannot do "instal": no such verb; did'),
        (
            ["plan", "--dtype", "half"],
            "cannot use --dtype: no such option; `caovanctl VERB --help`",
        ),
    ],
)
def test_a_mistyped_verb_or_option_is_named(ctl: Ctl, words: list[str], says: str) -> None:
    said = ctl(*words)
    assert said.code == 2
    assert says in said.err
    assert said.err.count("\n") == 1, "no usage of 28 verbs"
