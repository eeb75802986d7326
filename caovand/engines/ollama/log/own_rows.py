"""What Ollama's own rows mean for its server, and advice on those of its client."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.engine.log import OwnRows
from caovand.engines.common.logs.rows.unreached import IN_CONTAINER

CLIENT = "ollama.client"
OWN_ROWS = OwnRows(
    prefix="ollama.",
    requests=(
        "ollama.request.context", "ollama.request.image", "ollama.tool-call", "ollama.cloud",
        "ollama.canceled", "ollama.parallel", "ollama.family.context", "ollama.family.busy",
    ),
    commands=frozenset({
        "ollama.capability", "ollama.context-cut", "ollama.model.unknown", "ollama.model.newer",
        "ollama.hub.denied", "ollama.modelfile", "ollama.import", "ollama.model.unsupported",
        "ollama.family.import", "ollama.template", "ollama.origin", "ollama.file", "ollama.plain",
        "ollama.family.refused", "ollama.gave-up", "ollama.timed-out",
    }),
    client=(CLIENT,),
)  # fmt: skip
_APP = (
    "Usually it is Ollama's own app, which serves as long as its icon is there: use it, or quit it "
    "before `ollama serve`; a service of Homebrew ends with `brew services stop ollama`."
)
NO_SERVER = (
    "No Ollama server answers: start it (`sudo systemctl start ollama`, or `ollama serve`). If "
    "it was installed or started just before, it ended at once, and its own log says why: "
    "`systemctl status ollama`, `journalctl -u ollama -e` (macOS ~/.ollama/logs/server.log, "
    "Windows %LOCALAPPDATA%\\Ollama\\server.log). " + IN_CONTAINER
)
ON_SYSTEMS: Mapping[tuple[str, str], str] = {
    (CLIENT, "windows"): "No Ollama server answers: start its app from the start menu, or `ollama "
    "serve` in a window of its own. If it ends at once, server.log and app.log in "
    "%LOCALAPPDATA%\\Ollama say why. If it runs, something else answers in its place: `netstat "
    "-ano | findstr :11434`, `netsh interface portproxy show all`, a virtual machine that "
    "forwards the port, a proxy (NO_PROXY=localhost,127.0.0.1) or a virus scanner.",
    (CLIENT, "mac"): "No Ollama server answers: open its app (`open -a Ollama`; of Homebrew `brew "
    "services start ollama`), or run `ollama serve` in another terminal. If it ends at once, "
    "~/.ollama/logs/server.log says why. If it runs, see what listens: `lsof -nP -iTCP:11434`.",
    (":11434", "windows"): _APP,
    (":11434", "mac"): _APP,
}
