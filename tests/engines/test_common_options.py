"""Verbatim options as llama.cpp and SGLang read them."""

from __future__ import annotations

from types import ModuleType

import pytest

from caovand.engines.llamacpp.planning import options as llamacpp
from caovand.engines.sglang import options as sglang


@pytest.mark.parametrize("options", [llamacpp, sglang])
def test_a_key_with_an_equals_sign_is_hidden_whole(options: ModuleType) -> None:
    """Keys are often base64, which ends in one."""
    words = ("--api-key", "c2Vj=cmV0")
    assert options.secret_values(words) == options.api_keys(words) == ("c2Vj=cmV0",)
    assert options.redact(words) == ("--api-key", "***")


def test_a_key_after_an_equals_sign_is_hidden() -> None:
    words = ("--api-key=c2VjcmV0=",)
    assert sglang.api_keys(words) == ("c2VjcmV0=",)
    assert sglang.redact(words) == ("--api-key=***",)


def test_only_llama_server_takes_several_keys_at_once() -> None:
    words = ("--api-key", "one,two")
    assert llamacpp.api_keys(words) == ("one", "two")
    assert sglang.api_keys(words) == ("one,two",)
