"""Advice on Ollama's registry, its commands, its clients, and the address of its server."""

from __future__ import annotations

from collections.abc import Mapping

_FASTER = (
    "Or make answers faster: a smaller model, a shorter prompt or answer (num_predict), or a card, "
    "if `ollama ps` shows that the model runs on the CPU."
)
REGISTRY: Mapping[str, tuple[str, ...]] = {
    "ollama.pull.ended": (
        "The registry's network cut the pull short; no setting of the server and no card is at "
        "fault. Run `ollama pull` again: it keeps what is there. If it ends so every time, the way "
        "to the registry is at fault: try without VPN or virus scanner, check HTTPS_PROXY of the "
        "server (not of the shell), or use another network; a model from hf.co can be downloaded "
        "there as a GGUF file (`hf download`) and named in FROM of a Modelfile.",
    ),
    "ollama.gave-up": (
        "A client closed its connection {times} times before the answer was complete, and Ollama "
        "stopped computing it: the client's time-out, or that of a proxy between, is shorter than "
        "an answer takes. Raise it, as the client's page says.",
        _FASTER,
    ),
    "ollama.timed-out": (
        "The request ended after exactly {time}, as a client's time-out or that of a proxy between "
        "ends it: raise that, as the client's page says.",
        _FASTER,
    ),
    "ollama.sharded": (
        "The repository has the model as a GGUF file in several parts, which this Ollama does not "
        "pull: download all parts, join them (`llama-gguf-split --merge FIRST-PART whole.gguf` of "
        "llama.cpp), and name the result in FROM; or run the parts with llama-server as they are; "
        "or choose a quantization or repository with one file.",
    ),
    "ollama.create": (
        "The server is older than what the client sends ({server}; fields of /api/create that came "
        "with 0.5.5): install a newer Ollama there (a fork such as ipex-llm's: its newest), or "
        "send the field modelfile.",
        "The client is older than the server ({client}: since 0.5.5 /api/create takes from or "
        "files in place of modelfile): update the client or its library (pip install -U ollama).",
    ),
    "ollama.model.unknown": (
        "The registry or this server has no such model: correct its name and tag (`ollama list` "
        "shows what is there; a client sends the name that is set in it), then pull it (`ollama "
        "pull`), on the server that the client asks.",
    ),
    "ollama.address": (
        "This machine has no address {host}, or not yet when the service starts: set OLLAMA_HOST "
        "of the server to 0.0.0.0 or an address of this machine (`ip addr`), and set the address "
        "of another machine for the client only.",
        "OLLAMA_HOST is malformed ({form}): let it be an address and a port with one plain colon "
        "between (0.0.0.0:11434), or the address alone.",
        "OLLAMA_HOST is malformed ({asked}): let it be an address and a port with one plain colon "
        "between (0.0.0.0:11434), or the address alone.",
        "OLLAMA_HOST is malformed ({named}): let it be an address and a port with one plain colon "
        "between (0.0.0.0:11434), or the address alone.",
    ),
    "ollama.cloud": (
        "That is a model of Ollama's cloud, or a push, which need an account: `ollama signin` as "
        "the user that runs the server, whose key counts (in its container: `docker exec -it "
        "ollama ollama signin`), then pull the model again, with a plan whose limit is not used "
        "up. A client that asks https://ollama.com itself needs an API key (OLLAMA_API_KEY). Or "
        "use a model that runs here.",
    ),
    "ollama.plain": (
        "The registry speaks HTTP without TLS: pass --insecure to `ollama pull` or `push`.",
    ),
    "ollama.modelfile": (
        "A line of the file begins with none of a Modelfile's words ({words}): -f names another "
        "file (such as the GGUF file itself, whose path belongs behind FROM); its first line is a "
        "stray message; PowerShell's > saved it as UTF-16 (save it as UTF-8); or a text of several "
        "lines lacks its triple quotes. Write FROM as its first line.",
        "The Modelfile or its template is refused: correct what the line names.",
    ),
    "ollama.modelfile.typed": (
        "{word} is no command of the shell, but the first line of a file: write `FROM ./FILE.gguf` "
        "into a file with the name Modelfile, then run `ollama create NAME -f Modelfile`.",
        "{typed} is no command of the shell, but the first line of a file: write `FROM "
        "./FILE.gguf` into a file with the name Modelfile, then run `ollama create NAME -f "
        "Modelfile`.",
    ),
    "ollama.app": (
        "The server that the desktop app starts crashes ({crash}), which no port or setting does: "
        "install the current Ollama over it, then the card's newest driver and Microsoft's Visual "
        "C++ runtime; see that no ggml library of another program is on PATH. server.log next to "
        "app.log shows how far it came.",
        "The server that the desktop app starts ends at once ({status}): its own log (server.log, "
        "next to app.log) or `ollama serve` in a terminal says why; most often the port is taken "
        "or reserved, or the installation is broken.",
    ),
    "ollama.silent": (
        "The server answered with an error and without a reason, which its own log has: "
        "`journalctl -u ollama -e`, macOS ~/.ollama/logs/server.log, Windows "
        "%LOCALAPPDATA%\\Ollama\\server.log. If that shows no request at this time, another "
        "program or a proxy answers at OLLAMA_HOST: set NO_PROXY=localhost,127.0.0.1 for "
        "`ollama`. If it shows one and no error, install the current Ollama over this one.",
    ),
    "ollama.mlx.mixed": (
        "The library for MLX is of another release of Ollama than the program that loads it: two "
        "installations are mixed, such as /usr/local/bin/ollama and Ollama.app. Remove both, and "
        "install the current one whole. Models in GGUF files do without MLX.",
    ),
    "ollama.create.infinite": (
        "What was read is no JSON. At `ollama create` from a folder it is a .json file of the "
        "model that holds Infinity, which Go does not read: replace it by a large number, convert "
        "the model with llama.cpp's convert_hf_to_gguf.py, or take the library's own tag. At other "
        "commands a proxy or another program answered (Internal Server Error): see the server's "
        "log, and set NO_PROXY=localhost,127.0.0.1.",
    ),
    "ollama.client.cut": (
        "The server ended while it answered /api/{call}, and only its own log shows why: "
        "`journalctl -u ollama -e`, macOS ~/.ollama/logs/server.log, Windows "
        "%LOCALAPPDATA%\\Ollama\\server.log. Usually a release that crashes on this card or model: "
        "install the current Ollama, then the card's newest driver; if it comes back, lower "
        "num_ctx, or see with num_gpu 0 whether the card is at fault.",
    ),
    "ollama.capability": (
        "The model does not {write}, as an embedding model: ask it by /api/embed (or "
        "/v1/embeddings; `ollama pull` is enough, `ollama run` only chats), and choose another "
        "model for chat. If it is one for chat, its import lost the template: take the library's "
        "tag, or write TEMPLATE in its Modelfile.",
        "The model only embeds ({embedding}): ask it by /api/embed (or /v1/embeddings), and choose "
        "another model for chat.",
        "The model's template does not declare {what}: choose a model whose page lists that "
        "capability, or do not request it in the client. `ollama show` lists what the pulled tag "
        "has, which a small one may lack, and an old one until it is pulled again. A model that "
        "was imported from files has only the template of its Modelfile: take the library's tag, "
        "or write there what that shows (`ollama show --modelfile`).",
    ),
}
"""Sentences by signature; one with an unknown {name} is left out."""
