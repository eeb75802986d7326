"""Logs from Windows or macOS, as their paths and texts show: vLLM and SGLang do not run there by
themselves, and Linux's commands do not help.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from caovand.core.engine.log import Explanation
from caovand.core.healing.failure import Finding
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
_DOWN, _CONTAINER = "ollama.client", "container.gpu"
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
    (_DOWN, "windows"): "No Ollama server answers: start its app from the start menu, or `ollama "
    "serve` in a window of its own. If it ends at once, server.log and app.log in "
    "%LOCALAPPDATA%\\Ollama say why. If it runs, something else answers in its place: `netstat "
    "-ano | findstr :11434`, `netsh interface portproxy show all`, a virtual machine that "
    "forwards the port, a proxy (NO_PROXY=localhost,127.0.0.1) or a virus scanner.",
    (_DOWN, "mac"): "No Ollama server answers: open its app (`open -a Ollama`; of Homebrew `brew "
    "services start ollama`), or run `ollama serve` in another terminal. If it ends at once, "
    "~/.ollama/logs/server.log says why. If it runs, see what listens: `lsof -nP -iTCP:11434`.",
}
"""What helps there in place of a sentence with such commands."""
_OLLAMA_PORT = "11434"
_APP = (
    "Usually it is Ollama's own app, which serves as long as its icon is there: use it, or quit it "
    "before `ollama serve`; a service of Homebrew ends with `brew services stop ollama`."
)
_STARTS_THERE = "its app, or `ollama serve`"
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
_NEEDS_CUDA = "build.toolkit"


def with_system(explanation: Explanation, name: str, lines: Sequence[str]) -> Explanation:
    """An explanation, preceded by what to do if a log of the engine `name` is from a system that it
    has no packages for."""
    finding, engine = explanation.finding, _ENGINES.get(name)
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
    commands = _COMMANDS.get((kind, system))
    if commands is None:
        texts = [text.replace(STARTS, _STARTS_THERE) for text in explanation.advice]
        return replace(explanation, advice=tuple(texts))
    own = (_APP,) if kind == _PORT and port == _OLLAMA_PORT else ()
    others = (text for text in explanation.advice if not _LINUX_COMMANDS.search(text))
    return replace(explanation, advice=(commands.format(port=port), *own, *others))


def _system(lines: Sequence[str]) -> str:
    """The system that lines are from, as far as they show it; "" otherwise."""
    found = (match for line in lines if (match := _SYSTEMS.search(line[:MAX_LINE])))
    return next((match.lastgroup or "" for match in found), "")
