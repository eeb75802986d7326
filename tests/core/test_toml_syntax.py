"""TOML errors are explained identically for every version of the parser."""

from __future__ import annotations

import pytest

from caovand.core.config.toml_syntax import explain_syntax_error


@pytest.mark.parametrize(
    "message", ["Unescaped '\\' in a string", "Invalid hex value"], ids=["TOML 1.0", "TOML 1.1"]
)
def test_a_backslash_in_quotes_is_explained_by_both_grammars(message: str) -> None:
    found = explain_syntax_error('[model]\npath = "C:\\x"\n', f"{message} (at line 2, column 13)")
    assert found.startswith("line 2: a backslash in")
