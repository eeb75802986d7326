"""A log whose lines show no writer: the engine that it names, or what lies outside of all."""

from __future__ import annotations

import pytest

from caovand.core.healing.failure import Finding
from caovand.engines.explaining.named import engine_named
from caovand.engines.writer import UNCERTAIN, answer_for, explain_log

TOO_OLD = "RuntimeError: The NVIDIA driver on your system is too old (found version 12040)."
DAEMON = (
    'Error response from daemon: could not select device driver "nvidia" with capabilities: [[gpu]]'
)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (TOO_OLD, "Host, driver or container"),
        (f"the vllm/vllm-openai image says\n{TOO_OLD}", "vLLM"),
        (f"vllm or sglang says\n{TOO_OLD}", "Host, driver or container"),
        (f"Container ollama-server Started\n{DAEMON}", "Container"),
        (
            "1. /opt/env/site-packages/sgl_kernel/sm100/common_ops.* - found files: []\n"
            "* ImportError: libnvrtc.so.12: cannot open shared object file: No such file",
            "SGLang",
        ),
    ],
)
def test_the_only_engine_that_a_log_names_wrote_it(text: str, title: str) -> None:
    found = explain_log(text)
    assert found is not None
    assert found[0].title == title


def test_a_name_within_a_word_is_none() -> None:
    assert engine_named(["ollamas and vllmx", "my_sglangs"]) == ""
    assert engine_named(["pip install vllm-omni"]) == "vllm"


def test_what_is_true_of_every_engine_is_said_of_an_uncertain_one() -> None:
    finding = Finding("backend-unsupported", TOO_OLD, signature="driver.behind", line=1)
    assert answer_for(UNCERTAIN, finding, None).heals == "no"
    shared = Finding("device-oom-load", "out of memory", signature="oom.cuda", line=1)
    assert answer_for(UNCERTAIN, shared, None).heals == "depends"


def test_an_uncertain_engine_is_not_told_the_settings_of_another() -> None:
    found = explain_log("Memory access fault by GPU node-2 on address 0x7d35. Reason: Unknown.\n")
    assert found is not None
    assert found[0].name == UNCERTAIN.name
    assert "AMD card" in found[1].advice[0]
    assert not any("in this order" in text for text in found[1].advice)
