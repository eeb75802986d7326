"""Root works in a stranger's folder full of traps, which is its HOME and first on its PATH too.

Each trap leaves a mark when it is run; the folder and the file its links lead to are compared
before and after. Real processes, a real pip, and nothing from an index.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import engine_fakes
from tests.fake_flashinfer import cuda_engine

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.getuid() != 0, reason="only root has anything to lose here"),
]

STRANGER = 65534
BIN = Path(sys.executable).parent
HERE = engine_fakes.PYTHON
LIMIT_S = 300
MODULES = (
    "venv", "sysconfig", "vllm", "torch", "pip", "sitecustomize", "usercustomize", "json", "site",
    "runpy", "ensurepip", "subprocess", "multiprocessing", "platform", "caovand", "zmq", "tomllib",
)  # fmt: skip
PROGRAMS = ("uv", "pip", "vllm", "setpriv", "py-spy", "sh", f"python{HERE}", "python3", "python",
            "c++", "cc", "ninja", "nice")  # fmt: skip
WRITTEN = (
    ".lock", ".wheels", ".python", ".uv", ".python-archives", "current", "previous",
    "api-key", "engine.log", "mode.json", "engine-flags-0.lock", "engine-flags-0.part", "lock",
    "caovan-engine.json", ".caovan-engine.json.new", "caovan-steps.json", "good-plan.json",
)  # fmt: skip
SERVE = """
class FlexibleArgumentParser:
    _actions = ()
def make_arg_parser(parser):
    return parser
"""
MAIN = """
import multiprocessing, os, sys
def child():
    import platform
def main():
    worker = multiprocessing.get_context("spawn").Process(target=child)
    worker.start(); worker.join()
    print("SERVED", sys.argv[1:3], worker.exitcode)
if __name__ == "__main__":
    main()
"""


class Ground:
    """Folders of root's, and beside them the stranger's with all that may go off."""

    def __init__(self, place: Path) -> None:
        self.own, self.trap, self.marks = place / "own", place / "trap", place / "marks"
        self.canary = place / "canary"
        for folder in (self.own, self.trap, self.marks):
            folder.mkdir()
        self.marks.chmod(0o1777)
        self.canary.write_text("as it was\n")
        self._house()
        self._model()
        self._traps()

    def _house(self) -> None:
        index = engine_fakes.wheelhouse(self.own / "index")
        (self.own / "locks").mkdir()
        (self.own / "locks" / "cpu-9.9.9.txt").write_text(engine_fakes.lock_text(index))

    def _model(self) -> None:
        folder = self.own / "model"
        folder.mkdir()
        config = {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 2,
            "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 1024,
            "vocab_size": 512,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer.json").write_text("{}")
        header = json.dumps(
            {"model.embed_tokens.weight": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}
        ).encode()
        text = struct.pack("<Q", len(header)) + header + bytes(8)
        (folder / "model.safetensors").write_bytes(text)

    def _traps(self) -> None:
        trap = self.trap
        for name in MODULES:
            (trap / f"{name}.py").write_text(self._python(name))
        site = trap / ".local/lib" / f"python{HERE}" / "site-packages"
        site.mkdir(parents=True)
        for folder in ("encodings", "vllm", "torch", "entrypoints"):
            (trap / folder).mkdir()
            (trap / folder / "__init__.py").write_text(self._python(folder))
        for name in ("usercustomize", "sitecustomize"):
            (site / f"{name}.py").write_text(self._python(name))
        for folder in ("", "bin", ".venv/bin", f".pyenv/versions/{HERE}.0/bin"):
            (trap / folder).mkdir(parents=True, exist_ok=True)
            for name in PROGRAMS:
                if folder or name not in ("vllm",):  # a folder of this name is there already
                    self.program(trap / folder / name)
        (trap / ".venv/pyvenv.cfg").write_text(f"home = {trap}/bin\n")
        evil = f"{trap}/bin/python"
        conf = f"[global]\npython = {evil}\nlog = {self.canary}\nindex-url = http://127.0.0.1:9/\n"
        for name in ("pip.conf", ".pip/pip.conf", ".config/pip/pip.conf"):
            (trap / name).parent.mkdir(parents=True, exist_ok=True)
            (trap / name).write_text(conf)
        for name in ("uv.toml", ".config/uv/uv.toml"):
            (trap / name).parent.mkdir(parents=True, exist_ok=True)
            (trap / name).write_text("this is no TOML [")
        (trap / "caovan.toml").write_text(f'[engine]\npython = "{evil}"\n')
        (trap / "engine.in").write_text("# caovan: python = 3.12\n")
        for name in WRITTEN:
            (trap / name).symlink_to(self.canary)
        for name in ("chat_template.jinja", "config.json", "inventory.json", "lock.fifo"):
            os.mkfifo(trap / name)
        (trap / "model.safetensors").symlink_to("/dev/zero")
        shutil.copy("/bin/true", trap / "setuid")
        for path in (trap, *trap.rglob("*")):
            os.lchown(path, STRANGER, STRANGER)
        (trap / "setuid").chmod(0o6755)

    def _python(self, name: str) -> str:
        return f"open('{self.marks}/{name}.' + str(__import__('os').getuid()), 'w').close()\n"

    def program(self, path: Path) -> None:
        path.write_text(f'#!/bin/bash\n: > "{self.marks}/{path.name}.$UID"\nexit 1\n')
        path.chmod(0o755)

    def state(self) -> dict[str, tuple[object, ...]]:
        """All that can be seen of the trap and of the file its links lead to."""
        found = {}
        for path in (self.canary, self.trap, *sorted(self.trap.rglob("*"))):
            seen = path.lstat()
            content = ""
            if path.is_symlink():
                content = os.readlink(path)
            elif stat.S_ISREG(seen.st_mode):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path)] = (seen.st_mode, seen.st_uid, seen.st_ino, seen.st_mtime_ns, content)
        return found

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """One of our commands, by the script that is installed, from within the trap."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_", "XDG_"))}
        folders = {f"{n}_DIRECTORY": str(self.own / n.lower())
                   for n in ("RUNTIME", "STATE", "CACHE", "LOGS")}  # fmt: skip
        own = {
            **folders,
            "HOME": str(self.trap),
            "PATH": f":.:{self.trap}:{self.trap}/bin:bin:/usr/bin:/bin",
            "CAOVAN_LOCKS": str(self.own / "locks"),
            "CAOVAN_ENGINES": str(self.own / "engines"),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.own / "index"),
        }
        return subprocess.run(
            [str(BIN / words[0]), *words[1:]],
            cwd=self.trap,
            env={**clean, **own, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def marked(self) -> list[str]:
        return sorted(path.name for path in self.marks.iterdir())


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with tempfile.TemporaryDirectory(prefix="caovan-traps-") as name:
        Path(name).chmod(0o755)
        yield Ground(Path(name))


@pytest.fixture(autouse=True)
def untouched(ground: Ground) -> Iterator[None]:
    """No trap goes off and nothing of the stranger's is changed, whatever the test does."""
    before = ground.state()
    yield
    assert [name for name in ground.marked() if not name.endswith(f".{STRANGER}")] == []
    assert ground.state() == before


@pytest.fixture(scope="module")
def engine(ground: Ground) -> Path:
    """The tiny engine, installed from within the trap, with a command line to serve by."""
    words = ("engine", "install", "9.9.9", "--build", "cpu", "--python", sys.executable)
    done = ground.run("caovanctl", *words)
    assert done.returncode == 0, done.stderr
    path = (ground.own / "engines/current").resolve()
    cli = next(path.glob("lib/python3*/site-packages")) / "vllm/entrypoints/cli"
    cli.mkdir(parents=True)
    for folder in (cli, cli.parent):
        (folder / "__init__.py").write_text("")
    (cli / "serve.py").write_text(SERVE)
    (cli / "main.py").write_text(MAIN)
    return path


def test_the_engine_verbs_run_nothing_of_the_folder(ground: Ground, engine: Path) -> None:
    for words in (("list",), ("verify",), ("use", engine.name), ("rollback",)):
        done = ground.run("caovanctl", "engine", *words)
        assert done.returncode == (1 if words == ("rollback",) else 0), done.stderr
    wheels = str(ground.own / "wheels")
    order = ("9.9.9", "--build", "cpu", "--python", sys.executable)
    done = ground.run("caovanctl", "engine", "fetch", *order, "--wheels", wheels)
    assert done.returncode == 0, done.stderr
    root = str(ground.own / "other")
    done = ground.run("caovanctl", "engine", "install", *order, "--wheels", wheels, "--root", root)
    assert done.returncode == 0, done.stderr
    ground.run("caovanctl", "engine", "lock", "engine.in")


def test_kernels_are_built_by_no_compiler_of_the_folder(ground: Ground) -> None:
    name, root = cuda_engine(ground.own / "cuda-engines").name, str(ground.own / "cuda-engines")
    words = ("build-kernels", name, "--root", root, "--capability", "7.5")
    trap = str(ground.trap)
    done = ground.run("caovanctl", "engine", *words, CXX=f"{trap}/c++", CPATH=trap)
    assert done.returncode == 0, done.stderr


def test_a_python_is_looked_for_in_no_folder_of_a_stranger(ground: Ground) -> None:
    root = str(ground.own / "third")
    ground.run("caovanctl", "engine", "install", "9.9.9", "--build", "cpu", "--root", root)


@pytest.mark.parametrize("words", [("install",), ("fetch", "--wheels", ".")])
def test_root_writes_into_no_folder_of_a_stranger(ground: Ground, words: tuple[str, ...]) -> None:
    order = ("9.9.9", "--build", "cpu", "--python", sys.executable, "--root", ".")
    done = ground.run("caovanctl", "engine", words[0], *order, *words[1:])
    assert done.returncode == 1
    assert (
        f"belongs to uid {STRANGER}, and that user could make root write elsewhere" in done.stderr
    )
    assert "run it as that user" in done.stderr


def test_the_wheels_of_a_stranger_are_copied_before_they_are_checked(ground: Ground) -> None:
    wheels, root = ground.own / "carried", ground.own / "fourth"
    shutil.copytree(ground.own / "index", wheels)
    for path in (wheels, *wheels.iterdir()):
        os.chown(path, STRANGER, STRANGER)
    done = ground.run(
        "caovanctl", "engine", "install", "9.9.9", "--build", "cpu", "--python", sys.executable,
        "--wheels", str(wheels), "--root", str(root),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not (root / ".wheels").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("doctor",), ("plan",), ("inventory", "--json"), ("check-config", "caovan.toml"),
        ("check-config", "config.json"), ("completion", "bash"), ("doctor", "."), ("plan", "."),
        ("doctor", "--inventory", "inventory.json"), ("plan", "--config", "config.json"),
        ("explain", "uv.toml"), ("status",),
    ],
)  # fmt: skip
def test_the_verbs_without_a_daemon_run_nothing_of_the_folder(
    ground: Ground, engine: Path, words: tuple[str, ...]
) -> None:
    model = [str(ground.own / "model")] if words in (("doctor",), ("plan",)) else []
    done = ground.run("caovanctl", *words, *model)
    assert "Traceback" not in done.stderr
    if words == ("plan",):
        assert done.returncode == 0, done.stderr


def test_an_interpreter_that_a_stranger_names_is_run_as_that_stranger(ground: Ground) -> None:
    for path in ground.marks.iterdir():
        path.unlink()
    done = ground.run("caovanctl", "inventory", "--config", "caovan.toml")
    assert ground.marked() == [f"python.{STRANGER}"], done.stdout + done.stderr
    (ground.marks / f"python.{STRANGER}").unlink()


def test_a_stranger_s_file_names_no_interpreter_that_others_may_change(ground: Ground) -> None:
    config = ground.own / "open.toml"
    config.write_text(f'[engine]\npython = "{ground.trap}/bin/python"\n')
    config.chmod(0o666)
    done = ground.run("caovanctl", "inventory", "--config", str(config))
    assert f"as root: {config} can be changed by every user" in done.stdout


def test_exec_takes_vllm_from_the_engine_and_nothing_from_here(
    ground: Ground, engine: Path
) -> None:
    done = ground.run("caovan-vllm-serve", "--exec", str(ground.own / "model"))
    served = f"SERVED ['serve', '{ground.own}/model'] 0\n"
    assert (done.returncode, done.stdout) == (0, served), done.stderr


@pytest.mark.parametrize("name", ["RUNTIME", "STATE", "CACHE", "LOGS"])
def test_serve_writes_into_no_folder_of_a_stranger(ground: Ground, engine: Path, name: str) -> None:
    variable = f"{name}_DIRECTORY"
    done = ground.run(
        "caovan-vllm-serve", str(ground.own / "model"), "--port", "18765",
        **{variable: str(ground.trap / "deep")},
    )  # fmt: skip
    assert done.returncode == 1
    assert f"{ground.trap}: it belongs to uid {STRANGER}; remove it, or set {variable}" in (
        done.stderr
    )
