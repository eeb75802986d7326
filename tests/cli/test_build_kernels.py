"""caovanctl engine build-kernels, and the same step at the end of engine install."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.engine_install import install, places
from caovand.adapters.engine_install.errors import EngineError
from caovand.cli.engine import build_kernels
from caovand.core.facts.inventory import Gpu
from tests.cli.conftest import Ctl
from tests.core.machines import turing
from tests.fake_flashinfer import cuda_engine

SM75 = (
    "sampling", "attention-128-float16", "attention-128-fp8",
    "attention-256-float16", "attention-256-fp8",
)  # fmt: skip


@pytest.fixture
def engine(tmp_path: Path) -> places.InstalledEngine:
    """The engine in use."""
    made = cuda_engine(tmp_path / "engines")
    places.switch(made.path.parent, made.name)
    return made


def cards(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu) -> None:
    monkeypatch.setattr(build_kernels, "read_gpus", lambda _known: gpus)


def test_what_the_cards_here_need_is_built_in_the_engine_in_use(
    ctl: Ctl, engine: places.InstalledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(monkeypatch, *turing(2))
    words = ("engine", "build-kernels", "--root", str(engine.path.parent))
    first, second = ctl(*words, "--json", "--jobs", "2"), ctl(*words)
    assert first.json == {"name": engine.name, "cards": ["SM75"], "built": list(SM75)}
    assert "5 in all, 2 compilers at once" in first.err
    assert "      attention-256-fp8: 0 s, 0 MiB\n" in first.err
    assert second.out == "vllm-0.21.0-cuda has its kernels for SM75: 0 built now\n"
    assert "every kernel was already built" in second.err


def test_kernels_are_built_for_cards_that_are_not_here(
    ctl: Ctl, engine: places.InstalledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(monkeypatch)
    words = ("engine", "build-kernels", engine.name, "--root", str(engine.path.parent))
    refused = ctl(*words)
    assert (refused.code, refused.err) == (
        1,
        "caovanctl: cannot build kernels: no NVIDIA GPU is visible; name the cards' compute"
        " capability, such as --capability 7.5\n",
    )
    said = ctl(*words, "--capability", "8.6", "--capability", "7.5")
    assert said.out == "vllm-0.21.0-cuda has its kernels for SM86, SM75: 8 built now\n"
    assert (engine.path / "kernels/sm86/sampling/sampling.so").is_file()


@pytest.mark.parametrize(
    "words", [("--capability", "75"), ("--capability", "7.5a"), ("--jobs", "0"), ("--jobs", "-1")]
)
def test_a_number_that_is_none_is_refused(ctl: Ctl, words: tuple[str, str]) -> None:
    assert ctl("engine", "build-kernels", *words).code == 2


@pytest.fixture
def built(
    ctl: Ctl, engine: places.InstalledEngine, monkeypatch: pytest.MonkeyPatch
) -> list[Sequence[tuple[int, int]]]:
    """The cards that `engine install` has kernels built for; the installation is pretended."""
    asked: list[Any] = []
    monkeypatch.setattr(install, "install", lambda _order, _world: engine)
    monkeypatch.setattr(
        build_kernels, "build", lambda _engine, cards, _jobs, _world: asked.append(cards)
    )
    return asked


INSTALL = ("engine", "install", "0.21.0", "--build", "cuda", "--root")


def test_an_installation_ends_with_the_kernels_for_the_cards_here(
    ctl: Ctl, engine: places.InstalledEngine, built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(monkeypatch, *turing(2))
    assert ctl(*INSTALL, str(engine.path.parent)).code == 0
    assert built == [[(7, 5)]]
    assert ctl(*INSTALL, str(engine.path.parent), "--no-kernels").code == 0
    assert built == [[(7, 5)]]


def test_an_installation_without_a_card_names_the_command(
    ctl: Ctl, engine: places.InstalledEngine, built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(monkeypatch)
    said = ctl(*INSTALL, str(engine.path.parent))
    assert (said.code, built) == (0, [])
    assert "no GPU is visible; once one is: sudo caovanctl engine build-kernels" in said.err


def test_an_engine_whose_kernels_cannot_be_built_is_in_use_all_the_same(
    ctl: Ctl, engine: places.InstalledEngine, built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise EngineError("build the kernels of x", "there is no c++", "sudo apt install g++")

    cards(monkeypatch, *turing(2))
    monkeypatch.setattr(build_kernels, "build", fails)
    said = ctl(*INSTALL, str(engine.path.parent))
    assert said.code == 0
    assert "warning: cannot build the kernels of x: there is no c++; sudo apt" in said.err
    assert said.out.startswith("vllm-0.21.0-cuda is in use")
