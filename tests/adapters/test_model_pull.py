"""A pull ends with all files as published, or with a problem, whatever the hub does."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.model_pull import folders, headers, hubs, offer, pull
from caovand.adapters.model_pull.client import HubClient
from caovand.adapters.model_pull.errors import PullError
from caovand.adapters.model_pull.folders import ModelFolders
from caovand.adapters.model_pull.verify import verify
from caovand.adapters.model_pull.world import TransferMeter, World
from caovand.core.checkpoint import budget
from caovand.core.model_source.manifest import Manifest
from tests.hub_server import COMMIT, NAME, Fault, HubServer, serving

WEIGHTS = bytes(range(256)) * 2048  # 512 KiB, two pieces
SHARD = "model.safetensors"
FILES = {
    "config.json": b'{"model_type": "tiny"}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "LICENSE": b"free",
    ".gitattributes": b"*",
    "README.md": b"# Tiny",
    "modeling_tiny.py": b"raise SystemExit",
    "pytorch_model.bin": b"x" * 100,
    "original/consolidated.safetensors": b"y" * 100,
    SHARD: WEIGHTS,
}
WANTED = {"config.json", "tokenizer.json", "chat_template.jinja", "LICENSE", SHARD}
TOKEN = "hf_abcdefghijklmnop"


@dataclass
class Kept:
    """A world that waits in no time, and what was shown."""

    said: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    shown: list[tuple[int, int, str]] = field(default_factory=list)

    @property
    def world(self) -> World:
        return World(
            say=self.said.append,
            progress=lambda *step: self.shown.append(step),
            sleep=self.slept.append,
            chance=lambda: 0.5,
        )


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with serving(FILES) as server:
        yield server


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def place(tmp_path: Path) -> ModelFolders:
    return folders.place_of(tmp_path / "models", NAME)


def client(hub: HubServer, token: str = "", kind: hubs.Hub = hubs.HUGGING_FACE) -> HubClient:
    return HubClient(replace(kind, endpoint=hub.endpoint), token, {})


def pulled(hub: HubServer, kept: Kept, place: ModelFolders, **how: Any) -> Manifest:
    asked = client(hub, **how)
    found = offer.read(asked, kept.world, offer.RequestedModel(NAME))
    return pull.pull(asked, kept.world, found, place)


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(PullError) as caught:
        act()
    assert caught.value.problem.remedy
    return str(caught.value)


def content(place: ModelFolders) -> dict[str, bytes]:
    return {
        str(path.relative_to(place.folder)): path.read_bytes()
        for path in place.folder.rglob("*")
        if path.name != "caovan-model.json"
    }


@pytest.mark.parametrize("kind", [hubs.HUGGING_FACE, hubs.MODELSCOPE], ids=lambda kind: kind.title)
def test_a_pull_brings_what_is_needed_and_notes_what_it_was(
    hub: HubServer, kept: Kept, place: ModelFolders, kind: hubs.Hub
) -> None:
    made = pulled(hub, kept, place, kind=kind)
    assert content(place) == {name: FILES[name] for name in WANTED}
    assert folders.read(place.folder) == made
    assert made.commit == (COMMIT if kind is hubs.HUGGING_FACE else "")
    assert [path.name for path in place.root.iterdir()] == [place.folder.name]
    assert kept.shown[-1][0] == kept.shown[-1][1] == sum(len(FILES[name]) for name in WANTED)
    assert verify(kept.world, place, made) == ([], [])


def test_everything_is_readable_for_the_service_whatever_the_umask(
    hub: HubServer, kept: Kept, place: ModelFolders
) -> None:
    before = os.umask(0o077)
    try:
        pulled(hub, kept, place)
    finally:
        os.umask(before)
    for path in (place.root, place.folder, *place.folder.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


@pytest.mark.parametrize(
    ("faults", "requests"),
    [
        ([Fault(after=1000)], 2),
        ([Fault(after=1000), Fault(after=0), Fault(after=300_000)], 4),
        ([Fault(status=503), Fault(status=500)], 3),
        ([Fault(status=429, headers=(("Retry-After", "0"),))], 2),
        ([Fault(after=1000), Fault(no_ranges=True)], 2),
        ([Fault(after=1000), Fault(status=416)], 3),
        ([Fault(flipped=True)], 2),
        ([Fault(after=1000, flipped=True), Fault()], 3),
        ([Fault(piece=4099)], 1),
    ],
    ids=["cut", "cut often", "5xx", "429", "no ranges", "416", "wrong", "wrong start", "dribble"],
)
def test_a_download_survives(
    hub: HubServer, kept: Kept, place: ModelFolders, faults: list[Fault], requests: int
) -> None:
    hub.faults[SHARD] = list(faults)
    pulled(hub, kept, place)
    assert content(place)[SHARD] == WEIGHTS
    assert len(hub.of(SHARD)) == requests


def test_what_has_come_is_asked_for_once_also_by_the_next_command(
    hub: HubServer, kept: Kept, place: ModelFolders
) -> None:
    hub.faults[SHARD] = [Fault(after=300_000), *[Fault(status=503)] * 9]
    assert "HTTP 503, after 10 attempts" in refused(lambda: pulled(hub, kept, place))
    assert not place.folder.exists()
    (begun,) = folders.unfinished(place.root)
    small = sum(len(FILES[name]) for name in WANTED - {SHARD})
    assert (begun.name, begun.done_bytes) == (NAME, 300_000 + small)
    hub.faults.clear()
    hub.seen.clear()
    pulled(hub, kept, place)
    assert [one.headers["range"] for one in hub.of(SHARD)] == ["bytes=300000-"]
    assert hub.of(SHARD)[0].headers["if-range"] == f'"{SHARD}"'
    assert not [one for one in hub.seen if "tokenizer.json" in one.path]


def test_the_rate_counts_only_what_comes(kept: Kept) -> None:
    clock = iter(float(second) for second in range(100))
    meter = TransferMeter(replace(kept.world, monotonic_s=lambda: next(clock)), 100 << 20)
    meter.begin("a")
    meter.skip(50 << 20)
    for _ in range(3):
        meter.add(1 << 20)
    assert kept.shown[-1] == (53 << 20, 100 << 20, "a, 1.0 MiB/s, 47 s left")
    meter.skip(-(50 << 20))
    meter.add(1 << 20)
    assert kept.shown[-1] == (4 << 20, 100 << 20, "a")


def test_a_file_that_changed_in_between_begins_anew(
    hub: HubServer, kept: Kept, place: ModelFolders
) -> None:
    hub.faults[SHARD] = [Fault(after=1000), *[Fault(status=503)] * 10]
    refused(lambda: pulled(hub, kept, place))
    hub.faults.clear()
    hub.files[SHARD], hub.etags[SHARD] = WEIGHTS[::-1], '"new"'
    pulled(hub, kept, place)
    assert content(place)[SHARD] == WEIGHTS[::-1]


def test_a_part_that_the_server_no_longer_knows_by_its_etag_is_dropped(
    hub: HubServer, kept: Kept, place: ModelFolders
) -> None:
    hub.faults[SHARD] = [Fault(after=1000), *[Fault(status=503)] * 10]
    refused(lambda: pulled(hub, kept, place))
    hub.faults.clear()
    hub.seen.clear()
    hub.etags[SHARD] = '"another"'
    pulled(hub, kept, place)
    assert content(place)[SHARD] == WEIGHTS
    assert len(hub.of(SHARD)) == 1


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault(length=len(WEIGHTS) + 5), "claims a length"),
        (Fault(length=5), "claims a length"),
        (Fault(extra=b"more"), "sent more than"),
        (Fault(status=403), "requires permission"),
        (Fault(status=404), "does not exist|not found|has no"),
        (Fault(status=418), "refused: HTTP 418|answers HTTP 418"),
    ],
)
def test_a_server_that_lies_is_refused_and_nothing_has_the_final_name(
    hub: HubServer, kept: Kept, place: ModelFolders, fault: Fault, why: str
) -> None:
    hub.faults[SHARD] = [fault]
    said = refused(lambda: pulled(hub, kept, place))
    assert any(text in said for text in why.split("|"))
    assert not place.folder.exists()


def test_another_part_than_was_asked_for_is_refused(
    hub: HubServer, kept: Kept, place: ModelFolders
) -> None:
    hub.faults[SHARD] = [Fault(after=1000), Fault(content_range=f"bytes 5-{len(WEIGHTS) - 1}/*")]
    assert "it claims bytes 5-" in refused(lambda: pulled(hub, kept, place))


def test_content_that_never_has_the_hash_is_refused_and_dropped(
    hub: HubServer, kept: Kept, place: ModelFolders
) -> None:
    hub.faults[SHARD] = [Fault(flipped=True)] * 2
    assert "publisher's hash 2 times" in refused(lambda: pulled(hub, kept, place))
    assert [path.stat().st_size for path in place.blobs.glob("*.part")] == [0]


def test_a_busy_server_is_waited_for_as_it_asks(
    hub: HubServer, kept: Kept, place: ModelFolders
) -> None:
    hub.faults["list"] = [Fault(status=429, headers=(("Retry-After", "7"),)), Fault(status=502)]
    pulled(hub, kept, place)
    assert kept.slept == [7.0, 2.0]


def test_a_server_that_asks_to_wait_for_hours_is_given_up(
    hub: HubServer, kept: Kept, place: ModelFolders
) -> None:
    hub.faults["list"] = [Fault(status=429, headers=(("Retry-After", "7200"),))]
    assert "the server requests a wait of 7200 s" in refused(lambda: pulled(hub, kept, place))
    assert kept.slept == []


def test_a_hub_that_is_not_there_is_a_problem_after_few_attempts(
    kept: Kept, place: ModelFolders
) -> None:
    with serving(FILES) as hub:
        pass
    assert "after 4 attempts" in refused(lambda: pulled(hub, kept, place))
    assert kept.slept == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("kind", [hubs.HUGGING_FACE, hubs.MODELSCOPE], ids=lambda kind: kind.title)
def test_the_token_goes_to_the_hub_alone(
    hub: HubServer, kept: Kept, place: ModelFolders, kind: hubs.Hub
) -> None:
    pulled(hub, kept, place, token=TOKEN, kind=kind)
    at_hub = [one for one in hub.seen if not one.large]
    elsewhere = [one for one in hub.seen if one.large]
    assert at_hub
    assert elsewhere
    assert all(one.headers["authorization"] == f"Bearer {TOKEN}" for one in at_hub)
    assert not any(TOKEN in str(one.headers) for one in elsewhere)
    assert not any("cookie" in one.headers for one in elsewhere)
    assert TOKEN not in str(kept.said)
    assert TOKEN not in (place.folder / "caovan-model.json").read_text()


def test_no_password_comes_from_netrc(
    hub: HubServer, kept: Kept, place: ModelFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    pulled(hub, kept, place)
    assert not any("authorization" in one.headers for one in hub.seen)


@pytest.mark.parametrize(
    "target",
    ["http://example.org", "ftp://127.0.0.1", "file:///etc/passwd#", "https://a:b@127.0.0.1"],
)
def test_no_redirect_leaves_encryption(
    hub: HubServer, kept: Kept, place: ModelFolders, target: str
) -> None:
    hub.redirect = target
    assert "which is not https" in refused(lambda: pulled(hub, kept, place))


def test_a_redirect_in_a_circle_ends(hub: HubServer, kept: Kept, place: ModelFolders) -> None:
    hub.redirect = hub.endpoint
    assert "more than 8 times" in refused(lambda: pulled(hub, kept, place))


def test_a_certificate_is_always_checked(kept: Kept, place: ModelFolders, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
         "/CN=hub", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key),
         "-out", str(certificate)],
        capture_output=True, check=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(FILES, context) as hub:
        kind = replace(hubs.HUGGING_FACE, endpoint=hub.endpoint)
        for environ in ({}, {"CURL_CA_BUNDLE": ""}, {"REQUESTS_CA_BUNDLE": ""}):
            asked = HubClient(kind, TOKEN, environ)
            said = refused(lambda: offer.read(asked, kept.world, offer.RequestedModel(NAME)))  # noqa: B023
            assert "certificate of 127.0.0.1 is not trusted" in said
        assert hub.seen == []
        asked = HubClient(kind, TOKEN, {"REQUESTS_CA_BUNDLE": str(certificate)})
        found = offer.read(asked, kept.world, offer.RequestedModel(NAME))
        assert pull.pull(asked, kept.world, found, place).files


LIST = f"/api/models/{NAME}/revision/"


def sibling(path: str, size: object = 1) -> dict[str, object]:
    return {"rfilename": path, "size": size, "blobId": "0" * 40}


@pytest.mark.parametrize(
    "document",
    [
        *(
            {"sha": COMMIT, "siblings": [sibling(path)]}
            for path in ("../x.json", "/etc/passwd", "a/../../x", "a\\b", "", "a//b", "x\n.json",
                         "x" * 300, "a/" * 20 + "b", "\u202ex")
        ),
        *({"sha": COMMIT, "siblings": [sibling("a", size)]} for size in (-1, 1 << 60, "1", True)),
        {"sha": COMMIT, "siblings": [sibling("a"), sibling("a")]},
        {"sha": COMMIT, "siblings": [sibling("a"), sibling("a/b")]},
        {"sha": COMMIT, "siblings": [{"rfilename": "a", "size": 1}]},
        {"sha": COMMIT, "siblings": [sibling("a"), sibling("b", 2)]},
        {"sha": COMMIT, "siblings": [sibling(str(n)) for n in range(10_001)]},
        {"sha": "../../x", "siblings": []},
        {"siblings": []}, [], None, 7, {"sha": COMMIT, "siblings": [1]},
        b"{", b"[" * 100_000, b'"' + b"x" * (17 << 20) + b'"', b"[" + b"0," * 600_000 + b"0]",
    ],
)  # fmt: skip
def test_a_hostile_list_is_refused_and_nothing_is_written(
    hub: HubServer, kept: Kept, place: ModelFolders, document: object
) -> None:
    hub.documents[LIST] = document
    refused(lambda: pulled(hub, kept, place))
    assert not place.root.exists()


def test_a_list_that_may_be_cut_off_is_refused(
    hub: HubServer, kept: Kept, place: ModelFolders
) -> None:
    hub.files.update({f"{n}.json": b"" for n in range(3000)})
    said = refused(lambda: pulled(hub, kept, place, kind=hubs.MODELSCOPE))
    assert "and the service may have truncated it" in said


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_model_is_a_problem_with_the_way_to_it(
    hub: HubServer, kept: Kept, place: ModelFolders, status: int
) -> None:
    hub.faults["list"] = [Fault(status=status)]
    said = refused(lambda: pulled(hub, kept, place))
    assert "requires permission" in said
    assert "accept the model's terms on its page, and set HF_TOKEN" in said


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_repository_without_weights_or_configuration_is_refused(
    hub: HubServer, kept: Kept, place: ModelFolders, name: str
) -> None:
    del hub.files[name]
    assert "it has no " in refused(lambda: pulled(hub, kept, place))


def test_a_shard_that_only_the_index_has_is_a_problem(
    hub: HubServer, kept: Kept, place: ModelFolders
) -> None:
    table = {"weight_map": {"a": SHARD, "b": "model-2.safetensors"}}
    hub.files["model.safetensors.index.json"] = json.dumps(table).encode()
    assert "lacks model-2.safetensors" in refused(lambda: pulled(hub, kept, place))


def test_a_full_disk_is_a_problem_before_anything_is_downloaded(
    hub: HubServer, kept: Kept, place: ModelFolders
) -> None:
    asked = client(hub)
    found = offer.read(asked, kept.world, offer.RequestedModel(NAME))
    hub.seen.clear()
    small = replace(kept.world, free_bytes=lambda _path: 100 << 20)
    assert "100 MiB free, but 256 MiB are needed" in refused(
        lambda: pull.pull(asked, small, found, place)
    )
    assert hub.seen == []


def test_a_second_pull_checks_what_is_there_and_downloads_what_is_wrong(
    hub: HubServer, kept: Kept, place: ModelFolders
) -> None:
    made = pulled(hub, kept, place)
    data = bytearray(WEIGHTS)
    data[1000] ^= 1
    (place.folder / SHARD).write_bytes(data)
    (place.folder / "strange.py").write_text("")
    damage, strange = verify(kept.world, place, made)
    assert damage == [f"{SHARD} differs from the publisher's file"]
    assert strange == ["strange.py was not pulled"]
    hub.seen.clear()
    pulled(hub, kept, place)
    assert [one.path.rpartition("/")[2] for one in hub.seen if "resolve" in one.path] == [SHARD] * 2
    assert content(place) == {name: FILES[name] for name in WANTED}


def test_a_new_revision_takes_over_what_did_not_change(
    hub: HubServer, kept: Kept, place: ModelFolders
) -> None:
    pulled(hub, kept, place)
    hub.files["tokenizer.json"] = b'{"new": 1}'
    del hub.files["LICENSE"]
    hub.seen.clear()
    pulled(hub, kept, place)
    assert hub.of(SHARD) == []
    assert content(place)["tokenizer.json"] == b'{"new": 1}'
    assert "LICENSE" not in content(place)
    assert [path.name for path in place.root.iterdir()] == [place.folder.name]


def test_without_hard_links_a_pull_works_too(
    hub: HubServer, kept: Kept, place: ModelFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files["copy.json"] = hub.files["config.json"]

    def no_links(*_args: object, **_more: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", no_links)
    pulled(hub, kept, place)
    assert content(place) == {**{n: FILES[n] for n in WANTED}, "copy.json": FILES["config.json"]}


def test_a_folder_of_another_origin_is_left_alone(
    hub: HubServer, kept: Kept, place: ModelFolders
) -> None:
    place.folder.mkdir(parents=True)
    (place.folder / "mine").write_text("")
    assert "was not pulled by caovanctl" in refused(lambda: pulled(hub, kept, place))
    assert (place.folder / "mine").exists()


def test_a_link_to_a_model_is_not_taken_for_one(
    hub: HubServer, kept: Kept, place: ModelFolders, tmp_path: Path
) -> None:
    pulled(hub, kept, place)
    link = ModelFolders(tmp_path / "link")
    link.folder.symlink_to(place.folder)
    assert "was not pulled" in refused(lambda: folders.require(link, "remove it"))
    assert "was not pulled" in refused(lambda: pulled(hub, kept, link))
    (place.folder / SHARD).rename(tmp_path / "aside")
    (place.folder / SHARD).symlink_to(tmp_path / "aside")
    made = folders.require(place, "verify it")
    assert verify(kept.world, place, made)[0] == [f"{SHARD} differs from the publisher's file"]


def test_a_link_in_the_place_of_a_part_is_not_followed(
    hub: HubServer, kept: Kept, place: ModelFolders, tmp_path: Path
) -> None:
    place.blobs.mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    part = place.blobs / f"sha256-{hashlib.sha256(WEIGHTS).hexdigest()}.part"
    part.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        pulled(hub, kept, place)
    assert victim.read_text() == "precious"


def test_one_command_at_a_time_works_on_a_model(
    hub: HubServer, kept: Kept, place: ModelFolders
) -> None:
    with folders.locked(place, "test", make=True):
        assert "is running on" in refused(lambda: pulled(hub, kept, place))
    pulled(hub, kept, place)


def test_a_folder_that_cannot_be_written_is_a_problem_before_anything_is_asked(
    place: ModelFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    said = refused(lambda: folders.require_own(place.root, "pull it"))
    assert "run this with sudo" in said


def test_root_does_not_pull_where_another_can_write(
    hub: HubServer, kept: Kept, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    place = folders.place_of(shared, NAME)
    assert "can be changed by every user" in refused(lambda: pulled(hub, kept, place))


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("http://hub.example.org", "not encrypted"),
        ("https://me:secret@hub.example.org", "contains a password"),
        ("somewhere", "not the address"),
        ("https://", "not the address"),
        ("https://hub.example.org/?a=b", "not the address"),
        ("file:///etc", "not the address"),
        ("https://hub:port", "not the address"),
    ],
)
def test_an_endpoint_that_may_not_get_a_token_is_refused(text: str, fact: str) -> None:
    said = refused(lambda: hubs.find_hub("hf", {"HF_ENDPOINT": text}))
    assert fact in said
    assert "secret" not in said
    assert fact in refused(lambda: hubs.find_hub(text, {}))


def test_the_endpoint_of_the_environment_is_used() -> None:
    environ = {"HF_ENDPOINT": "https://hub.example.org/"}
    assert hubs.find_hub("hf", environ).endpoint == "https://hub.example.org"
    assert hubs.find_hub("modelscope", environ).endpoint == "https://www.modelscope.cn"
    assert hubs.find_hub("http://[::1]:8080", {}).endpoint == "http://[::1]:8080"


@pytest.mark.parametrize("token", ["a b", "a\r\nHost: x", "ä", "x" * 2000, "a;b"])
def test_a_token_that_is_none_is_refused_and_not_shown(token: str) -> None:
    said = refused(lambda: hubs.token_for(hubs.HUGGING_FACE, {"HF_TOKEN": token}))
    assert token not in said


def test_headers_make_a_folder_to_plan_from_without_the_weights(hub: HubServer, kept: Kept) -> None:
    head = json.dumps({"a" * 70_000: {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}})
    hub.files[SHARD] = len(head).to_bytes(8, "little") + head.encode() + b"w" * 9
    asked = client(hub)
    found = offer.read(asked, kept.world, offer.RequestedModel(NAME))
    with headers.fetch_headers(asked, kept.world, found) as folder:
        shard = (folder / SHARD).read_bytes()
        assert len(shard) == len(hub.files[SHARD])
        assert shard == hub.files[SHARD][:-9] + b"\0" * 9
        assert (folder / "config.json").read_bytes() == FILES["config.json"]
    assert not folder.exists()
    assert len(hub.of(SHARD)) == 2


def test_no_header_beyond_the_budget_is_read_from_a_hub(hub: HubServer, kept: Kept) -> None:
    """No hash of it could be checked before: the publisher's is of the whole file."""
    length = budget.MAX_BYTES + 1
    hub.files[SHARD] = length.to_bytes(8, "little") + bytes(length + 1)
    asked = client(hub)
    found = offer.read(asked, kept.world, offer.RequestedModel(NAME))
    with (
        pytest.raises(PullError, match=r"exceeds the limit .*160 MiB"),
        headers.fetch_headers(asked, kept.world, found),
    ):
        pass
    assert len(hub.of(SHARD)) == 1


def test_a_shard_whose_header_is_none_is_refused(hub: HubServer, kept: Kept) -> None:
    asked = client(hub)
    found = offer.read(asked, kept.world, offer.RequestedModel(NAME))
    with (
        pytest.raises(PullError, match="its header claims"),
        headers.fetch_headers(asked, kept.world, found),
    ):
        pass
