"""The daemon: reads the configuration, binds its sockets and supervises one engine.

Exit status: 0 after a stop, 1 if it cannot run on this machine, 2 for wrong usage, 78 (EX_CONFIG)
for an invalid configuration, for which the unit tells systemd not to retry.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from caovand import __version__
from caovand.adapters import log
from caovand.adapters.child import for_people
from caovand.adapters.control import CannotBind, Control
from caovand.adapters.files import config_file, directories, lock_file
from caovand.adapters.privileges import engine_user
from caovand.adapters.system import processes, short_slice, threads
from caovand.core.config.key import ConfigError
from caovand.core.config.schema import Config
from caovand.core.lifecycle import events
from caovand.core.reporting.wire import Reply, Request
from caovand.daemon.requests import verbs
from caovand.daemon.supervisor import Supervisor

EX_CONFIG = 78
LAST_WORDS_S = 1.0
KILL_S = 3.0
"""The time limit for killing engines after the spawner has died, before a new daemon kills them."""
# How long the event loop waits for a thread that is parsing a flood of log lines. With Python's
# default of 5 ms, each step of a reply could wait that long.
SWITCH_S = 0.001


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon until it is stopped. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="caovand",
        description="Keeps one inference server running and correctly configured.",
        epilog="example: caovand --config ./caovan.toml",
    )
    parser.add_argument("--config", type=Path, default=Path("/etc/caovan.toml"), metavar="FILE")
    parser.add_argument("--version", action="version", version=f"caovand {__version__}")
    # The package runs Python isolated (-I), which ignores PYTHONFAULTHANDLER.
    if os.environ.get("PYTHONFAULTHANDLER") and sys.stderr:
        faulthandler.enable()
    config_path = parser.parse_args(argv).config.absolute()
    engine_user.begin(os.environ)
    try:
        return _load_and_run(config_path)
    finally:
        engine_user.end()


def _load_and_run(config_path: Path) -> int:
    """Load the configuration, set up logging and run the daemon. Returns the exit status."""
    sys.setswitchinterval(SWITCH_S)
    try:
        config = config_file.load(config_path)
    except ConfigError as problem:
        print(problem, file=sys.stderr)
        return EX_CONFIG
    places = directories.directories(os.environ, os.getuid())
    # stderr is None if the parent process closed it.
    stream = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    kind = log.choose_format(config.log.format, os.environ, stream.isatty())
    echo = log.Echo(kind, stream)
    logger = log.configure(config.log.level, kind, echo)
    try:
        return _run_locked(config_path, config, places, logger, echo)
    finally:
        echo.drain(LAST_WORDS_S)


def _run_locked(
    config_path: Path, config: Config, places: directories.Directories, logger: Any, echo: log.Echo
) -> int:
    """Lock the folders against a second daemon, then run. Returns the exit status."""
    try:
        user = engine_user.current()
        places.make(user.uid if user else None)
        # The locks last as long as these files are open. The lock of the state folder protects the
        # ledger: a second daemon would take the first one's engine for an orphan.
        folders = {places.runtime.resolve(), places.state.resolve()}  # may be the same folder
        locks = [
            lock_file.take(folder / "lock", on_full_disk=True)
            for folder in sorted(folders)
            # missing if the disk is full or read-only: then nothing in it is shared either
            if folder.exists()
        ]
        processes.become_subreaper()
    except lock_file.LockTaken as problem:
        who = f"caovand with pid {problem.pid}" if problem.pid else "another caovand"
        logger.error(
            f"cannot start: {who} already uses {problem.path.parent}; stop it first, or set"
            " RUNTIME_DIRECTORY, STATE_DIRECTORY and LOGS_DIRECTORY to folders of its own"
        )
        return 1
    except OSError as problem:
        text = str(problem)
        if problem.filename is not None:
            remedy = directories.remedy(Path(problem.filename).parent, problem.errno)
            text = f"cannot use {problem.filename}: {problem.strerror}; {remedy}"
        logger.error(text)
        return 1
    short_slice.shorten()
    try:
        asyncio.run(_run(config_path, config, places, logger, echo))
    except ConfigError as problem:
        logger.error(str(problem))
        return EX_CONFIG
    except engine_user.SpawnerEnded as problem:
        logger.error(str(problem))
        return 1
    except CannotBind as problem:
        why = places.unwritable().get(places.runtime)
        logger.error(f"{problem}; {why}" if why else str(problem))
        return 1
    finally:
        for lock in locks:
            os.close(lock)
    return 0


async def _run(
    config_path: Path,
    config: Config,
    places: directories.Directories,
    logger: Any,
    echo: log.Echo,
) -> None:
    supervisor = Supervisor(config_path, config, places, os.environ, logger, echo)

    async def handle(request: Request) -> Reply:
        return await verbs.answer(supervisor, request)

    control = Control(places.runtime, config.control.group, handle, supervisor.admits)
    supervisor.listeners.append(control.publish)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(threads.Threads())

    def stop() -> None:
        supervisor.notifier.stopping(supervisor.config.watch.shutdown_timeout_s + 30)
        supervisor.apply_operator_event(events.Stop(at=time.monotonic(), quit=True))

    reloads: set[asyncio.Task[Reply]] = set()  # the loop holds only weak references to tasks

    terminal = echo.isatty() and processes.has_terminal()

    def hang_up() -> None:
        # The kernel also sends SIGHUP when the controlling terminal closes or its shell is killed.
        if terminal and not (echo.isatty() and processes.has_terminal()):
            stop()
            return
        task = loop.create_task(handle(Request("reload")))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    for number, function in (
        (signal.SIGTERM, stop),
        (signal.SIGINT, stop),
        (signal.SIGHUP, hang_up),
    ):
        loop.add_signal_handler(number, function)
    control.start()
    _serve_metrics(supervisor)
    supervisor.settle_servers()
    user = engine_user.current()
    as_whom = f", with engines as the user {user.name}" if user else ""
    supervisor.notice("daemon", f"caovand {__version__} uses {config_path}{as_whom}")
    if user is not None:
        watch = user.ended.fileno()

        def give_up() -> None:
            loop.remove_reader(watch)
            supervisor.give_up(engine_user.SpawnerEnded(user.why_ended))

        loop.add_reader(watch, give_up)
    supervisor.notifier.ready(supervisor.one_line)
    supervisor.apply_operator_event(events.Start(at=time.monotonic()))
    try:
        await supervisor.run()
    except engine_user.SpawnerEnded as problem:
        left = await supervisor.kill_engines(KILL_S)
        still = f"; still left of engines: {for_people(left)}" if left else ""
        raise engine_user.SpawnerEnded(f"{problem}{still}; a new daemon starts another") from None
    finally:
        supervisor.close_servers()
        await control.close()


def _serve_metrics(supervisor: Supervisor) -> None:
    listen = supervisor.config.metrics.listen
    if not listen:
        return
    try:
        prometheus = importlib.import_module("caovand.adapters.servers.prometheus")
        prometheus.serve(listen, supervisor.describe)
    except (OSError, ImportError) as problem:
        text = f"cannot serve metrics on {listen}: {problem}; set another [metrics] listen"
        supervisor.notice("noticed", text)


if __name__ == "__main__":
    sys.exit(main())
