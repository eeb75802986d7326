"""Untrusted text is never decoded strictly: one name that is not UTF-8 must not end the daemon.

A process calls itself what it likes, and the kernel cuts names in the middle of a character.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from caovand.adapters.gpu import nvml
from caovand.adapters.network import ports
from caovand.adapters.system import processes
from tests.adapters.test_surroundings import FakeNvml
from tests.source_trees import offenders, tree
from tests.test_architecture import MODULES

# Module and function -> why a strict decoding is right, or is another's.
STRICT = {
    ("caovand.adapters.files.config_file", "load"): "the operator's file: refused in words",
    (
        "caovand.adapters.files.safe_files",
        "read_text",
    ): "its callers refuse what is not text",
    ("caovand.adapters.engine.probe", "*"): "JSON of our own probe, in ASCII",
    ("caovand.adapters.gpu.all_reduce", "start"): "our own file, in UTF-8",
    ("caovand.daemon.requests.evidence_verbs", "incident"): "base64 is ASCII",
    ("caovand.engines.explaining.answer", "_read_reports"): "our own file, in UTF-8",
    ("caovand.lab.corpus", "texts"): "our own files, in UTF-8",
    ("caovand.page.server", "_token_of"): "a form that is not UTF-8 is refused as malformed",
}
# Packages and locks, checked against hashes; what a pip says goes through errors="replace".
STRICT_FOLDERS = ("caovand.adapters.engine_install.",)

OPENERS = {"open", "fdopen"}
RUNNERS = {"run", "Popen", "check_output"}


def strict(name: str) -> Iterator[tuple[str, str]]:
    """The function around each strict decoding in a module, and the source of it."""

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        if isinstance(node, ast.Call) and is_strict(node):
            yield function, ast.unparse(node)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, function)

    return walk(tree(MODULES[name]), "")


def is_strict(call: ast.Call) -> bool:
    """Whether this call makes text of bytes, and fails over bytes that are no text."""
    named = {word.arg: word.value for word in call.keywords}
    function = call.func
    attribute = function.attr if isinstance(function, ast.Attribute) else ""
    word = attribute or (function.id if isinstance(function, ast.Name) else "")
    if "errors" in named:
        return False
    if word == "read_text":
        return len(call.args) < 2
    if word == "decode" and attribute:
        latin = bool(call.args) and ast.unparse(call.args[0]) == "'latin-1'"  # takes any byte
        return len(call.args) < 2 and not latin
    if word == "str" and len(call.args) == 2:
        return True
    if word in RUNNERS:
        return bool({"text", "universal_newlines", "encoding"} & set(named))
    if word in OPENERS:
        owner = function.value if isinstance(function, ast.Attribute) else None
        plain = not attribute or ast.unparse(owner or function) in ("os", "io")
        if attribute == "open" and isinstance(owner, ast.Name) and owner.id in ("os", "tarfile"):
            return False
        mode = named.get("mode") or (call.args[1:] if plain else call.args)[:1]
        mode = mode[0] if isinstance(mode, list) and mode else mode
        text = ast.literal_eval(mode) if isinstance(mode, ast.Constant) else "r"
        return "b" not in text and not set("wax") & set(text)
    return False


def test_what_strangers_wrote_is_not_decoded_strictly() -> None:
    def strangers(name: str) -> list[tuple[str, str]]:
        return [
            (function, code)
            for function, code in strict(name)
            if (name, function) not in STRICT and (name, "*") not in STRICT
        ]

    names = (name for name in MODULES if not name.startswith(STRICT_FOLDERS))
    remedy = 'give errors="replace", or "surrogateescape" where a path is made of it'
    assert offenders(names, strangers) == {}, remedy


def test_every_exception_is_needed() -> None:
    seen = {(name, function) for name in MODULES for function, _ in strict(name)}
    for name, function in STRICT:
        assert name not in MODULES or any(
            name == module and function in ("*", inside) for module, inside in seen
        ), (name, function)


@pytest.mark.parametrize(
    ("code", "fails"),
    [
        ("Path(x).read_text()", True),
        ("path.read_text(encoding='utf-8')", True),
        ("path.read_text(errors='replace')", False),
        ("data.decode()", True),
        ("data.decode('utf-8')", True),
        ("data.decode('utf-8', 'replace')", False),
        ("open(x)", True),
        ("open(x, encoding='ascii')", True),
        ("open(x, 'rb')", False),
        ("open(x, 'w')", False),
        ("path.open()", True),
        ("path.open('rb')", False),
        ("path.open(encoding='utf-8')", True),
        ("os.open(x, os.O_RDONLY)", False),
        ("os.fdopen(x)", True),
        ("os.fdopen(x, 'w')", False),
        ("subprocess.run(x, text=True)", True),
        ("subprocess.run(x, text=True, errors='replace')", False),
        ("subprocess.Popen(x)", False),
        ("str(data, 'utf-8')", True),
    ],
)
def test_the_search_finds_what_it_looks_for(code: str, fails: bool) -> None:
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    assert is_strict(call) is fails


NAMES = [
    ("a训练模型服务器".encode()[:15], "a训练模型\ufffd"),
    (b"\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
    (b"a\nb) R 1 (c", r"a\nb) R 1 (c"),
    (b"[/x][bold]", "[/x][bold]"),
    (b"\xff\xfe", "\ufffd\ufffd"),
]
NAMED = """
import ctypes, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1]), 0, 0, 0)
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=NAMES, ids=[shown for _, shown in NAMES])
def neighbour(request: pytest.FixtureRequest) -> Iterator[tuple[int, int, str]]:
    """A process of a strange name that listens: its pid, its port and what is shown of it."""
    raw, shown = request.param
    with subprocess.Popen(
        [sys.executable, "-S", "-c", NAMED, raw.hex()],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline()), shown
        process.kill()


def test_a_neighbour_s_strange_name_is_shown_wherever_it_is_read(
    neighbour: tuple[int, int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, port, shown = neighbour
    assert processes.name_of(pid) == shown
    (listener,) = ports.listeners(port)
    assert (listener.pid, listener.name) == (pid, shown)
    seen = processes.read(pid)
    assert seen is not None
    assert seen.name == shown
    assert [process.name for process in processes.all_processes() if process.pid == pid] == [shown]
    cards = FakeNvml()
    users = [SimpleNamespace(pid=pid, usedGpuMemory=5 << 20)]
    monkeypatch.setattr(cards, "nvmlDeviceGetComputeRunningProcesses", lambda _: users)
    monkeypatch.setitem(sys.modules, "pynvml", cards)
    assert nvml.read_gpus({})[0].users == ((pid, shown, 5),)


def test_what_a_driver_calls_its_card_need_not_be_text(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = FakeNvml()

    def strictly(card: int) -> str:
        return b"\xff".decode()

    monkeypatch.setattr(cards, "nvmlDeviceGetName", lambda card: b"RTX \xff\x1b[m")
    monkeypatch.setattr(cards, "nvmlDeviceGetUUID", strictly)
    monkeypatch.setitem(sys.modules, "pynvml", cards)
    first = nvml.read_gpus({})[0]
    assert (first.name, first.uuid) == (r"RTX �\x1b[m", "")


def test_a_process_that_is_gone_has_no_name() -> None:
    assert processes.name_of(-1) is None
