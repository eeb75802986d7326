"""`caovanctl engine` as people call it: real processes, a real pip, tiny wheels made here."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.engine_install import install as install_engine
from caovand.adapters.engine_install import lock, places, pythons
from caovand.adapters.engine_install.errors import EngineError
from caovand.cli import engine as verb
from caovand.cli.engine import choice
from caovand.cli.engine import install as install_verb
from caovand.core.facts.inventory import Gpu
from tests import engine_fakes

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = "vllm-9.9.9-cpu"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lock and an index that pip reads from disk."""
    folder = tmp_path_factory.mktemp("house")
    index = engine_fakes.wheelhouse(folder / "index")
    (folder / "locks").mkdir()
    (folder / "locks" / "cpu-9.9.9.txt").write_text(engine_fakes.lock_text(index, "0" * 64))
    return folder


def caovanctl(
    house: Path, *args: str, find_links: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the verb from the bare checkout, with no index but a folder."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    own = {
        "CAOVAN_LOCKS": str(house / "locks"),
        "CAOVAN_ENGINES": str(house / "engines"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(find_links or house / "index"),
        "PATH": "/usr/bin:/bin",
    }
    return subprocess.run(
        [sys.executable, "-m", "caovand.cli.engine", *args],
        cwd=REPOSITORY,
        env={**clean, **own, **env},
        check=False,
        capture_output=True,
        text=True,
    )


def install(house: Path, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    return caovanctl(
        house, "install", "9.9.9", "--build", "cpu", "--python", sys.executable, *more, **env
    )


@pytest.fixture(scope="module")
def made(house: Path) -> dict[str, Any]:
    """The tiny engine, installed by pip."""
    done = install(house, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_a_real_pip_makes_an_engine(made: dict[str, Any]) -> None:
    assert made["name"] == NAME
    out = subprocess.run(
        [made["interpreter"], "-c", "import vllm, six; print(vllm.__version__, six.ANSWER)"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert out.stdout == "9.9.9 6\n"
    # the service of another user could not save it
    assert list(Path(made["path"], "lib").glob("python3*/site-packages/__pycache__/six.*.pyc"))


@pytest.mark.long
def test_list_and_verify_show_it(house: Path, made: dict[str, Any]) -> None:
    listed = json.loads(caovanctl(house, "list", "--json").stdout)
    assert (listed["current"], listed["unfinished"]) == (NAME, [])
    assert caovanctl(house, "list").stdout.startswith(f"* {NAME} ")
    done = caovanctl(house, "verify")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{NAME} is intact: vLLM 9.9.9, torch 1.0+cpu, no GPU\n"


@pytest.mark.long
def test_verify_names_what_was_changed_or_lost(house: Path, made: dict[str, Any]) -> None:
    site = next(Path(made["path"], "lib").glob("python3*/site-packages"))
    text = (site / "six.py").read_text()
    (site / "six.py").write_text("ANSWER = 7\n")
    try:
        done = caovanctl(house, "verify", NAME, "--json")
    finally:
        (site / "six.py").write_text(text)
    assert done.returncode == 1
    assert json.loads(done.stdout)["damage"] == ["six.py has changed since the installation"]


@pytest.mark.long
def test_a_wheel_that_was_tampered_with_is_refused_by_the_real_pip(
    house: Path, made: dict[str, Any], tmp_path: Path
) -> None:
    bad = engine_fakes.wheelhouse(tmp_path / "bad")
    engine_fakes.wheel(bad, "six", "1.0", {"six.py": "ANSWER = 666\n"})
    done = caovanctl(
        house, "install", "9.9.9", "--build", "cpu", "--python", sys.executable, "--again",
        find_links=bad,
    )  # fmt: skip
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("caovanctl: cannot get six==1.0: the index offers a file with sha256 ")
    assert "which is not in the lock; try another mirror" in last
    listed = json.loads(caovanctl(house, "list", "--json").stdout)
    assert (listed["current"], listed["unfinished"]) == (NAME, [f"{NAME}.2"])
    assert caovanctl(house, "remove", f"{NAME}.2").returncode == 0


@pytest.mark.long
def test_what_no_index_has_is_said_in_one_line(
    house: Path, made: dict[str, Any], tmp_path: Path
) -> None:
    done = install(house, "--again", PIP_FIND_LINKS=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "caovanctl: cannot get six 1.0, vllm 9.9.9: the configured index has no "
    )
    assert caovanctl(house, "remove", f"{NAME}.2").returncode == 0


@pytest.mark.long
def test_an_index_that_does_not_answer_is_said_in_one_line(
    house: Path, made: dict[str, Any]
) -> None:
    done = install(
        house, "--again", PIP_FIND_LINKS="", PIP_NO_INDEX="", PIP_RETRIES="1",
        PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_PROXY="",
        http_proxy="", https_proxy="", HTTP_PROXY="", HTTPS_PROXY="",
    )  # fmt: skip
    assert done.returncode == 1
    assert "the package index cannot be reached; check the network" in done.stderr.splitlines()[-1]
    assert caovanctl(house, "remove", f"{NAME}.2").returncode == 0


@pytest.mark.long
def test_fetch_fills_a_folder_that_installs_offline(
    house: Path, made: dict[str, Any], tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    done = caovanctl(
        house, "fetch", "9.9.9", "--build", "cpu", "--wheels", str(wheels),
        "--python", sys.executable,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{wheels} has all 3 files of {NAME}\n"
    root = tmp_path / "elsewhere"
    done = install(house, "--wheels", str(wheels), "--root", str(root), PIP_FIND_LINKS="/absent")
    assert done.returncode == 0, done.stderr
    now = places.current(root)
    assert now is not None
    assert now.path == root / NAME


UV_THAT_CHECKS = """\
#!/bin/sh
# As uv does it (tried with 0.13.9): an archive of another sha256 is not unpacked.
cd "$UV_PYTHON_CACHE_DIR" || exit 1
echo "{sha256}  {archive}" | sha256sum -c || exit 2
mkdir -p "$UV_PYTHON_INSTALL_DIR" && tar -xzf {archive} -C "$UV_PYTHON_INSTALL_DIR"
"""


@pytest.mark.long
@pytest.mark.parametrize("forged", ["", "python", "uv"])
def test_offline_the_uv_that_came_with_caovan_vouches_for_the_python(
    tmp_path: Path, forged: str
) -> None:
    kept = tmp_path / "wheels" / ".python-archives"
    kept.mkdir(parents=True)
    archive = "0123abcde-cpython-9.8.7-x.tar.gz"
    name = "cpython-9.8.7-linux/bin/python9.8"

    def pack(text: bytes) -> None:
        with tarfile.open(kept / archive, "w:gz") as made:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o755
            made.addfile(entry, io.BytesIO(text))

    pack(b"the real one")
    digest = hashlib.sha256((kept / archive).read_bytes()).hexdigest()
    script = UV_THAT_CHECKS.format(sha256=digest, archive=archive)
    uv = engine_fakes.wheel(kept, "uv", "1.0", {"uv-1.0.data/scripts/uv": script})
    locks = tmp_path / "locks"
    locks.mkdir()
    pin = hashlib.sha256(uv.read_bytes()).hexdigest()
    (locks / "uv.txt").write_text(f"uv==1.0 --hash=sha256:{pin}\n")
    if forged == "python":
        pack(b"another")
    elif forged == "uv":
        engine_fakes.wheel(kept, "uv", "1.0", {"uv-1.0.data/scripts/uv": "#!/bin/sh\n"})
    code = (
        "import sys; from pathlib import Path; "
        "from caovand.adapters.engine_install import commands, pythons; "
        "folder, root = map(Path, sys.argv[1:]); "
        "print(pythons.UvPython('9.8', root, commands.run).install_from(folder))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "wheels", tmp_path / "root"],
        cwd=REPOSITORY,
        env={"CAOVAN_LOCKS": str(locks), "PATH": "/usr/bin:/bin"},
        check=False,
        capture_output=True,
        text=True,
    )
    made = tmp_path / "root/.python" / name
    if forged:
        assert done.returncode == 1
        assert not made.exists()
        assert "uv could not install one" in done.stderr
    else:
        assert done.stdout == f"{made}\n", done.stderr
        assert made.read_bytes() == b"the real one"
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == (
        [] if forged else [".python"]
    )


UV = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))


@pytest.mark.long
@pytest.mark.skipif(UV is None, reason="needs uv, one of the development tools: pip install uv")
def test_uv_unpacks_where_it_is_installed(
    house: Path, made: dict[str, Any], tmp_path: Path
) -> None:
    assert UV is not None
    root = tmp_path / "by-uv"
    done = install(house, "--root", str(root), PATH=f"{Path(UV).parent}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    assert caovanctl(house, "verify", "--root", str(root)).returncode == 0
    assert not (root / NAME / "uv-cache").exists()


@pytest.mark.long
def test_a_killed_pip_dies_with_us_and_the_next_try_succeeds(
    house: Path, made: dict[str, Any], tmp_path: Path
) -> None:
    root = tmp_path / "killed"
    script = (
        "import os, signal, sys\n"
        "from caovand.adapters.engine_install import commands\n"
        "real = commands.os.read\n"
        "def read(fd, size):\n"
        "    data = real(fd, size)\n"
        "    if b'Installing collected packages' in data:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return data\n"
        "commands.os.read = read\n"
        "from caovand.cli.engine import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    arguments = ["install", "9.9.9", "--build", "cpu", "--python", sys.executable]
    env = {
        **os.environ,
        "CAOVAN_LOCKS": str(house / "locks"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(house / "index"),
        "PATH": "/usr/bin:/bin",
    }
    died = subprocess.run(
        [sys.executable, "-c", script, *arguments, "--root", str(root)],
        cwd=REPOSITORY,
        env=env,
        check=False,
        capture_output=True,
        text=True,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert places.engines(root) == []
    assert places.unfinished(root) == [NAME]
    done = install(house, "--root", str(root))
    assert done.returncode == 0, done.stderr
    assert "downloading" in done.stderr
    assert places.unfinished(root) == []


@pytest.mark.long
def test_switching_by_command(house: Path, made: dict[str, Any]) -> None:
    assert install(house, "--again").returncode == 0
    for arguments, current in (
        (("rollback",), NAME),
        (("use", f"{NAME}.2"), f"{NAME}.2"),
        (("use", NAME), NAME),
    ):
        assert caovanctl(house, *arguments).returncode == 0
        assert json.loads(caovanctl(house, "list", "--json").stdout)["current"] == current
    assert caovanctl(house, "remove", NAME).returncode == 1
    assert caovanctl(house, "remove", f"{NAME}.2").returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [(), ("dance",), ("use",), ("install", "--build", "tpu"), ("fetch", "1.0"), ("list", "x")],
)
def test_wrong_usage_exits_2(house: Path, arguments: tuple[str, ...]) -> None:
    assert caovanctl(house, *arguments).returncode == 2


def test_a_version_without_a_lock_exits_1_and_says_what_there_is(house: Path) -> None:
    done = caovanctl(house, "install", "1.2.3", "--build", "cpu")
    assert done.returncode == 1
    assert done.stderr == (
        "caovanctl: cannot install vLLM 1.2.3 (cpu): no lock file cpu-1.2.3.txt exists; "
        "available: cpu-9.9.9\n"
    )


def test_no_engine_is_no_error_to_list_but_one_to_verify(house: Path, tmp_path: Path) -> None:
    done = caovanctl(house, "list", "--root", str(tmp_path))
    assert (done.returncode, done.stdout[:12]) == (0, "no engine in")
    assert caovanctl(house, "verify", "--root", str(tmp_path)).returncode == 1


def test_the_verb_needs_nothing_but_the_standard_library(house: Path) -> None:
    code = (
        "import sys\n"
        "from caovand.cli.engine import VERB\n"
        "from caovand.cli.common.verb import verbs_of\n"
        "assert len(verbs_of(VERB.package)) > 5\n"
        "own = {m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(sorted(m for m in own if not m.startswith('_') and m != 'caovand'))\n"
    )
    out = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=REPOSITORY, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    assert out.stdout == "[]\n"


@pytest.mark.parametrize("words", [("use", "x"), ("rollback",), ("remove", "x")])
def test_a_mistyped_root_is_not_made(house: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = caovanctl(house, *words, "--root", str(tmp_path / "typo"))
    assert done.returncode == 1
    assert "the folder" in done.stderr
    assert not (tmp_path / "typo").exists()


def test_a_driver_that_is_too_old_is_told_before_anything_is_downloaded() -> None:
    wanted = lock.load("cuda", "0.21.0")
    old = Gpu(index=0, name="x", compute_capability=(7, 5), total_mib=1, free_mib=1)
    fact = r"driver 550\.54 supports CUDA 12\.4, .* install driver 580\.65 or newer"
    with pytest.raises(EngineError, match=fact):
        install_verb.check_driver(wanted, [replace(old, driver="550.54", cuda="12.4")])
    install_verb.check_driver(wanted, [replace(old, driver="580.65", cuda="13.0")])
    install_verb.check_driver(wanted, [old])
    install_verb.check_driver(wanted, [])


def test_the_installation_looks_at_the_driver_first_and_the_packaged_one_needs_a_public_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[object] = []

    def installs(request: install_engine.InstallRequest, _world: object) -> None:
        done.append(request.public)
        raise EngineError("go on", "this is a test", "do")

    monkeypatch.setattr(install_verb, "check_driver", lambda *_args: done.append("driver"))
    monkeypatch.setattr(install_engine, "install", installs)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("CAOVAN_ENGINES", raising=False)
    monkeypatch.delenv("CAOVAN_LOCKS", raising=False)
    assert verb.main(["install", "0.21.0", "--build", "cuda"]) == 1
    assert verb.main(["install", "--build", "cpu", "--root", str(tmp_path)]) == 1
    assert done == ["driver", True, False]


def test_fetch_brings_a_python_into_the_folder_it_fills(
    monkeypatch: pytest.MonkeyPatch, house: Path, tmp_path: Path
) -> None:
    asked: list[Path] = []

    def finds(_version: str, _chosen: object, root: Path, *_more: object) -> None:
        asked.append(root)
        raise EngineError("find Python", "this is a test", "do")

    monkeypatch.setattr(pythons, "find", finds)
    monkeypatch.setattr(
        pythons.UvPython, "download", lambda python, *_more, **_options: asked.append(python.root)
    )
    monkeypatch.setenv("CAOVAN_LOCKS", str(house / "locks"))
    folder = tmp_path / "wheels"
    words = ["fetch", "9.9.9", "--build", "cpu", "--wheels", str(folder)]
    assert verb.main(words) == 1
    assert verb.main([*words, "--with-python"]) == 1
    assert asked == [folder, folder, folder]


def test_a_graphics_card_is_seen_on_the_bus_without_a_driver(tmp_path: Path) -> None:
    def device(name: str, vendor: str, kind: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")

    device("audio", "0x10de", "0x040300")
    device("intel", "0x8086", "0x030000")
    assert not choice.on_the_bus(tmp_path)
    device("card", "0x10de", "0x030200")
    assert choice.on_the_bus(tmp_path)


def test_without_a_card_on_the_bus_the_driver_tells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = Gpu(index=0, name="x", compute_capability=(7, 5), total_mib=1, free_mib=1)
    monkeypatch.delenv("CAOVAN_LOCKS", raising=False)
    monkeypatch.setattr(choice, "on_the_bus", lambda _folder: False)
    for cards, build in (((), "cpu"), ((card,), "cuda")):
        monkeypatch.setattr(choice, "read_gpus", lambda _environ, cards=cards: cards)
        assert verb.main(["install", "9.9.9"]) == 1
        assert f"build: {build} " in capsys.readouterr().err


@pytest.mark.engine
@pytest.mark.long
def test_the_demo_s_model_is_made_once_and_stays_what_it_is(tmp_path: Path) -> None:
    """By an engine's Python. That a real engine installs and is whole: tests/e2e/test_make_run."""
    python = REPOSITORY / ".engines/current/bin/python"
    maker, model = REPOSITORY / "packaging/demo/make_model.py", tmp_path / "model"
    for _twice in range(2):
        subprocess.run([python, maker, model], check=True, capture_output=True)
    assert (model / "model.safetensors").stat().st_size > 2**20
    other = subprocess.run(
        [python, maker, model, "--kind", "dense"], check=False, capture_output=True, text=True
    )
    assert other.returncode == 1
    assert "the folder exists and contains a demo model" in other.stderr
