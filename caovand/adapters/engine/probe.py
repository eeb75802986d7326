"""Ask an engine's own Python what is installed there.

The versions cost 0.2 s and are queried each time. The details require importing the engine (8 s and
more, half a minute from a cold disk): they are kept in a file named by a fingerprint of the
environment. For a caller that cannot wait that long, a background process asks and caches the
answers.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from caovand import HOME
from caovand.adapters.confinement.popen import Confinement, popen_arguments
from caovand.adapters.files import lock_file, state_file, trust
from caovand.adapters.privileges import engine_user
from caovand.adapters.system.processes import inherited_environ
from caovand.core.engine.probe import MARK, ProbeScripts
from caovand.core.facts.inventory import EngineInfo
from caovand.core.printable import one_line
from caovand.core.problem import ProblemError

# It may take a minute; without this a probe would outlive a daemon that is killed meanwhile.
ENDS_WITH_US = "import ctypes; ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL\n"
TIMEOUT_S = 60.0
REFUSED = 3  # exit status of the background process if it prints a problem
BACKGROUND = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from caovand.adapters.engine import probe
sys.exit(probe.answer(*sys.argv[1:]))
"""


class EngineMissing(ProblemError):
    """There is no usable engine behind this Python."""


def probe_engine(
    asks: ProbeScripts,
    python: str,
    cache_dir: Path | None,
    patience_s: float | None = None,
    *,
    named_by: Path | None = None,
    also_kept_in: Path | None = None,
    confinement: Confinement | None = None,
    before_details: Callable[[], None] = lambda: None,
) -> EngineInfo:
    """Probe this Python for the engine; slow answers are cached in `cache_dir`, if set.

    `named_by` is the file that names the Python: if another user could have written it, root probes
    as that user only. Answers in another user's folder `also_kept_in` are read there;
    `before_details` is called if none is cached. After `patience_s`, `flags` and everything that
    comes with them are left empty, and a background process continues to ask.
    """
    begun_s = time.monotonic()
    environment = _Environment(asks, python, named_by, confinement)
    answer = environment.run_probe(asks.versions)
    with environment.understood():
        lacking, stamp = asks.lacking(answer), answer.pop("stamp")
    if lacking and asks.missing is not None:
        raise EngineMissing(asks.missing.cannot, asks.missing.fact, asks.missing.remedy)
    if lacking:
        raise EngineMissing(
            f"use {python} as the engine",
            f"{lacking} is not installed there",
            f"install an engine with `{asks.install}`, or set [engine] python",
        )
    name = _cache_name(asks, python, stamp, answer)
    folders = (folder for folder in (cache_dir, also_kept_in) if folder)
    kept = next(filter(None, (_read_kept(asks, folder / name) for folder in folders)), None)
    if kept is None:
        before_details()
    if kept is None and cache_dir is not None and patience_s is not None:
        left_s = max(patience_s - (time.monotonic() - begun_s), 0.0)
        more = environment.ask_in_background(cache_dir / name, left_s)
    else:
        more = kept or environment.ask_and_keep(cache_dir / name if cache_dir else None)
    with environment.understood():
        return asks.read(python, answer, more)


@dataclass(frozen=True)
class _Environment:
    """An engine's Python, the file that names it, and what a program of it may reach."""

    asks: ProbeScripts
    python: str
    named_by: Path | None
    confinement: Confinement | None = None

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Parse the answers; raises EngineMissing unless an engine's Python gave them."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError) as problem:
            what = f"{type(problem).__name__}: {one_line(str(problem))[:100]}"
            raise self._unusable(f"its answer cannot be parsed ({what})") from None

    def _unusable(self, fact: str) -> EngineMissing:
        remedy = f"repair that environment, or install an engine with `{self.asks.install}`"
        return EngineMissing(f"use {self.python} as the engine", fact, remedy)

    def ask_and_keep(self, path: Path | None) -> dict[str, Any]:
        """The slow answers, kept in the file as far as that can be."""
        fresh = self.run_probe(self.asks.details)
        if path is not None:
            with suppress(OSError):  # an unwritable cache only costs time
                path.parent.mkdir(parents=True, exist_ok=True)
                state_file.write(path, fresh)
        return fresh

    def ask_in_background(self, path: Path, patience_s: float) -> dict[str, Any]:
        """The slow answers if they arrive in time, else {}; a background process then continues."""
        words = [sys.executable, "-I", "-c", BACKGROUND, HOME]
        words += [self.asks.module, self.python, str(path)]
        words += [str(self.named_by.absolute())] if self.named_by else []
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt at the terminal is for us
            cwd="/",
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            return {}
        if process.returncode == 0:
            answer: dict[str, Any] = json.loads(output)
            return answer
        if process.returncode == REFUSED:
            raise EngineMissing(**json.loads(output))
        raise EngineMissing(
            f"probe {self.python}",
            f"exit status {process.returncode}",
            "run `caovanctl inventory`, which waits for the probe",
        )

    def run_probe(self, script: str) -> dict[str, Any]:
        """The answer of a script, run by this Python; raises EngineMissing."""
        asks, python = self.asks, self.python
        try:
            user = trust.probing_user(python, self.named_by)
        except trust.Distrusted as problem:
            raise EngineMissing(*problem.args) from None
        environ = trust.own_environ(os.environ)
        own: dict[str, Any] = {"env": environ} if user is None else user.popen(environ)
        env = {**inherited_environ(own.pop("env"), python), **asks.env}
        argv = [python, "-c", ENDS_WITH_US + f"MARK = {MARK!r}\n" + script]
        try:
            os.stat(python)  # a missing program is reported only by its launch
            done = self._run(argv, env, own)
        except FileNotFoundError:
            raise EngineMissing(
                "find the engine's Python",
                f"{python} does not exist",
                f"install an engine with `{asks.install}`, or set [engine] python",
            ) from None
        except OSError as problem:
            raise EngineMissing(
                f"run the engine's Python {python}",
                str(problem.strerror),
                f"set [engine] python to an executable Python with {asks.name} in it",
            ) from None
        except subprocess.TimeoutExpired:
            raise EngineMissing(
                f"probe {python}",
                f"no answer in {TIMEOUT_S:g} s",
                "check for a slow disk or a busy machine, then try again",
            ) from None
        for line in done.stdout.splitlines():
            if line.startswith(MARK):
                with suppress(ValueError, RecursionError):  # cut off: it died while printing
                    answer = json.loads(line[len(MARK) :])
                    if isinstance(answer, dict):
                        return answer
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise self._unusable(f"{last} (exit status {done.returncode})")

    def _run(
        self, argv: Sequence[str], env: Mapping[str, str], own: Mapping[str, Any]
    ) -> subprocess.CompletedProcess[str]:
        """Run it as the engine's user, or as ours; `own` selects our user."""
        asker = engine_user.current()
        with popen_arguments(argv, env, self.confinement) as launch:
            if asker is not None and not own:
                stdin = launch["stdin"].fileno()
                return asker.run(launch["args"], launch["env"], stdin, TIMEOUT_S)
            plain = {"args": argv, "env": env, "stdin": subprocess.DEVNULL, **own}
            return subprocess.run(
                **(launch if self.confinement is not None and not own else plain),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                cwd="/",
                check=False,
            )


def _cache_name(asks: ProbeScripts, python: str, stamp: Any, found: dict[str, Any]) -> str:
    text = json.dumps([asks.details, os.path.abspath(python), stamp, found], sort_keys=True)
    return f"engine-flags-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _read_kept(asks: ProbeScripts, path: Path) -> dict[str, Any] | None:
    """Read the cached slow answers; None if there are none."""
    answer = state_file.read_or_none(path)
    return answer if isinstance(answer, dict) and answer.keys() >= asks.asked else None


def answer(module: str, python: str, path: str, *named_by: str) -> int:
    """The background process: ask, cache the answer and print it, or why there is none."""
    asks: ProbeScripts = importlib.import_module(module).PROBE
    place, status = Path(path), 0
    environment = _Environment(asks, python, Path(named_by[0]) if named_by else None)
    try:
        with suppress(OSError):  # nothing is cached then, and every such process asks
            place.parent.mkdir(parents=True, exist_ok=True)
            lock_file.take(place.with_suffix(".lock"))
        # An earlier process may have just cached it.
        details = _read_kept(asks, place) or environment.ask_and_keep(place)
        text = json.dumps(details)
    except lock_file.LockTaken:
        text = "{}"  # another one is asking already, and keeps a core busy
    except EngineMissing as problem:
        text, status = json.dumps(asdict(problem.problem)), REFUSED
    with suppress(BrokenPipeError):  # nobody is waiting any more
        print(text, flush=True)
    return status
