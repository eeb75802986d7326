"""Permissions that keep the engine's user from a model, with the remedy."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from caovand.adapters.model_folder import ModelProblem
from caovand.adapters.privileges import engine_user, model_access
from caovand.adapters.privileges.model_access import find_barrier, write_barrier
from tests.core.machines import inventory

CARD = inventory().model


def as_nobody(function: Callable[..., Any], *args: Any, **_: Any) -> Any:
    """Call a function as a user without rights; here, if we are one."""
    if os.getuid():
        return function(*args)
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        try:
            os.setgroups([])
            os.setgid(pwd.getpwnam("nobody").pw_gid)
            os.setuid(pwd.getpwnam("nobody").pw_uid)
            os.write(write_end, json.dumps(function(*args)).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end) as answer:
        found = json.loads(answer.read())
    os.wait()
    return found


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of everybody's, with a model below two others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        model = Path(name) / "above/home/model"
        model.mkdir(parents=True)
        for file in ("config.json", "model.safetensors", ".secret.json", "notes.md"):
            (model / file).touch(mode=0o644)
        yield model
        for folder in (*model.parents[:2], model):
            folder.chmod(0o755)


def test_a_model_that_everybody_may_read_is_no_problem(place: Path) -> None:
    (place / "notes.md").chmod(0)  # which no engine reads
    assert as_nobody(find_barrier, str(place)) == []
    assert as_nobody(find_barrier, str(place / "config.json")) == []


def test_the_folder_or_file_that_keeps_it_out_is_named(place: Path) -> None:
    weights, home = place / "model.safetensors", place.parent
    for path, mode, verb in (
        (weights, 0o600, "read"), (place, 0o711, "list"), (place, 0o744, "enter"),
        (home, 0o700, "enter"), (home.parent, 0o744, "enter"),
    ):  # fmt: skip
        before = path.stat().st_mode
        os.chown(path, -1, -1)
        path.chmod(mode if os.getuid() == 0 else 0o400 if verb == "enter" else 0o100)
        assert as_nobody(find_barrier, str(place)) == [str(path), verb]
        path.chmod(before)
    weights.chmod(0)
    assert as_nobody(find_barrier, str(weights)) == [str(weights), "read"]


def test_a_link_into_a_closed_folder_is_followed(place: Path) -> None:
    blobs = place.parent.parent / "blobs"
    blobs.mkdir()
    (place / "model.safetensors").rename(blobs / "1")
    (place / "model.safetensors").symlink_to(blobs / "1")
    assert as_nobody(find_barrier, str(place)) == []
    blobs.chmod(0)
    assert as_nobody(find_barrier, str(place)) == [str(blobs), "enter"]
    blobs.chmod(0o755)
    shutil.move(place, blobs / "model")
    place.symlink_to(blobs / "model")
    assert as_nobody(find_barrier, str(place)) == []


def test_a_cache_that_cannot_be_filled_is_named(place: Path) -> None:
    cache = place / "hub/models"
    place.chmod(0o555)
    assert as_nobody(write_barrier, str(cache)) == [str(place), "write to"]
    place.chmod(0o777)
    assert as_nobody(write_barrier, str(cache)) == []
    place.parent.chmod(0o600)
    assert as_nobody(write_barrier, str(cache))[1] == "enter"
    assert as_nobody(write_barrier, "/proc/1/none")[1] in ("enter", "write to")


@dataclass
class Named:
    """An engine's user, as far as the check asks for it."""

    name: str = "caovan-engine"


def test_a_start_is_refused_with_the_place_and_the_command(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = replace(CARD, path=str(place), folder=True)
    place.parent.chmod(0o700 if os.getuid() == 0 else 0o600)
    model_access.check(card, {})  # engines run as our own user
    monkeypatch.setattr(engine_user, "current", Named)
    monkeypatch.setattr(model_access, "as_engine", as_nobody)
    with pytest.raises(ModelProblem) as caught:
        model_access.check(card, {})
    home = place.parent
    assert str(caught.value) == (
        f"cannot read {place}: engines run as caovan-engine, who cannot enter {home}; run `sudo "
        f"setfacl -m u:caovan-engine:x {home}`, or allow every user: `sudo chmod o+x {home}`"
    )


def test_the_group_that_is_allowed_in_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "stat", lambda _: SimpleNamespace(st_gid=1, st_mode=0o750))
    found = model_access.remedy("engine", place, str(place), "enter")
    name = grp.getgrgid(1).gr_name
    assert found == f"run `sudo usermod -aG {name} engine`, then restart the service"


def test_a_hubs_model_needs_a_cache_that_the_user_may_fill(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = replace(CARD, path="Qwen/Qwen3-0.6B", folder=False)
    place.chmod(0o555)
    monkeypatch.setattr(engine_user, "current", Named)
    monkeypatch.setattr(model_access, "as_engine", as_nobody)
    model_access.check(card, {})
    with pytest.raises(ModelProblem, match=f"run `sudo chown -R caovan-engine {place}`"):
        model_access.check(card, {"HF_HOME": str(place / "hub")})

    def slow(*_: Any) -> list[str]:
        raise OSError("it took too long")

    monkeypatch.setattr(model_access, "as_engine", slow)
    model_access.check(card, {"HF_HOME": str(place / "hub")})


@pytest.mark.parametrize(
    ("verb", "command"),
    [
        ("read", "sudo setfacl -R -m u:engine:rX '/srv/a model'"),
        (model_access.READ_ONLY, "ReadWritePaths=/srv/a model"),
    ],
)
def test_each_barrier_has_its_remedy(verb: str, command: str) -> None:
    found = model_access.remedy("engine", Path("/srv/a model"), "/srv/a model/x.json", verb)
    assert command in found


def test_from_outside_the_modes_tell_and_an_acl_is_taken_as_open(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed() -> str:
        return model_access.closed_to("nobody", place)

    assert closed() == ""
    (place / "notes.md").chmod(0o600)
    assert closed() == ""
    (place / "config.json").chmod(0o600)
    assert closed() == str(place / "config.json")
    place.parent.chmod(0o750)
    assert closed() == str(place.parent)
    monkeypatch.setattr(os, "getxattr", lambda *_: b"acl")
    assert closed() == ""
    assert model_access.closed_to("no-such-user", place) == ""
