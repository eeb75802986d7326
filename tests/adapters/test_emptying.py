"""Folders are emptied completely, whatever an engine does in them meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.files import emptying


def test_a_folder_that_becomes_a_link_while_it_is_emptied_costs_nobody_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an engine that still lives would do it, in a cache that it may write to."""
    state, place = tmp_path / "state", tmp_path / "cache/tmp-1"
    for folder in (state, place):
        (folder / "slots").mkdir(parents=True)
        (folder / "slots/mode").touch()
        (folder / "keys.json").touch()
    real, swapped = os.listdir, list[str]()

    def swapping(at: Any) -> list[str]:
        names = real(at)
        if not swapped:
            swapped.append(str(place.rename(tmp_path / "cache/away")))
            place.symlink_to(state)
        return names

    monkeypatch.setattr(os, "listdir", swapping)
    emptying.empty(str(place))
    assert swapped
    assert sorted(real(state)) == ["keys.json", "slots"]
    assert real(state / "slots") == ["mode"]


@pytest.mark.parametrize("function", [emptying.empty, lambda path: emptying.remove_all([path])])
def test_links_are_removed_and_what_they_lead_to_is_not(tmp_path: Path, function: Any) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    place = tmp_path / "place"
    (place / "inner").mkdir(parents=True)
    for link in ("at-the-top", "inner/below"):
        (place / link).symlink_to(tmp_path / "kept")
    assert function(str(place)) == []
    assert not place.exists() or os.listdir(place) == []
    assert os.listdir(tmp_path / "kept") == ["file"]


def test_a_link_to_a_folder_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    assert emptying.empty(str(tmp_path / "link")) == []
    assert os.listdir(tmp_path / "kept") == ["file"]
    assert emptying.remove_all([str(tmp_path / "link"), str(tmp_path / "gone")]) == []
    assert os.listdir(tmp_path) == ["kept"]


def test_a_thousand_levels_of_folders_are_removed(tmp_path: Path) -> None:
    """A path as long has no name, and a recursion over it ends the thread."""
    place, levels = tmp_path / "place", 1500
    place.mkdir()
    at = os.open(place, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("x" * 50, dir_fd=at)
        inner = os.open("x" * 50, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    assert emptying.empty(str(place)) == []
    assert os.listdir(place) == []


def test_what_cannot_be_removed_is_named_and_the_rest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a mount point, which the kernel neither moves nor removes."""
    for name in ("mounted", "other", "file"):
        (tmp_path / name).mkdir() if name != "file" else (tmp_path / name).touch()
    (tmp_path / "mounted/file").touch()
    rename = os.rename

    def busy(source: str, *args: Any, **more: Any) -> None:
        if source == "mounted":
            raise OSError(16, "Device or resource busy")
        rename(source, *args, **more)

    monkeypatch.setattr(os, "rename", busy)
    assert emptying.empty(str(tmp_path)) == [str(tmp_path / "mounted")]
    assert os.listdir(tmp_path) == ["mounted"]
    assert os.listdir(tmp_path / "mounted") == ["file"]
