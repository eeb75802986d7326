"""An engine that is built here from the source archive of its lock: by a real pip, of tiny parts.

The engine is that of `tests.fake_engine`; CMake and ninja are scripts of a line each.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from caovand.adapters.engine_install import commands, from_source, places
from caovand.adapters.engine_install import install as install_engine
from caovand.adapters.engine_install import prove as prove_module
from caovand.adapters.engine_install.commands import Finished
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.lock import Pin, load, parse
from caovand.adapters.engine_install.prove import prove
from caovand.adapters.engine_install.wheels import Folder
from caovand.cli import engine as verb
from caovand.cli.engine import install as install_verb
from caovand.core.facts.inventory import Gpu, Host
from caovand.engines import registry
from tests import engine_fakes, fake_engine
from tests.engine_fakes import FakePip

STANDIN = Path(__file__).parents[1] / "standin" / "tabby.py"
NAME = "tabby-1.0-cpu"
CMAKE = """#!/bin/sh
mkdir -p "$4" && echo "$2" > "$4/tree" && echo "$@" > %s/cmake.args
for word; do case $word in *INCLUDES=*) cat "${word#*=}" > %s/prelude ;; esac; done
"""
NINJA = """#!/bin/sh
if [ "$3" = -n ]; then echo '[1/2] a'; echo '[2/2] b'; exit; fi
if [ -e %s/broken ]; then echo 'x.cpp:1: error: no cat'; exit 1; fi
echo "$@" > %s/ninja.args
printf '# log\\na\\nb\\n' > "$2/.ninja_log"
cp "$(cat "$2/tree")/server.py" "$2/$4" && chmod +x "$2/$4"
"""


def archive(index: Path, server: str, version: str = "1.0", **others: str) -> Path:
    """A source archive whose setup.py must never be run."""
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: tabby\nVersion: {version}\n",
        "pyproject.toml": '[build-system]\nrequires = ["cat"]\n'
        'build-backend = "setuptools.build_meta"\n',
        "setup.py": "raise SystemExit('code of the archive was run')",
        "cat/server.py": server,
        **others,
    }
    made = index / f"tabby-{version}.tar.gz"
    with tarfile.open(made, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"tabby-{version}/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return made


def lock(house: Path, version: str = "1.0") -> None:
    """The lock of all that is in the index."""
    index, head = house / "index", {"kind": "tabby", "source": "tabby", "python": "any"}
    text = engine_fakes.lock_text(index, version=version, **head)
    made = index / f"tabby-{version}.tar.gz"
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    text += f"tabby=={version} --hash=sha256:{digest}\n    # {made.stat().st_size} bytes\n"
    (house / "locks" / f"tabby-cpu-{version}.txt").write_text(text)


def program() -> str:
    return f"#!{sys.executable}\n{STANDIN.read_text()}"


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index on disk, a lock, a compiler, and a registry that knows the engine."""
    for name in ("index", "locks", "bin"):
        (tmp_path / name).mkdir()
    for name, script in (("cmake", CMAKE), ("ninja", NINJA)):
        files = {f"{name}-1.data/scripts/{name}": script.replace("%s", str(tmp_path))}
        engine_fakes.wheel(tmp_path / "index", name, "1", files)
    archive(tmp_path / "index", program())
    lock(tmp_path)
    compiler = tmp_path / "bin" / "c++"
    compiler.touch(mode=0o755)
    kinds = {**registry.MODULES, "tabby": fake_engine.__name__}
    monkeypatch.setattr(registry, "MODULES", kinds)
    for key in [key for key in os.environ if key.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(key)
    own = {
        "CAOVAN_LOCKS": str(tmp_path / "locks"), "CAOVAN_ENGINES": str(tmp_path / "engines"),
        "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "index"), "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
    }  # fmt: skip
    for key, value in own.items():
        monkeypatch.setenv(key, value)
    return tmp_path


def ctl(*words: str) -> int:
    return verb.main(words)


def install(*more: str) -> int:
    return ctl("install", "--kind", "tabby", "--build", "cpu", "--python", sys.executable, *more)


@pytest.mark.long
def test_it_is_built_proven_by_two_completions_listed_verified_and_removed(
    house: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install("--jobs", "3") == 0
    seen = capsys.readouterr()
    assert f"{NAME} is in use: Tabby 1.0, Python " in seen.out
    assert "[5/6] building tabby, some minutes: 3 compilers at once" in seen.err
    assert "100 %  2 of 2  compiling tabby" in seen.err
    root = house / "engines"
    engine = places.current(root, "tabby")
    assert engine is not None
    assert (engine.name, engine.kind, engine.torch) == (NAME, "tabby", "")
    assert places.current(root) is None
    assert "-DPURR=1.0" in (house / "cmake.args").read_text()
    assert (house / "prelude").read_text() == "set(PURR loud)"
    assert "-j3 tabby" in (house / "ninja.args").read_text()
    assert not (engine.path / from_source.FOLDER).exists()
    assert not (root / ".wheels").exists()

    assert install() == 0
    assert "is installed already" in capsys.readouterr().err
    assert ctl("verify") == 0, "every engine in use"
    assert capsys.readouterr().out == f"{NAME} is intact: Tabby 1.0\n"
    assert ctl("verify", "--kind", "vllm") == 1, "none of that kind"
    assert ctl("verify", "--json") == 0
    (verified,) = json.loads(capsys.readouterr().out)["engines"]
    assert (verified["name"], verified["damage"]) == (NAME, [])
    with (engine.path / "bin" / "tabby").open("a") as file:
        file.write("# more\n")
    assert ctl("verify", NAME) == 1
    seen = capsys.readouterr()
    assert "bin/tabby has changed since the installation" in seen.err
    assert seen.out.endswith("sudo caovanctl engine install --kind tabby --again\n")

    assert install("--again") == 0
    assert ctl("rollback", "--kind", "tabby") == 0
    capsys.readouterr()
    assert ctl("list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert (listed["current"], listed["in_use"]) == (None, {"tabby": NAME})
    assert ctl("list") == 0
    assert capsys.readouterr().out.startswith(f"* {NAME}  ")
    assert ctl("remove", NAME) == 1
    assert ctl("use", f"{NAME}.2") == 0
    assert ctl("remove", NAME) == 0
    assert sorted(path.name for path in root.iterdir()) == [
        ".lock", "current-tabby", f"{NAME}.2"
    ]  # fmt: skip


@pytest.mark.long
def test_offline_from_a_folder_that_was_filled_before(
    house: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = str(house / "carried")
    words = ("fetch", "--kind", "tabby", "--build", "cpu", "--python", sys.executable)
    assert ctl(*words, "--wheels", there) == 0
    assert "has all 3 files of tabby-1.0-cpu" in capsys.readouterr().out
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert install("--wheels", there) == 0
    shutil.rmtree(house / "engines")
    (house / "carried" / "tabby-1.0.tar.gz").unlink()
    assert install("--wheels", there) == 1
    assert "caovanctl engine fetch 1.0 --kind tabby --build cpu" in capsys.readouterr().err


def test_without_a_compiler_nothing_is_downloaded(
    house: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert install() == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"caovanctl: cannot build {NAME}: there is no C++ compiler on this machine;"
        " sudo apt install g++"
    )
    assert [path.name for path in (house / "engines").iterdir()] == [".lock"]


@pytest.mark.long
def test_a_failed_build_is_named_and_the_next_try_goes_on_from_there(
    house: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (house / "broken").touch()
    assert install() == 1
    last, work = capsys.readouterr().err.splitlines()[-1], house / "engines" / NAME / "build"
    assert last == (
        f"caovanctl: cannot build {NAME}: ninja reported: x.cpp:1: error: no cat; run the command "
        "again; compiled parts are kept"
        f"; the whole output is in {work / 'log'}"
    )
    assert (work / "log").read_text() == "x.cpp:1: error: no cat\n"
    assert places.unfinished(house / "engines") == [NAME]
    (work / "source" / "cat" / "server.py").write_text(program() + "# not unpacked again\n")
    (house / "broken").unlink()
    assert install() == 0
    assert "[4/6]" not in capsys.readouterr().err
    made = places.current(house / "engines", "tabby")
    assert made is not None
    assert (made.path / "bin" / "tabby").read_text().endswith("# not unpacked again\n")


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ('print("tabby 1.0")', 'print("tabby 0.9")', "did not report build 1: tabby 0.9"),
        (
            "def do_POST(self) -> None:",
            "def do_POST(self) -> None:\n        1 / 0",
            "two completions",
        ),
        ('{"usage": {"completion_tokens": tokens}}', "{}", "two completions ('usage')"),
        ('print("tabby: loading 50%", flush=True)', 'sys.exit("no milk")', "line: no milk"),
    ],
)
def test_a_program_that_does_not_serve_is_not_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, fact: str
) -> None:
    monkeypatch.setattr(registry, "MODULES", {"vllm": "", "tabby": fake_engine.__name__})
    text = f"# caovan: kind = tabby\n{engine_fakes.lock_text(tmp_path, version='1.0')}"
    (tmp_path / "bin").mkdir()
    made, changed = tmp_path / "bin" / "tabby", program().replace(old, new)
    assert changed != program()
    made.write_text(changed)
    made.chmod(0o755)
    wanted = parse(f"{text}six==1 --hash=sha256:{'0' * 64}\n", "x")
    with pytest.raises(EngineError, match=re.escape(fact)):
        prove(wanted, tmp_path, commands.run)


@pytest.mark.parametrize("name", ["../../out", "/tmp/out", "tabby-1.0/../../out"])
def test_an_archive_that_leads_out_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("tabby-1.0/PKG-INFO"), io.BytesIO())
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(EngineError, match=re.escape(f"has the entry {name}")):
        from_source.unpack(tmp_path / "x.tar.gz", tmp_path / "made", "build it")
    assert not (tmp_path / "made").exists()


def test_links_and_devices_of_an_archive_stay_in_it(tmp_path: Path) -> None:
    link, device = tarfile.TarInfo("tabby-1.0/link"), tarfile.TarInfo("tabby-1.0/null")
    link.type, link.linkname, device.type = tarfile.SYMTYPE, "/etc/passwd", tarfile.CHRTYPE
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("tabby-1.0/PKG-INFO"), io.BytesIO())
        tar.addfile(link)
    from_source.unpack(tmp_path / "x.tar.gz", tmp_path / "made", "build it")
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["PKG-INFO"]
    with tarfile.open(tmp_path / "y.tar.gz", "w:gz") as tar:
        tar.addfile(device)
    with pytest.raises(EngineError, match=r"has the entry tabby-1\.0/null"):
        from_source.unpack(tmp_path / "y.tar.gz", tmp_path / "other", "build it")


@pytest.mark.parametrize(
    ("output", "fact"),
    [
        (
            "c++: fatal error: Killed signal terminated program cc1plus",
            "memory ran out; .*--jobs 1",
        ),
        (
            "as: No space left on device",
            "the disk is full; free some space and run the command again",
        ),
        (
            "CMake Error at x:1 (message):\n  ld: cannot find -lm",
            "reported: ld: cannot find -lm; run",
        ),
        ("", "cmake reported: nothing; run the command again; compiled parts are kept"),
    ],
)
def test_a_build_that_fails_is_named_with_its_remedy(house: Path, output: str, fact: str) -> None:
    wanted = parse((house / "locks" / "tabby-cpu-1.0.txt").read_text(), "x")
    source_archive = Folder(house / "index").find(wanted.pins)["tabby"]
    world = replace(engine_fakes.world(FakePip(house), []), run=lambda *_: Finished(1, output))
    world = replace(world, environ=os.environ)
    source = fake_engine.INSTALL.source
    assert source is not None
    with pytest.raises(EngineError, match=fact):
        from_source.build(
            source, wanted, house / "made", source_archive, from_source.BuildOptions(), world
        )


@pytest.mark.parametrize(
    ("words", "cpus", "free_mib", "jobs"),
    [((), 8, 10_000, 8), ((), 8, 200, 3), ((), 8, 10, 1), (("--jobs", "5"), 8, 10, 5)],
)
def test_one_compiler_runs_on_each_core_as_far_as_memory_goes(
    house: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], cpus: int,
    free_mib: int, jobs: int,
) -> None:  # fmt: skip
    requests: list[install_engine.InstallRequest] = []

    def refuse(request: install_engine.InstallRequest, world: object) -> None:
        requests.append(request)
        raise EngineError("go on", "this is a test", "none")

    host = Host(ram_mib=10_000, available_mib=free_mib, swap_mib=0, shm_mib=0, cpus=cpus)
    monkeypatch.setattr(install_verb.host, "read_host", lambda _: host)
    monkeypatch.setattr(install_engine, "install", refuse)
    assert install(*words) == 1
    assert requests[0].compilers == from_source.BuildOptions(jobs)


def test_cards_that_the_locks_cuda_cannot_compile_for_are_left_out_or_refused(
    house: Path,
) -> None:
    runtime = Pin("nvidia-cuda-runtime", "13.0.96", ("0" * 64,), 1)
    wanted = replace(load("cpu", "1.0", "tabby"), build="cuda", pins=(runtime,))
    assert install_verb.compiled_for(wanted, ((6, 1), (7, 5), (8, 6))) == ((7, 5), (8, 6))
    with pytest.raises(EngineError, match=r"CUDA 13 compiles for 7\.5 and newer, not for 6\.1"):
        install_verb.compiled_for(wanted, ((6, 1),))


def test_nothing_is_downloaded_for_cards_that_it_cannot_run_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    p40 = Gpu(0, "Tesla P40", (6, 1), 24576, 24000)
    monkeypatch.setattr(install_verb, "read_gpus", lambda environ: (p40,))
    assert ctl("install", "--build", "cuda", "--root", str(tmp_path)) == 1
    assert "CUDA 13 compiles for 7.5 and newer, not for 6.1" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_what_a_cuda_build_needs_to_know_is_asked_for(
    house: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = replace(fake_engine.INSTALL, versions={"cpu": "1.0", "cuda": "1.0"})
    monkeypatch.setattr(fake_engine, "ENGINE", replace(fake_engine.ENGINE, install=offered))
    text = (house / "locks" / "tabby-cpu-1.0.txt").read_text()
    cuda = text.replace("build = cpu", "build = cuda")
    (house / "locks" / "tabby-cuda-1.0.txt").write_text(cuda)
    monkeypatch.setattr(install_verb.build_kernels, "cards_here", list)
    monkeypatch.setattr(prove_module, "try_server", lambda *_: None)
    words = ("--kind", "tabby", "--build", "cuda", "--python", sys.executable)
    assert ctl("install", "1.0", *words) == 1
    assert "no NVIDIA GPU is visible; name the cards' compute cap" in capsys.readouterr().err
    assert ctl("install", "1.0", *words, "--plugin", str(house)) == 1
    assert "cannot add the plugin: Tabby has no plugins" in capsys.readouterr().err
    assert ctl("install", "1.0", *words, "--capability", "7.5", "--capability", "8.6") == 0
    assert "-DCMAKE_CUDA_ARCHITECTURES=75-real;86-real" in (house / "cmake.args").read_text()
    assert "note: checked only without a card: no layer ran on a GPU" in capsys.readouterr().err
    assert ctl("install", "1.0", *words, "--capability", "7.5") == 0
    assert "is installed already" in capsys.readouterr().err
    assert ctl("install", "1.0", *words, "--capability", "9.0") == 0
    assert "tabby-1.0-cuda.2 is in use" in capsys.readouterr().out
