"""Lock files: required contents, and that the shipped ones have them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from caovand.adapters.engine_install import lock, wheels
from caovand.adapters.engine_install.errors import EngineError
from caovand.engines import registry
from tests.engine_fakes import lock_text, wheel, wheelhouse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHIPPED = Path(__file__).resolve().parents[2] / "packaging" / "engines"
PROJECT = SHIPPED.parents[1] / "pyproject.toml"
DIGEST = "a" * 64
HEAD = """\
# caovan: version = 1.0
# caovan: build = cpu
# caovan: python = 3.11
# caovan: disk-mib = 10
"""


def test_a_lock_is_read() -> None:
    text = f"{HEAD}a.b==1.0+cpu \\\n    --hash=sha256:{DIGEST}\n    # 123 bytes\n"
    read = lock.parse(text, "x.txt")
    assert read.name == "vllm-1.0-cpu"
    assert read.pins == (lock.Pin("a.b", "1.0+cpu", (DIGEST,), 123),)
    assert read.download_bytes == 123
    assert lock.parse(text + "\n", "x.txt").digest != read.digest


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", 'no "# caovan: disk-mib = ..." line'),
        (HEAD, "it pins no packages"),
        (HEAD.replace("cpu", "tpu"), 'its build is "tpu"'),
        (HEAD.replace("10", "much"), "invalid literal"),
        (HEAD + "# caovan: speed = high\n", 'unknown key "speed"'),
        (HEAD + "# caovan: adapt = magic\n", 'an unknown adaptation, "magic"'),
        (HEAD + "six==1.0\n", "six==1.0 has no --hash=sha256:"),
        (HEAD + f"six>=1.0 --hash=sha256:{DIGEST}\n", '"six>=1.0" is not of the form'),
        (HEAD + f"six==1.0 --hash=sha256:{DIGEST} --pre\n", "or another option"),
        (HEAD + f"--index-url=http://x --hash=sha256:{DIGEST}\n", "is not of the form"),
        (HEAD + f"s-x==1 --hash=sha256:{DIGEST}\nS_X==1 --hash=sha256:{DIGEST}\n", "more than on"),
    ],
)
def test_a_lock_that_says_anything_else_is_refused(text: str, fact: str) -> None:
    with pytest.raises(EngineError, match=r"cannot read the lock x\.txt: ") as caught:
        lock.parse(text, "x.txt")
    assert fact in str(caught.value)


@pytest.mark.parametrize("name", ["cpu-0.32.0", "cuda-0.21.0", "cuda-0.33.0", "sglang-cuda-0.5.17"])
def test_the_shipped_locks_are_whole(name: str) -> None:
    *kind, build, version = name.split("-")
    read = lock.load(build, version, *kind)
    assert (read.build, read.version) == (build, version)
    assert all(pin.size_bytes > 0 for pin in read.pins)
    assert read.disk_mib * 2**20 > read.download_bytes
    torch = next(pin for pin in read.pins if pin.name == "torch")
    assert torch.version.endswith("+cpu") == (build == "cpu")
    # the lock was made from the source beside it
    source = (SHIPPED / f"{name}.in").read_text()
    assert lock.header(source) == lock.header(read.text)


@pytest.mark.parametrize("name", ["0.21.0", "0.33.0"])
def test_no_two_wheels_of_a_shipped_lock_have_cudas_bindings(name: str) -> None:
    # cuda-python was one wheel with all of them up to 12.6; now it only requires cuda-bindings
    version = {pin.name: pin.version for pin in lock.load("cuda", name).pins}
    assert version["cuda-python"] == version["cuda-bindings"]


@pytest.mark.parametrize(
    ("kind", "name"), [("vllm", "0.21.0"), ("vllm", "0.33.0"), ("sglang", "0.5.17")]
)
def test_an_engine_brings_the_compiler_that_its_headers_are_for(kind: str, name: str) -> None:
    """CCCL refuses to be compiled by an nvcc of another minor version than cuda_runtime.h's."""
    pins = {pin.name: pin.version for pin in lock.load("cuda", name, kind).pins}
    parts = ("cuda-nvcc", "cuda-crt", "cuda-cccl", "nvvm", "cuda-runtime")
    assert {pins[f"nvidia-{part}"].rsplit(".", 1)[0] for part in parts} == {"13.0"}
    assert "ninja" in pins


def test_the_recommended_engines_are_shipped() -> None:
    for kind in registry.MODULES:
        for build, version in registry.engine_of(kind).install.versions.items():
            read = lock.load(build, None, kind)
            assert (read.kind, read.build, read.version) == (kind, build, version)


def test_an_unknown_version_says_what_there_is() -> None:
    missing = r"no lock file cuda-0\.1\.txt exists; available: cpu-0\.32\.0"
    with pytest.raises(EngineError, match=missing):
        lock.load("cuda", "0.1")


def test_no_lock_names_a_machine_of_ours() -> None:
    for path in [*SHIPPED.glob("*.txt"), *SHIPPED.glob("*.in")]:
        for word in ("file:", "/opt", "/root", "index-url", "find-links"):
            assert word not in path.read_text(), path


def test_a_version_is_the_same_however_it_is_spelled() -> None:
    assert lock.same_version("13.0.3", "13.0.3.0")
    assert not lock.same_version("13.0", "13.0.1")


def test_a_folder_knows_files_by_content_not_by_name(tmp_path: Path) -> None:
    read = lock.parse(lock_text(wheelhouse(tmp_path / "index")), "x")
    other = tmp_path / "other"
    other.mkdir()
    file = wheel(other, "six", "1.0", {"six.py": "ANSWER = 6\n"})
    file.rename(other / "renamed.whl")
    folder = wheels.Folder(other)
    assert {name: found.name for name, found in folder.find(read.pins).items()} == {
        "six": "renamed.whl"
    }


def test_pins_are_fetched_in_portions_large_and_foreign_ones_alone() -> None:
    def pin(name: str, version: str, mib: int) -> lock.Pin:
        return lock.Pin(name, version, (DIGEST,), mib * 2**20)

    pins = [pin(f"s{n}", "1", 1) for n in range(30)]
    pins += [pin("big", "1", 200), pin("torch", "2+cpu", 1)]
    portions = wheels.batches(pins)
    assert [len(portion) for portion in portions] == [24, 6, 1, 1]
    assert [portion[0].name for portion in portions[2:]] == ["big", "torch"]


def test_pip_installs_every_lock_where_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tomllib.loads(PROJECT.read_text())["tool"]["setuptools"]["data-files"]
    for folder, patterns in files.items():
        (tmp_path / folder).mkdir(parents=True)
        for path in (found for one in patterns for found in PROJECT.parent.glob(one)):
            shutil.copy(path, tmp_path / folder)
    # Neither a checkout around the module nor the Debian package's folder.
    monkeypatch.setattr(lock, "__file__", str(tmp_path / "lib/caovand/adapters/engine_install/x"))
    monkeypatch.delenv("CAOVAN_LOCKS", raising=False)
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    assert lock.lock_folders()[0] == tmp_path / "share/caovan/engines"
    names = {path.name for path in SHIPPED.glob("*.txt")}
    assert {path.name for path in lock.lock_folders()[0].iterdir()} == names >= {"uv.txt"}


def test_an_installation_without_locks_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAOVAN_LOCKS", str(tmp_path / "none"))
    with pytest.raises(EngineError, match="no lock file cpu-9") as refused:
        lock.load("cpu", "9")
    assert "set CAOVAN_LOCKS" in refused.value.problem.remedy
    monkeypatch.setenv("CAOVAN_LOCKS", str(SHIPPED))
    with pytest.raises(EngineError, match="no lock file cpu-9") as refused:
        lock.load("cpu", "9")
    assert refused.value.problem.remedy.startswith("available: cpu-0.32.0, ")
