"""caovand: the daemon. Reads its configuration, binds its sockets, supervises one engine.

Exit status: 0 after a stop, 1 where it cannot run here, 2 for wrong usage, 78 (EX_CONFIG) for a
configuration that is not valid, which the unit tells systemd not to retry.
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
from caovand.daemon.loop import Supervisor
from caovand.daemon.requests import verbs

EX_CONFIG = 78
LAST_WORDS_S = 1.0
KILL_S = 3.0
"""For ending engines without the spawner, before a new daemon does it with another."""
# How long the loop waits for a thread that reads a flood of log lines. Python's default is 5 ms,
# for each step of an answer.
SWITCH_S = 0.001


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon until it is asked to stop. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="caovand",
        description="Keeps one inference server running and correctly configured.",
        epilog="example: caovand --config ./caovan.toml",
    )
    parser.add_argument("--config", type=Path, default=Path("/etc/caovan.toml"), metavar="FILE")
    parser.add_argument("--version", action="version", version=f"caovand {__version__}")
    # An isolated Python (-I), such as the package's, ignores PYTHONFAULTHANDLER.
    if os.environ.get("PYTHONFAULTHANDLER") and sys.stderr:
        faulthandler.enable()
    config_path = parser.parse_args(argv).config.absolute()
    engine_user.begin(os.environ)
    try:
        return _configured(config_path)
    finally:
        engine_user.end()


def _configured(config_path: Path) -> int:
    """Run the daemon with this configuration; its exit status."""
    sys.setswitchinterval(SWITCH_S)
    try:
        config = config_file.load(config_path)
    except ConfigError as problem:
        print(problem, file=sys.stderr)
        return EX_CONFIG
    places = directories.directories(os.environ, os.getuid())
    # None if whoever started us has closed it.
    stream = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    kind = log.choose_format(config.log.format, os.environ, stream.isatty())
    echo = log.Echo(kind, stream)
    logger = log.configure(config.log.level, kind, echo)
    try:
        return _alone(config_path, config, places, logger, echo)
    finally:
        echo.drain(LAST_WORDS_S)


def _alone(
    config_path: Path, config: Config, places: directories.Directories, logger: Any, echo: log.Echo
) -> int:
    """Run the daemon where no other uses these folders; its exit status."""
    try:
        user = engine_user.current()
        places.make(user.uid if user else None)
        # Kept open for the daemon's life: the locks are its. That of the state is for the ledger:
        # a second daemon would take the first one's engine for an orphan of a killed one.
        folders = {places.runtime.resolve(), places.state.resolve()}  # may be one
        locks = [
            lock_file.take(folder / "lock", on_full_disk=True)
            for folder in sorted(folders)
            if folder.exists()  # its disk took no folder: nothing there is shared either
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

    reloads: set[asyncio.Task[Reply]] = set()  # the loop itself keeps no task alive

    terminal = echo.isatty() and processes.has_terminal()

    def hang_up() -> None:
        # The terminal we were started on sends it too, when it is closed or its shell is killed.
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
