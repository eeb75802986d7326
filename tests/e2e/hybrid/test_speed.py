"""caovanctl bench over a real vLLM, against vLLM's own client on the same engine and prompts.

They come last of their engine, in mode fast: other tests' figures would have their requests, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from caovand.adapters.network.http import Endpoint
from caovand.lab.core.bench import prompts, ranks, record
from caovand.lab.core.bench.compare import NOISE
from caovand.lab.corpus import texts
from caovand.lab.streamed import Streams
from tests.e2e.hybrid.conftest import Server
from tests.lab.completions_server import completions, streamed
from tests.patience import PATIENCE_S
from tests.real_engine import ENGINE, MODELS

pytestmark = [pytest.mark.engine, pytest.mark.long]

TURNS = 7
Found = dict[str, float]
FIRST_S, PIECE_S = 0.5, 0.04  # until the first piece, and between pieces
REQUESTS = 4
TOKENS = 256
CHARACTERS = 300
CLOSE = 0.03
# `vllm bench serve` with the words of each line, by a process that has imported it: that is slow.
CLIENT = """
import os, sys
results = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what vLLM prints is no result
import vllm.benchmarks.serve
from vllm.entrypoints.cli.main import main
print("ready", file=results, flush=True)
for line in sys.stdin:
    child = os.fork()
    if not child:
        sys.argv = ["vllm", "bench", "serve", *line.rstrip("\\n").split("\\t")]
        sys.exit(main())
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=results, flush=True)
"""


def test_it_measures_a_served_model_and_keeps_the_result(server: Server) -> None:
    one = server.daemon
    words = ("--prompts", "200,500", "--at-once", "1,2", "--rounds", "2", "--tokens", "24")
    done = one.ctl("bench", *words, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [(c["prompt"], c["at_once"]) for c in result["cells"]] == [
        (200, 1), (200, 2), (500, 1), (500, 2),
    ]  # fmt: skip
    for cell in result["cells"]:
        requests = 2 * cell["at_once"]
        read = sum(each["prompt_tokens"] for each in cell["rounds"])
        assert cell["prompt"] * 0.98 * requests <= read <= cell["prompt"] * requests
        assert sum(each["tokens"] for each in cell["rounds"]) == 24 * requests
        assert (cell["others"], cell["tokens_per_j"]) == (0, None)
        assert len(cell["drafting"]["accepted"]) == result["mtp"] == 4
    assert result["complete"]
    kept = result["kept"]
    shown = one.ctl("bench", "--compare", kept, kept)
    assert shown.returncode == 0, shown.stderr
    assert "too few rounds" in shown.stdout


def test_the_field_test_serves_the_model_itself_and_then_gives_it_back(
    server: Server, tmp_path: Path
) -> None:
    one = server.daemon
    done = one.ctl("fieldtest", str(tmp_path / "found.tar.gz"), "--quick", "--yes", timeout_s=1200)
    assert done.returncode == 0, done.stderr
    assert "| as configured | 256 | 1 | " in done.stdout
    assert "as configured | " in done.stdout.partition("kv tokens")[0].splitlines()[-1]
    # Without a card, neither changes anything.
    assert '- caovan\'s kernels off: skipped: the same command as "as configured"' in done.stdout
    assert "- int8 activations: skipped: cannot use int8 activations" in done.stdout
    one.until_state("SERVING")


def test_its_figures_are_within_3_percent_of_vllms_own_client(tmp_path: Path) -> None:
    """Both read answers of the same pace: an engine's own differs more between two turns."""
    if not ENGINE.exists():
        pytest.fail("no engine to test with: run `make engine` first", pytrace=False)
    with completions() as server:
        server.events = paced
        ours, theirs = both(server.port, tmp_path, turns=1)
    assert ours[0] == pytest.approx(theirs[0], rel=CLOSE)
    due_s = PIECE_S * (TOKENS // 2 - 1) / (TOKENS - 1)
    assert ours[0]["token_s"] == pytest.approx(due_s, rel=CLOSE), "and both are right"


def paced(body: dict[str, Any]) -> Iterator[str]:
    """Pieces of two tokens at fixed moments, however busy the machine is in between."""
    begin, never = time.monotonic() + FIRST_S, threading.Event()
    pieces = 0
    for event in streamed(body):
        if "choices" in event and "usage" not in event:
            never.wait(max(begin + pieces * PIECE_S - time.monotonic(), 0.0))
            pieces += 1
        yield event


def test_on_the_same_engine_no_difference_to_vllms_own_client_is_found(
    server: Server, tmp_path: Path
) -> None:
    """In turn, because the machine is not equally fast all the time."""
    ours, theirs = both(server.port, tmp_path, TURNS)
    for name in ("tokens_per_s", "token_s"):
        a, b = ([turn[name] for turn in turns] for turns in (ours, theirs))
        assert ranks.chance(a, b) > NOISE, (name, ours, theirs)


def both(port: int, folder: Path, turns: int) -> tuple[list[Found], list[Found]]:
    """The figures of both clients, with the same prompts but for their first letters."""
    ours, theirs = [], []
    Streams(Endpoint("127.0.0.1", port), "/v1/completions", "tiny").at_once(sent("warm"), 8)
    with vllm_bench_serve(port, folder) as its:
        for turn in range(turns):
            streams = Streams(Endpoint("127.0.0.1", port), "/v1/completions", "tiny")
            found = record.round_of(streams.at_once(sent(f"our{turn}"), TOKENS))
            token_s = median(found["token_s"])
            ours.append({"tokens_per_s": found["tokens_per_s"], "token_s": token_s})
            theirs.append(its(sent(f"its{turn}")))
    return ours, theirs


def sent(salt: str) -> list[str]:
    """The prompts of a turn."""
    passages = prompts.passages(texts())
    return [prompts.prompt(passages, salt, 1, n)[:CHARACTERS] for n in range(REQUESTS)]


@contextmanager
def vllm_bench_serve(port: int, folder: Path) -> Iterator[Callable[[list[str]], Found]]:
    """What `vllm bench serve` finds for some prompts, asked time after time."""
    words = [
        "--backend", "openai", "--port", str(port), "--endpoint", "/v1/completions",
        "--model", "tiny", "--tokenizer", str(MODELS / "hybrid_copy"),
        "--dataset-name", "sharegpt", "--dataset-path", str(folder / "prompts.json"),
        "--sharegpt-output-len", str(TOKENS), "--num-prompts", str(REQUESTS),
        "--max-concurrency", str(REQUESTS), "--request-rate", "inf", "--ignore-eos",
        # Its check sends the first prompt, which would then be in the prefix cache.
        "--ready-check-timeout-sec", "0",
        "--disable-shuffle", "--disable-tqdm", "--temperature", "0",
        "--save-result", "--result-dir", str(folder), "--result-filename", "theirs.json",
    ]  # fmt: skip
    said = folder / "said.txt"
    with (
        open(said, "w") as stderr,
        subprocess.Popen(
            [str(ENGINE), "-c", CLIENT],
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as client,
    ):
        assert client.stdin
        assert client.stdout
        hung = threading.Timer(PATIENCE_S, client.kill)
        hung.daemon = True
        hung.start()
        assert client.stdout.readline() == "ready\n", said.read_text()[-3000:]

        def found_for(asked: list[str]) -> Found:
            turns = [{"conversations": [{"value": text}, {"value": "an answer"}]} for text in asked]
            (folder / "prompts.json").write_text(json.dumps(turns))
            (folder / "theirs.json").unlink(missing_ok=True)
            print(*words, sep="\t", file=client.stdin, flush=True)
            assert client.stdout.readline() == "0\n", said.read_text()[-3000:]
            found = json.loads((folder / "theirs.json").read_text())
            assert (found["completed"], found["failed"]) == (REQUESTS, 0), found
            return {
                "tokens_per_s": found["output_throughput"],
                "token_s": found["median_tpot_ms"] / 1000,
            }

        yield found_for
