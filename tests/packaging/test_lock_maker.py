"""The maker of locks, packaging/engines/make_lock.py: what is accepted, refused and read.

A wheel's contents are known without downloading it, and two packages that own one file are refused.
"""

from __future__ import annotations

import json
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from caovand.adapters.engine_install import lock
from caovand.adapters.engine_install.errors import EngineError
from tests.daemon_process import ROOT
from tests.engine_fakes import wheel, wheelhouse

sys.path.insert(0, str(ROOT / "packaging/engines"))
import make_lock
from wheel_contents import installed

DIGEST = "a" * 64
HEAD = """\
# caovan: version = 1.0
# caovan: build = cpu
# caovan: python = 3.11
# caovan: disk-mib = 10
"""

SOURCE = HEAD + "# caovan: platform = x86_64-manylinux_2_35\n"


class Server(ThreadingHTTPServer):
    """Serves the files of a folder, by ranges if it likes; `sent` is the bytes it sent."""

    def __init__(self, folder: Path, *, ranges: bool) -> None:
        self.folder, self.ranges, self.sent = folder, ranges, 0
        super().__init__(("127.0.0.1", 0), Handler)

    def url(self, path: Path) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path.name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        data = (self.server.folder / self.path.lstrip("/")).read_bytes()
        if self.server.ranges:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            data = data[int(first) : int(last) + 1]
        self.send_response(206 if self.server.ranges else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.server.sent += len(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(params=[True])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, ranges=request.param) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_list_of_a_large_wheel_is_read_without_the_wheel(
    server: Server, tmp_path: Path
) -> None:
    made = wheel(tmp_path, "big", "1", {"big/weights.py": "x" * 2_000_000, "big/a.py": "1"})
    size = made.stat().st_size
    found = installed(server.url(made), size)
    assert found == installed(made.as_uri(), size)
    assert {"big/weights.py", "big/a.py"} < set(found)
    assert server.sent < size // 4


def test_what_goes_elsewhere_is_not_counted_and_what_goes_to_site_packages_is(
    tmp_path: Path,
) -> None:
    files = {"a-1.data/purelib/a/b.py": "1", "a-1.data/scripts/a": "2", "a-1.data/data/etc/x": "3"}
    made = wheel(tmp_path, "a", "1", files)
    with zipfile.ZipFile(made, "a") as archive:
        archive.writestr("a/", "")
    found = installed(made.as_uri(), made.stat().st_size)
    assert {path for path in found if ".dist-info" not in path} == {"a/b.py"}


@pytest.mark.parametrize("server", [False], indirect=True)
def test_a_server_that_sends_whole_files_is_no_way_to_look(server: Server, tmp_path: Path) -> None:
    made = wheel(tmp_path, "a", "1", {"a/b.py": "1"})
    with pytest.raises(EngineError, match=r"does not support range requests; .*--find-links"):
        installed(server.url(made), made.stat().st_size)


def test_what_is_no_wheel_is_told(tmp_path: Path) -> None:
    (tmp_path / "a-1-py3-none-any.whl").write_text("no zip")
    with pytest.raises(EngineError, match="not a zip file"):
        installed((tmp_path / "a-1-py3-none-any.whl").as_uri(), 6)


@pytest.mark.parametrize(
    ("other", "fact"),
    [
        ({"a/b.py": "2", "a/c.py": "2"}, "one and two both own a/b.py and 1 more"),
        ({"two-1.data/platlib/a/b.py": "2"}, "one and two both own a/b.py"),
        ({"a/b.py": "1"}, None),
        ({"setup.py": "2"}, None),
    ],
)
def test_two_wheels_that_own_one_file_make_no_lock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: dict[str, str], fact: str | None
) -> None:
    wheel(tmp_path, "one", "1", {"a/b.py": "1", "a/c.py": "1", "setup.py": "1"})
    wheel(tmp_path, "two", "1", other)
    monkeypatch.setattr(make_lock, "compile_versions", lambda *_: ["one==1", "two==1"])

    def made() -> str:
        return make_lock.resolve(SOURCE, find_links=tmp_path, index="http://127.0.0.1:9", say=print)

    if fact is None:
        assert [pin.name for pin in lock.parse(made(), "made").pins] == ["one", "two"]
    else:
        with pytest.raises(EngineError, match=f"{fact}: which copy gets"):
            made()


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
    assert make_lock.fits(filename, "3.12", 35) == good


def test_a_lock_made_from_a_source_keeps_its_lines_and_reads_back(tmp_path: Path) -> None:
    pins = [lock.Pin("six", "1.0", (DIGEST,), 5)]
    made = lock.parse(make_lock.render(HEAD + "# a comment\nsix\n", pins), "made")
    assert made.pins == tuple(pins)
    assert lock.header(made.text) == lock.header(HEAD)
    made_of = wheelhouse(tmp_path / "index")
    found = make_lock.local_files("torch", "1.0+cpu", made_of)
    assert [file.filename for file in found] == ["torch-1.0+cpu-py3-none-any.whl"]


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
    found = make_lock.index_files("a", "1.0.0", tmp_path.as_uri())
    name = "a-1.0-py3-none-any.whl"
    url = f"{tmp_path.as_uri()}/packages/{name}"
    assert found == [make_lock.WheelFile(name, DIGEST, 7, "2026-05-01T00:00:00", url)]
    with pytest.raises(EngineError, match="does not list b"):
        make_lock.index_files("b", "1", tmp_path.as_uri())


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
    monkeypatch.setattr(make_lock, "compile_versions", lambda *_args: ["six"])
    with pytest.raises(EngineError, match=fact):
        make_lock.resolve(source, find_links=None, index="http://127.0.0.1:9", say=print)


def test_the_lock_lies_next_to_its_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(tmp_path, "one", "1", {"a/b.py": "1"})
    monkeypatch.setattr(make_lock, "compile_versions", lambda *_: ["one==1"])
    (tmp_path / "cpu-1.0.in").write_text(SOURCE + "one\n")
    words = [str(tmp_path / "cpu-1.0.in"), "--find-links", str(tmp_path)]
    assert make_lock.main(words) == 0
    assert capsys.readouterr().out == f"{tmp_path}/cpu-1.0.txt is written\n"
    made = lock.parse((tmp_path / "cpu-1.0.txt").read_text(), "made")
    assert [pin.requirement[:6] for pin in made.pins] == ["one==1"]


@pytest.mark.parametrize(
    ("source", "fact"), [(None, "No such file"), ("# caovan: speed = 1\n", 'unknown key "speed"')]
)
def test_what_cannot_be_made_is_one_line_and_exit_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str | None, fact: str
) -> None:
    if source is not None:
        (tmp_path / "a.in").write_text(source)
    assert make_lock.main([str(tmp_path / "a.in")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("make_lock.py: cannot ")
    assert fact in line
    assert not (tmp_path / "a.txt").exists()


def test_users_do_not_get_the_lock_maker() -> None:
    """It needs uv, a network and a checkout: neither the package nor caovanctl has it."""
    installed_files = (ROOT / "packaging/debian/caovan.install").read_text().split()
    assert [word for word in installed_files if "packaging/engines" in word] == [
        "packaging/engines/*.txt"
    ]
    assert not list((ROOT / "caovand").rglob("resolve.py"))
