"""Run by the launcher on the head: waits until all nodes of a cluster have joined Ray.

    ENGINE/bin/python joined.py ADDRESS,... CARDS SECONDS

ADDRESS are the nodes, each of which has to offer CARDS cards. It prints a line for each change; the
exit status is 1, and the last line names the missing nodes, if they do not join in time.
RAY_ADDRESS is the address of Ray. It must not import anything of caovan.
"""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

LOOK_S = 0.5


def main() -> int:
    """Wait for the nodes; 0 once all have joined."""
    nodes, cards, seconds = sys.argv[1].split(","), int(sys.argv[2]), float(sys.argv[3])
    deadline, shown = time.monotonic() + seconds, ""
    ray = connect(deadline)
    while True:
        offered = {
            str(node["NodeManagerAddress"]): int(node["Resources"].get("GPU", 0))
            for node in ray.nodes()
            if node["Alive"]
        }
        enough = [address for address, offer in offered.items() if offer >= cards]
        if (text := describe_nodes(nodes, cards, offered)) != shown:
            shown = text
            print(f"Ray: {text}", flush=True)
        if len(enough) >= len(nodes):
            return 0
        if time.monotonic() > deadline:
            print(f"RayNodeError: vLLM cannot start: after {seconds:.0f} s {text}", flush=True)
            return 1
        time.sleep(LOOK_S)


def connect(deadline: float) -> Any:
    """The module of Ray, connected; raises Ray's own exception if the time runs out."""
    ray = importlib.import_module("ray")
    while True:
        try:
            ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_S)
        else:
            return ray


def describe_nodes(nodes: Sequence[str], cards: int, offered: Mapping[str, int]) -> str:
    """Describe which nodes have joined, with which cards, and which are missing."""
    there = [f"{address} with {offer} of {cards} cards" for address, offer in offered.items()]
    missing = [address for address in nodes if address not in offered]
    text = f"{len(offered)} of {len(nodes)} nodes joined: {', '.join(sorted(there)) or 'none'}"
    return f"{text}; missing: {', '.join(missing)}" if missing else text


if __name__ == "__main__":
    raise SystemExit(main())
