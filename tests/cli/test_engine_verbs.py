"""caovanctl engine as programs read it: with --json, a failure is one object, as in every verb."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from caovand.adapters.engine_install import places
from tests.cli.conftest import Ctl

FAILING = [
    (("use", "x"), "engine-failed", "cannot use x: ", "available: none"),
    (("remove", "x"), "engine-failed", "cannot remove x: ", "available: "),
    (("rollback",), "engine-failed", "cannot roll back: ", "caovanctl engine use"),
    (("verify",), "engine-failed", "cannot verify the engine: no engine in ", "engine install"),
    (
        ("build-kernels",),
        "engine-failed",
        "cannot build kernels: no engine in ",
        "engine install",
    ),
    (
        ("install", "1.2.3", "--build", "cpu"),
        "engine-failed",
        "cannot install vLLM 1.2.3",
        "available",
    ),
    (("fetch", "1.2.3", "--build", "cpu", "--wheels", "w"), "engine-failed", "cannot install", ""),
]


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"), FAILING, ids=[words[0] for words, *_ in FAILING]
)
def test_a_failure_under_json_is_the_object_that_a_refusal_of_the_daemon_is(
    ctl: Ctl, tmp_path: Path, words: tuple[str, ...], code: str, message: str, hint: str
) -> None:
    words = ("engine", *words, "--root", str(tmp_path))
    plain, said = ctl(*words), ctl(*words, "--json")
    assert (said.code, set(said.json), said.json["ok"]) == (1, {"ok", "error"}, False)
    error = said.json["error"]
    assert set(error) == {"code", "message", "hint"}
    assert (error["code"], error["message"][: len(message)]) == (code, message)
    assert hint in error["hint"]
    text = f"caovanctl: {error['message']}; {error['hint']}\n"
    assert (plain.code, plain.out, plain.err, said.err) == (1, "", text, text)


def test_who_interrupts_under_json_gets_the_object_too(
    ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_root: Path, _kind: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(places, "current", interrupted)
    said = ctl("engine", "list", "--json", "--root", str(tmp_path))
    hint = "run the same command again to continue"
    error = {"code": "interrupted", "message": "stopped", "hint": hint}
    assert (said.code, said.json) == (1, {"ok": False, "error": error})
    assert said.err == f"\ncaovanctl: stopped; {hint}\n"


def test_a_disk_that_fails_under_json_is_the_object_too(
    ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_root: Path, _kind: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(places, "current", fails)
    said = ctl("engine", "list", "--json", "--root", str(tmp_path))
    hint = "the engine in use is unchanged"
    message = "cannot continue: [Errno 5] Input/output error"
    assert (said.code, said.json["error"]) == (
        1, {"code": "os-error", "message": message, "hint": hint},
    )  # fmt: skip
    assert said.err == f"caovanctl: {message}; {hint}\n"
