"""A program that claims to be an engine's Python may answer anything: a problem, never a
traceback."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.adapters.engine import probe
from caovand.adapters.engine.probe import EngineMissing, probe_engine
from caovand.core.engine.probe import MARK, ProbeScripts
from caovand.engines.llamacpp.probe import PROBE as LLAMACPP
from caovand.engines.ollama.probe import PROBE as OLLAMA
from caovand.engines.sglang.probe import PROBE as SGLANG
from caovand.engines.vllm.probe import PROBE as VLLM

PROBES = {"vllm": VLLM, "sglang": SGLANG, "llamacpp": LLAMACPP, "ollama": OLLAMA}
KEYS = ["stamp", "executable", "vllm", "torch", "sglang", "cuda", "version", "python_version",
        "flashinfer", "nccl", "help", "build", "flags", "choices", "cards", "kernels"]  # fmt: skip
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 9),
    st.text(max_size=3),
    st.just([1]),
    st.just({"a": 1}),
)


@pytest.mark.parametrize("asks", PROBES.values(), ids=PROBES)
@given(answers=st.tuples(*[st.dictionaries(st.sampled_from(KEYS), VALUES)] * 2))
def test_any_table_is_an_engine_or_a_problem(
    asks: ProbeScripts, answers: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        told = iter(answers)
        patch.setattr(probe._Environment, "run_probe", lambda *_: dict(next(told)))
        with contextlib.suppress(EngineMissing):
            probe_engine(asks, "/e/bin/python", None)


@pytest.mark.parametrize("said", ["[]", "null", "7", '"x"', "{", "[" * 100_000, "{}"])
def test_whatever_it_prints_is_an_engine_or_a_problem(said: str, tmp_path: Path) -> None:
    (tmp_path / "said").write_text(MARK + said)
    script = f"print(open({str(tmp_path / 'said')!r}).read())"
    with pytest.raises(EngineMissing, match=r"as the engine: .*; (repair|install)"):
        probe_engine(replace(LLAMACPP, versions=script), sys.executable, None)


def test_an_answer_without_the_program_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"stamp": [], "version": "1", "cuda": False, "python_version": "3.11"}
    monkeypatch.setattr(probe._Environment, "run_probe", lambda *_: json.loads(json.dumps(whole)))
    with pytest.raises(EngineMissing, match=r"cannot be parsed .KeyError: 'executable'"):
        probe_engine(LLAMACPP, "/e/bin/python", None)
