#!/usr/bin/env python3
"""A stand-in for an engine's Python with vLLM in it, for faults that cannot be caused at will.

It answers the probe, and as `-m vllm.entrypoints.cli.main serve` prints vLLM's start-up lines,
starts an engine-core process as vLLM does, and speaks its endpoints and metrics.
STANDIN (JSON, by [engine] env) tells it what to do wrong:

  boot_s        seconds between start-up lines
  print         lines to print before anything else
  at            lines to print at phases
  die_at        a start-up phase, or "completion": end there
  unless        do not die where the command line has this word
  status        exit status of that end (default 1)
  ignore_term   swallow TERM, as vLLM does while it starts
  escape        name of a process to make in a session of its own, which outlives everything
  hang          completions never come back while /health answers 200
  drafting      steps of completions are counted as if they took `step_s` and `draft_s` a draft,
                those of depth `cliff` or more ten times that; `chance` is that of a draft's
                acceptance after the one before
  sums          the answer of its check of all-reduce, `unless` this variable is 1
  fault         what goes wrong at one place, a table:
    at          a start-up phase, "completion" number `count` (2 belong to the proof), or "canary",
                likewise one whose answer is compared (the proof's is the first)
    print       lines to print there
    file        a file to print there, for what no variable can hold
    do          "exit" with `status`, "stall" for ever, "hang" as above from there on, "dead"
                (/health 503), "barren" (drafts that nobody accepts), "wrong" (other tokens than
                before), "tie" (the same at a near tie), "nan" (logits that are not numbers), "loop"
                (one token), "leak" (4 MiB a completion), "slow" (a token takes 4 times as long),
                "cut" (streams break off), "refuse" (HTTP 500), "mute" (answers without text), or
                "go on"
    times       how often in all engine lives, counted in the file `memory`
    after       only once this file is there
  pace_s        seconds for each piece of a streamed answer, and ten times that for its prompt

STANDIN_BUILD in the daemon's environment makes it a CUDA build, for the pretended cards of
`drivers/pynvml.py`; STANDIN_VERSION is the version that it says it has. STANDIN_RAY is that of Ray
in its environment, which is `ray.py` here.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

PHASES = {
    "resolve": "(APIServer pid=1) INFO 11-20 08:53:01 [model.py:733] Resolved architecture: Qwen3",
    "engine": "(EngineCore pid=2) INFO 11-20 08:53:06 [core.py:133] Initializing a V1 LLM engine "
    "(v0.32.0) with config: model='m'",
    "load": "(Worker pid=3) INFO 11-20 08:53:12 [cpu_model_runner.py:68] "
    "Starting to load model m...",
    "compile": "(EngineCore pid=2) INFO 11-20 08:53:12 [backends.py:1148] Dynamo bytecode "
    "transform time: 8.71 s",
    "profile": "(EngineCore pid=2) INFO 11-20 08:53:12 [gpu_worker.py:500] Initial "
    "profiling/warmup run took 1.05 s",
    "kv": "(EngineCore pid=2) INFO 11-20 08:53:13 [kv_cache_utils.py:2327] CPU KV cache size: "
    "524,288 tokens, Maximum concurrency for 2,048 tokens per request: 256.00x",
    "capture": "(EngineCore pid=2) INFO 11-20 08:53:13 [gpu_model_runner.py:6154] Graph capturing "
    "finished in 1 secs, took 0.11 GiB",
    "warmup": "(EngineCore pid=2) INFO 11-20 08:53:13 [core.py:402] init engine (profile, create "
    "kv cache, warmup model) took 0.49 s",
    "http": "(APIServer pid=1) INFO 11-20 08:53:14 [entry.py:140] Starting vLLM server on http://x",
}
FLAGS = (
    "host port served-model-name max-model-len speculative-config enforce-eager api-key "
    "enable-prefix-caching no-enable-prefix-caching kv-cache-memory-bytes kv-cache-dtype "
    "enable-server-load-tracking shutdown-timeout additional-config tensor-parallel-size "
    "pipeline-parallel-size nnodes node-rank master-addr master-port headless "
    "distributed-executor-backend load-format"
)
COUNTS: dict[str, float] = {
    "completions": 0,
    "canaries": 0,
    "tokens": 0,
    "drafts": 0,
    "accepted": 0,
    "pending": 0,
}
DEPTH = [0]
STEPS: dict[str, float] = {}  # where `drafting` is set: steps, their seconds, drafts by position
TIMES = (
    "vllm:time_to_first_token_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:inter_token_latency_seconds",
)
STATE: set[str] = set()  # of "hang", "dead", "barren" and others
LEAKED: list[bytes] = []


def main() -> None:
    orders = json.loads(os.environ.get("STANDIN", "{}"))
    if sys.argv[1] == "-c" and "caovan-all-reduce-" in sys.argv[2]:
        answer_sums(orders.get("sums", {}))
        return
    if sys.argv[1] == "-c":
        answer_probe("parser" in sys.argv[2])
        return
    if "ray_in_env" in sys.argv[1]:  # the launcher, or what it runs
        sys.executable, sys.argv = str(Path(__file__).absolute()), sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
    if sys.argv[1:4] == ["-m", "ray.scripts.scripts", "start"]:
        ray().start(sys.argv[4:])
    options = dict(zip(sys.argv, sys.argv[1:], strict=False))
    for line in orders.get("print", ()):
        print(line, flush=True)
    if orders.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: finish(core, 0))
    core = engine_core(escape=str(orders.get("escape", "")))
    for phase, line in PHASES.items():
        print(orders.get("at", {}).get(phase) or line, flush=True)
        time.sleep(orders.get("boot_s", 0.01))
        if orders.get("die_at") == phase and orders.get("unless") not in sys.argv:
            finish(core, orders.get("status", 1))
        fail(orders.get("fault", {}), phase, core)
    while "--headless" in sys.argv:  # another node answers
        signal.pause()
    if options.get("--distributed-executor-backend") == "ray":
        ray().watch(lambda: finish(core, 1))
    serve(options, orders, core)


def ray() -> ModuleType:
    """The stand-in for Ray, next to this file unless somebody else brings one."""
    return importlib.import_module("ray")


def fail(fault: dict[str, object], place: str, core: int) -> None:
    """Go wrong as told, where it is the place and the time for it."""
    done = COUNTS["canaries" if place == "canary" else "completions"]
    if fault.get("at") != place or done + 1 < int(str(fault.get("count", 1))):
        return
    if STATE or not Path(str(fault.get("after", "/"))).exists():
        return
    if "memory" in fault:
        memory = Path(str(fault["memory"]))
        done = memory.read_text() if memory.exists() else ""
        if len(done) >= int(str(fault.get("times", 1))):
            return
        memory.write_text(done + "x")
    lines = fault.get("print", ())
    assert isinstance(lines, (list, tuple))
    for line in lines:
        print(line, flush=True)
    if "file" in fault:
        print(Path(str(fault["file"])).read_text(), end="", flush=True)
    what = str(fault.get("do", "exit"))
    if what == "exit":
        finish(core, int(str(fault.get("status", 1))))
    while what == "stall":
        signal.pause()
    STATE.add(what)


def answer_sums(wrong: dict[str, str]) -> None:
    """Answer the check of all-reduce: all is right where the named variable is set."""
    answer = {"verdict": "right", "by": "", "text": ""}
    if wrong and os.environ.get(wrong.get("unless", "")) != "1":
        answer.update(wrong)
    print(json.dumps(answer))


def answer_probe(wants_flags: bool) -> None:
    cuda = os.environ.get("STANDIN_BUILD") == "cuda"
    versions = {
        "vllm": os.environ.get("STANDIN_VERSION") or ("0.32.0" if cuda else "0.32.0+cpu"),
        "torch": "2.13.0+cu129" if cuda else "2.13.0+cpu", "cuda": "12.9" if cuda else None,
        "flashinfer": None, "plugin": None, "python_version": "3.11.7", "nvcc": None,
        "compiler": "gcc", "stamp": [],
    }  # fmt: skip
    if release := os.environ.get("STANDIN_RAY"):  # older daemons know no such key
        versions["ray"] = release
    flags = {
        "flags": [f"--{name}" for name in FLAGS.split()], "deprecated": [], "choices": {},
        "tool_parsers": [], "reasoning_parsers": [],
    }  # fmt: skip
    print("caovan-probe:" + json.dumps(flags if wants_flags else versions))


def engine_core(*, escape: str) -> int:
    """A second process that outlives the first, as vLLM's engine core does."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(15, b"VLLM::EngineCor", 0, 0, 0)
        if escape and os.fork() == 0:
            os.setsid()
            ctypes.CDLL(None).prctl(15, escape[:15].encode(), 0, 0, 0)
        while True:
            signal.pause()
    return pid


def finish(core: int, status: int) -> None:
    """End as vLLM does in good order: the engine core first."""
    os.kill(core, signal.SIGKILL)
    os.waitpid(core, 0)
    os._exit(status)


def serve(options: dict[str, str], orders: dict[str, object], core: int) -> None:
    speculative = json.loads(options.get("--speculative-config", "{}"))
    depth = DEPTH[0] = speculative.get("num_speculative_tokens", 0)
    key = os.environ.get("VLLM_API_KEY")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self.reply(200, metrics())
            elif self.path == "/load":
                self.reply(200, json.dumps({"server_load": COUNTS["pending"]}))
            elif "dead" in STATE:
                self.reply(503, "")
            elif self.path.startswith("/log"):
                # As uvicorn's access log: with whatever the client put in.
                print(
                    f'(APIServer pid=1) INFO:     [::1]:9 - "GET {self.path} HTTP/1.1" 404',
                    flush=True,
                )
                self.reply(404, "")
            else:
                self.reply(200, "")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if key and self.headers.get("Authorization") != f"Bearer {key}":
                self.reply(401, "{}")
                return
            if orders.get("die_at") == "completion":
                finish(core, int(str(orders.get("status", 0))))
            fault = orders.get("fault", {})
            assert isinstance(fault, dict)
            canary = str(body.get("prompt")).startswith("Count to twelve")
            kind = "canary" if canary else "completion"
            fail(fault, kind, core)
            if orders.get("hang") or "hang" in STATE:
                COUNTS["pending"] += 1
                threading.Event().wait()
            if "dead" in STATE:
                self.reply(500, "{}")
                return
            if self.path == "/tokenize":
                self.reply(200, json.dumps({"count": tokens_of(body["prompt"])}))
                return
            if "refuse" in STATE:
                self.reply(500, "{}")
                return
            if "leak" in STATE:
                LEAKED.append(b"x" * (4 << 20))
            if self.path == "/v1/chat/completions":
                self.chat(body)
                return
            COUNTS["canaries" if kind == "canary" else "completions"] += 1
            COUNTS["tokens"] += body["max_tokens"]
            if "drafting" in orders:
                draft(orders["drafting"], depth, body["max_tokens"])  # type: ignore[arg-type]
            else:
                COUNTS["drafts"] += depth
                COUNTS["accepted"] += depth
            if body.get("stream"):
                self.stream(body)
            else:
                self.reply(200, json.dumps(completion(body)))

        def stream(self, body: dict[str, object]) -> None:
            """Piece by piece, two tokens each, then their numbers."""
            pace_s = float(str(orders.get("pace_s", 0))) * (4 if "slow" in STATE else 1)
            self.send_response(200)
            self.end_headers()
            document = completion(body)
            time.sleep(10 * pace_s)
            text = "" if "mute" in STATE else "five five "
            for _ in range((int(str(body["max_tokens"])) + 1) // 2):
                self.event({"choices": [{"text": text}]})
                if "cut" in STATE:
                    return
                time.sleep(pace_s)
            self.event({"choices": [], "usage": document["usage"]})
            self.wfile.write(b"data: [DONE]\n\n")

        def event(self, document: object) -> None:
            with contextlib.suppress(OSError):  # the client may be gone
                self.wfile.write(f"data: {json.dumps(document)}\n\n".encode())

        def chat(self, body: dict[str, object]) -> None:
            """A chat as server-sent events: the prompt's own words, one a chunk."""
            self.protocol_version = "HTTP/1.1"  # in chunks, so that a cut is seen
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            self.end_headers()
            messages = body["messages"]
            assert isinstance(messages, list)
            for word in messages[-1]["content"].split()[: int(str(body["max_tokens"]))]:
                delta = {"choices": [{"index": 0, "delta": {"content": f"{word} "}}]}
                self.chunk(f"data: {json.dumps(delta)}\n\n".encode())
                time.sleep(float(str(orders.get("pace_s", 0))))
            self.chunk(b"data: [DONE]\n\n")
            self.chunk(b"")

        def chunk(self, data: bytes) -> None:
            with contextlib.suppress(OSError):  # the client may be gone
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        def reply(self, status: int, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """vLLM's access log is not what is tested."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET
        daemon_threads = True

        def server_bind(self) -> None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as vLLM does
            super().server_bind()

    server = Server((options["--host"], int(options["--port"])), Handler)
    print("INFO:     Application startup complete.", flush=True)
    server.serve_forever()


def draft(how: dict[str, float], depth: int, tokens: int) -> None:
    """Count the steps of a completion, and the tokens drafted and accepted in them."""
    chances = [how["chance"] ** (position + 1) for position in range(depth)]
    steps = tokens / (1 + sum(chances))
    seconds = steps * (how["step_s"] + how["draft_s"] * depth)
    slower = 10 if depth >= how.get("cliff", 99) else 1
    for name, count in (("steps", steps), ("seconds", seconds * slower)):
        STEPS[name] = STEPS.get(name, 0.0) + count
    for position, chance in enumerate(chances):
        STEPS[str(position)] = STEPS.get(str(position), 0.0) + steps * chance
    COUNTS["drafts"] += steps * depth
    COUNTS["accepted"] += steps * sum(chances)


def completion(body: dict[str, object]) -> dict[str, object]:
    """The answer to a request, with the two best tokens of each place where it asks for them."""
    count = int(str(body["max_tokens"]))
    read = tokens_of(body["prompt"]) if isinstance(body["prompt"], str) else len(body["prompt"])  # type: ignore[arg-type]
    answer: dict[str, object] = {
        "usage": {"prompt_tokens": read, "completion_tokens": count},
        "choices": [{"text": "" if "mute" in STATE else "five " * count}],
    }
    if "structured_outputs" in body:
        answer["choices"] = [{"text": '{"kind": "law", "fiction": true}', "finish_reason": "stop"}]
    if body.get("logprobs"):
        words = [f"word {place}" for place in range(count)]
        for what, place in (("loop", 0), ("wrong", 1), ("tie", count - 1)):
            if what in STATE:
                words[place:] = ["nine"] * (count - place)
        sure = None if "nan" in STATE else -0.1
        seconds = [-9.0] * (count - 1) + [-0.11]  # the last place is a near tie
        answer["choices"] = [{"logprobs": {
            "tokens": words, "token_logprobs": [sure] * count,
            "top_logprobs": [{word: sure, "other": second}
                             for word, second in zip(words, seconds, strict=True)],
        }}]  # fmt: skip
    return answer


def tokens_of(text: str) -> int:
    """Four letters each."""
    return 1 + len(text) // 4


def metrics() -> str:
    if "barren" in STATE:
        COUNTS["tokens"] += 100
        COUNTS["drafts"] += 300
    label = '{engine="0",model_name="m"}'
    done = COUNTS["completions"] + COUNTS["canaries"]
    rows = {
        "vllm:prompt_tokens_total": 10 * done,
        "vllm:num_requests_running": COUNTS["pending"],
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:num_preemptions_total": 0,
        # A step for each first token, too.
        "vllm:iteration_tokens_total_count": STEPS["steps"] + done if STEPS else done,
        "vllm:prefix_cache_queries_total": 10 * done,
        "vllm:prefix_cache_hits_total": 4 * done,
        "vllm:spec_decode_num_drafts_total": COUNTS["drafts"] / max(DEPTH[0], 1),
        "vllm:spec_decode_num_accepted_tokens_total": COUNTS["accepted"],
        "vllm:generation_tokens_total": COUNTS["tokens"],
        "vllm:request_success_total": done,
        "vllm:spec_decode_num_draft_tokens_total": COUNTS["drafts"],
    }
    lines = [f"{name}{label} {value}" for name, value in rows.items()]
    by_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    for position in range(DEPTH[0]):
        count = STEPS.get(str(position), COUNTS["accepted"] // DEPTH[0])
        lines.append(f'{by_position}{{engine="0",position="{position}"}} {count}')
    for name in TIMES:
        count, seconds = float(done), done * 0.05
        if STEPS and name == TIMES[2]:
            count, seconds = STEPS["steps"], STEPS["seconds"]
        for bound, upto in (("0.01", 0.0), ("0.1", count), ("+Inf", count)):
            lines.append(f'{name}_bucket{{engine="0",le="{bound}"}} {upto}')
        lines.append(f'{name}_sum{{engine="0"}} {seconds}')
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
