"""Run by a Python with torch: reads command lines with SGLang's own parser.

    ENGINE/bin/python real_parser.py SOURCES < LINES

SOURCES has SGLang's Python files. LINES is JSON: a list of lists of words. It prints, as JSON, what
the parser makes of each: values by name, or its refusal. Packages that this Python lacks, compiled
ones among them, are empty: the parser calls none of them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
import types
from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

LACKING = ("sgl_kernel", "triton", "torchcodec", "orjson", "IPython")


class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes modules that have every name; asked last, so only for what is not installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in LACKING:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        made = MagicMock(name=spec.name, __path__=[], __spec__=spec, __version__="9.9.9")
        made.__name__ = spec.name
        if spec.name == "triton":
            made.runtime.driver.active.get_current_target.return_value.backend = "cpu"
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # libraries talk on stdout while they are imported
    # these ask which packages there are, and keep the answers
    import tvm_ffi  # noqa: F401, PLC0415
    from transformers import AutoConfig, AutoProcessor  # noqa: F401, PLC0415

    # a newer transformers than SGLang's has some of the models that SGLang adds to it
    AutoConfig.register = lambda *words, **more: None
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.append(Empty())
    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found] # noqa: PLC0415

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    found = [read(parser, words) for words in json.load(sys.stdin)]
    os.write(out, json.dumps(found).encode())
    sys.stdout.flush()
    os._exit(0)


def read(parser: argparse.ArgumentParser, words: list[str]) -> dict[str, Any]:
    refusal = io.StringIO()
    with contextlib.redirect_stderr(refusal):
        try:
            values = vars(parser.parse_args(words))
        except SystemExit:
            return {"refused": refusal.getvalue().strip().rpartition("\n")[2]}
    plain = (str, int, float, bool, type(None))
    return {name: value for name, value in values.items() if isinstance(value, plain)}


if __name__ == "__main__":
    main()
