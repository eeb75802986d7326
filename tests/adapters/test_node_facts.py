"""A node's facts on this machine: its route to the head, its model, its shared memory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from caovand import __version__
from caovand.adapters import model_folder
from caovand.adapters.node_facts import digests, gather, interfaces
from caovand.core.cluster import node
from caovand.core.cluster.node import NodeCard, NodeFacts
from caovand.core.cluster.node_document import from_document, to_document
from caovand.core.facts.gguf import Gguf
from caovand.core.facts.inventory import Inventory, ModelCard
from caovand.core.problem import ProblemError
from tests.core.machines import ABSENT, CUDA, HOST, named
from tests.daemon_process import ROOT
from tests.two_nodes import namespaces

MIB = 1 << 20
ENGINE = replace(
    CUDA,
    version="0.33.0",
    cuda="13.0",
    nccl="2.30.7",
    ray="2.60.0",
    plugin="0.2.0",
    nvcc="/usr/local/cuda/bin/nvcc",
    jit_cache=None,
    kernels=(("sm75", ("sampling",)), ("sm80", ("sampling", "all-reduce"))),
    python_version="3.12.7",
)
FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "modeling_own.py": b"",
    ".gitattributes": b"",
    "README.md": b"",
    "LICENSE": b"",
    "Licence.txt": b"",
    "figure.PNG": b"",
    "caovan-model.json": b"{}",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder, with files that no engine reads, and a folder in it."""
    made = tmp_path / "model"
    (made / "original").mkdir(parents=True)
    for name, content in FILES.items():
        (made / name).write_bytes(content)
    return made


def card(folder: Path) -> ModelCard:
    return ModelCard(str(folder), "Qwen3ForCausalLM", "qwen3", (), 4096)


def read(
    tmp_path: Path,
    model: ModelCard = ABSENT,
    head_host: str = "127.0.0.1",
    interface: str | None = None,
) -> NodeFacts:
    gpus = tuple(replace(gpu, driver="580.95.05") for gpu in named("T4", 2))
    inventory = Inventory(gpus, HOST, ENGINE, model)
    return gather.read(
        "gpu2", inventory, head_host, interface, kind="vllm", cards=gpus,
        cache=tmp_path / "cache", by_host_name=lambda used: False,
    )  # fmt: skip


def problem_of(tmp_path: Path, **words: Any) -> str:
    with pytest.raises(ProblemError) as refused:
        read(tmp_path, **words)
    return str(refused.value)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_the_facts_are_those_of_the_inventory_and_the_machine(tmp_path: Path, folder: Path) -> None:
    facts = read(tmp_path, card(folder))
    measured = {"shm_free_mib": 0, "clock": 0.0, "firewall": "", "rdma": {}, "memlock_mib": None}
    assert replace(facts, **measured) == NodeFacts(
        name="gpu2",
        caovan=__version__,
        engine="vllm",
        version="0.33.0",
        torch="2.11.0",
        cuda="13.0",
        nccl="2.30.7",
        ray="2.60.0",
        flashinfer="0.6.8.post1",
        plugin="0.2.0",
        nvcc=True,
        jit_cache="",
        kernels=("sm75 sampling", "sm80 sampling", "sm80 all-reduce"),
        python="3.12.7",
        driver="580.95.05",
        cards=(NodeCard("Tesla T4", 15360, (7, 5), 15060),) * 2,
        address="127.0.0.1",
        interface="lo",
        mtu=65536,
        speed_mbit=0,
        listens_at="127.0.0.1",
        firewall="",
        rdma={},
        memlock_mib=None,
        p2p=None,
        ram_mib=HOST.ram_mib,
        shm_free_mib=0,
        model_folder=str(folder),
        model={
            "config.json": sha256(b"{}"),
            "model.safetensors": sha256(b"weights"),
            "modeling_own.py": sha256(b""),
        },
        clock=0.0,
    )
    free = shutil.disk_usage("/dev/shm").free // MIB
    assert abs(facts.shm_free_mib - free) < 1024
    assert from_document(json.loads(json.dumps(to_document(facts)))) == facts


def test_a_machine_without_cards_has_no_driver(tmp_path: Path) -> None:
    inventory = Inventory((), HOST, replace(ENGINE, nccl=None, cuda=None), ABSENT)
    facts = gather.read(
        "gpu2", inventory, "127.0.0.1", None, kind="vllm", cards=(), cache=tmp_path,
        by_host_name=lambda used: False,
    )  # fmt: skip
    assert (facts.driver, facts.nccl, facts.cuda, facts.cards) == ("", "", "", ())


def test_only_cards_that_ranks_may_use_are_reported(tmp_path: Path) -> None:
    """Two that reach each other, beside one for the display that reaches nobody."""
    pair = tuple(replace(gpu, p2p=(1 - gpu.index,)) for gpu in named("T4", 2))
    display = replace(named("RTX 3070")[0], index=2, p2p=())
    facts = gather.read(
        "gpu2", Inventory((*pair, display), HOST, ENGINE, ABSENT), "127.0.0.1", None, kind="vllm",
        cards=pair, cache=tmp_path, by_host_name=lambda used: False,
    )  # fmt: skip
    assert facts.cards == (NodeCard("Tesla T4", 15360, (7, 5), 15060),) * 2
    assert facts.p2p is True


def test_without_shared_memory_none_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "SHM", tmp_path / "none")
    assert read(tmp_path).shm_free_mib == 0


# -- the network ---


def test_a_name_is_resolved_and_an_interface_chosen(tmp_path: Path) -> None:
    facts = read(tmp_path, head_host="localhost", interface="lo")
    assert facts.interface == "lo"
    assert facts.address in ("127.0.0.1", "::1")


def test_an_unknown_interface_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    names = ", ".join(name for _, name in socket.if_nameindex())
    assert problem_of(tmp_path, interface="nvl0") == (
        f"cannot use the network interface nvl0: this machine has only {names}; "
        "set [cluster] interface to another one"
    )


def test_an_interface_without_an_address_of_the_heads_kind_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [one for one in interfaces.addresses() if one.family == socket.AF_INET6]
    monkeypatch.setattr(interfaces, "addresses", lambda: kept)
    assert problem_of(tmp_path, interface="lo") == (
        "cannot use the network interface lo: it has no IPv4 address; set [cluster] interface to"
        " another one, or add an address to it"
    )


def test_an_address_that_no_interface_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interfaces, "addresses", list)
    assert problem_of(tmp_path) == (
        "cannot find the interface that reaches the head 127.0.0.1: no interface has "
        "127.0.0.1, which the route to the head uses; set [cluster] interface"
    )


@pytest.mark.parametrize("host", ["", "a..b", "a" * 300, "no address"])
def test_a_head_that_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    text = problem_of(tmp_path, head_host=host)
    assert text.startswith(f"cannot find the head {host}: ")
    assert text.endswith("; set [cluster] head to its address")


def test_a_system_without_netlink_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> list[interfaces.Address]:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(interfaces, "addresses", refused)
    assert problem_of(tmp_path) == (
        "cannot read this machine's network interfaces: Address family not supported by protocol;"
        " try again, or check RestrictAddressFamilies of the unit for AF_NETLINK"
    )


@dataclass(frozen=True)
class Network:
    """Two network namespaces, `here` and `there`, with a cable between them."""

    here: str
    there: str

    def ip(self, words: str, place: str = "") -> None:
        subprocess.run(["ip", *(["-n", place] if place else []), *words.split()], check=True)

    def run(self, code: str) -> list[str]:
        """The lines that Python code prints in the first one."""
        words = ["ip", "netns", "exec", self.here, sys.executable, "-c", f"{IMPORTS}{code}"]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, env=environ, cwd="/", capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().splitlines()


IMPORTS = """
from pathlib import Path
from tests.adapters.test_node_facts import problem_of, read
NONE = Path("/none")
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """10.77.0.0/24 and fd77::/64 over a cable, and a second cable that has only 10.78.0.2."""
    made = Network(f"caovan-here-{os.getpid()}", f"caovan-there-{os.getpid()}")
    with namespaces(made.here, made.there):
        for name, mtu in (("fast0", 9000), ("slow0", 1420)):
            peer = f"peer {name} netns {made.there} mtu {mtu}"
            made.ip(f"link add {name} mtu {mtu} type veth {peer}", made.here)
        for place, last in ((made.here, 2), (made.there, 1)):
            for name in ("lo", "fast0", "slow0"):
                made.ip(f"link set {name} up", place)
            made.ip(f"address add 10.77.0.{last}/24 dev fast0", place)
            made.ip(f"address add fd77::{last}/64 dev fast0 nodad", place)
            made.ip(f"address add 10.78.0.{last}/24 dev slow0", place)
        made.ip("address add 10.77.0.22/24 dev fast0", made.here)  # a second one
        yield made


WAYS = {
    ("10.77.0.1", None): "10.77.0.2 fast0 9000",
    ("fd77::1", None): "fd77::2 fast0 9000",
    ("10.78.0.1", None): "10.78.0.2 slow0 1420",
    ("10.77.0.1", "slow0"): "10.78.0.2 slow0 1420",
    ("10.77.0.1", "fast0"): "10.77.0.2 fast0 9000",  # not its second one
    ("fd77::1", "fast0"): "fd77::2 fast0 9000",  # not the one of the link
    ("10.77.0.22", None): "10.77.0.22 fast0 9000",  # the head itself
    ("127.0.1.1", None): "127.0.0.1 lo 65536",
}


def test_the_way_to_the_head_is_found(network: Network) -> None:
    found = network.run(
        f"for host, interface in {list(WAYS)}:\n"
        "    facts = read(NONE, head_host=host, interface=interface)\n"
        "    print(facts.address, facts.interface, facts.mtu)\n"
    )
    assert dict(zip(WAYS, found, strict=True)) == WAYS


def test_a_head_without_a_way_is_refused(network: Network) -> None:
    found = network.run(
        "print(problem_of(NONE, head_host='10.99.0.1'))\n"
        "print(problem_of(NONE, head_host='fd77::1', interface='slow0'))\n"
    )
    assert found == [
        "cannot reach the head 10.99.0.1: Network is unreachable; check the network (`ip route`),"
        " and [cluster] head",
        "cannot use the network interface slow0: it has no global IPv6 address; set [cluster]"
        " interface to another one, or add an address to it",
    ]


# -- the model ---


def test_a_model_that_is_not_here_has_no_files(tmp_path: Path) -> None:
    facts = read(tmp_path)
    assert (facts.model_folder, facts.model) == ("", {})


def test_a_gguf_model_is_its_parts_only(tmp_path: Path, folder: Path) -> None:
    for name in ("a-1.gguf", "a-2.gguf", "b.gguf"):
        (folder / name).write_bytes(name.encode())
    gguf = Gguf((), 0, 0, 0, (), (("a-1.gguf", 8), ("a-2.gguf", 8)))
    facts = read(tmp_path, replace(card(folder / "a-1.gguf"), gguf=gguf))
    assert facts.model_folder == str(folder)
    assert facts.model == {"a-1.gguf": sha256(b"a-1.gguf"), "a-2.gguf": sha256(b"a-2.gguf")}


def test_links_of_the_hubs_cache_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--a--b/snapshots/abc"
    (tmp_path / "models--a--b/blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (tmp_path / "models--a--b/blobs/1").write_bytes(b"{}")
    (snapshot / "config.json").symlink_to("../../blobs/1")
    facts = read(tmp_path, replace(ABSENT, path="a/b"))
    assert (facts.model_folder, facts.model) == (str(snapshot), {"config.json": sha256(b"{}")})


def test_names_that_no_terminal_should_print_are_escaped(tmp_path: Path, folder: Path) -> None:
    (folder / "a\x1b").write_bytes(b"")
    (folder / os.fsdecode(b"\xff")).write_bytes(b"")
    facts = read(tmp_path, card(folder))
    assert {"a\\x1b", "\\udcff"} <= facts.model.keys()
    assert read(tmp_path, card(folder)).model == facts.model
    assert from_document(to_document(facts)) == facts


def test_a_folder_of_too_many_files_is_refused(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "MAX_FILES", 2)
    assert problem_of(tmp_path, model=card(folder)) == (
        f"cannot compare the model with that of the other nodes: {folder} has 3 files, more"
        " than a node can report; set [model] path to a folder that contains only the model"
    )


def test_a_model_that_cannot_be_read_is_reported(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = "cannot compare the model with that of the other nodes"
    gone = folder.parent / "gone"
    text = f"{what}: {gone}: No such file or directory; check the disk"
    assert problem_of(tmp_path, model=card(gone)) == text

    def closed(path: Path, **_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("caovand.adapters.files.safe_files.open_regular", closed)
    assert problem_of(tmp_path, model=card(folder)) == (
        f"{what}: {folder}/config.json: Permission denied; run `chmod -R a+rX {folder}`"
    )


def digest(path: Path) -> str:
    return digests.digests(path.parent, [path.name], path.parent / "cache")[path.name]


@pytest.mark.parametrize("size_bytes", [0, 1, MIB, 3 * MIB + 5, 64 * MIB])
def test_a_file_up_to_64_mib_is_read_whole(tmp_path: Path, size_bytes: int) -> None:
    path, content = tmp_path / "a", os.urandom(MIB) * 64 + b"end"
    path.write_bytes(content[len(content) - size_bytes :])
    assert digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def large(path: Path, *changes: int, size_bytes: int = 300 * MIB) -> Path:
    """A sparse file with these bytes set."""
    with path.open("wb") as made:
        made.truncate(size_bytes)
        for at in changes:
            made.seek(at)
            made.write(b"x")
    return path


def test_a_large_file_is_known_by_its_ends_size_and_samples(tmp_path: Path) -> None:
    size_bytes = 300 * MIB
    plain = digest(large(tmp_path / "plain"))
    assert digest(large(tmp_path / "same")) == plain
    for number, at in enumerate((0, MIB - 1, size_bytes - MIB, size_bytes - 1)):
        assert digest(large(tmp_path / f"end{number}", at)) != plain
    assert digest(large(tmp_path / "longer", size_bytes=size_bytes + 1)) != plain
    pieces = {
        digest(large(tmp_path / f"piece{number}", number * (size_bytes - (64 << 10)) // 65 + 100))
        for number in range(1, 65)
    }
    assert len(pieces - {plain}) == 64
    assert digest(large(tmp_path / "between", 2 * MIB)) == plain  # the price of samples


def test_nothing_is_read_again_until_it_has_changed(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read(tmp_path, card(folder)).model
    read_files: list[int] = []
    real = digests._digest

    def counted(descriptor: int, size_bytes: int) -> str:
        read_files.append(size_bytes)
        return real(descriptor, size_bytes)

    monkeypatch.setattr(digests, "_digest", counted)
    assert read(tmp_path, card(folder)).model == before
    assert read_files == []
    config = folder / "config.json"
    os.utime(config, ns=(1, 1))
    read(tmp_path, card(folder))
    (folder / "new").write_bytes(b"[1]")
    os.utime(folder / "new", ns=(1, 1))
    os.replace(folder / "new", config)  # of another size
    read(tmp_path, card(folder))
    (folder / "new").write_bytes(b"[2]")
    os.utime(folder / "new", ns=(1, 1))
    os.replace(folder / "new", config)  # of another inode only
    after = read(tmp_path, card(folder)).model
    assert read_files == [2, 3, 3]
    assert after == {**before, "config.json": sha256(b"[2]")}


def test_a_file_that_is_being_written_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "a", digests._digest
    path.write_bytes(b"half")

    def meanwhile(descriptor: int, size_bytes: int) -> str:
        found = real(descriptor, size_bytes)
        path.write_bytes(b"half and half")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(digests, "_digest", meanwhile)
        assert digest(path) == sha256(b"half")
    assert digest(path) == sha256(b"half and half")


@pytest.mark.parametrize("kept", ["[]", "x", '{"a": 5}', '{"a": []}', '{"a": [1, 2, 3]}'])
def test_a_damaged_memory_of_digests_is_none(tmp_path: Path, kept: str) -> None:
    (tmp_path / "a").write_bytes(b"a")
    digest(tmp_path / "a")
    (memory,) = (tmp_path / "cache").iterdir()
    memory.write_text(kept)
    assert digest(tmp_path / "a") == sha256(b"a")


def test_a_memory_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "cache").write_text("a file")
    assert digest(tmp_path / "a") == sha256(b"a")


def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert "pipe" not in read(tmp_path, card(folder)).model


def test_the_folder_of_a_model_is_known_without_its_files(folder: Path) -> None:
    assert model_folder.folder_of(card(folder)) == folder
    assert model_folder.folder_of(card(folder / "config.json")) == folder
    assert model_folder.folder_of(ABSENT) is None
