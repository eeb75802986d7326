"""The stand-in for vLLM over a real Ray, for a Python that has Ray.

Where vLLM would have its workers there are actors of the same name, each on a card as Ray deals
them, which print a line and wait. The engine ends where one of them does.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

if "ray_in_env" in sys.argv[1]:  # the launcher needs no stand-in
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
sys.path.pop(0)  # the stand-in for Ray is next to this file

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


class RayWorkerProc:
    def run(self, rank: int) -> None:
        print(f"(Worker_PP{rank} pid={os.getpid()}) INFO 11-20 08:53:12 [a.py:1] this is an actor,"
              f" on card {os.environ['CUDA_VISIBLE_DEVICES']}", flush=True)  # fmt: skip
        time.sleep(86400)


def watch(ended: Callable[[], None]) -> None:
    """Make the actors as vLLM's executor does, and end where one is gone."""
    ray.init(log_to_driver=False)
    here = ray.get_runtime_context().get_node_id()
    count = int(ray.cluster_resources()["GPU"])
    group = placement_group([{"GPU": 1.0}] * count, strategy="PACK")
    ray.get(group.ready())
    nodes = ray.util.placement_group_table(group)["bundles_to_node_id"]
    bundles = sorted(nodes, key=lambda bundle: (nodes[bundle] != here, nodes[bundle]))
    running = [
        ray.remote(RayWorkerProc)
        .options(
            num_cpus=0,
            num_gpus=1,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle),
        )
        .remote()
        .run.remote(rank)
        for rank, bundle in enumerate(bundles)
    ]

    def look() -> None:
        done, _ = ray.wait(running, num_returns=1)
        print(f"(EngineCore pid=2) ERROR 11-20 08:58:12 [ray_executor_v2.py:460] RayWorkerProc "
              f"rank=[{running.index(done[0])}] died unexpectedly, shutting down executor.",
              flush=True)  # fmt: skip
        ended()

    threading.Thread(target=look, daemon=True).start()


ray.watch = watch
runpy.run_path(str(Path(__file__).with_name("engine.py")), run_name="__main__")
