"""Logs from Windows or macOS, as their paths and texts show: some engines have no packages there,
and Linux's commands do not help.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from caovand.core.engine.log import Explanation
from caovand.core.healing.failure import Finding
from caovand.engines import registry
from caovand.engines.common.logs.rows.unreached import STARTS
from caovand.engines.common.logs.signature import MAX_LINE

_SYSTEMS = re.compile(
    r"(?P<windows>(?<![A-Za-z])[A-Za-z]:\\{1,2}[\w. -]{1,60}\\|\bwin_amd64\b|\bWinError \d"
    r"|^PS [A-Z]:\\|\bOnly one usage of each socket address|\bwsarecv: |\bconnectex: )"
    r"|(?P<mac>(?<!\w)/Users/[\w. -]{1,60}/|/(?:private/)?var/folders/|\bmacosx_\d|\bmacOS-\d"
    r"|\bMacBook-(?:Pro|Air)\b|\bApple M\d\b|/opt/homebrew/)"
)
_PACKAGE_ROWS = (
    "build.toolkit", "build.failed", "build.compiler", "build.source", "python.install",
    "python.wheel", "python.abi", "python.triton", "python.cpu", "engine.broken",
    "gpu.absent", "sglang.absent", "model.uninspected",
)  # fmt: skip
"""Rows of what those systems lack: wheels, compiled parts, CUDA."""
_ADVICE = {
    "windows": "These lines are from Windows, where {engine} is not to be had: install it in "
    "WSL2 (wsl --install, then pip in Ubuntu), or run its image with Docker Desktop. Python and "
    "CUDA for Windows do not help.",
    "mac": "These lines are from macOS, which has no CUDA, and {engine} needs it to be installed "
    "with pip. Serve from Linux with a card, or use llama.cpp, Ollama or MLX on the Mac; vLLM also "
    "runs slowly on its CPU, if built from its sources (requirements/cpu.txt, pip install "
    "-e .).",
}


_LINUX_COMMANDS = re.compile(r"`ss -l|systemctl|journalctl")
"""Commands that those systems lack."""
_CONTAINER = "container.gpu"
_PORT = "port"
_COMMANDS: Mapping[tuple[str, str], str] = {
    (_PORT, "windows"): "Another program listens on port {port}: `netstat -ano | findstr :{port}` "
    "shows the number of its process, and the Task Manager its name. End it, or set another port.",
    (_PORT, "mac"): "Another program listens on port {port}: `lsof -nP -iTCP:{port} -sTCP:LISTEN` "
    "names it. End it, or set another port.",
    (_CONTAINER, "windows"): "Docker Desktop could not give the container a card: install the "
    "current NVIDIA driver in Windows, choose the WSL 2 engine (Settings, General), run `wsl "
    "--update`, and restart it; `docker run --rm --gpus all ubuntu nvidia-smi` must then list the "
    "card. Its daemon has a runtime nvidia only if Settings, Docker Engine lists one "
    '("runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}): add it there, or in the '
    "Compose file replace `runtime: nvidia` by deploy.resources.reservations.devices.",
    (_CONTAINER, "mac"): "Docker on macOS has no card to pass to a container: leave out --gpus and "
    "`runtime: nvidia`, and run the engine outside of Docker, where it uses Metal (Ollama, "
    "llama.cpp, LM Studio).",
}
"""What helps there in place of a sentence with such commands."""
_STARTS_THERE = "its app, or `ollama serve`"
_NEEDS_CUDA = "build.toolkit"


def with_system(explanation: Explanation, name: str, lines: Sequence[str]) -> Explanation:
    """An explanation, preceded by what to do if a log of the engine `name` is from a system that it
    has no packages for."""
    finding = explanation.finding
    linux_only = {one.name: one.title for one in registry.engines() if one.log.linux_only}
    engine = linux_only.get(name)
    if finding is not None and finding.signature == _CONTAINER and (system := _system(lines)):
        return replace(explanation, advice=(_COMMANDS[_CONTAINER, system],))
    if finding is not None and any(map(_LINUX_COMMANDS.search, explanation.advice)):
        return _without_linux(explanation, finding, lines)
    if finding is None or finding.signature not in _PACKAGE_ROWS:
        return explanation
    if engine is None and (name or finding.signature != _NEEDS_CUDA):
        return explanation
    if not (system := _system(lines)):
        return explanation
    first = _ADVICE[system].format(engine=engine or "this package")
    return replace(explanation, advice=(first, *explanation.advice))


def _without_linux(explanation: Explanation, finding: Finding, lines: Sequence[str]) -> Explanation:
    """An explanation whose commands are those of the system that the lines are from."""
    system = _system(lines)
    if not system:
        return explanation
    port = finding.captures.get("port", "")
    kind = _PORT if finding.failure == "port-busy" and port else finding.signature
    own: dict[tuple[str, str], str] = {}
    for engine in registry.engines():
        own |= engine.log.on_systems
    commands = {**_COMMANDS, **own}.get((kind, system))
    if commands is None:
        texts = [text.replace(STARTS, _STARTS_THERE) for text in explanation.advice]
        return replace(explanation, advice=tuple(texts))
    owner = own.get((f":{port}", system)) if kind == _PORT else None
    others = (text for text in explanation.advice if not _LINUX_COMMANDS.search(text))
    first = (commands.format(port=port), *filter(None, [owner]))
    return replace(explanation, advice=(*first, *others))


def _system(lines: Sequence[str]) -> str:
    """The system that lines are from, as far as they show it; "" otherwise."""
    found = (match for line in lines if (match := _SYSTEMS.search(line[:MAX_LINE])))
    return next((match.lastgroup or "" for match in found), "")
