"""Weights that pass through a host with less memory than the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.inventory import Host
from caovand.core.plan import Plan
from caovand.engines.vllm.command import build
from tests.core.machines import HOST, QWEN_27B_AWQ, inventory, plan, turing

SMALL = replace(HOST, ram_mib=8192, available_mib=7000, swap_mib=0)
SHARDED = replace(QWEN_27B_AWQ, largest_file=5 << 30)
IN_ONE_FILE = replace(QWEN_27B_AWQ, largest_file=QWEN_27B_AWQ.size())
STREAMED = ["--load-format", "runai_streamer"]
EAGER = ["--safetensors-load-strategy", "eager"]


def planned(*words: str, model: Any = SHARDED, host: Host = SMALL, **engine: Any) -> Plan:
    machine = inventory(model, turing(2), host=host)
    return plan(machine, engine={"extra_args": list(words), **engine})


def test_a_host_of_8_gb_loads_mapped_shards_as_they_are() -> None:
    made = planned()
    for name in ("load_format", "safetensors_load_strategy", "model_loader_extra_config"):
        assert made.value(name) is None
    assert any("pages and has to read" in text for text in made.warnings)
    assert not any("runai" in text for text in made.warnings)


def test_a_file_that_cannot_be_mapped_can_be_streamed() -> None:
    (text,) = (text for text in planned(model=IN_ONE_FILE).warnings if "unable to mmap" in text)
    assert "--load-format runai_streamer" in text
    streamed = planned(*STREAMED, model=IN_ONE_FILE)
    assert not any("mmap" in text for text in streamed.warnings)


def test_a_stream_has_a_small_buffer_where_memory_is_short() -> None:
    found = planned(*STREAMED).settings["model_loader_extra_config"]
    assert found.value == {"memory_limit": 0}
    assert "of the 7000 MiB of RAM" in found.reason
    argv = build(planned(*STREAMED), inventory().engine).argv
    assert argv[argv.index("--model-loader-extra-config") + 1] == '{"memory_limit":0}'
    large = replace(HOST, ram_mib=262144, available_mib=200000)
    own = '{"memory_limit":1073741824}'
    typed = planned(*STREAMED, "--model-loader-extra-config", own)
    assert typed.value("model_loader_extra_config") == {"memory_limit": 1 << 30}
    for other in (
        planned(*STREAMED, host=large),
        planned(*STREAMED, env={"RUNAI_STREAMER_MEMORY_LIMIT": "1000000000"}),
        planned("--load-format", "safetensors"),
    ):
        assert other.value("model_loader_extra_config") is None


@pytest.mark.parametrize(
    ("words", "host", "refused"),
    [
        (EAGER, SMALL, True),
        (EAGER, replace(SMALL, swap_mib=4096), False),  # twice 5 GiB
        (["--safetensors-load-strategy", "prefetch"], SMALL, False),
        ([*EAGER, *STREAMED], SMALL, False),
    ],
)
def test_files_read_whole_need_memory_in_each_process(
    words: list[str], host: Host, refused: bool
) -> None:
    made = planned(*words, host=host)
    found = [text for text in made.warnings if "cannot use --safetensors-load-strategy" in text]
    assert bool(found) is refused
    if refused:
        assert "2 processes would hold the largest file, 5120 MiB" in found[0]
        assert found[0].endswith("remove it: by default vLLM maps the files")


def test_pickled_weights_need_memory_for_whole_files() -> None:
    pickled = replace(SHARDED, pickled=True)
    (text,) = (text for text in planned(model=pickled).warnings if "cannot load pickled" in text)
    assert "2 processes would hold the largest file, 5120 MiB" in text
    assert "get the checkpoint in safetensors files" in text
    enough = replace(HOST, ram_mib=32768, available_mib=30000)
    for made in (
        planned(model=pickled, host=enough),
        planned("--load-format", "dummy", model=pickled),
    ):
        assert not any("pickled" in text for text in made.warnings)
    one_file = planned(model=replace(IN_ONE_FILE, pickled=True))
    assert not any("mmap" in text for text in one_file.warnings)


def test_a_file_is_copied_to_a_card_only_where_it_fits_next_to_the_weights() -> None:
    words = ["--load-format", "fastsafetensors"]
    (text,) = (text for text in planned(*words, model=IN_ONE_FILE).warnings if "copies" in text)
    assert "cannot use --load-format fastsafetensors" in text
    assert f"the largest of {IN_ONE_FILE.largest_file >> 20} MiB" in text
    assert not any("copies" in text for text in planned(*words).warnings)
    assert not any("copies" in text for text in planned(model=IN_ONE_FILE).warnings)
