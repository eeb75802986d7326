"""What is in a wheel is known without downloading it, and two owners of a file make no lock."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from caovand.adapters.environment import lock, resolve
from caovand.adapters.environment.contents import installed
from caovand.adapters.environment.errors import EngineError
from tests.engine_fakes import wheel

SOURCE = """\
# caovan: version = 1.0
# caovan: build = cpu
# caovan: python = 3.11
# caovan: disk-mib = 10
# caovan: platform = x86_64-manylinux_2_35
"""


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
    with pytest.raises(EngineError, match=r"sends whole files only; .*--find-links"):
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
    monkeypatch.setattr(resolve, "compile_versions", lambda *_: ["one==1", "two==1"])

    def made() -> str:
        return resolve.resolve(SOURCE, find_links=tmp_path, index="http://127.0.0.1:9", say=print)

    if fact is None:
        assert [pin.name for pin in lock.parse(made(), "made").pins] == ["one", "two"]
    else:
        with pytest.raises(EngineError, match=f"{fact}: which of them"):
            made()
