"""The cluster key's file: created once, and read only if no one else could read it."""

from __future__ import annotations

import errno
import grp
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from caovand.adapters.network import cluster_key
from caovand.core.cluster.key import BadKey, ClusterKey

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file somebody else's")
not_root = pytest.mark.skipif(os.getuid() == 0, reason="root may read and write everywhere")
NOBODY = 65534
ABSENT = "no-such-group"


def group_of_nobody() -> str:
    return grp.getgrgid(NOBODY).gr_name


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "etc/cluster.key"
    cluster_key.make(path, ABSENT)
    return path


def test_what_is_made_is_read_back_and_is_new_each_time(tmp_path: Path) -> None:
    path = tmp_path / "etc/caovan/cluster.key"
    made = cluster_key.make(path, ABSENT)
    assert cluster_key.read(path) == made
    assert path.stat().st_mode & 0o7777 == 0o640
    assert path.parent.stat().st_mode & 0o7777 == 0o755
    assert [one.name for one in path.parent.iterdir()] == ["cluster.key"]
    assert cluster_key.new_key() != made


def test_the_folder_lets_the_service_in_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        cluster_key.make(tmp_path / "a/b/key", ABSENT)
    finally:
        os.umask(before)
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "a/b/key").stat().st_mode & 0o777 == 0o640


@as_root
def test_the_group_may_read_it(tmp_path: Path) -> None:
    cluster_key.make(tmp_path / "key", group_of_nobody())
    seen = (tmp_path / "key").stat()
    assert (seen.st_uid, seen.st_gid, seen.st_mode & 0o7777) == (0, NOBODY, 0o640)


def test_a_key_that_is_there_is_never_overwritten(key: Path) -> None:
    before = key.read_bytes()
    with pytest.raises(BadKey, match="the file exists already; use it, or remove it first"):
        cluster_key.make(key, ABSENT)
    assert key.read_bytes() == before


def test_no_key_is_made_where_others_could_replace_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(BadKey, match="can be changed by every user; choose a folder"):
        cluster_key.make(tmp_path / "folder/key", ABSENT)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_leaves_no_part_of_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadKey, match="No space left on device; choose another file"):
        cluster_key.make(tmp_path / "key", ABSENT)
    assert list(tmp_path.iterdir()) == []


@not_root
def test_who_may_not_write_there_is_sent_to_sudo(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BadKey, match="run this with sudo"):
        cluster_key.make(tmp_path / "key", ABSENT)


def writable_link(key: Path) -> None:
    """A link to another file, in a folder where everybody can put one of theirs."""
    target = key.parent / "open" / "key"
    target.parent.mkdir()
    key.rename(target)
    target.parent.chmod(0o777)
    key.symlink_to(target)


def broken_text(key: Path) -> None:
    key.write_bytes(b"caovan-cluster-1 \xff")


BAD: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "missing": (
        Path.unlink,
        "the file does not exist",
        "`sudo caovanctl cluster init` on the head",
    ),
    "for others": (lambda key: key.chmod(0o644), "every user of this machine", "chmod 640"),
    "for others to write": (lambda key: key.chmod(0o642), "changed by every user", "chmod 640"),
    "link": (writable_link, "open can be changed by every user", "only root can write to"),
    "folder": (lambda key: (key.unlink(), key.mkdir()), "Is a directory", "into a file"),
    "fifo": (lambda key: (key.unlink(), os.mkfifo(key, 0o640)), "not a file", "into a file"),
    "large": (lambda key: key.write_text("#" * 9999), "larger than 4 KiB", "into a file"),
    "no text": (broken_text, "not UTF-8", "copy it from the head again"),
    "empty": (lambda key: key.write_text(""), "no key", "copy the file from the head again"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_trusted_or_read_is_refused_with_the_remedy(key: Path, name: str) -> None:
    spoil, fact, remedy = BAD[name]
    spoil(key)
    with pytest.raises(BadKey) as caught:
        cluster_key.read(key)
    problem = caught.value.problem
    assert problem.cannot == f"use the cluster key {key}"
    assert fact in problem.fact
    assert remedy in problem.remedy


def test_a_link_that_only_we_can_change_is_followed(key: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(key)
    assert cluster_key.read(tmp_path / "link") == cluster_key.read(key)


@as_root
def test_a_key_of_another_user_is_refused(key: Path) -> None:
    os.chown(key, NOBODY, NOBODY)
    with pytest.raises(BadKey, match=f"belongs to uid {NOBODY}; run `sudo sh -c 'chown root:"):
        cluster_key.read(key)


@as_root
def test_a_key_that_another_group_can_change_is_refused(key: Path) -> None:
    os.chown(key, 0, NOBODY)
    key.chmod(0o660)
    with pytest.raises(BadKey, match=f"can be changed by group {NOBODY}"):
        cluster_key.read(key)


@as_root
def test_the_service_reads_a_key_of_root_by_its_group_alone(key: Path) -> None:
    for folder in key.parents:
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(0o755)
    assert in_a_child_as_nobody(key) == "Permission denied"
    assert cluster_key.share(key, group_of_nobody())
    assert (key.stat().st_gid, key.stat().st_mode & 0o7777) == (NOBODY, 0o640)
    assert in_a_child_as_nobody(key) == ""
    assert not cluster_key.share(key, group_of_nobody()), "it is shared already"


def in_a_child_as_nobody(key: Path) -> str:
    """What reading it ends with for the user nobody; "" for success."""
    readable, writable = os.pipe()
    if not (child := os.fork()):
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            cluster_key.read(key)
        except BadKey as bad:
            os.write(writable, bad.problem.fact.encode())
        except BaseException as problem:
            os.write(writable, repr(problem).encode())
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as end:
        text = end.read()
    os.waitpid(child, 0)
    return (
        text.removeprefix(f"cannot use the cluster key {key}: ")
        .partition(": for")[0]
        .partition("; for")[0]
    )


def test_without_that_group_nothing_is_shared(key: Path) -> None:
    before = key.stat()
    assert not cluster_key.share(key, ABSENT)
    assert key.stat() == before


@as_root
def test_a_key_with_a_second_name_is_not_shared(key: Path) -> None:
    os.link(key, key.with_name("other"))
    with pytest.raises(BadKey, match="another hard link points to it; remove it; run `sudo chown"):
        cluster_key.share(key, group_of_nobody())


def test_the_pairs_are_of_curve_and_the_same_on_every_node() -> None:
    key = ClusterKey(bytes(range(32)))
    found = cluster_key.derive_pairs(key)
    assert found == cluster_key.derive_pairs(ClusterKey(bytes(range(32))))
    head_public, head_secret, worker_public, worker_secret, token = found
    assert {len(one) for one in found[:4]} == {40}
    assert len(set(found)) == 5
    assert token == key.token()
    assert zmq.curve_public(head_secret) == head_public
    assert zmq.curve_public(worker_secret) == worker_public
    assert head_secret.decode() not in repr(found)
    assert token not in repr(found)


def test_two_sockets_with_these_pairs_understand_each_other_and_nobody_else() -> None:
    ours, theirs = (
        cluster_key.derive_pairs(cluster_key.new_key()),
        cluster_key.derive_pairs(cluster_key.new_key()),
    )
    with zmq.Context() as context, context.socket(zmq.ROUTER) as head:
        head.setsockopt(zmq.LINGER, 0)
        head.setsockopt(zmq.CURVE_SERVER, 1)
        head.setsockopt(zmq.CURVE_SECRETKEY, ours.head_secret)
        port = head.bind_to_random_port("tcp://127.0.0.1")
        for pairs, text in ((theirs, b"stranger"), (ours, b"worker")):
            worker = context.socket(zmq.DEALER)
            worker.setsockopt(zmq.LINGER, -1 if pairs is ours else 0)
            worker.setsockopt(zmq.CURVE_SERVERKEY, pairs.head_public)
            worker.setsockopt(zmq.CURVE_PUBLICKEY, pairs.worker_public)
            worker.setsockopt(zmq.CURVE_SECRETKEY, pairs.worker_secret)
            worker.connect(f"tcp://127.0.0.1:{port}")
            worker.send(text)
            if pairs is ours:
                assert head.poll(30_000)
                assert head.recv_multipart()[1] == b"worker"
            worker.close()


def test_a_zeromq_without_curve_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: bytes) -> bytes:
        raise zmq.ZMQError(errno.ENOTSUP)

    monkeypatch.setattr(zmq, "curve_public", absent)
    with pytest.raises(BadKey, match=r"ZeroMQ has no CURVE .* install a libzmq built with"):
        cluster_key.derive_pairs(cluster_key.new_key())
