"""The contents of the packages, and the verdict of Debian's own checker."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from caovand import __version__
from tests.daemon_process import ROOT
from tests.documents import DOCUMENTS
from tests.packaging.conftest import need, version_of

DEBIAN = ROOT / "packaging/debian"


def contents(deb: Path) -> str:
    """The paths in a package."""
    done = subprocess.run(["dpkg-deb", "-c", deb], capture_output=True, text=True, check=True)
    return "\n".join(line.split(maxsplit=5)[5] for line in done.stdout.splitlines())


def test_the_newest_entry_of_the_changelog_is_this_version() -> None:
    first = (DEBIAN / "changelog").read_text().splitlines()[0]
    assert first.startswith(f"caovan ({__version__}) ")


def test_every_file_that_is_no_code_is_in_the_package_data() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"\[tool\.setuptools\.package-data\]\ncaovand = (\[.*\])", text)
    named = json.loads(listed[1]) if listed else []
    package = ROOT / "caovand"
    files = {one.relative_to(package) for one in package.rglob("*") if one.is_file()}
    data = {str(one) for one in files if one.suffix not in (".py", ".pyc")}
    assert "lab/texts/prose.txt" in data
    assert {one for one in data if not any(fnmatch(one, pattern) for pattern in named)} == set()


def test_the_unit_leaves_out_what_cards_and_compilers_do_not_survive() -> None:
    unit = (ROOT / "packaging/systemd/caovan.service").read_text()
    settings = dict(re.findall(r"^(\w+)=(.*)$", unit, re.M))
    for name in ("PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "ProtectProc",
                 "MemoryDenyWriteExecute", "ProtectControlGroups", "PrivateUsers"):  # fmt: skip
        assert name not in settings
        assert name in unit, f"{name} is left out without a reason"
    assert settings["StateDirectory"] == "caovan/state"
    assert settings["ExecStartPre"] == "-+/usr/bin/nvidia-modprobe -c0 -u"


def test_the_account_reads_no_logs_of_others() -> None:
    """The kernel's are closed to it, the journal is never read: a membership would serve others."""
    assert "systemd-journal" not in (ROOT / "packaging/systemd/caovan.sysusers").read_text()
    unit = (ROOT / "packaging/systemd/caovan.service").read_text()
    assert "\nProtectKernelLogs=yes\n" in unit
    code = "".join(path.read_text() for path in (ROOT / "caovand/adapters").rglob("*.py"))
    assert not re.search(r"""["']journalctl|import systemd""", code)


def configured(folder: Path, arguments: Sequence[str], **commands: str) -> None:
    """Run the package's postinst with these commands replaced by scripts."""
    named = {name.replace("_", "-"): script for name, script in commands.items()}
    done = run_with(named, folder, DEBIAN / "caovan.postinst", *arguments)
    assert done.returncode == 0


def run_with(
    commands: Mapping[str, str], folder: Path, *words: str | Path
) -> subprocess.CompletedProcess[bytes]:
    """Run a script of the shell with these commands replaced by scripts."""
    for name, script in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "DPKG_ROOT": str(folder)}
    return subprocess.run(["sh", *words], env=environ, check=False)


@pytest.mark.parametrize(
    ("arguments", "groups", "removed"),
    [
        (["configure", "0.1.0"], "caovan systemd-journal video", True),
        (["configure", "0.1.0"], "caovan video", False),
        # Whoever adds it later on means it.
        (["configure", "0.1.1"], "caovan systemd-journal", False),
        (["configure", ""], "caovan systemd-journal", False),
        (["abort-upgrade", "0.1.0"], "caovan systemd-journal", False),
    ],
)
def test_an_upgrade_takes_the_account_out_of_the_journals_group_once(
    tmp_path: Path, arguments: list[str], groups: str, removed: bool
) -> None:
    need("dpkg")
    called = tmp_path / "called"
    configured(tmp_path, arguments, id=f"echo {groups}", gpasswd=f'echo "$@" >{called}')
    assert called.exists() == removed
    if removed:
        assert called.read_text() == "-d caovan systemd-journal\n"


@pytest.mark.parametrize(
    ("arguments", "known", "added"),
    [
        (["configure", "0.1.0"], False, ["video", "models", "hub"]),
        (["configure", "0.1.0"], True, []),  # an administrator took it out
        (["configure", ""], False, []),
        (["abort-upgrade", "0.1.0"], False, []),
    ],
)
def test_an_upgrade_gives_the_engines_account_the_groups_for_cards_and_models_once(
    tmp_path: Path, capfd: Any, arguments: list[str], known: bool, added: list[str]
) -> None:
    need("dpkg")
    called, model, hub = tmp_path / "called", tmp_path / "a model/m", tmp_path / "hub"
    model.mkdir(parents=True)
    (tmp_path / "etc/default").mkdir(parents=True)
    (tmp_path / "etc/default/caovan").write_text(f"#HF_HOME=/no\nHF_HOME={hub}\n")
    (tmp_path / "etc/caovan.toml").write_text(
        f'[model]\npath = "{model}"  # a "model"\n[server]\napi_key_file = "/etc/some.key"\n'
    )
    names = "caovan caovan-engine docker video models hub adm keys users shadow"
    configured(
        tmp_path, arguments, gpasswd=f'echo "$*" >>{called}',
        id=f'[ "$1" = caovan-engine ] && exit {int(not known)}; echo {names}',
        systemd_sysusers=f'echo "$*" >{called}',
        # Groups own what they would have to be kept from, too.
        stat=f'case "$3" in /etc/some.key) echo keys;; "{model}") echo models; echo docker;; '
             f'"{model.parent}") echo keys;; "{hub}") echo hub;; /no) echo users;; esac',
    )  # fmt: skip
    found = called.read_text().splitlines() if called.exists() else []
    expected = ["caovan.conf", *(f"-a caovan-engine {name}" for name in added)]
    printed = capfd.readouterr().err
    if added:
        assert found == expected
        assert "these groups of caovan: docker adm keys users shadow (" in printed
        assert "gpasswd -a caovan-engine GROUP && systemctl restart caovan" in printed
    else:
        assert (found, printed) == ([], "")


@pytest.mark.parametrize(
    ("systemctl", "owner"),
    [
        ("echo cap_setgid cap_setuid", "caovan-engine"),
        ("echo", "caovan"),
        ("exit 1", ""),  # who cannot tell changes nothing
    ],
)
def test_the_cache_is_whose_the_unit_says(tmp_path: Path, systemctl: str, owner: str) -> None:
    called = tmp_path / "called"
    commands = {
        name: f'echo {name} "$*" >>{called}' for name in ("mkdir", "find", "chown", "chmod")
    }
    commands |= {"stat": "echo root:root:755", "systemctl": f'echo "$*" >{called}; {systemctl}'}
    done = run_with(commands, tmp_path, ROOT / "packaging/systemd/prepare-cache", "a.service")
    first, *rest = called.read_text().splitlines()
    assert first == "show -P AmbientCapabilities a.service"
    assert (done.returncode == 0) == bool(owner)
    assert [line for line in rest if line.startswith("chown ")] == (
        [f"chown {owner}:caovan-engine /var/cache/caovan"] if owner else []
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to others")
def test_what_an_engine_linked_into_the_cache_stays_whose_it_is(tmp_path: Path, capfd: Any) -> None:
    """The users bin and daemon stand in for caovan and caovan-engine."""
    tmp_path = tmp_path / "place"
    cache, state = tmp_path / "cache", tmp_path / "state"
    for folder in (cache / "plan/deep", state / "slots", tmp_path / "bin"):
        folder.mkdir(parents=True)
    kept = {state / "secret", state / "slots/mode", state, state / "slots", cache / "at-the-top"}
    for file in (state / "secret", state / "slots/mode", cache / "at-the-top"):
        file.touch()
    (cache / "plan/deep/kernel").touch()
    os.mkfifo(state / "pipe")
    for name in ("secret", "pipe"):
        os.link(state / name, cache / f"plan/linked-{name}")
        kept |= {state / name, cache / f"plan/linked-{name}"}
    (cache / "plan/link").symlink_to(state / "secret")
    (cache / "plan/folder").symlink_to(state)
    own = pwd.getpwnam("bin").pw_uid
    for place in (cache, state, *cache.rglob("*"), *state.rglob("*")):
        os.chown(place, own, -1, follow_symlinks=False)
    text = (ROOT / "packaging/systemd/prepare-cache").read_text()
    text = text.replace("/var/cache/caovan", str(cache)).replace("caovan-engine", "daemon")
    script = tmp_path / "script"
    script.write_text(text.replace("=caovan", "=bin"))
    find = shutil.which("find")
    commands = {"systemctl": "echo cap_setuid", "find": f'{find} "$@"; exit 1'}
    assert run_with(commands, tmp_path / "bin", script, "a.service").returncode == 0
    printed = capfd.readouterr().err
    for name in ("secret", "pipe"):
        inode = (state / name).stat().st_ino
        assert (
            f"caovan: inode {inode} stays the file of bin: other hard links lead to it" in printed
        )
    assert f"not everything in {cache} could be made" in printed
    users = {place: place.lstat().st_uid for place in (*kept, cache, *cache.rglob("*"))}
    assert {place for place, uid in users.items() if uid == own} == kept
    assert {*users.values()} == {own, pwd.getpwnam("daemon").pw_uid}


def test_the_package_tells_of_the_new_account() -> None:
    first = (DEBIAN / "caovan.NEWS").read_text().splitlines()[0]
    assert first == (DEBIAN / "changelog").read_text().splitlines()[0]
    unit = (ROOT / "packaging/systemd/caovan.service").read_text()
    assert "\nExecStartPre=-+/usr/lib/caovan/prepare-cache %n\n" in unit


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_the_engine_gets_no_keyrings_and_no_io_uring() -> None:
    unit = (ROOT / "packaging/systemd/caovan.service").read_text()
    filters = re.findall(r"^SystemCallFilter=(.*)$", unit, re.M)
    allowed: set[str] = set()
    for text in filters:
        named: set[str] = set()
        todo = text.removeprefix("~").split()
        while todo:
            word = todo.pop()
            if word.startswith("@"):
                done = subprocess.run(
                    ["systemd-analyze", "syscall-filter", word],
                    capture_output=True, text=True, check=True,
                )  # fmt: skip
                todo += [line.strip() for line in done.stdout.splitlines() if line[:1] == " "
                         and not line.strip().startswith("#")]  # fmt: skip
            else:
                named.add(word)
        allowed = allowed - named if text.startswith("~") else allowed | named
    assert {"ptrace", "pidfd_getfd", "mbind", "sched_setaffinity", "chown", "prctl"} <= allowed
    assert {"landlock_create_ruleset", "landlock_restrict_self", "seccomp"} <= allowed
    assert not {name for name in allowed if name.startswith("io_uring")}
    assert not {"add_key", "keyctl", "request_key", "bpf", "perf_event_open", "mount"} & allowed


def test_without_root_the_missing_tools_are_named_in_one_line(tmp_path: Path) -> None:
    for name, script in (("id", "echo 1000"), ("dpkg-query", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [ROOT / "packaging/build-deb.sh", tmp_path / "out"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(
        r"cannot build the packages: missing.* debhelper .*; sudo apt-get install dpkg-dev .*\n",
        done.stderr,
    )


@pytest.mark.long
def test_lintian_has_nothing_to_say(packages: Path) -> None:
    need("lintian")
    done = subprocess.run(
        ["lintian", "-I", "--pedantic", "--allow-root", *packages.glob("*.deb")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.long
def test_the_daemons_package_has_what_it_should_and_runs_anywhere(caovan_deb: Path) -> None:
    assert version_of(caovan_deb) == __version__
    listed = contents(caovan_deb)
    for path in (
        "/usr/bin/caovand", "/usr/bin/caovanctl", "/usr/bin/caovan-vllm-serve",
        "/usr/lib/caovan/vendor/pynvml.py", "/usr/share/caovan/engines/cuda-0.21.0.txt",
        "/lib/systemd/system/caovan.service", "/usr/lib/sysusers.d/caovan.conf",
        "/usr/lib/tmpfiles.d/caovan.conf", "/etc/default/caovan", "/etc/caovan.toml",
        "/usr/share/man/man8/caovand.8.gz", "/usr/share/man/man5/caovan.toml.5.gz",
        "/usr/share/man/man1/caovanctl.1.gz", "/usr/share/man/man1/caovan-vllm-serve.1.gz",
        "/usr/share/bash-completion/completions/caovanctl",
        "/usr/share/zsh/vendor-completions/_caovanctl",
        "/usr/share/doc/caovan/alerts.yml", "/usr/share/doc/caovan/grafana.json",
        *(f"/usr/share/doc/caovan/{page.name}" for page in DOCUMENTS),
        *(
            f"/usr/lib/python3/dist-packages/caovand/page/static/{file.name}"
            for file in (ROOT / "caovand/page/static").iterdir()
        ),
        *(
            f"/usr/lib/python3/dist-packages/caovand/lab/texts/{file.name}"
            for file in (ROOT / "caovand/lab/texts").iterdir()
        ),
    ):  # fmt: skip
        assert f".{path}\n" in listed + "\n", path
    packaged = set(re.findall(r"dist-packages/(caovand/\S+\.py)$", listed, re.M))
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "caovand").rglob("*.py")}
    assert packaged == here, "pyproject.toml names the packages one by one"
    fields = subprocess.run(
        ["dpkg-deb", "-f", caovan_deb, "Depends"], capture_output=True, text=True, check=True
    ).stdout
    for library in ("zmq", "structlog", "sdnotify", "rich", "prometheus-client", "requests"):
        assert f"python3-{library}" in fields
    # One build for several distributions: nothing ties it to the Python it was made with.
    assert "python3-tomli | python3 (>> 3.11)" in fields
    assert not re.search(r"python3 \(<<|nvidia", fields)


@pytest.mark.long
def test_no_command_of_the_package_imports_from_the_caller_s_folders(
    caovan_deb: Path, tmp_path: Path
) -> None:
    subprocess.run(["dpkg-deb", "-x", caovan_deb, tmp_path], check=True)
    commands = sorted((tmp_path / "usr/bin").iterdir())
    first = {path.name: path.read_text().splitlines()[0] for path in commands}
    assert len(first) == 4
    assert set(first.values()) == {"#! /usr/bin/python3 -I"}


@pytest.mark.long
def test_the_kernels_package_has_the_library_and_the_wheel(packages: Path) -> None:
    found = list(packages.glob("caovan-kernels_*_amd64.deb"))
    if not found:
        pytest.skip("needs nvcc: without it only the daemon's package is built")
    listed = contents(found[0])
    assert "./usr/lib/caovan/libcaovan_sm75.so" in listed
    assert re.search(r"\./usr/share/caovan/plugin/caovan_vllm_sm75_turbo3-\S+\.whl", listed)
