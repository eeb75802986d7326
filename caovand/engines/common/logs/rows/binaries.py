"""Packages compiled for another C library, cuDNN or NumPy than the installed one: rows for any
engine in Python."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from caovand.engines.common.logs.signature import MAX_LINE, signature

NUMPY = "engine.numpy"
"""The row that `numpy_user` completes."""
ROWS = (
    signature(NUMPY, "cause", "bad-arguments",
         r"compiled using NumPy (?P<older>1\.x) cannot be run in"
         r"|(?P<narrow>numpy\.dtype) size changed.{0,80}Expected 96 from C header, got 88\b"
         r"|(?P<newer>numpy\.\w{1,20}) size changed"
         r"|module (?:was )?compiled against (?:NumPy C-)?(?:API|ABI) version "
         r"(?P<wanted>0x[\da-f]{1,8}) (?:\(.{0,60}\) )?but (?:this version of numpy|the running "
         r"NumPy) (?:is|has C-API version) (?P<running>0x[\da-f]{1,8})"
         r"|`(?P<removed>np\.\w{1,40})` was removed in the NumPy 2\.0 release"
         r"|^ModuleNotFoundError: No module named '(?:(?P<made>numpy\._core(?:\.\w{1,60}){0,3})"
         r"|(?P<gone>numpy\.(?:lib|compat|array_api)(?:\.\w{1,60}){0,3}))'"),
    signature("engine.libc", "cause", "bad-arguments",
         r"version `(?P<symbols>(?:GLIBC|GLIBCXX|CXXABI)_[\d.]{1,12})' not found"
         r"|cuDNN version incompatibility|CUDNN_STATUS_SUBLIBRARY\w{1,40}"),
)  # fmt: skip
_FOR_NUMPY_1 = (
    "pip install 'numpy<2' into the engine's environment, if everything there takes it (`pip "
    "check`), or upgrade the package to a build for NumPy 2."
)
ADVICE: Mapping[str, tuple[str, ...]] = {
    NUMPY: (
        "A package was compiled for NumPy {older}, and NumPy 2 is installed: " + _FOR_NUMPY_1,
        "A package was compiled for NumPy 1, where {narrow} is larger, and NumPy 2 is installed: "
        + _FOR_NUMPY_1,
        "A package uses {removed}, which NumPy 2 no longer has: " + _FOR_NUMPY_1,
        "A package imports {gone}, which NumPy 2 no longer has: " + _FOR_NUMPY_1,
        "A package, or a file that it reads, was made with NumPy 2, which has {made}, and NumPy 1 "
        "is installed: pip install 'numpy>=2', if everything there takes it (`pip check`), or "
        "install the release of the package for NumPy 1.",
        "A package was compiled for a newer NumPy than the installed one, where {newer} has "
        "another size: pip install --upgrade numpy as far as the engine's requirements allow, or "
        "install an older release of the package.",
        "A package was compiled for NumPy's interface {wanted}, and the installed NumPy has "
        "{running}: where the installed one is the newer (0x2000000 is NumPy 2), pip install "
        "'numpy<2' or upgrade the package; else upgrade NumPy.",
        "By the traceback that package is {module}, or one that it imports.",
    ),
    "engine.libc": (
        "The engine's packages were built for another system ({symbols} is missing): use a release "
        "built for this distribution, or a container.",
        "Packages of the engine were built for another cuDNN or C library: reinstall it in its own "
        "environment.",
    ),
}
"""Sentences by row; one with an unknown {name} is left out."""
_MAX_FRAMES = 60
"""Lines before and after the message in which its traceback may be: NumPy prints it after it."""
_PACKAGE = re.compile(r" {0,8}File \"[^\"]{1,300}-packages/(?!numpy\b|_)(?P<package>\w{1,60})[/.]")


def numpy_user(lines: Sequence[str], at: int) -> Mapping[str, str]:
    """The package that asked for NumPy, by the last frame before the message `at`, else after."""
    for near in (lines[max(at - _MAX_FRAMES, 0) : at], lines[at + 1 : at + 1 + _MAX_FRAMES]):
        found = [frame for line in near if (frame := _PACKAGE.search(line[:MAX_LINE]))]
        if found:
            return {"module": found[-1]["package"]}
    return {}
