"""A stand-in for Ray, as far as caovan's launcher and vLLM use it.

`start` is `ray start --block`. The head listens, and lists who has joined with how many cards and
living actors; a node is listed for as long as its connection lives. Each node has one actor from
the beginning, and a helper that ignores TERM and outlives everything but KILL, as Ray's agents do.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKEN = os.environ.get("RAY_AUTH_TOKEN", "")
NODES: dict[int, dict[str, Any]] = {}  # by connection, in the order of joining


def start(words: list[str]) -> None:
    """Run this node until it is killed."""
    options = dict(word.lstrip("-").partition("=")[::2] for word in words)
    address, cards = options["node-ip-address"], int(options["num-gpus"])
    if "head" in options:
        server = socket.create_server(("0.0.0.0", int(options["port"])))
        threading.Thread(target=listen, args=(server,), daemon=True).start()
        head = ("127.0.0.1", int(options["port"]))
    else:
        host, _, port = options["address"].rpartition(":")
        head = (host, int(port))
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pause()
    link = socket.create_connection(head)
    say(link, {"token": TOKEN, "address": address, "cards": cards, "actors": 1})
    rank = json.loads(link.makefile().readline())
    actor = start_actor(rank, Path(options["temp-dir"]))
    os.waitpid(actor, 0)
    say(link, {"actors": 0})
    while True:
        signal.pause()


def start_actor(rank: int, folder: Path) -> int:
    """A process with the title of one of vLLM's actors, which has printed a line."""
    logs = folder / "session_latest" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if pid == 0:
        line = f"(Worker_PP{rank} pid={os.getpid()}) INFO 11-20 08:53:12 [a.py:1] this is an actor"
        text = f":actor_name:RayWorkerProc\n{line}\n"
        (logs / f"worker-0-01000000-{os.getpid()}.out").write_text(text)
        os.execv("/bin/sleep", ["ray::RayWorkerProc.run", "86400"])
    return pid


def listen(server: socket.socket) -> None:
    while True:
        link, _ = server.accept()
        threading.Thread(target=answer, args=(link,), daemon=True).start()


def answer(link: socket.socket) -> None:
    """What the head does with a connection: of a node, or of who asks for all of them."""
    with contextlib.suppress(OSError), link:
        for line in link.makefile():
            told = json.loads(line)
            node = NODES.get(id(link))
            if node is not None:
                node.update(told)
            elif told["token"] != TOKEN:
                return
            elif "address" in told:
                NODES[id(link)] = told
                say(link, len(NODES) - 1)
            else:
                say(link, list(NODES.values()))
                return
    NODES.pop(id(link), None)


def say(link: socket.socket, what: Any) -> None:
    link.sendall(json.dumps(what).encode() + b"\n")


def ask() -> list[dict[str, Any]]:
    """Who has joined."""
    host, _, port = os.environ["RAY_ADDRESS"].rpartition(":")
    with socket.create_connection((host, int(port))) as link:
        say(link, {"token": TOKEN})
        line = link.makefile().readline()
    if not line:
        raise ConnectionError("InvalidAuthToken")
    return list(json.loads(line))


def init(**_: Any) -> None:
    ask()


def nodes() -> list[dict[str, Any]]:
    return [
        {"NodeManagerAddress": one["address"], "Alive": True, "Resources": {"GPU": one["cards"]}}
        for one in ask()
    ]


def watch(ended: Callable[[], None]) -> None:
    """As vLLM's executor does: end where an actor is gone."""
    whole = len(ask())

    def look() -> None:
        while True:
            time.sleep(0.1)
            living = [one["actors"] for one in ask()]
            if len(living) < whole or 0 in living:
                dead = living.index(0) if 0 in living else whole - 1
                print(f"(EngineCore pid=2) ERROR 11-20 08:58:12 [ray_executor_v2.py:460] "
                      f"RayWorkerProc rank=[{dead}] died unexpectedly, shutting down executor.",
                      flush=True)  # fmt: skip
                ended()

    threading.Thread(target=look, daemon=True).start()
