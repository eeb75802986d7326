"""Which lock SGLang is installed from, and what its own Python is asked to import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.engine_install import install, lock, places, run_in_env
from caovand.cli.engine import choice
from caovand.cli.main import main
from caovand.daemon.start.inspection import no_card
from caovand.engines.sglang.engine import ENGINE
from caovand.engines.sglang.installation import INSTALL
from tests.engine_fakes import FakePip, tiny_lock, wheelhouse, world

TORCH = """
import types
__version__, version = "2.11.0+cu130", types.SimpleNamespace(cuda="13.0")
cuda = types.SimpleNamespace(
    device_count=lambda: {cards},
    get_device_name=lambda n: "NVIDIA H100",
    get_device_capability=lambda n: (9, 0),
)
"""


@pytest.fixture
def without_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "on_the_bus", lambda devices: False)
    monkeypatch.setattr(choice, "read_gpus", lambda environ: ())


@pytest.mark.usefixtures("without_card")
@pytest.mark.parametrize("words", [[], ["--build", "cpu"]], ids=["no card", "cpu"])
def test_it_is_refused_where_there_is_no_card_for_it(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["engine", "install", "--kind", "sglang", "--root", str(tmp_path), *words]
    assert main(asked) == 1
    assert (
        "cannot install SGLang (cpu): caovan installs only its cuda build; choose an engine with a"
        " cpu build, --kind vllm or llamacpp; where the card and its driver are still to come, pass"
        " --build cuda\n"
    ) in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_missing_card_is_not_answered_with_a_cpu_build() -> None:
    assert str(no_card(ENGINE)).endswith("check `nvidia-smi`")


def test_its_lock_agrees_with_what_it_says_of_itself() -> None:
    read = lock.load("cuda", None, "sglang")
    version = {pin.name: pin.version for pin in read.pins}
    assert (read.name, version["sglang"]) == (f"sglang-{read.version}-cuda", read.version)
    assert {"sglang-kernel", "flashinfer-python", "torch", "triton", "transformers"} <= set(version)
    # what SGLang runs when it ends a hung scheduler, and without which it only reports the hang
    assert "py-spy" in version


def test_it_is_installed_next_to_an_engine_of_another_kind(tmp_path: Path) -> None:
    index, root = wheelhouse(tmp_path / "index"), tmp_path / "engines"

    def made(**head: str) -> places.InstalledEngine:
        order = install.InstallRequest(
            lock=tiny_lock(index, **head), root=root, python=sys.executable
        )
        return install.install(order, world(FakePip(index), []))

    vllm, sglang = made(), made(kind="sglang")
    assert (vllm.name, sglang.name) == ("vllm-9.9.9-cpu", "sglang-9.9.9-cpu")
    assert places.current(root) == vllm
    assert places.current(root, "sglang") == sglang
    second = made(kind="sglang", disk_mib="2")
    assert places.current(root, "sglang") == second
    assert places.rollback(root, "sglang") == sglang


@pytest.mark.parametrize(
    ("cards", "library", "errors"),
    [
        # its library is linked with the driver's, so none loads where there is no driver
        (0, "raise ImportError('libcuda.so.1')", []),
        (1, "", []),
        (1, "raise ImportError('undefined symbol: _ZN3c10')",
         ["import sgl_kernel: ImportError: undefined symbol: _ZN3c10"]),
    ],
    ids=["no card", "a card", "another torch's"],
)  # fmt: skip
def test_its_kernels_are_loaded_where_a_card_is(
    tmp_path: Path, cards: int, library: str, errors: list[str]
) -> None:
    modules = {
        "torch.py": TORCH.format(cards=cards),
        "flashinfer.py": "",
        "sgl_kernel/__init__.py": library,
        "sgl_kernel/flash_attn.py": "",
        "sglang/__init__.py": "__version__ = '0.5.17'",
        "sglang/srt/server_args.py": "",
    }
    for name, text in modules.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    report = reported(tmp_path)
    assert (report["version"], report["errors"][: len(errors) or None]) == ("0.5.17", errors)


def reported(modules: Path) -> dict[str, Any]:
    """The line that it prints when these modules are found first."""
    imports = INSTALL.imports
    assert imports is not None
    asked = {"modules": imports.modules, "kernels": imports.kernels, "plugins": imports.plugins}
    env = {**os.environ, "PYTHONPATH": str(modules)}
    words = [sys.executable, "-S", run_in_env.__file__, json.dumps(asked)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report
