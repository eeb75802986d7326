"""Locks: what they must say, and that those we ship say it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from caovand.adapters.environment import lock, resolve, wheels
from caovand.adapters.environment.errors import EngineError
from tests.engine_fakes import lock_text, wheel, wheelhouse

SHIPPED = Path(__file__).resolve().parents[2] / "packaging" / "engines"
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
        (HEAD, "it pins nothing"),
        (HEAD.replace("cpu", "tpu"), 'its build is "tpu"'),
        (HEAD.replace("10", "much"), "invalid literal"),
        (HEAD + "# caovan: speed = high\n", 'unknown key "speed"'),
        (HEAD + "# caovan: adapt = magic\n", 'unknown adaptation "magic"'),
        (HEAD + "six==1.0\n", "six==1.0 has no --hash=sha256:"),
        (HEAD + f"six>=1.0 --hash=sha256:{DIGEST}\n", '"six>=1.0" is not of the form'),
        (HEAD + f"six==1.0 --hash=sha256:{DIGEST} --pre\n", "or something besides"),
        (HEAD + f"--index-url=http://x --hash=sha256:{DIGEST}\n", "is not of the form"),
        (HEAD + f"s-x==1 --hash=sha256:{DIGEST}\nS_X==1 --hash=sha256:{DIGEST}\n", "more than on"),
    ],
)
def test_a_lock_that_says_anything_else_is_refused(text: str, fact: str) -> None:
    with pytest.raises(EngineError, match=r"cannot read the lock x\.txt: ") as caught:
        lock.parse(text, "x.txt")
    assert fact in str(caught.value)


@pytest.mark.parametrize("name", ["cpu-0.32.0", "cuda-0.21.0", "cuda-0.33.0"])
def test_the_shipped_locks_are_whole(name: str) -> None:
    build, version = name.split("-")
    read = lock.load(build, version)
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


def test_the_recommended_engines_are_shipped() -> None:
    for build, version in lock.DEFAULT_VERSION.items():
        assert lock.load(build, None).version == version


def test_an_unknown_version_says_what_there_is() -> None:
    with pytest.raises(EngineError, match=r"no lock file cuda-0\.1\.txt; there are: cpu-0\.32\.0"):
        lock.load("cuda", "0.1")


def test_no_lock_names_a_machine_of_ours() -> None:
    for path in [*SHIPPED.glob("*.txt"), *SHIPPED.glob("*.in")]:
        for word in ("file:", "/opt", "/root", "index-url", "find-links"):
            assert word not in path.read_text(), path


@pytest.mark.parametrize(
    ("filename", "good"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-py37-none-any.whl", True),
        ("a-1-py2-none-any.whl", False),
        ("a-1-py313-none-any.whl", False),
        ("a-1-cp312-cp312-manylinux_2_28_x86_64.whl", True),
        ("a-1-cp311-cp311-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("a-1-1-cp38-abi3-manylinux_2_24_x86_64.whl", True),
        ("a-1-cp313-abi3-manylinux_2_17_x86_64.whl", False),
        ("a-1-cp312-cp312-manylinux_2_39_x86_64.whl", False),
        ("a-1-cp312-cp312-manylinux_2_28_aarch64.whl", False),
        ("a-1-cp312-cp312-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp312-cp312t-manylinux_2_28_x86_64.whl", False),
        ("a-1.tar.gz", False),
    ],
)
def test_which_wheels_a_lock_takes(filename: str, good: bool) -> None:
    assert resolve.fits(filename, "3.12", 35) == good


def test_a_version_is_the_same_however_it_is_spelled() -> None:
    assert lock.same_version("13.0.3", "13.0.3.0")
    assert not lock.same_version("13.0", "13.0.1")


def test_a_lock_made_from_a_source_keeps_its_lines_and_reads_back(tmp_path: Path) -> None:
    pins = [lock.Pin("six", "1.0", (DIGEST,), 5)]
    made = lock.parse(resolve.render(HEAD + "# a comment\nsix\n", pins), "made")
    assert made.pins == tuple(pins)
    assert lock.header(made.text) == lock.header(HEAD)
    made_of = wheelhouse(tmp_path / "index")
    found = resolve.local_files("torch", "1.0+cpu", made_of)
    assert [file.filename for file in found] == ["torch-1.0+cpu-py3-none-any.whl"]


def test_a_folder_knows_files_by_content_not_by_name(tmp_path: Path) -> None:
    read = lock.parse(lock_text(wheelhouse(tmp_path / "index")), "x")
    other = tmp_path / "other"
    other.mkdir()
    file = wheel(other, "six", "1.0", {"six.py": "ANSWER = 6\n"})
    file.rename(other / "renamed.whl")
    folder = wheels.Folder(other)
    assert {name: found.path.name for name, found in folder.find(read.pins).items()} == {
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


def test_json_of_a_release_uploaded_under_two_spellings_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = {
        "filename": "a-1.0-py3-none-any.whl",
        "digests": {"sha256": DIGEST},
        "size": 7,
        "upload_time": "2026-05-01T00:00:00",
        "packagetype": "bdist_wheel",
        "url": "../../packages/a-1.0-py3-none-any.whl",
    }
    answer = tmp_path / "pypi" / "a"
    answer.mkdir(parents=True)
    (answer / "json").write_text(json.dumps({"releases": {"1.0": [file], "2.0": []}}))
    found = resolve.index_files("a", "1.0.0", tmp_path.as_uri())
    name = "a-1.0-py3-none-any.whl"
    url = f"{tmp_path.as_uri()}/packages/{name}"
    assert found == [resolve.WheelFile(name, DIGEST, 7, "2026-05-01T00:00:00", url)]
    with pytest.raises(EngineError, match="did not list b"):
        resolve.index_files("b", "1", tmp_path.as_uri())


@pytest.mark.parametrize(
    ("source", "fact"),
    [
        (HEAD, 'it has no "# caovan: platform = ..." line'),
        ("# caovan: speed = high\n", 'unknown key "speed"'),
        (
            HEAD + "# caovan: platform = x86_64-manylinux_2_35\n"
            "# caovan: without-dependencies = six\n",
            '"six" is not of the form NAME==VERSION',
        ),
    ],
)
def test_a_faulty_source_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, source: str, fact: str
) -> None:
    monkeypatch.setattr(resolve, "compile_versions", lambda *_args: ["six"])
    with pytest.raises(EngineError, match=fact):
        resolve.resolve(source, find_links=None, index="http://127.0.0.1:9", say=print)
