"""What llama.cpp and Ollama offer for a model that vLLM cannot serve on a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.core.facts.inventory import Gpu, Host, ModelCard, Weights
from caovand.engines.llamacpp.planning.alternative import alternative
from caovand.engines.ollama.planning.alternative import alternative as of_ollama
from tests.core.machines import LLAMA_70B_AWQ, QWEN_27B, turing
from tests.engines.llamacpp.machines import QWEN_8B

HOST = Host(ram_mib=65536, available_mib=60000, swap_mib=0, shm_mib=32768, cpus=8)
RTX_4060 = (Gpu(0, "NVIDIA GeForce RTX 4060", (8, 9), 8188, 7900),)
GIB = 1 << 30
AWQ_70B = replace(
    LLAMA_70B_AWQ,
    path="/srv/models/casperhansen--Llama-3.3-70B-Instruct-AWQ",
    weights=(
        Weights("embedding", "sharded", "F16", 2 * GIB), Weights("head", "sharded", "F16", 2 * GIB),
        Weights("layers", "sharded", "I32", 32 * GIB),
    ),
)  # fmt: skip


def offered(
    model: ModelCard, gpus: tuple[Gpu, ...], host: Host = HOST, tokens_s: float = 0.0
) -> tuple[str, str]:
    found = alternative(model, gpus, host, tokens_s)
    return (found[0].text, found[0].remedy) if found else ("", "")


def test_70b_on_8_gb_is_shared_with_the_host() -> None:
    text, remedy = offered(AWQ_70B, RTX_4060)
    assert "about 40 GiB" in text
    assert "of its 81 layers on the GPU" in text
    assert "search the hub for Llama-3.3-70B-Instruct-GGUF" in remedy


def test_what_fits_the_card_is_all_there() -> None:
    """Qwen3.6-27B-Q4_K_M.gguf as publishers have it has some 15.4 GiB."""
    text, _ = offered(QWEN_27B, turing(1))
    assert "about 15 GiB, all on the GPU" in text


def test_what_serves_nearly_as_fast_is_left_alone() -> None:
    assert offered(AWQ_70B, RTX_4060, tokens_s=0.1)[0]
    assert not offered(AWQ_70B, RTX_4060, tokens_s=0.4)[0]


def test_what_is_fast_enough_to_be_read_is_left_alone() -> None:
    """Two cards that have all of a file of 15 GiB make it far faster than twice these paces."""
    assert offered(QWEN_27B, turing(2), tokens_s=9.0)[0]
    assert not offered(QWEN_27B, turing(2), tokens_s=10.0)[0]


def test_of_a_small_model_the_size_has_a_decimal_and_of_a_tiny_one_nothing_is_offered() -> None:
    def sized(mib: int) -> ModelCard:
        return replace(AWQ_70B, weights=(Weights("layers", "sharded", "F16", mib << 20),))

    assert "about 0.6 GiB, all on the GPU" in offered(sized(2048), RTX_4060)[0]
    assert not offered(sized(300), RTX_4060)[0], "not even if its engine cannot serve it"


def test_older_cards_are_for_ollama_which_has_code_for_them() -> None:
    p40 = Gpu(0, "Tesla P40", (6, 1), 24576, 24000)
    assert alternative(QWEN_27B, (p40,), HOST, 0.0) == ()
    (found,) = of_ollama(QWEN_27B, (p40,), HOST, 0.0)
    assert (
        "Ollama would serve it from a GGUF file of type Q4_K_M, about 15 GiB, all on the GPU"
        in found.text
    )
    assert 'kind = "ollama"' in found.remedy
    assert of_ollama(QWEN_27B, (p40, replace(turing(1)[0], index=1)), HOST, 0.0) == ()
    assert of_ollama(QWEN_27B, (), HOST, 0.0) == ()


def test_without_a_card_it_is_in_host_memory_whose_speed_counts() -> None:
    slow, _ = offered(AWQ_70B, (), replace(HOST, memory_gb_s=20.0))
    fast, _ = offered(AWQ_70B, (), replace(HOST, memory_gb_s=200.0))
    assert "in host memory: 0.4 tokens/s" in slow
    assert " 3.6 tokens/s" in fast


@pytest.mark.parametrize(
    ("card", "host"),
    [
        (AWQ_70B, replace(HOST, ram_mib=32768, available_mib=30000)),  # too small for that as well
        (QWEN_8B, HOST),  # it is a GGUF file
        (replace(AWQ_70B, model_type="unheard_of"), HOST),
        (replace(AWQ_70B, weights=()), HOST),
    ],
)
def test_nothing_is_offered_that_would_not_run(card: ModelCard, host: Host) -> None:
    assert alternative(card, RTX_4060, host, 0.0) == ()
