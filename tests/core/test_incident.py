"""What an incident contains, and what it must not contain."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from caovand.core.cluster import evidence
from caovand.core.cluster.evidence import NodeEvidence
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import Decision
from caovand.core.lifecycle.state import Snapshot
from caovand.core.plan import Plan, Setting
from caovand.core.problem import Problem
from caovand.core.reporting import incident, incident_text
from caovand.core.reporting.incident import FailureContext
from caovand.core.secrets import hide, hide_in, secrets_of
from caovand.engines.explaining.answer import answer_of
from caovand.engines.registry import engine_of

FINDING = Finding("kv-cache-short", "too long", "kv", {"fits": "1030"}, "oom.kv.len", 3)
LINES = ("one", "two", "the cause", "four")
PLAN = Plan(
    "/m",
    {"max_model_len": Setting(2048, "user", "asked for")},
    {"HF_TOKEN": Setting("hf_abcdefghijklmnopqrst", "user", "asked for")},
    extra_args=("--api-key", "sesame-4711", "--seed", "1"),
)


def report(case: FailureContext) -> dict[str, object]:
    draft = incident.draft(case, at="2026-01-01T00:00:00", processes=[], host={})
    told: dict[str, object] = incident.document(draft, case.lines, case.secrets)
    return told


def test_the_causing_line_stands_with_what_is_around_it() -> None:
    told = report(FailureContext(FINDING, LINES, {}))["cause"]
    assert told == {"line": "the cause", "before": ["one", "two"], "after": ["four"]}


def test_a_failure_no_line_tells_of_has_no_causing_line() -> None:
    assert report(FailureContext(replace(FINDING, line=0), LINES, {}))["cause"] is None
    assert report(FailureContext(replace(FINDING, line=99), LINES, {}))["cause"] is None


def test_the_answer_is_kept_and_shown_and_an_older_incident_has_none() -> None:
    told = {
        **report(FailureContext(FINDING, LINES, {}, answer=answer_of(engine_of(), FINDING))),
        "number": 1,
    }
    text = "\n".join(incident_text.lines(told, {}, {}))
    assert "  how sure  certain\n" in text
    assert "  by itself yes: " in text
    del told["answer"]
    assert "by itself" not in "\n".join(incident_text.lines(told, {}, {}))


def test_a_plan_s_caveats_are_in_it_as_sentences() -> None:
    plan = replace(PLAN, caveats=(Problem("", "it is slow", "use another"),))
    told = json.loads(json.dumps(report(FailureContext(FINDING, LINES, {}, plan=plan))))["plan"]
    assert told["warnings"] == ["it is slow; use another"]
    assert "caveats" not in told


def test_no_secret_is_in_it_wherever_it_stands() -> None:
    lines = ("Authorization: Bearer abcdef-4711-xyz", "key sesame-4711", "the cause")
    case = FailureContext(
        FINDING, lines, {"reason": "sesame-4711"}, PLAN, secrets=("sesame-4711", "")
    )
    case = replace(case, extra_args=engine_of().arguments.redact(PLAN.extra_args))
    text = json.dumps(report(case))
    for secret in ("sesame", "4711", "hf_abc"):
        assert secret not in text
    assert '"--seed", "1"' in text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("token hf_abcdefghijklmnop in a log", "token hf_[secret] in a log"),
        ("Authorization: Basic0123456789", "Authorization: [secret]"),
        ("http://me:hunter2@proxy:3128/", "http://me:[secret]@proxy:3128/"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("524,288 tokens, max_tokens=16", "524,288 tokens, max_tokens=16"),
    ],
)
def test_what_looks_like_a_secret_is_hidden_and_nothing_else(text: str, cleaned: str) -> None:
    assert hide(text, ()) == cleaned


def test_variables_with_telling_names_are_secret_and_counts_are_not() -> None:
    env = {"HF_TOKEN": "aaaaaaaa", "AWS_SECRET_ACCESS_KEY": "bbbbbbbb", "MAX_TOKENS": "cccccccc"}
    assert set(secrets_of(env)) == {"aaaaaaaa", "bbbbbbbb"}
    assert hide_in({"max_num_batched_tokens": 8192, "api_key": "x"}, ()) == {
        "max_num_batched_tokens": 8192,
        "api_key": "[secret]",
    }


def test_a_failure_that_is_only_waited_out_has_one_incident() -> None:
    """Else the same one, again and again, pushes out the first and all the others."""
    plan, lost = Plan("m", {}, {}), Finding("gpu-lost", "ECC", "load", {}, "gpu.ecc", 7)
    once = Snapshot(plan=plan, finding=lost, remedy=Decision("hold"), failures=1)
    first = incident.dedup_mark(once)
    assert first
    assert incident.dedup_mark(replace(once, failures=9, finding=replace(lost, line=9))) == first
    for other in (
        replace(once, plan=Plan("n", {}, {})),
        replace(once, finding=replace(lost, signature="gpu.bus")),
        replace(once, remedy=Decision("again", excused=True)),
    ):
        assert incident.dedup_mark(other) not in ("", first)
    # Of these there are only so many: they end in another plan, or in giving up.
    for verdict in ("fail", "degrade", "again"):
        assert incident.dedup_mark(replace(once, remedy=Decision(verdict))) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        '{"kv_connector_extra_config":{"redis_password":"hunter2secret"},"max_tokens":"12"}',
        '--model-loader-extra-config={"aws_secret_access_key": "hunter2secret"}',
        "non-default args: {'kv_transfer_config': {'redis_password': 'hunter2secret'}}",
        r'argv: "{\"redis_password\": \"hunter2secret\", \"host\": \"h\"}"',
        r'{"password": "hun\"hunter2secret"}',
    ],
)
def test_secrets_in_the_json_of_a_flag_are_hidden(text: str) -> None:
    plan = replace(PLAN, extra_args=("--kv-transfer-config", text))
    case = FailureContext(FINDING, (text,), {}, plan=plan, argv=("--kv-transfer-config", text))
    for told in (hide(text, ()), json.dumps(report(case))):
        assert "hunter2secret" not in told
        assert "[secret]" in told
    for kept in ('"max_tokens":"12"', "host"):
        assert (kept in text) == (kept in hide(text, ()))


@pytest.mark.parametrize("name", ["redis_password", "api_key", "aws_secret", "auth_token"])
def test_a_secret_that_is_a_number_is_hidden_and_a_count_is_not(name: str) -> None:
    counts = {"num_key_value_heads": 4711, "eos_token_id": 4711, "bytes_per_token": 4711}
    assert hide_in({name: 4711, **counts}, ()) == {name: "[secret]", **counts}
    assert hide_in({name: ["4711"]}, ()) == {name: "[secret]"}
    told = hide(json.dumps({**counts, name: 4711, "port": 6379}), ())
    assert told == json.dumps({**counts, name: "[secret]", "port": 6379}).replace(
        '"[secret]"', "[secret]"
    )


NODES = {"n2": 1, "n3": 2, "n4": 3}
CARD = {"index": 0, "used_mib": 1024, "total_mib": 2048, "utilization": 98, "temperature": None,
        "power_w": None, "throttled": "its power limit", "fault": ""}  # fmt: skip


def test_each_other_node_is_shown_with_what_it_has_and_what_never_came() -> None:
    own = NodeEvidence(
        "s", "2026-01-01T00:00:01", "no stacks", FINDING, (CARD,),
        kernel=tuple(f"Xid {number}" for number in range(9)), stacks=("=== main", "waits"),
        log=tuple(f"line {number}" for number in range(99)),
    )  # fmt: skip
    told = report(FailureContext(FINDING, LINES, {}, nodes=NODES))
    told["number"] = 1
    files = {"incident.json": 1, "node-1.json": 2, "node-2.json": 3}
    assert incident_text.node_files(told, files) == ["node-1.json", "node-2.json"]
    nodes = {
        "node-1.json": evidence.document("n2", 1, own),
        "node-2.json": evidence.missing_evidence("n3", 2, "the node is silent"),
    }
    text = "\n".join(incident_text.lines(told, files, nodes))
    assert text.partition("\nnode ")[2].splitlines() == [
        "n2, rank 1, 2026-01-01T00:00:01: kv-cache-short",
        "  phase     kv",
        "  what      too long",
        "  lacks     no stacks",
        "  GPU 0     1,024 of 2,048 MiB, 98% busy, slowed down by its power limit",
        "  kernel",
        *(f"    Xid {number}" for number in range(4, 9)),
        "  log",
        *(f"    line {number}" for number in range(89, 99)),
        "  stacks    2 lines in node-1.json",
        "node n3, rank 2: no evidence: the node is silent",
        "node n4, rank 3: its evidence has not arrived",
    ]


def test_a_request_that_ended_engines_is_in_it() -> None:
    told = {
        **report(FailureContext(FINDING, LINES, {})),
        "number": 1,
        "requests": ["POST /v1/x, 9 bytes"],
    }
    begin = "  request   POST /v1/x, 9 bytes: crashed an engine twice"
    assert any(line.startswith(begin) for line in incident_text.lines(told, {}, {}))
    del told["requests"]  # one from before an upgrade
    assert not any("request" in line for line in incident_text.lines(told, {}, {}))


def test_a_node_without_a_failure_ended_with_the_others_and_one_alone_has_no_nodes() -> None:
    told = {**report(FailureContext(FINDING, LINES, {}, nodes={"n2": 1})), "number": 1}
    nodes = {"node-1.json": evidence.document("n2", 1, NodeEvidence("s", "now"))}
    text = "\n".join(incident_text.lines(told, {"node-1.json": 1}, nodes))
    assert text.endswith("\nnode n2, rank 1, now: stopped with the others")
    alone = {**report(FailureContext(FINDING, LINES, {})), "number": 1}
    del alone["nodes"]  # one from before an upgrade
    assert not any(line.startswith("node") for line in incident_text.lines(alone, {}, {}))
