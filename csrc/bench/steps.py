"""Profile decode steps, with the plugin's kernels and with vLLM's. Needs a GPU.

    steps.py MODEL_FOLDER [--ways on,off,bfloat16,...] [--graphs FULL_AND_PIECEWISE|PIECEWISE|NONE]
             [--drafts N] [--steps N] [--prompt N] [--requests N] [--no-cache] [--kv-cache-dtype T]

MODEL_FOLDER holds a Qwen3.5-shaped hybrid with an MTP layer. It runs in float16 with the plugin's
kernels "on" and "off", and in "bfloat16", for which vLLM 0.33 has a kernel that includes the
layer's norm; in float16, vLLM uses Triton's. Each way starts its own engine, one after the other,
because whole steps run from captured graphs; repeat a way to see how much two starts differ. Each
engine first times its steps, then traces them with torch's profiler, then with Python's. The tables
show the steps of each way, kernels by time and launches per step, operators and CUDA calls of the
host, and Python functions. While a step waits for the host, the card is idle.
"""

from __future__ import annotations

import argparse
import collections
import cProfile
import json
import os
import pstats
import re
import statistics
import subprocess
import sys
import time

WARM_STEPS = 8
ROWS = 24
MARK = "steps: "
Found = dict[str, dict[str, list[float]]]


def decoding(llm, args: argparse.Namespace, name: str):
    """Start requests and finish their prefill; returns a function that runs a step, and one that
    ends them."""
    import engine  # noqa: PLC0415
    from vllm import SamplingParams  # noqa: PLC0415

    length = (WARM_STEPS + args.steps) * (args.drafts + 1) + 16
    params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
    vocab = llm.llm_engine.model_config.get_vocab_size()
    names = []
    for number, prompt in enumerate(
        engine.prompts_of([args.prompt] * args.requests, vocab, len(name))
    ):
        names.append(f"{name} {number}")
        llm.llm_engine.add_request(names[-1], {"prompt_token_ids": prompt}, params)
    seen: dict[str, int] = {}

    def step() -> None:
        for output in llm.llm_engine.step():
            seen[output.request_id] = len(output.outputs[0].token_ids)

    while len(seen) < args.requests:
        step()
    for _ in range(WARM_STEPS):
        step()
    engine.drain(None)
    return step, seen, lambda: llm.llm_engine.abort_request(names)


def timed(llm, args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds per step, and tokens per step and request."""
    step, seen, end = decoding(llm, args, "timed")
    before, took = sum(seen.values()), []
    for _ in range(args.steps):
        begun = time.perf_counter()
        step()
        took.append((time.perf_counter() - begun) * 1000)
    tokens = (sum(seen.values()) - before) / args.steps / args.requests
    end()
    tenths = statistics.quantiles(took, n=10)
    return {
        "median_ms": statistics.median(took), "mean_ms": statistics.mean(took),
        "p10_ms": tenths[0], "p90_ms": tenths[-1], "tokens": tokens,
        "tokens_per_s": 1000 * tokens * args.requests / statistics.mean(took),
    }  # fmt: skip


def traced(llm, args: argparse.Namespace) -> dict:
    """What torch's profiler records during the steps."""
    import torch  # noqa: PLC0415
    from torch.autograd import DeviceType  # noqa: PLC0415

    kinds = torch.profiler.ProfilerActivity
    step, _, end = decoding(llm, args, "traced")
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
        begun = time.perf_counter()
        for _ in range(args.steps):
            step()
        took = time.perf_counter() - begun
    end()
    kernels: dict = collections.defaultdict(lambda: [0.0, 0.0])
    spans = []
    for event in profile.events():
        if event.device_type == DeviceType.CUDA:
            row = kernels[short(event.name)]
            row[0] += 1 / args.steps
            row[1] += event.time_range.elapsed_us() / args.steps
            spans.append((event.time_range.start, event.time_range.end))
    host = {
        row.key[:90]: [row.count / args.steps, row.self_cpu_time_total / args.steps]
        for row in profile.key_averages()
        if row.device_type == DeviceType.CPU
    }
    busy, until = 0.0, 0.0
    for first, last in sorted(spans):
        busy += max(0.0, last - max(first, until))
        until = max(until, last)
    return {
        "kernels": dict(kernels), "host": largest(host), "traced_ms": took * 1000 / args.steps,
        "busy_ms": busy / 1000 / args.steps, "launches": sum(row[0] for row in kernels.values()),
    }  # fmt: skip


def called(llm, args: argparse.Namespace) -> dict[str, list[float]]:
    """Calls and own microseconds of Python functions per step, excluding their callees."""
    step, _, end = decoding(llm, args, "called")
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(args.steps):
        step()
    profile.disable()
    end()
    rows = {}
    for (file, line, function), (_, calls, own, *_) in pstats.Stats(profile).stats.items():
        name = f"{'/'.join(file.split('/')[-2:])}:{line} {function}"
        rows[name[-90:]] = [calls / args.steps, own * 1e6 / args.steps]
    return largest(rows)


def short(name: str) -> str:
    """A kernel's name without template arguments."""
    return re.sub(r"^void ", "", re.sub(r"<.*|\(.*", "", name) or name)[:90]


def largest(rows: dict[str, list[float]]) -> dict[str, list[float]]:
    """The top rows, enough for the tables of several ways."""
    return dict(sorted(rows.items(), key=lambda row: -row[1][1])[: 3 * ROWS])


def one(args: argparse.Namespace) -> None:
    """Measure one way in this process."""
    os.environ["CAOVAN_KERNELS"] = "all" if args.way == "on" else "off"
    import engine  # noqa: PLC0415

    begun = time.perf_counter()
    llm = engine.start(
        args.model, args.graphs, args.drafts, 1, load_format="auto", async_scheduling=None,
        max_model_len=args.prompt + 8192, max_num_seqs=8, gpu_memory_utilization=0.5,
        enable_prefix_caching=not args.no_cache, kv_cache_dtype=args.kv_cache_dtype,
        attention_backend="TRITON_ATTN",
        dtype="bfloat16" if args.way == "bfloat16" else "half",
    )  # fmt: skip
    found: dict = {"way": args.way, "start_s": time.perf_counter() - begun}
    timed(llm, args)  # warms up what compiles lazily
    found |= timed(llm, args)
    print(MARK + json.dumps(found), flush=True)
    found |= traced(llm, args)
    found["python"] = called(llm, args)
    found |= {f"again_{name}": value for name, value in timed(llm, args).items()}
    print(MARK + json.dumps(found), flush=True)


def table(found: list[dict], name: str, title: str) -> None:
    """One row per kernel or function: its calls and microseconds per step, by run."""
    names = collections.Counter()
    for run in found:
        for row, (_, took) in run[name].items():
            names[row] = max(names[row], took)
    ways = " | ".join(f"{run['way']}: calls | us" for run in found)
    print(f"\n| {title} | {ways} |\n| --- |{' --- |' * 2 * len(found)}")
    for row, _ in names.most_common(ROWS):
        cells = (run[name].get(row, (0, 0)) for run in found)
        text = " | ".join(f"{calls:.1f} | {took:.1f}" for calls, took in cells)
        print(f"| {row} | {text} |", flush=True)


def every(args: argparse.Namespace) -> int:
    """Run each way in its own process, and print their tables."""
    found = []
    columns = (
        "way", "start_s", "median_ms", "mean_ms", "p10_ms", "p90_ms", "tokens_per_s", "tokens",
        "again_median_ms", "traced_ms", "busy_ms", "launches",
    )  # fmt: skip
    for way in args.ways.split(","):
        words = [sys.executable, __file__, *sys.argv[1:], "--way", way]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        last: dict = {}
        for line in child.stdout:
            if line.startswith(MARK):
                last = json.loads(line.removeprefix(MARK))
                rows = {name: last[name] for name in columns if name in last}
                print({name: one if one == way else round(one, 3) for name, one in rows.items()},
                      flush=True)  # fmt: skip
            else:
                print(line, end="", flush=True)
        if child.wait() or "kernels" not in last:
            print(f"{way}: ended with {child.returncode}", flush=True)
            continue
        found.append(last)
    print(f"\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for run in found:
        numbers = (f"{run[name]:.3f}" for name in columns[1:])
        print(f"| {run['way']} | {' | '.join(numbers)} |", flush=True)
    table(found, "kernels", "kernel")
    table(found, "host", "on the host")
    table(found, "python", "Python function")
    return 0 if len(found) == len(args.ways.split(",")) else 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--ways", default="on,off,on,off")
    parser.add_argument("--way", default="")
    parser.add_argument("--graphs", default="FULL_AND_PIECEWISE")
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--no-cache", action="store_true")
    parser.add_argument("--kv-cache-dtype", default="auto")
    args = parser.parse_args()
    if not args.way:
        return every(args)
    one(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
