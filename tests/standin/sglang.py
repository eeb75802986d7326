#!/usr/bin/env python3
"""A stand-in for a Python with SGLang in it: the probe, and `-m sglang.launch_server`.

It takes the options of release 0.5.23, as its own parser printed them, and refuses others; prints
that release's log lines; has a scheduler in a process of its own; and speaks /health, /metrics and
/v1/completions. It ends as the real one does: the scheduler reports an exception, the parent kills
all.

STANDIN_FITS is the largest --mem-fraction-static that leaves room for its "CUDA graphs".
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SAMPLE = Path(__file__).parents[1] / "samples/sglang/options-0.5.23.json"
RELEASE = "0.5.23"
OPTIONS = json.loads(SAMPLE.read_text(encoding="utf-8"))["options"]
COUNTS = {"requests": 0, "prompt": 0, "tokens": 0}
READY: list[bool] = []


@functools.cache
def parser() -> argparse.ArgumentParser:
    """The recorded parser."""
    types = {"int": int, "float": float, "human_readable_int": int}
    made = argparse.ArgumentParser(prog="launch_server.py", add_help=False, allow_abbrev=False)
    for option, one in OPTIONS.items():
        if one.get("nargs") == 0:
            made.add_argument(option, dest=one["dest"], action="store_true")
            continue
        choices = one.get("choices")
        kind = types.get(one.get("type", ""), str)
        made.add_argument(
            option, dest=one["dest"], nargs=one.get("nargs"), type=kind,
            choices=[kind(choice) for choice in choices] if choices else None,
        )  # fmt: skip
    return made


def answer(details: bool) -> None:
    """The probe's answers."""
    versions = {
        "sglang": RELEASE, "torch": "2.14.1+cu130", "cuda": "13.0", "flashinfer": "0.7.2",
        "python_version": "3.12.3", "stamp": [],
    }  # fmt: skip
    flags = {
        "flags": list(OPTIONS), "cards": ["sm_75", "sm_80"], "deprecated": [],
        "switches": [option for option, one in OPTIONS.items() if one.get("nargs") == 0],
        "choices": {option: one["choices"] for option, one in OPTIONS.items() if "choices" in one},
    }  # fmt: skip
    print("caovan-probe:" + json.dumps(flags if details else versions))


def log(text: str, rank: str = " TP0") -> None:
    print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{rank}] {text}", flush=True)


def boot(asked: argparse.Namespace) -> None:
    """The start, up to where the HTTP server answers."""
    log(f"server_args=ServerArgs(model_path={asked.model_path!r})", "")
    log("Init torch distributed begin.")
    log("Load weight begin. avail mem=21.50 GB")
    print("Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 9.00it/s]")
    log("Load weight end. elapsed=0.10 s, type=Tiny, avail mem=21.40 GB, mem usage=0.10 GB.")
    log("KV Cache is allocated. dtype: torch.float16, #tokens: 65536, KV size: 1.00 GB")
    log("Capture target decode CUDA graph begin. backend=full, avail mem=0.20 GB")
    if asked.mem_fraction_static > float(os.environ.get("STANDIN_FITS", "1")):
        die("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 20.00 MiB")
    log("Capture target decode CUDA graph end. bs=[1], elapsed=0.10 s, mem usage=0.01 GB.")
    log(
        f"max_total_num_tokens=65536, chunked_prefill_size=4096, context_len={asked.context_length}"
    )


def die(why: str) -> None:
    """As a scheduler does, and its parent after it."""
    log("Scheduler hit an exception: Traceback (most recent call last):")
    print('  File "/opt/sglang/managers/scheduler.py", line 6340, in run_scheduler_process')
    print(why)
    log("Received sigquit from a child process. It usually means the child failed.", "")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def metrics() -> str:
    labels = 'engine_type="unified",model_name="m",tp_rank="0"'
    return "".join(
        f"sglang:{name} {value}\n"
        for name, value in (
            (f"num_running_reqs{{{labels}}}", 0.0),
            (f"num_queue_reqs{{{labels}}}", 0.0),
            (f"token_usage{{{labels}}}", 0.01),
            (f'realtime_tokens_total{{{labels},mode="decode"}}', float(COUNTS["tokens"])),
            (f'realtime_tokens_total{{{labels},mode="prefill_compute"}}', float(COUNTS["prompt"])),
            (f'num_requests_total{{{labels},is_streaming="false"}}', float(COUNTS["requests"])),
        )
    )


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/metrics":
            self.answer(200, metrics())
        else:
            self.answer((200 if READY else 503) if self.path == "/health" else 404, "")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        COUNTS["requests"] += 1
        COUNTS["prompt"] += len(asked["prompt"])
        COUNTS["tokens"] += asked["max_tokens"]
        self.answer(200, json.dumps({"usage": {"completion_tokens": asked["max_tokens"]}}))

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Its access log is not what is tested."""


def scheduler() -> int:
    """A process that outlives the first, and swallows TERM."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    return pid


def serve(asked: argparse.Namespace) -> None:
    child = scheduler()

    def end(*_: object) -> None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    boot(asked)
    server = ThreadingHTTPServer((asked.host, asked.port), Server)
    READY.append(True)
    log("The server is fired up and ready to roll!", "")
    server.serve_forever()


if __name__ == "__main__":
    if "-c" in sys.argv:
        answer("add_cli_args" in sys.argv[sys.argv.index("-c") + 1])
    else:
        serve(parser().parse_args(sys.argv[3:]))
