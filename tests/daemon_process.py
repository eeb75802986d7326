"""Run a private caovand for tests: its folders, configuration and caovanctl."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from caovand.adapters.system import processes
from caovand.cli.common.client import DaemonClient
from caovand.cli.common.errors import CommandError
from tests.patience import PATIENCE_S, until

ROOT = Path(__file__).resolve().parent.parent


def lives(pid: int) -> bool:
    """Whether a process is running; zombies do not count."""
    process = processes.read(pid)
    return process is not None and not process.zombie


class Daemon:
    """Runs `python -m caovand` in folders of its own; `options` are TOML sections of the config."""

    def __init__(self, folder: Path, config: str, environ: dict[str, str] | None = None) -> None:
        self.folder, self.config_path = folder, folder / "caovan.toml"
        self.config_path.write_text(config)
        self.environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("CAOVAN_")},
            "RUNTIME_DIRECTORY": str(folder / "run"),
            "STATE_DIRECTORY": str(folder / "state"),
            "CACHE_DIRECTORY": str(folder / "cache"),
            "LOGS_DIRECTORY": str(folder / "log"),
            "PYTHONPATH": str(ROOT),
            **(environ or {}),
        }
        # Tests may replace this by another installation's commands.
        self.caovand = [sys.executable, "-m", "caovand"]
        self.caovanctl = [sys.executable, "-m", "caovand.cli.main"]
        self.wrapper: tuple[str, ...] = ()
        """A command that wraps the daemon, for example to run it in its own namespaces."""
        self.pass_fds: tuple[int, ...] = ()
        """File descriptors passed to the daemon."""
        self.process: subprocess.Popen[bytes] | None = None
        self._spawned: list[str] = []

    @property
    def state(self) -> Path:
        """The daemon's state folder."""
        return Path(self.environ["STATE_DIRECTORY"])

    def start(self) -> None:
        """Start the daemon; its log goes to `log.txt`."""
        with open(self.folder / "log.txt", "ab") as log:
            self.process = subprocess.Popen(
                [*self.wrapper, *self.caovand, "--config", str(self.config_path)],
                env=self.environ,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                pass_fds=self.pass_fds,
            )
        until(self.answers, f"a daemon that answers: {self.log()}")

    def answers(self) -> bool:
        """Whether the daemon answers; fails if it has exited."""
        assert self.process is not None
        assert self.process.poll() is None, f"caovand ended: {self.log()}"
        with contextlib.suppress(CommandError), DaemonClient(self.folder / "run") as client:
            return bool(client.ask("version", answer_s=2.0))
        return False

    def log(self) -> str:
        """The end of the daemon's log."""
        return self.whole_log()[-6000:]

    def whole_log(self) -> str:
        """The daemon's whole log; empty before its first start."""
        with contextlib.suppress(OSError):
            return (self.folder / "log.txt").read_text()
        return ""

    def ctl(self, *words: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run caovanctl against this daemon."""
        return subprocess.run(
            [*self.caovanctl, *words],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def status(self) -> dict[str, Any]:
        """The status document."""
        with DaemonClient(self.folder / "run") as client:
            return dict(client.ask("status"))

    def until_state(self, *states: str) -> dict[str, Any]:
        """Wait for one of these states; returns the status."""

        def look() -> dict[str, Any] | None:
            status = self.status()
            return status if status["state"] in states else None

        try:
            found = until(look, f"state {' or '.join(states)}")
        except AssertionError as problem:
            raise AssertionError(f"{problem}; status {self.status()}; {self.log()}") from None
        assert found is not None
        return found

    def events(self) -> list[str]:
        """The texts of all events so far."""
        with DaemonClient(self.folder / "run") as client:
            return [entry["text"] for entry in client.ask("events")["events"]]

    def commands(self) -> list[list[str]]:
        """The command lines of the engines that this daemon started so far."""
        with DaemonClient(self.folder / "run") as client:
            entries = client.ask("events")["events"]
        return [entry["data"]["argv"] for entry in entries if entry["kind"] == "spawn"]

    def tree(self) -> list[processes.Process]:
        """The running processes of every engine this daemon ever started, including escaped
        ones."""
        sessions = {int(text.rpartition(" ")[2]) for text in self.spawned()}
        return [
            p
            for p in processes.all_processes()
            if not p.zombie
            and (p.session in sessions or p.name == f"escapee-{self.folder.name}"[:15])
        ]

    def spawned(self) -> list[str]:
        """The events of engine starts, including those of earlier daemons."""
        self._spawned += [
            text
            for text in (self.events() if self.process and self.process.poll() is None else ())
            if text.startswith("engine started, pid") and text not in self._spawned
        ]
        return self._spawned

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send the daemon a signal; after SIGKILL, wait until it is gone."""
        assert self.process is not None
        self.process.send_signal(number)
        if number is signal.SIGKILL:
            self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        """Send SIGTERM and wait; returns the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        return self.process.wait(PATIENCE_S)


# What the first start learns about an engine and a model class; learning it takes half of that
# start.
FOUND_OUT = ("engine-flags-*.json", "modelinfos/*/*.json")


def bring(found_out: Path, to: Path) -> None:
    """Copy the learned files from one cache to another."""
    for file in (file for pattern in FOUND_OUT for file in found_out.glob(pattern)):
        target = to / file.relative_to(found_out)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)


@contextlib.contextmanager
def daemon(
    config: str,
    environ: dict[str, str] | None = None,
    wrapper: tuple[str, ...] = (),
    found_out: Path | None = None,
    owner: int | None = None,
) -> Iterator[Daemon]:
    """Start a daemon in a folder with a short name; stop it and remove the folder at the end.

    Its cache starts with the files that earlier daemons left in `found_out`, and adds to them. With
    an `owner`, the folder belongs to another user, as whom `wrapper` runs the daemon.
    """
    folder = Path(tempfile.mkdtemp(prefix="caovan-"))
    if owner is not None:
        os.chown(folder, owner, -1)
        folder.chmod(0o755)
    one = Daemon(folder, config, environ)
    one.wrapper = wrapper
    if found_out:
        bring(found_out, folder / "cache")
    try:
        one.start()
        yield one
    finally:
        if one.process is not None and one.process.poll() is None:
            one.stop()
        if found_out:
            bring(folder / "cache", found_out)
        shutil.rmtree(folder, ignore_errors=True)
