#!/usr/bin/env python3
"""Run parts of the tests and close with a table: each part's result, counts, seconds.

    packaging/parts.py [--show] STAGE...      STAGE is LANE[,LANE...], LANE is PART[+PART...]

A part is a target of make. Stages run one after the other, the lanes of a stage at once, the parts
of a lane in order: `parts.py test-strangers test-real+test-plugin,test-made`. Everything runs,
whatever failed before. While parts run, a line at least every 20 s says which, for how long, and
how far pytest is. A failed part's output is printed when it ends, with --show every part's; all
output stays in .caovan/parts/PART.log. A part is skipped if the last line it prints
begins with "skipped: ". The last line counts the tests. The exit status is 0 if no part failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

LOGS = Path(".caovan/parts")
SKIPPED = "skipped: "
SIGN_OF_LIFE_S = 20.0
# pytest's last line: "3 failed, 57 passed, 36 skipped in 12.34s (0:00:12)"
CLOSING = re.compile(rb"^(?:=+ )?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s\b", re.MULTILINE)
COUNT = re.compile(rb"(\d+) (passed|failed|skipped|error)")
PERCENT = re.compile(rb"\[ *(\d+)%\]")
TAIL_BYTES = 4096


@dataclass
class Part:
    """A target of make, and its result."""

    name: str
    started_s: float | None = None
    seconds: float | None = None
    code: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    reason: str = ""  # why it was skipped
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return LOGS / f"{self.name}.log"

    @property
    def is_running(self) -> bool:
        return self.started_s is not None and self.seconds is None

    @property
    def result(self) -> str:
        if self.seconds is None:
            return "not run"
        if self.code:
            return "FAILED"
        return "skipped" if self.reason else "passed"

    def row(self) -> str:
        counts = ", ".join(f"{self.counts[word]:,} {word}" for word in self.counts)
        text = f"{self.name:<16} {self.result:<8} {self.seconds or 0:>5.0f} s  {counts}"
        return (text + self.reason).rstrip()

    def run(self, printing: threading.Lock, show: bool) -> None:
        self.started_s = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["make", "-s", "--no-print-directory", self.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.code = self.process.wait()
        self.seconds = time.monotonic() - self.started_s
        output = self.log.read_bytes()
        for closing in CLOSING.findall(output):
            for number, word in COUNT.findall(closing):
                self.counts["failed" if word == b"error" else word.decode()] += int(number)
        last = output.decode(errors="replace").rstrip().rpartition("\n")[2]
        if last.startswith(SKIPPED):
            self.reason = last.removeprefix(SKIPPED)
        with printing:
            if self.code or show:
                print(f"\n--- {self.name}", flush=True)
                sys.stdout.buffer.write(output)
            print(self.row(), flush=True)

    def so_far(self) -> str:
        """Describe a running part for a sign of life."""
        seconds = time.monotonic() - (self.started_s or 0)
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            if percents := PERCENT.findall(log.read()):
                return f"{self.name} {seconds:.0f} s, {percents[-1].decode()} %"
        return f"{self.name} {seconds:.0f} s"

    def interrupt(self) -> None:
        """Act like Ctrl-C: pytest stops the processes that its tests have started."""
        if self.is_running and self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGINT)


def run_lane(
    lane: list[Part], printing: threading.Lock, show: bool, ending: threading.Event
) -> None:
    for part in lane:
        if not ending.is_set():
            part.run(printing, show)


def run_stage(stage: list[list[Part]], show: bool, sign_of_life_s: float) -> None:
    """Run the lanes of a stage at once; on KeyboardInterrupt, stop them and raise it again."""
    printing, ending = threading.Lock(), threading.Event()
    lanes = [
        threading.Thread(target=run_lane, args=(lane, printing, show, ending), daemon=True)
        for lane in stage
    ]
    for thread in lanes:
        thread.start()
    next_s = time.monotonic() + sign_of_life_s
    try:
        while alive := [thread for thread in lanes if thread.is_alive()]:
            alive[0].join(max(0.0, next_s - time.monotonic()))
            if time.monotonic() >= next_s:
                next_s += sign_of_life_s
                running = [part.so_far() for lane in stage for part in lane if part.is_running]
                with printing:
                    print(f"... {'; '.join(running)}", flush=True)
    except KeyboardInterrupt:
        ending.set()
        for part in (part for lane in stage for part in lane):
            part.interrupt()
        for thread in lanes:
            thread.join()
        raise


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stages", nargs="+", metavar="STAGE")
    parser.add_argument("--show", action="store_true", help="print the output of every part")
    parser.add_argument(
        "--sign-of-life", type=float, default=SIGN_OF_LIFE_S, metavar="SECONDS",
        help="default: %(default)s",
    )  # fmt: skip
    args = parser.parse_args(argv)
    stages = [
        [[Part(name) for name in lane.split("+")] for lane in stage.split(",")]
        for stage in args.stages
    ]
    parts = [part for stage in stages for lane in stage for part in lane]
    # A shell starts its jobs in the background with SIGINT ignored, and all below would inherit it.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    LOGS.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    interrupted = False
    try:
        for stage in stages:
            run_stage(stage, args.show, args.sign_of_life)
    except KeyboardInterrupt:
        interrupted = True
    total: Counter[str] = Counter(passed=0, failed=0)
    for part in parts:
        total += part.counts
    print(f"\n{'part':<16} {'result':<8} {'time':>7}  tests")
    for part in parts:
        print(part.row())
    print(f"{'all':<16} {'':<8} {time.monotonic() - began_s:>5.0f} s  logs: {LOGS}/PART.log")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    if interrupted:
        return 130
    return int(any(part.result not in ("passed", "skipped") for part in parts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
