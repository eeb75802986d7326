"""One card: an lm_head of 248,320 rows in int8 and in 16 bits, in one run, drafts included.

Meant for CAOVAN_CARDS_GRAPHS=1. The table is printed before anything about speed is asserted.
"""

from __future__ import annotations

from pathlib import Path

from tests.cards.conftest import model, running, serves, shown
from tests.cards.server import Server, configured, drawn
from tests.cards.test_attention import decoded
from tests.cards.test_serving import SOME, Answers, answers, farthest
from tests.ports import free_port

CONTEXT, READ, TOGETHER, MANY = 16_384, 300, 4, 8
HEAD_GIB = 248_320 * 2048 / 2**30
"""Of its weights in int8, and what they save."""
WAYS = {
    "int8": {"CAOVAN_LM_HEAD": "int8"},
    "off": {"CAOVAN_LM_HEAD": "off"},
    "drafts": {
        "CAOVAN_LM_HEAD": "int8", "CAOVAN_DRAFTER": "int8", "CAOVAN_DRAFT_VOCABULARY": "65536"
    },
}  # fmt: skip
CLOSE = 0.2
"""How far logprobs may be apart: int8 moves a logit by 0.9 % of their deviation, about 0.02."""


def of_prompt(server: Server) -> list[float]:
    """The logprobs of a prompt's own tokens: more rows at once than the kernel takes."""
    prompt = drawn(READ, seed=2)
    found = server.answer(prompt, prompt_logprobs=0)[1]["prompt_logprobs"]
    return [row[str(token)]["logprob"] for token, row in zip(prompt[1:], found[1:], strict=True)]


def speeds(server: Server) -> dict[str, float]:
    """Decoded tokens a second of one request, a few and many."""
    server.answer(drawn(1_000), 16)  # compiles what is compiled late
    return {
        f"decode of {count}, tok/s": decoded(server, [drawn(1_000) for _ in range(count)])
        for count in (1, TOGETHER, MANY)
    }


def test_an_int8_head_answers_nearly_as_one_of_16_bits_in_half_its_memory_and_faster(
    cards: int, tmp_path: Path
) -> None:
    port, path = free_port(), model("wide")
    measured: dict[str, dict[str, float]] = {}
    answered: dict[str, Answers] = {}
    read: dict[str, list[float]] = {}
    first = configured(port, path=path, context=CONTEXT, **WAYS["int8"])
    with running(first) as one:
        server = Server(one, port, path, CONTEXT)
        for way, env in WAYS.items():
            again = server.reloads(**env) if measured else serves(one)
            reported = again["reported"]
            print(f"lm_head {way}: {reported}", flush=True)
            assert reported.get("lm_head") == (None if way == "off" else "int8")
            answered[way], read[way] = answers(server, SOME, 48), of_prompt(server)
            print("again, from the prefix cache: ", end="")
            farthest(answers(server, SOME, 48), answered[way])
            measured[way] = {**speeds(server), "weights, GiB": reported["weights_gib"]}
            print(f"{way}: {measured[way]}", flush=True)
            assert "kernels_refusal" not in one.status()["reported"]
        shown(one, "status")
    print(f"| | {' | '.join(WAYS)} | int8 / off | drafts / off |\n{'| --- ' * 6}|")
    for name, off in measured["off"].items():
        row = [measured[way][name] for way in WAYS]
        cells = " | ".join(f"{x:.4g}" for x in row)
        print(f"| {name} | {cells} | {row[0] / off:.2f} | {row[2] / off:.2f} |")
    apart = max(abs(x - y) for x, y in zip(read["int8"], read["off"], strict=True))
    print(f"logprobs of a prompt of {READ} tokens within {apart:.4f}", flush=True)
    assert apart < CLOSE
    assert farthest(answered["int8"], answered["off"]) < CLOSE
    assert farthest(answered["drafts"], answered["int8"]) < CLOSE  # they are verified
    saved = measured["off"]["weights, GiB"] - measured["int8"]["weights, GiB"]
    assert abs(saved - HEAD_GIB) < 0.03
    for count in (1, TOGETHER):
        name = f"decode of {count}, tok/s"
        assert measured["drafts"][name] > measured["int8"][name] > measured["off"][name], name
