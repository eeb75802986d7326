"""The package that was compiled for another NumPy is named by the traceback, on either side."""

from __future__ import annotations

import pytest

from caovand.engines.writer import explain_log

MESSAGE = "ImportError: A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.2.6"
TRACE = """Traceback (most recent call last):
  File "/opt/env/lib/python3.12/site-packages/PACKAGE/__init__.py", line 3, in <module>
    import one
  File "/opt/env/lib/python3.12/site-packages/numpy/core/__init__.py", line 8, in __getattr__
    raise ImportError(message)"""


@pytest.mark.parametrize("package", ["vllm", "sglang", "thinc"])
@pytest.mark.parametrize("first", [MESSAGE, TRACE])
def test_the_traceback_names_the_package(package: str, first: str) -> None:
    rest = TRACE if first == MESSAGE else MESSAGE
    found = explain_log(f"{first}\n{rest}\n".replace("PACKAGE", package))
    assert found is not None
    advice = " ".join(found[1].advice)
    assert "numpy<2" in advice
    assert f"that package is {package}, or one that it imports" in advice
