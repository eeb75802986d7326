"""What the READMEs show of `plan` and `explain` is what they print, and of changes may be."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from caovand.cli import plan as plan_verb
from caovand.cli.main import main
from caovand.core.config import parse
from caovand.core.inventory import Gpu
from caovand.core.machine import EDGES, State
from caovand.core.speculation import depth_of_mode
from tests.core.machines import A100, QWEN_27B_AWQ, inventory, turing
from tests.daemon import ROOT

READMES = ("README.md", "README.zh-CN.md")
LOG = ROOT / "tests/samples/logs/vllm-0.21.0-h200-kv_short.log"
COLUMNS = 104


def blocks(readme: str) -> Iterator[list[str]]:
    """The lines of each block of a README, "…" for what is left out taken off."""
    for block in (ROOT / readme).read_text(encoding="utf-8").split("```")[1::2]:
        yield [kept for line in block.splitlines() if (kept := line.rstrip("… "))]


def planned(gpus: tuple[Gpu, ...]) -> list[str]:
    """What `caovanctl plan` prints for these cards and the model of the READMEs."""
    config = parse({"model": {"path": QWEN_27B_AWQ.path}})
    found = plan_verb.make(config, inventory(gpus=gpus), None)
    out = io.StringIO()
    plan_verb.show(found, Console(file=out, width=COLUMNS, highlight=False, soft_wrap=True))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def shows(block: list[str], printed: list[str]) -> bool:
    """Whether all lines of a block begin lines that were printed, in that order."""
    rest = iter(printed)
    return all(any(line.startswith(shown) for line in rest) for shown in block)


@pytest.mark.parametrize("readme", READMES)
@pytest.mark.parametrize("gpus", [turing(2), A100], ids=["2080 Ti", "A100"])
def test_the_plans_that_are_shown_are_made_today(
    readme: str, gpus: tuple[Gpu, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CAOVAN_AUTO_SPEC", raising=False)
    size = f"{gpus[0].total_mib / 1024:.1f} GiB"
    found = [b for b in blocks(readme) if any(x.startswith("GPU 0") and size in x for x in b)]
    assert len(found) == 1
    assert shows(found[0], planned(gpus)), "\n".join(planned(gpus))


@pytest.mark.parametrize("readme", READMES)
def test_the_log_that_is_explained_is_explained_so_today(
    readme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\n".join(line for block in blocks(readme) for line in [*block, ""])
    shown = text.partition("$ caovanctl explain vllm.log\n")[2].partition("\n\n")[0].splitlines()
    assert main(["explain", str(Path(LOG))]) == 0
    assert len(shown) > 5
    assert shows(shown, capsys.readouterr().out.splitlines())


def screens() -> Iterator[tuple[str, list[str]]]:
    """Each caovanctl that the README runs, in its order, and what is shown of its output."""
    for block in blocks("README.md"):
        for part in re.split(r"^(?=\$ )", "\n".join(block), flags=re.M):
            command, *output = part.splitlines() or [""]
            if command.startswith("$ caovanctl "):
                yield command.removeprefix("$ caovanctl "), output


def test_what_ends_a_serving_engine_shows_the_state_that_comes_of_it() -> None:
    after = {
        state for (before, _), (_, to) in EDGES.items() if before is State.SERVING for state in to
    }
    changes = ("mode fast", "restart", "reset", "retry --full")
    first = [out[0].partition(",")[0] for verb, out in screens() if verb in changes and out]
    shown = {word for word in first if word.isupper()}  # a state, where the start is not left out
    assert shown
    assert shown <= after - {State.SERVING}


def test_the_depth_that_is_served_is_that_of_the_mode_chosen_before() -> None:
    depths: list[tuple[str, str]] = []
    chosen = ""
    for verb, output in screens():
        chosen = verb.removeprefix("mode ") if verb.startswith("mode ") else chosen
        depths += [
            (chosen, depth)
            for depth in re.findall(r"^serving .* MTP (\d)", "\n".join(output), re.M)
        ]
    assert {chosen for chosen, _ in depths} == {"fast"}
    assert {depth for _, depth in depths} == {str(depth_of_mode("fast", 0)[0])}
