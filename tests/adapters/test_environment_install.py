"""Installing an engine: what is refused, and that nothing incomplete is ever used."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from caovand.adapters.engine_install import environment, install, places, verify
from caovand.adapters.engine_install.commands import Finished
from caovand.adapters.engine_install.errors import EngineError
from tests import engine_fakes
from tests.engine_fakes import FakePip, tiny_lock, world
from tests.patience import PATIENCE_S

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return engine_fakes.wheelhouse(tmp_path / "index")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "engines"


def install_request(index: Path, root: Path, **head: str) -> install.InstallRequest:
    return install.InstallRequest(lock=tiny_lock(index, **head), root=root, python=sys.executable)


def installed(index: Path, root: Path, **head: str) -> places.InstalledEngine:
    return install.install(install_request(index, root, **head), world(FakePip(index), []))


def test_an_engine_is_made_proven_and_switched_to(index: Path, root: Path) -> None:
    run, said = FakePip(index), []
    engine = install.install(install_request(index, root), world(run, said))
    assert engine.name == "vllm-9.9.9-cpu"
    assert (engine.version, engine.torch, engine.plugin) == ("9.9.9", "1.0+cpu", None)
    assert places.current(root) == engine
    assert (root / "current").readlink() == Path("vllm-9.9.9-cpu")
    # torch, whose version has a "+", is asked for by itself: it may be of another index
    assert run.steps == ["ask", "venv", "download", "download", "unpack", "prove"]
    assert [line[:5] for line in said if line.startswith("[")] == [f"[{n}/6]" for n in range(1, 7)]
    assert not (root / ".wheels").exists()


def test_installing_the_same_again_does_nothing(index: Path, root: Path) -> None:
    engine = installed(index, root)
    run = FakePip(index)
    assert (
        install.install(replace(install_request(index, root), python=None), world(run, []))
        == engine
    )
    assert run.steps == []


def test_a_python_that_the_installed_engine_was_not_made_with_is_refused(
    index: Path, root: Path
) -> None:
    engine = installed(index, root)
    for chosen in (sys.executable, engine_fakes.PYTHON):
        same = replace(install_request(index, root), python=chosen)
        assert install.install(same, world(FakePip(index), [])) == engine
    with pytest.raises(EngineError, match=r"this lock's files are for Python"):
        install.install(
            replace(install_request(index, root), python="3.4"), world(FakePip(index), [])
        )
    (other := root / "python").write_text("")
    run, wanted = FakePip(index), replace(install_request(index, root), python=str(other))
    with pytest.raises(EngineError, match=rf"with {other}: .* already, with /.*; .* --again"):
        install.install(wanted, world(run, []))
    assert run.steps == ["ask"]
    assert install.install(replace(wanted, again=True), world(run, [])).name.endswith(".2")


def test_again_makes_a_second_one_and_keeps_the_first(index: Path, root: Path) -> None:
    first = installed(index, root)
    second = install.install(
        replace(install_request(index, root), again=True), world(FakePip(index), [])
    )
    assert second.name == "vllm-9.9.9-cpu.2"
    assert places.current(root) == second
    assert places.rollback(root) == first


def test_another_lock_of_the_same_version_never_touches_the_engine_in_use(
    index: Path, root: Path
) -> None:
    first = installed(index, root)
    second = installed(index, root, disk_mib="2")
    assert [first.name, second.name] == ["vllm-9.9.9-cpu", "vllm-9.9.9-cpu.2"]
    assert places.engines(root) == [first, second]


def test_a_full_disk_is_seen_before_anything_is_written(index: Path, root: Path) -> None:
    run = FakePip(index)
    with pytest.raises(EngineError, match=r"has 100 MiB free, but 9\d\d\d MiB are needed; free"):
        install.install(install_request(index, root, disk_mib="9000"), world(run, [], 100 * 2**20))
    assert run.steps == []  # no Python was looked for, let alone brought
    assert places.engines(root) == []
    assert places.unfinished(root) == []


def test_wheels_that_are_there_need_no_room_again(index: Path, root: Path) -> None:
    lock = tiny_lock(index)
    room = (install.MARGIN_MIB + lock.disk_mib) * 2**20
    with pytest.raises(EngineError, match="MiB are needed"):
        install.install(install_request(index, root), world(FakePip(index), [], room))
    (root / ".wheels").mkdir()
    for file in index.glob("*.whl"):
        (root / ".wheels" / file.name).write_bytes(file.read_bytes())
    install.install(install_request(index, root), world(FakePip(index), [], room))


def test_a_disk_that_fills_meanwhile_is_named(index: Path, root: Path) -> None:
    run = FakePip(index)
    run.answer_to, run.answer = "unpack", Finished(1, "OSError: [Errno 28] No space left on device")
    with pytest.raises(EngineError, match=r"cannot unpack .*: the disk is full; free some space"):
        install.install(install_request(index, root), world(run, []))
    assert places.current(root) is None


@pytest.mark.parametrize("step", ["venv", "unpack", "plugin"])
def test_a_full_disk_is_named_even_if_the_tool_does_not_say_so(
    index: Path, root: Path, step: str
) -> None:
    run = FakePip(index)
    run.answer_to, run.answer = step, Finished(1, "ensurepip returned non-zero exit status 1.")
    plugin = engine_fakes.wheel(index.parent, "plug", "1", {"plug.py": ""})

    def free(path: Path) -> int:
        return 0 if step in run.steps else 2**40

    with pytest.raises(EngineError, match="the disk is full; free some space"):
        install.install(
            replace(install_request(index, root), plugin=plugin),
            replace(world(run, []), free_bytes=free),
        )
    assert places.current(root) is None


@pytest.mark.parametrize(
    ("finished", "noted"),
    [
        (Finished(0, ""), False),
        (Finished(1, ""), False),  # a file for another Python
        (Finished(1, "Traceback\nBrokenProcessPool"), True),
        (Finished(-signal.SIGKILL, ""), True),
    ],
)
def test_bytecode_that_is_missing_is_named_but_not_files_for_other_pythons(
    tmp_path: Path, finished: Finished, noted: bool
) -> None:
    (tmp_path / "a.py").write_text("")
    said: list[str] = []
    seen: list[tuple[int, int, str]] = []

    def run(command: Sequence[str], _env: Mapping[str, str], tick: Callable[[], None]) -> Finished:
        tick()
        (tmp_path / "a.pyc").write_text("")
        tick()
        return finished

    here = replace(
        world(FakePip(tmp_path), said), run=run, progress=lambda *step: seen.append(step)
    )
    environment.compile_bytecode(tmp_path, tmp_path, here)
    assert seen == [(0, 1, "compiling Python files"), (1, 1, "compiling Python files")]
    assert [line.strip().startswith("note: not all Python files") for line in said] == [
        True
    ] * noted
    full = replace(here, free_bytes=lambda _path: 0)
    if finished.code:
        with pytest.raises(EngineError, match=r"cannot compile .*: the disk is full"):
            environment.compile_bytecode(tmp_path, tmp_path, full)


def test_a_wheel_of_other_content_from_the_index_is_refused(index: Path, root: Path) -> None:
    wanted = install_request(index, root)
    engine_fakes.wheel(index, "six", "1.0", {"six.py": "ANSWER = 666\n"})
    fact = (
        r"cannot get six==1.0: the index offers .* sha256 [0-9a-f]{64}, which is not in the lock; "
    )
    with pytest.raises(EngineError, match=fact):
        install.install(wanted, world(FakePip(index), []))
    assert places.current(root) is None


def test_a_wheel_of_other_content_in_an_offline_folder_is_refused(index: Path, root: Path) -> None:
    wanted = replace(install_request(index, root), offline=index)
    engine_fakes.wheel(index, "six", "1.0", {"six.py": "ANSWER = 666\n"})
    with pytest.raises(EngineError, match=r"cannot use .*six-1.0-py3-none-any.whl: its sha256 is"):
        install.install(wanted, world(FakePip(index), []))


def test_offline_needs_no_download_and_leaves_the_folder_as_it_is(index: Path, root: Path) -> None:
    run = FakePip(index)
    install.install(replace(install_request(index, root), offline=index), world(run, []))
    assert run.steps == ["ask", "venv", "unpack", "prove"]
    assert len(list(index.glob("*.whl"))) == 3


def test_an_incomplete_offline_folder_says_what_lacks_and_how_to_fill_it(
    index: Path, root: Path
) -> None:
    wanted = replace(install_request(index, root), offline=index)
    wanted = replace(wanted, python=None)  # the folder is looked at before any Python is
    (index / "six-1.0-py3-none-any.whl").unlink()
    fact = (
        r"1 of 3 wheels are missing \(six 1.0\); fill it with: "
        r"caovanctl engine fetch 9.9.9 --build cpu --wheels DIR"
    )
    with pytest.raises(EngineError, match=fact):
        install.install(wanted, world(FakePip(index), []))


def test_a_package_of_another_index_is_asked_for_there_second(index: Path, root: Path) -> None:
    wanted = install_request(index, root, extra_index="https://example.org/cpu")
    (index / "torch-1.0+cpu-py3-none-any.whl").unlink()
    run = FakePip(index)
    fact = (
        r"the configured index has no torch==1.0\+cpu, and https://example.org/cpu, "
        r"which publishes it, neither; make .*PIP_EXTRA_INDEX"
    )
    with pytest.raises(EngineError, match=fact):
        install.install(wanted, world(run, []))
    assert run.steps.count("download") == 3


UNREACHABLE = """\
WARNING: Retrying ... NewConnectionError(': Failed to establish a new connection: x'
ERROR: No matching distribution found for six==1.0"""


@pytest.mark.parametrize(
    ("output", "fact"),
    [
        (UNREACHABLE, "index cannot be reached"),
        ("ERROR: six.whl is not a supported wheel on this platform.", "this system cannot use"),
        ("boom\nERROR: something new\n\n[notice] trivia", "printed: ERROR: something new"),
    ],
)
def test_pips_failures_become_one_line(index: Path, root: Path, output: str, fact: str) -> None:
    run = FakePip(index)
    run.answer_to, run.answer = "download", Finished(1, output)
    with pytest.raises(EngineError, match=fact) as caught:
        install.install(install_request(index, root), world(run, []))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("report", "fact"),
    [
        (
            '{"python":"3.11.2","errors":["import vllm._C: ImportError: libnuma.so.1: x"]}',
            "apt install libnuma1",
        ),
        (
            '{"python":"3.11.2","errors":[],"version":"1.0","cuda":null}',
            "it has vLLM 1.0, but the lock pins 9",
        ),
        (
            '{"python":"3.11.2","errors":[],"version":"9.9.9","torch":"2","cuda":"13.0"}',
            "its torch 2 is a cuda build",
        ),
        (
            '{"python":"3.11.2","errors":[],"version":"9.9.9","torch":"2.0+cpu","cuda":null}',
            r"it has torch 2\.0\+cpu, but the lock pins 1\.0\+cpu",
        ),
        (
            '{"python":"3.11.2","errors":["torch.cuda: The NVIDIA driver here is too old"]}',
            "install a newer NVIDIA driver",
        ),
        ("Traceback\nMemoryError", "status 1 and printed: MemoryError"),
    ],
)
def test_an_engine_that_is_not_what_it_should_be_is_not_used(
    index: Path, root: Path, report: str, fact: str
) -> None:
    before = installed(index, root)
    run = FakePip(index)
    run.answer_to, run.answer = "prove", Finished(1 if "Trace" in report else 0, report)
    with pytest.raises(EngineError, match=fact):
        install.install(install_request(index, root, disk_mib="2"), world(run, []))
    assert places.current(root) == before
    assert places.engines(root) == [before]


def test_a_processor_without_the_instructions_is_named(index: Path, root: Path) -> None:
    run = FakePip(index)
    run.answer_to, run.answer = "prove", Finished(-signal.SIGILL, "")
    with pytest.raises(EngineError, match="AVX2"):
        install.install(install_request(index, root), world(run, []))


def test_the_wrong_python_is_refused(index: Path, root: Path) -> None:
    for chosen in ("3.4", sys.executable):
        wanted = replace(install_request(index, root, python="3.9"), python=chosen)
        with pytest.raises(EngineError, match=r"files are for .*3\.9"):
            install.install(wanted, world(FakePip(index), []))
    with pytest.raises(EngineError, match="this Python cannot create virtual environments"):
        install.install(
            replace(install_request(index, root), python="/bin/absent"), world(FakePip(index), [])
        )


def test_something_else_at_the_engines_place_is_not_deleted(index: Path, root: Path) -> None:
    (root / "vllm-9.9.9-cpu").mkdir(parents=True)
    (root / "vllm-9.9.9-cpu" / "diary").write_text("mine")
    with pytest.raises(EngineError, match="it exists and is not a caovan engine"):
        installed(index, root)
    assert (root / "vllm-9.9.9-cpu" / "diary").read_text() == "mine"


# the commands are: ask, venv, download, download, unpack, plugin, prove
POINTS = [
    f"{step} {when}"
    for step in range(1, 8)
    for when in ("before", "half", "after")
    if when != "half" or step not in (1, 7)
]
POINTS += ["finish", "switch", "link 1 before", "link 1 after", "link 2 before", "link 2 after"]


# of a copy: ask, plugin, prove
COPIES = ["2 before", "2 half", "2 after", "3 before", "3 after", "finish", "link 2 before"]


def install_elsewhere(lock: Path, index: Path, root: Path, point: str) -> int | None:
    """Install in another process, which dies at that point; its exit status."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tests.engine_fakes"])  # imported once for all of them
    words = str(lock), str(index), str(root), point
    process = server.Process(target=engine_fakes.install_until, args=words)
    process.start()
    process.join(PATIENCE_S)
    return process.exitcode


@pytest.mark.parametrize(
    ("point", "disk_mib"), [*((point, "2") for point in POINTS), *((one, "1") for one in COPIES)]
)
def test_killed_anywhere_the_working_engine_stays_and_the_next_try_goes_on(
    index: Path, root: Path, tmp_path: Path, point: str, disk_mib: str
) -> None:
    before = installed(index, root)
    engine_fakes.wheel(tmp_path, "plug", "1", {"plug.py": ""}).rename(tmp_path / "plugin.whl")
    lock = tmp_path / "next.txt"
    lock.write_text(engine_fakes.lock_text(index, disk_mib=disk_mib))
    assert install_elsewhere(lock, index, root, point) == -signal.SIGKILL
    after = places.current(root)
    assert after is not None
    if point in ("link 1 after", "link 2 before", "link 2 after"):
        assert after.name == "vllm-9.9.9-cpu.2"
    else:
        assert after == before
    for engine in places.engines(root):
        site = engine.path / "lib" / f"python{engine_fakes.PYTHON}" / "site-packages"
        assert (site / "vllm" / "_C.py").exists()
    assert install_elsewhere(lock, index, root, "99 before") == 0
    now = places.current(root)
    assert now is not None
    assert now.name == "vllm-9.9.9-cpu.2"
    assert sorted(path.name for path in root.iterdir()) == [
        ".lock",
        "current",
        "previous",
        before.name,
        now.name,
    ]
    assert places.rollback(root) == before


def test_a_finished_download_is_not_repeated(index: Path, root: Path) -> None:
    run = FakePip(index)
    run.answer_to, run.answer = "unpack", Finished(1, "ERROR: no")
    with pytest.raises(EngineError):
        install.install(install_request(index, root), world(run, []))
    assert places.unfinished(root) == ["vllm-9.9.9-cpu"]
    run = FakePip(index)
    install.install(install_request(index, root), world(run, []))
    assert run.steps == ["ask", "venv", "unpack", "prove"]


def test_a_finished_unpacking_is_not_repeated(index: Path, root: Path) -> None:
    run = FakePip(index)
    run.answer_to, run.answer = "prove", Finished(1, "libnuma.so.1 is missing")
    with pytest.raises(EngineError):
        install.install(install_request(index, root), world(run, []))
    run = FakePip(index)
    install.install(install_request(index, root), world(run, []))
    assert run.steps == ["prove"]


def test_a_new_plugin_makes_a_copy_of_links_and_leaves_the_engine_in_use_alone(
    index: Path, root: Path, tmp_path: Path
) -> None:
    first = installed(index, root)
    script = first.path / "bin" / "tool"
    text = f"#!{first.path}/bin/python\n'{first.path}' '{first.path}.3'\n"
    script.write_text(text)
    plugin = engine_fakes.wheel(tmp_path, "plug", "1", {"plug.py": ""})
    wanted = replace(install_request(index, root), plugin=plugin)
    run = FakePip(index)
    second = install.install(wanted, world(run, []))
    assert run.steps == ["ask", "plugin", "prove"]
    assert second.path == root / "vllm-9.9.9-cpu.2"
    site = Path("lib", f"python{engine_fakes.PYTHON}", "site-packages")
    assert (second.path / site / "six.py").samefile(first.path / site / "six.py")
    assert not (first.path / site / "plug.py").exists()
    assert (second.path / "bin" / "tool").read_text() == (
        f"#!{second.path}/bin/python\n'{second.path}' '{first.path}.3'\n"
    )
    assert script.read_text() == text
    # the same plugin again, or no word of one, changes nothing
    for again in (wanted, install_request(index, root)):
        run = FakePip(index)
        assert install.install(again, world(run, [])) == second
        assert run.steps == ["ask"]
    assert places.rollback(root) == first


def test_a_plugin_that_was_ordered_and_is_not_there_is_no_engine(
    index: Path, root: Path, tmp_path: Path
) -> None:
    plugin = engine_fakes.wheel(tmp_path, "other", "1", {"other.py": ""})
    with pytest.raises(EngineError, match="the plugin caovan-vllm-sm75-turbo3 is not installed"):
        install.install(
            replace(install_request(index, root), plugin=plugin), world(FakePip(index), [])
        )
    assert places.current(root) is None


def test_two_wheels_that_own_one_file_are_refused(index: Path, root: Path) -> None:
    engine_fakes.wheel(index, "six", "1.0", {"torch/__init__.py": "another", "setup.py": "1"})
    engine_fakes.wheel(index, "extra", "1.0", {"setup.py": "2"})
    with pytest.raises(EngineError, match=r"six and torch both own torch/__init__.py: .*random"):
        installed(index, root)
    assert places.current(root) is None


def test_a_copy_is_made_of_an_engine_whose_journal_was_left(
    index: Path, root: Path, tmp_path: Path
) -> None:
    first = installed(index, root)
    (first.path / places.STEPS).write_text("{}")  # killed between the marker and its end
    plugin = engine_fakes.wheel(tmp_path, "plug", "1", {"plug.py": ""})
    second = install.install(
        replace(install_request(index, root), plugin=plugin), world(FakePip(index), [])
    )
    assert second.name == "vllm-9.9.9-cpu.2"


def findings(engine: places.InstalledEngine) -> list[str]:
    return list(verify.find_damage(engine, lambda _done, _total, _what: None))


def test_verify_reads_the_files_of_every_package_and_sees_what_python_would_run(
    index: Path, root: Path, tmp_path: Path
) -> None:
    plugin = engine_fakes.wheel(
        tmp_path, "caovan_vllm_sm75_turbo3", "1", {"plug.py": "", "own.pth": ""}
    )
    engine = install.install(
        replace(install_request(index, root), plugin=plugin), world(FakePip(index), [])
    )
    assert findings(engine) == []
    site = next(engine.path.glob("lib/python3*/site-packages"))
    (site / "plug.py").write_text("changed")
    (site / "evil.pth").write_text("import os")
    (site / "sitecustomize.py").write_text("import os")
    assert findings(engine) == [
        "plug.py has changed since the installation",
        "sitecustomize.py does not belong to a package, but Python runs it at every start",
        "evil.pth does not belong to a package, but Python runs it at every start",
    ]
    shutil.rmtree(site / "caovan_vllm_sm75_turbo3-1.dist-info")
    assert findings(engine)[0] == "the plugin 1 is not installed"
    shutil.rmtree(engine.path / "lib")
    assert findings(engine) == ["lib/python3*/site-packages is missing"]


def test_a_left_over_beside_the_packages_may_be_of_either_wheel(index: Path, root: Path) -> None:
    engine_fakes.wheel(index, "extra", "1.0", {"build_backend.py": "1"})
    engine_fakes.wheel(index, "more", "1.0", {"build_backend.py": "2"})
    engine = installed(index, root)
    assert findings(engine) == []
    site = next(engine.path.glob("lib/python3*/site-packages"))
    (site / "build_backend.py").write_text("3")
    assert findings(engine) == ["build_backend.py has changed since the installation"]


def test_a_wheel_whose_own_record_lags_behind_is_no_damage(index: Path, root: Path) -> None:
    made = engine_fakes.wheel(index, "late", "1.0", {"late/lib.so": "patched afterwards"})
    with zipfile.ZipFile(made) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["late/lib.so"] += b", longer"
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in content.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    engine = installed(index, root)
    assert findings(engine) == []
    site = next(engine.path.glob("lib/python3*/site-packages"))
    (site / "late" / "lib.so").write_text("changed")
    assert findings(engine) == ["late/lib.so has changed since the installation"]


def test_damage_is_told_where_the_engine_does_not_import_either(index: Path, root: Path) -> None:
    engine = installed(index, root)
    site = next(engine.path.glob("lib/python3*/site-packages"))
    (site / "vllm" / "_C.py").unlink()
    found, proof = verify.verify(engine, FakePip(index), lambda _done, _total, _what: None)
    assert proof is None
    assert found[0] == "vllm/_C.py: No such file or directory"
    assert found[1].startswith("cannot prove vllm-9.9.9-cpu: import vllm")


def test_the_state_of_a_plugins_source_is_known_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "a.py").write_text("1")
    before = environment.plugin_identity(tmp_path)
    (tmp_path / "build" / "a.py").write_text("left by pip")
    (tmp_path / "README.md").write_text("words")
    assert environment.plugin_identity(tmp_path) == before
    (tmp_path / "a.py").write_text("2")
    assert environment.plugin_identity(tmp_path) != before


def test_what_others_free_on_the_disk_is_no_way_back(index: Path, root: Path) -> None:
    free = iter([2**40, 2**40 - 2**19, 2**40 - 2**18, 2**40])
    seen: list[int] = []

    class Ticking(FakePip):
        def _install(self, line: list[str]) -> Finished:
            for _again in range(3):
                self.tick()
            return super()._install(line)

        def __call__(
            self, command: Sequence[str], env: Mapping[str, str], tick: Callable[[], None]
        ) -> Finished:
            self.tick = tick
            return super().__call__(command, env, lambda: None)

    def progress(done: int, total: int, what: str) -> None:
        if what == "unpacking":
            seen.append(done)

    here = replace(
        world(Ticking(index), []),
        progress=progress,
        free_bytes=lambda path: next(free) if path != root else 2**40,
    )
    install.install(install_request(index, root), here)
    assert seen == [2**19] * 3
