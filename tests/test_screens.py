"""Screens of `plan` and `explain` in the documents match their real output."""

from __future__ import annotations

import ast
import io
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from caovand.cli import plan as plan_verb
from caovand.cli.common.planned import plan_for
from caovand.cli.main import main
from caovand.core.config.parser import parse
from caovand.core.facts.inventory import Gpu
from caovand.core.lifecycle.state import State
from caovand.core.lifecycle.transitions import EDGES
from caovand.engines.vllm.planning.speculation import depth_of_mode
from tests.boxes.models import model as model_named
from tests.core.machines import (
    A100,
    DEFAULT,
    QWEN_27B,
    QWEN_27B_AWQ,
    in_four_bits,
    inventory,
    made_up,
    named,
    turing,
)
from tests.daemon_process import ROOT
from tests.documents import DOCUMENTS, READMES, blocks, name_of, screens

LOG = ROOT / "tests/samples/logs/vllm-0.21.0-h200-kv_short.log"
COLUMNS = 104
DOCS = ROOT / "packaging/docs"
WITH_PLANS = (DOCS / "planning.md", DOCS / "guide.zh-CN.md")
WITH_AN_EXPLANATION = (DOCS / "troubleshooting.md", DOCS / "guide.zh-CN.md")


def planned(gpus: tuple[Gpu, ...]) -> list[str]:
    """What `caovanctl plan` prints for these cards and the model of the documents."""
    config = parse({"model": {"path": QWEN_27B_AWQ.path}})
    found = plan_for(config, inventory(gpus=gpus, engine=DEFAULT), None)
    out = io.StringIO()
    plan_verb.print_plan(found, Console(file=out, width=COLUMNS, highlight=False, soft_wrap=True))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def shows(block: list[str], printed: list[str]) -> bool:
    """Whether all lines of a block begin lines that were printed, in that order."""
    rest = iter(printed)
    return all(any(line.startswith(shown) for line in rest) for shown in block)


def drawn(document: Path) -> list[list[str]]:
    """The blocks of a document that show a card's memory."""
    return [block for block in blocks(document) if any(x.startswith("GPU 0") for x in block)]


@pytest.mark.parametrize("page", WITH_PLANS, ids=name_of)
@pytest.mark.parametrize("gpus", [turing(2), A100], ids=["2080 Ti", "A100"])
def test_the_plans_that_are_shown_are_made_today(
    page: Path, gpus: tuple[Gpu, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CAOVAN_AUTO_SPEC", raising=False)
    size = f"{gpus[0].total_mib / 1024:.1f} GiB"
    found = [b for b in drawn(page) if any(x.startswith("GPU 0") and size in x for x in b)]
    assert len(found) == 1
    assert shows(found[0], planned(gpus)), "\n".join(planned(gpus))


def test_no_other_document_shows_a_plan_or_an_explanation() -> None:
    assert [page for page in DOCUMENTS if drawn(page)] == sorted(WITH_PLANS)
    explained = [p for p in DOCUMENTS if any(verb.startswith("explain") for verb, _ in screens(p))]
    assert explained == sorted(WITH_AN_EXPLANATION)


@pytest.mark.parametrize("page", WITH_AN_EXPLANATION, ids=name_of)
def test_the_log_that_is_explained_is_explained_so_today(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\n".join(line for block in blocks(page) for line in [*block, ""])
    shown = text.partition("$ caovanctl explain vllm.log\n")[2].partition("\n\n")[0].splitlines()
    assert main(["explain", str(Path(LOG))]) == 0
    assert len(shown) > 5
    assert shows(shown, capsys.readouterr().out.splitlines())


def test_what_ends_a_serving_engine_shows_the_state_that_comes_of_it() -> None:
    after = {
        state for (before, _), (_, to) in EDGES.items() if before is State.SERVING for state in to
    }
    changes = ("mode fast", "restart", "reset", "retry --full")
    shown_anywhere = [screen for document in DOCUMENTS for screen in screens(document)]
    first = [out[0].partition(",")[0] for verb, out in shown_anywhere if verb in changes and out]
    shown = {word for word in first if word.isupper()}  # a state, where the start is not left out
    assert shown
    assert shown <= after - {State.SERVING}


def test_the_depth_that_is_served_is_that_of_the_mode_chosen_before() -> None:
    depths: list[tuple[str, str]] = []
    for document in DOCUMENTS:
        chosen = ""
        for verb, output in screens(document):
            chosen = verb.removeprefix("mode ") if verb.startswith("mode ") else chosen
            depths += [
                (chosen, depth)
                for depth in re.findall(r"^serving .* MTP (\d)", "\n".join(output), re.M)
            ]
    assert {chosen for chosen, _ in depths} == {"fast"}
    assert {depth for _, depth in depths} == {str(depth_of_mode("fast", 0)[0])}


CARDS = {
    "RTX 2080 Ti 22 GB": turing(1)[0],
    "RTX 2080 Ti 11 GB": named("RTX 2080 Ti 11 GB")[0],
    "RTX 3090 24 GB": named("RTX 3090")[0],
    "RTX 4060 8 GB": named("RTX 4060")[0],
    "H800 80 GB": named("H800")[0],
}
MODELS = {
    "Qwen3.6-27B-AWQ": QWEN_27B_AWQ,
    "Qwen3.6-27B": QWEN_27B,
    "Qwen3.6-27B-GPTQ-Int4": model_named("Qwen3.6-27B-GPTQ-Int4"),
    "Qwen3.5-9B-AWQ": model_named("Qwen3.5-9B-AWQ"),
    "Qwen3-8B-AWQ": in_four_bits(made_up("qwen3-8b")),
}


@pytest.mark.parametrize("readme", READMES, ids=name_of)
def test_the_table_of_machines_is_what_is_planned_for_them_today(
    readme: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CAOVAN_AUTO_SPEC", raising=False)
    rows = re.findall(r"^\| (\d) x (.*?) \|(.*)\|$", readme.read_text(encoding="utf-8"), re.M)
    assert len(rows) > 4
    for count, card, rest in rows:
        model, split, context, sequences, depth = (cell.strip() for cell in rest.split("|"))
        gpus = tuple(replace(CARDS[card], index=index) for index in range(int(count)))
        config = parse({"model": {"path": f"/srv/models/{model}"}})
        found = plan_for(config, inventory(MODELS[model], gpus, DEFAULT), None)
        plan, words = found.plan, context.replace(",", "").replace("（", " ").split()
        assert found.memory is not None
        assert found.memory.fits, card
        numbers = (plan.value("tensor_parallel_size"), plan.value("max_model_len"),
                   plan.value("max_num_seqs"), plan.mtp)  # fmt: skip
        assert numbers == (int(split), int(words[0]), int(sequences), int(depth)), (card, model)
        assert ("cuda graph" in context.lower()) is bool(plan.value("enforce_eager")), (card, model)
        assert re.findall(r"[\d.]+ GiB", context) == [
            f"{gib:.2f} GiB" for gib in (plan.value("cpu_offload_gb"),) if gib
        ], (card, model)


TUNING = (DOCS / "tuning.md").read_text(encoding="utf-8")


def test_the_table_of_keys_shows_the_plans_of_today(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CAOVAN_AUTO_SPEC", raising=False)
    rows = re.findall(r"^\| (none|`\w+ = .*?`) \| ([\d,]+) \| (yes|no) \|$", TUNING, re.M)
    assert len(rows) > 6
    model = MODELS["Qwen3.6-27B-GPTQ-Int4"]
    gpus = (CARDS["RTX 3090 24 GB"],)
    for key, context, images in rows:
        name, _, value = key.strip("`").partition(" = ")
        changed = {} if key == "none" else {name: json.loads(value)}
        section = "model" if name == "text_only" else "policy"
        config = parse({"model": {"path": model.path}, "policy": {}, section: changed})
        config = replace(config, model=replace(config.model, path=model.path))
        found = plan_for(config, inventory(model, gpus, DEFAULT), None)
        assert found.plan.value("max_model_len") == int(context.replace(",", "")), key
        assert bool(found.plan.value("language_model_only")) is (images == "no"), key


def test_every_key_of_the_page_on_tuning_is_one_with_such_a_value() -> None:
    keys = re.findall(r"`\[(\w+)\] (\w+ = [^`]+)`", TUNING)
    assert len(keys) > 15
    for section, line in keys:
        name, _, value = line.partition(" = ")
        parse({section: {name: json.loads(value)}})


def spoken() -> list[re.Pattern[str]]:
    """What the package can print: its strings, with anything for the values put into them."""
    found: list[re.Pattern[str]] = []
    for file in (ROOT / "caovand").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [part.value if isinstance(part, ast.Constant) else None for part in parts]
            if sum(len(text) for text in texts if isinstance(text, str)) > 8:
                whole = "".join(".+" if text is None else re.escape(str(text)) for text in texts)
                found.append(re.compile(rf" *{whole}"))
    return found


def advice(document: Path) -> Iterator[str]:
    """The lines of screens that tell people what to do: for a refusal, a FAIL, a degraded plan."""
    for _, output in screens(document):
        for before, line in itertools.pairwise(output):
            refused = before.startswith("caovanctl: /") and line.startswith("  ")
            if refused or (before.startswith(("  FAIL", "  WARN")) and line.startswith("     ")):
                yield line
            yield from re.findall(r"^ +back: +(.*)", line)


def test_the_advice_in_a_screen_is_the_programs_own() -> None:
    """Whoever rewords a remedy rewords the screens that show it."""
    found = [line for document in DOCUMENTS for line in advice(document)]
    assert len(found) > 5
    known = spoken()
    for line in found:
        assert any(one.fullmatch(line) for one in known), line
