"""caovanctl cluster init, join and leave: the key, the section of the file, and what is refused."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from caovand.adapters.files import config_file
from caovand.adapters.network import cluster_key, own_address
from caovand.cli.cluster import section
from caovand.cli.common.errors import Exit
from caovand.core.cluster.section import BEGIN, END
from caovand.core.config.services import ClusterSection
from tests.cli.conftest import Ctl, Said
from tests.daemon_process import ROOT

SHIPPED = (ROOT / "etc/caovan.toml").read_bytes()
HEAD = "10.0.0.1:7070"
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file somebody else's")


class Box:
    """A machine: its configuration, its key, and caovanctl."""

    def __init__(self, folder: Path, ctl: Ctl) -> None:
        self.config, self.key, self._ctl = folder / "caovan.toml", folder / "cluster.key", ctl
        self.config.write_bytes(SHIPPED)

    def __call__(self, verb: str, *words: str) -> Said:
        key = () if verb == "leave" else ("--key-file", str(self.key))
        return self._ctl("cluster", verb, *words, *key, "--config", str(self.config))

    @property
    def cluster(self) -> ClusterSection:
        """As the daemon reads it."""
        return config_file.load(self.config).cluster


@pytest.fixture
def box(tmp_path: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setattr(own_address, "of_default_route", lambda: "10.0.0.1")
    return Box(tmp_path, ctl)


FILES = {
    "installed": SHIPPED,
    "short": b'[model]\npath = "/srv/m"\n',
    "no last line end": b'[model]\npath = "/srv/m"',
    "empty": b"",
    "windows": b"\xef\xbb\xbf" + SHIPPED.replace(b"\n", b"\r\n"),
    "that section first": b"\xef\xbb\xbf[cluster]",
    "that section last": b'[cluster]\nrole = "off"',
}


@pytest.mark.parametrize("name", FILES)
def test_init_then_leave_and_join_then_leave_give_back_the_same_bytes(box: Box, name: str) -> None:
    box.config.write_bytes(FILES[name])
    assert box("init").code == 0
    assert box.cluster == ClusterSection(role="head", head=HEAD, key_file=str(box.key))
    assert box("leave").code == 0
    assert box.config.read_bytes() == FILES[name]
    assert box("join", HEAD).code == 0
    assert box.cluster == ClusterSection(role="worker", head=HEAD, key_file=str(box.key))
    assert box("leave").code == 0
    assert box.config.read_bytes() == FILES[name]


def test_init_makes_the_key_and_names_every_step_to_come(box: Box) -> None:
    said = box("init")
    assert said.code == 0
    assert said.out.splitlines() == [
        f"this machine is the head of a cluster, at {HEAD}: [cluster] in {box.config}",
        f"key: {box.key}, new",
        "next:",
        f"  on each worker  sudo install -d {box.key.parent} &&"
        f" sudo scp root@10.0.0.1:{box.key} {box.key}",
        f"  on each worker  sudo caovanctl cluster join {HEAD} --key-file {box.key}",
        "  there and here  sudo systemctl restart caovan",
    ]
    assert cluster_key.read(box.key).secret.hex() not in said.out


def test_a_key_that_is_there_is_used_and_never_replaced(box: Box) -> None:
    cluster_key.make(box.key, "no-such-group")
    before = box.key.read_bytes()
    assert f"key: {box.key}, which was there already" in box("init").out
    assert box.key.read_bytes() == before


def test_a_key_that_others_can_read_is_not_used(box: Box) -> None:
    cluster_key.make(box.key, "no-such-group")
    box.key.chmod(0o644)
    for words in (("init",), ("join", HEAD)):
        said = box(*words)
        assert said.code == Exit.FAILED
        assert "every user of this machine can open it" in said.err
        assert f"sudo chmod 640 {box.key}" in said.err
    assert box.config.read_bytes() == SHIPPED


def test_a_second_init_changes_nothing(box: Box) -> None:
    box("init")
    before = box.config.read_bytes(), box.key.read_bytes()
    assert box("init").code == 0
    assert (box.config.read_bytes(), box.key.read_bytes()) == before


@pytest.mark.parametrize(
    ("listen", "shown"), [("10.9.8.7:4000", "10.9.8.7"), ("[fd00::1]:70", "[fd00::1]")]
)
def test_the_address_is_the_one_that_is_typed(box: Box, listen: str, shown: str) -> None:
    said = box("init", "--listen", listen)
    assert box.cluster.head == listen
    assert f"sudo scp root@{shown}:" in said.out


def test_an_ipv6_address_of_the_default_route_is_written_with_its_port(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_address, "of_default_route", lambda: "fd00::1")
    box("init")
    assert box.cluster.head == "[fd00::1]:7070"


@pytest.mark.parametrize("own", [None, "127.0.0.1", "::1"])
def test_a_loopback_address_counts_only_where_it_is_typed(
    box: Box, monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    monkeypatch.setattr(own_address, "of_default_route", lambda: own)
    said = box("init")
    assert said.code == Exit.FAILED
    assert "without a default route" in said.err
    assert "--listen HOST:7070" in said.err
    assert not box.key.exists()
    assert box("init", "--listen", "127.0.0.1:7070").code == 0


@pytest.mark.parametrize(
    ("endpoint", "fact"),
    [
        ("10.0.0.1", "is not ADDRESS:PORT"),
        ("10.0.0.1:0", "is not ADDRESS:PORT"),
        (":7070", "is not ADDRESS:PORT"),
        ("0.0.0.0:7070", "0.0.0.0 stands for every address"),
        ("[::]:7070", ":: stands for every address"),
        ("a b:7070", "neither an address nor a host name"),
        ("$(id):7070", "neither an address nor a host name"),
    ],
)
def test_what_is_no_address_of_one_machine_is_refused(box: Box, endpoint: str, fact: str) -> None:
    for words in (("init", "--listen", endpoint), ("join", endpoint)):
        said = box(*words)
        assert said.code == Exit.USAGE
        assert fact in said.err
        assert "such as 10.0.0.1:7070" in said.err
    assert box.config.read_bytes() == SHIPPED
    assert not box.key.exists()


def test_join_without_the_key_prints_the_command_that_copies_it(box: Box) -> None:
    said = box("join", "gpu1:7070")
    assert said.code == Exit.FAILED
    assert f"the cluster's key {box.key} is missing" in said.err
    assert f"sudo scp root@gpu1:{box.key} {box.key}" in said.err
    assert box.config.read_bytes() == SHIPPED


def test_a_path_with_blanks_is_quoted_in_a_command(box: Box) -> None:
    box.key = box.key.with_name("a key")
    assert f"root@gpu1:'{box.key}' '{box.key}'" in box("join", "gpu1:7070").err


@as_root
def test_a_key_that_was_copied_by_root_is_shared_with_the_service(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = []
    monkeypatch.setattr(cluster_key, "share", lambda path, group: shared.append((path, group)))
    cluster_key.make(box.key, "no-such-group")
    box("join", HEAD)
    assert shared == [(box.key, "caovan")]


def test_other_keys_of_the_section_are_kept(box: Box) -> None:
    text = '[cluster]\nnodes = 3\n# which one\ninterface = "eth1"\n'
    box.config.write_text(text)
    box("init")
    wanted = {"nodes": 3, "interface": "eth1", "key_file": str(box.key)}
    assert box.cluster == ClusterSection(role="head", head=HEAD, **wanted)
    box("leave")
    assert box.config.read_text() == text


def test_one_machine_is_in_one_cluster(box: Box) -> None:
    box("init")
    before = box.config.read_bytes()
    for words in (("join", HEAD), ("init", "--listen", "10.0.0.9:7070")):
        said = box(*words)
        assert said.code == Exit.FAILED
        assert "this machine is the head already" in said.err
        assert "run `sudo caovanctl cluster leave` first" in said.err
    assert box.config.read_bytes() == before
    box("leave")
    box("join", HEAD)
    assert f"this machine is a worker of {HEAD} already" in box("init").err


def test_a_section_written_by_hand_is_its_authors(box: Box) -> None:
    text = f'[cluster]\nrole = "worker"\nhead = "{HEAD}"\n'
    box.config.write_text(text)
    joined, left = box("join", "10.0.0.2:7070"), box("leave")
    assert (joined.code, left.code) == (Exit.FAILED, Exit.FAILED)
    assert f"edit that section by hand: sudoedit {box.config}" in joined.err
    assert "was written by hand" in left.err
    assert 'set role = "off" there' in left.err
    assert box.config.read_text() == text


def test_a_role_that_was_turned_off_by_hand_is_left_first(box: Box) -> None:
    box("init")
    box.config.write_text(box.config.read_text().replace('role = "head"', 'role = "off"'))
    said = box("init")
    assert said.code == Exit.FAILED
    assert 'has role = "off"' in said.err
    assert "cluster leave` first" in said.err


@pytest.mark.parametrize(
    "text",
    [
        'cluster = { role = "off" }\n',
        '[ "cluster" ]\nrole = "off"\n',
        'cluster.role = "off"\n',
    ],
)
def test_a_section_in_another_spelling_is_refused(box: Box, text: str) -> None:
    box.config.write_text(text)
    said = box("init")
    assert said.code == Exit.FAILED
    assert "cannot make this machine the head of a cluster: the file would not be valid" in said.err
    assert "edit the section [cluster] by hand" in said.err
    assert box.config.read_text() == text
    assert not box.key.exists()


@pytest.mark.parametrize("more", ["", '[ "cluster" ]\n'])
def test_a_text_that_only_has_the_words_of_a_section_is_not_touched(box: Box, more: str) -> None:
    text = f'[model]\nserved_name = """\n[cluster]\nrole = 1\n"""\n{more}'
    box.config.write_text(text)
    said = box("init")
    assert said.code == Exit.FAILED
    assert "has a form that caovanctl cannot edit" in said.err
    assert box.config.read_text() == text


def test_a_file_that_the_daemon_would_refuse_is_not_changed(box: Box) -> None:
    text = "[model]\npaht = 1\n"
    box.config.write_text(text)
    for words in (("init",), ("join", HEAD), ("leave",)):
        said = box(*words)
        assert said.code == Exit.FAILED
        assert 'did you mean "path"?' in said.err
    assert box.config.read_text() == text


def test_leave_where_there_is_no_cluster(box: Box) -> None:
    said = box("leave")
    assert (said.code, "this machine is in no cluster" in said.err) == (Exit.FAILED, True)


@pytest.mark.parametrize("marker", [BEGIN, END])
def test_half_a_block_is_left_to_people(box: Box, marker: str) -> None:
    box("init")
    text = box.config.read_text().replace(marker, "# gone")
    box.config.write_text(text)
    for words in (("leave",), ("join", HEAD)):
        said = box(*words)
        assert said.code == Exit.FAILED
        assert f"the comments around [cluster] in {box.config} were changed" in said.err or (
            "already" in said.err
        )
    assert box.config.read_text() == text


def test_leave_says_where_the_key_stays_and_what_comes_next(box: Box) -> None:
    box("init")
    assert box("leave").out.splitlines() == [
        f"this machine serves alone: [cluster] was removed from {box.config}",
        f"the key stays: {box.key}",
        "next: `sudo systemctl restart caovan`",
    ]


def test_no_file_and_no_text(box: Box) -> None:
    box.config.write_bytes(b"\xff")
    assert "is not UTF-8 text" in box("init").err
    box.config.unlink()
    said = box("init")
    assert said.code == Exit.FAILED
    assert f"{box.config}: No such file or directory" in said.err
    assert "name the daemon's file with --config" in said.err


def test_a_file_that_others_can_replace_is_not_changed(box: Box) -> None:
    box("init")
    box.config.chmod(0o666)
    before = box.config.read_bytes()
    said = box("leave")
    assert said.code == Exit.FAILED
    assert "can be changed by every user" in said.err
    assert box.config.read_bytes() == before


def test_mode_owner_and_link_stay(box: Box) -> None:
    real = box.config.with_name("real.toml")
    box.config.rename(real)
    box.config.symlink_to(real)
    real.chmod(0o640)
    if os.getuid() == 0:
        os.chown(real, 0, 65534)
    before = real.stat()
    box("init")
    after = real.stat()
    assert box.config.is_symlink()
    assert box.cluster.role == "head"
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
    )
    assert {one.name for one in real.parent.iterdir()} >= {"real.toml", "caovan.toml"}
    assert not [one for one in real.parent.iterdir() if one.name.startswith(".")]


def test_without_the_right_to_write_the_end_is_a_sentence(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(section.safe_files, "replace", denied)
    said = box("init")
    assert said.code == Exit.NOT_PERMITTED
    assert re.search(r"is not yours to change\n +run it with sudo", said.err)
    assert box.config.read_bytes() == SHIPPED
