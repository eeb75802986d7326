"""Advice for people about a failure of Ollama, in sentences with the values from its log.

The settings to change come from the ladder's tables, in its order and words.
"""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.healing.failure import Failure
from caovand.core.healing.rung import Rung
from caovand.engines.common.healing.advice import adviser
from caovand.engines.common.healing.advice_ggml import OTHER_KINDS
from caovand.engines.ollama.healing.advice_cards import CARDS
from caovand.engines.ollama.healing.advice_registry import REGISTRY
from caovand.engines.ollama.healing.cures import HEALING
from caovand.engines.ollama.log.own_rows import CLIENT, NO_SERVER, OWN_ROWS
from caovand.engines.ollama.planning.variables import CONTEXT

_OLD_SERVER = (
    "The server that answers is still release {server}, though {client} is installed: restart it "
    "(`sudo systemctl restart ollama`; quit the app in the tray or menu bar, and open it; make the "
    "container anew from the new image). If it stays, another old one has the port: find it with "
    "`ss -ltnp | grep 11434` or `ps aux | grep ollama` (a former installation, Homebrew, snap, "
    "WSL), and end it."
)
# One row for each failure with its own text; a sentence with an unknown {name} is dropped.
_GENERAL: Mapping[Failure, tuple[str, ...]] = {
    "device-oom-load": (
        "The card's free memory does not hold the model: pull a tag quantised to fewer bits, "
        "lower num_ctx, or check with nvidia-smi what else uses the card.",
    ),
    "device-oom-capture": (
        "The card has no memory left for the buffers of a step: Ollama's estimate was too low. "
        "Keep some free with OLLAMA_GPU_OVERHEAD (bytes, such as 1073741824), or lower num_ctx.",
    ),
    "host-oom": (
        "The machine has too little memory: {wanted} are needed, {free} are free. If the server "
        "runs in Docker Desktop or WSL and the machine has more, the limit is that of the virtual "
        "machine: raise it (Settings, Resources; memory= in .wslconfig), or the container's.",
        "The model needs {size} of memory, more than the machine has with its cards.",
        "Close other programs, add memory or swap, or pull a tag quantised to fewer bits.",
    ),
    "backend-unsupported": ("This Ollama has no kernels for the card: install a newer release.",),
    "bad-arguments": ("Ollama cannot run this model with these settings.",),
    "model-missing": ("The model cannot be read: remove it and pull it again (`ollama pull`).",),
    "access-denied": (
        "Windows refused the runner a file ({windows}, access denied): an antivirus program or a "
        "policy (AppLocker, controlled folder access) blocks it, or the folder is closed to this "
        "user. Except Ollama's folders from it (%LOCALAPPDATA%\\Programs\\Ollama, the "
        "models' folder), install the current release again, and start it as the user who "
        "installed it.",
        "Let the engine's user read {path} and the folders above it, or set OLLAMA_MODELS in"
        " [engine] env to a folder that it may read.",
    ),
    "port-busy": (
        "Another program listens on port {port}: `ss -ltnp` names it. `sudo systemctl disable "
        "--now ollama` ends Ollama's own service.",
    ),
    "start-stall": (
        "The model's runner did not come up in time: raise OLLAMA_LOAD_TIMEOUT (such as 30m) for a "
        "large model or a slow disk; if the machine swaps meanwhile (`free -h`), the model is too "
        "large for its memory.",
    ),
    "engine-died": ("A runner ended by itself, or something killed it; the line shows how.",),
}
_SPECIAL: Mapping[str, tuple[str, ...]] = {
    **CARDS,
    **REGISTRY,
    CLIENT: (NO_SERVER,),
    "ollama.cuda.oom": (
        "The card has too little free memory for weights, cache and buffers together: pull a tag "
        "quantised to fewer bits, lower num_ctx, or check with nvidia-smi what else uses the card.",
    ),
    "ollama.digest": (
        "Nothing arrived of the file ({empty} is the sum of no bytes): the disk of the models is "
        "full, the server may not write there, or a proxy or virus scanner kept the answer. See "
        "`df -h`, then pull again; behind a proxy set HTTPS_PROXY for the server, or use a "
        "network without it.",
        "What arrived is not what the registry has ({got}...): Ollama has deleted it, so pull "
        "again. If it comes back, something alters the download on its way (a proxy that inspects "
        "traffic, a virus scanner, a VPN: use another network, or except registry.ollama.ai and "
        "r2.cloudflarestorage.com), or the disk or memory of this machine is faulty (another "
        "folder in OLLAMA_MODELS; memtest).",
    ),
    "ollama.model.damaged": (
        "The downloaded model is damaged or incomplete: remove it (`ollama rm`) and pull it again.",
    ),
    "ollama.model.metadata": (
        "The GGUF file lacks a value ({kind}) that this Ollama reads for its architecture: it was "
        "converted by an older or another tool. Convert it again with the newest llama.cpp, take "
        "the library's own tag of the model, or install a newer Ollama.",
    ),
    "ollama.model.vocabulary": (
        "The model's vocabulary cannot be read ({why}): it was converted without its own "
        "tokenizer, or by a converter that does not know it. Convert it again with the newest "
        "llama.cpp from a folder with all tokenizer files, pull the library's tag, or install a "
        "newer Ollama.",
    ),
    "ollama.runner.unpacked": (
        "Ollama may not write {path}, where this release unpacks its runners: restart the server "
        "(`sudo systemctl restart ollama`), so that it makes a new folder, and run one server "
        "alone, as one user; if it comes back, name another folder in OLLAMA_TMPDIR. Newer "
        "releases unpack nothing: install the current one.",
    ),
    "ollama.access.home": (
        "The server may not use {path}, in a folder of homes. A unit with ProtectHome= hides them "
        "whatever their permissions are, and several distributions' ollama.service has it: "
        "`systemctl show -p ProtectHome -p User ollama`. If it is not no, write ProtectHome=no "
        "under [Service] in `sudo systemctl edit ollama`, and restart it.",
        "If it is no, the permissions are at fault: the user ollama must pass every folder above, "
        "and a person's home usually lets nobody else pass (750). `namei -l {path}` shows "
        "which; `sudo chmod o+x` it, and let that user own the models' folder (`sudo chown -R "
        "ollama:ollama`).",
        "A folder outside of /home in OLLAMA_MODELS avoids both.",
    ),
    "ollama.access.root": (
        "The user that runs the server may not write {path}: HOME is {home}, as in a container "
        "under another user than root (OpenShift's arbitrary one, runAsUser, --user). Set HOME to "
        "a volume that this user can write (HOME=/data: keys and models then lie in "
        "/data/.ollama). OLLAMA_MODELS alone does not move the key.",
        "If a volume is mounted there, let it belong to that user (fsGroup in a pod's "
        "securityContext, chown), and with SELinux mount it with :z; or run the container as root.",
    ),
    "ollama.access.made": (
        "The server may not create or change {path}: let its user (ollama, for its service) pass "
        "every folder above (`namei -l {path}`; below /media/USER only that user may) and own the "
        "folder (chown), or set OLLAMA_MODELS to a folder that it may write. If the permissions "
        "are right, the unit forbids it: ReadWritePaths= and ProtectSystem= (`systemctl cat "
        "ollama`), or SELinux.",
    ),
    "ollama.path": (
        "A file with the folder's name is in the way at {path}: correct HOME or OLLAMA_MODELS of "
        "the server's service.",
    ),
    "ollama.assertion": (
        "A check in the runner's own code failed ({check}): this release does not fit the model's "
        "file, or its libraries are mixed. Install the current release whole, and pull the model "
        "again; a file from elsewhere may need a newer release or another conversion.",
        "If other programs with llama.cpp are installed, see that none of their ggml libraries "
        "(ggml-base.dll, libggml-base.so) lies in the PATH or LD_LIBRARY_PATH of the server: it "
        "loads them in place of its own.",
    ),
    "ollama.parallel": (
        "This model answers one request at a time: set OLLAMA_NUM_PARALLEL=1 for the server; for "
        "more, run several servers behind a proxy.",
    ),
    "ollama.windows": (
        "The runner crashed on Windows (0xc0000{code}), without a reason in this line: install a "
        "newer Ollama first, as new models need it; then update the card's driver and Microsoft's "
        "Visual C++ runtime, and lower num_ctx. Lines of the runner in server.log before this one "
        "say more.",
    ),
    "ollama.slow": (
        "The model was not loaded in time (5 minutes unless OLLAMA_LOAD_TIMEOUT is set): set "
        "OLLAMA_LOAD_TIMEOUT=30m for the server, keep the model on a faster disk, or use a smaller "
        "one; a client that gives up sooner needs a longer time-out.",
    ),
    "disk.full": (
        "The disk is full: free some space (`df -h`, `ollama rm`), or move the models' folder to a "
        "larger one and set OLLAMA_MODELS to it in the server's environment; in a container, mount "
        "a large enough volume at /root/.ollama. Then try again.",
    ),
    "ollama.origin": (
        "Ollama refuses requests of this web page or extension: add its origin to OLLAMA_ORIGINS "
        "of the server (OLLAMA_ORIGINS=chrome-extension://*,moz-extension://* for extensions, * "
        "for all), and restart the server (systemctl edit ollama; launchctl setenv on macOS). A "
        "request without an Origin is refused if a proxy passes its own Host: set that header to "
        "localhost:11434.",
    ),
    "ollama.canceled": (
        "The client gave up before the model was loaded or had answered: raise the client's "
        "time-out (a proxy's, too), load the model before use, or use a smaller one.",
    ),
    "ollama.answer": (
        "What answered is not Ollama's JSON, most often the page of a proxy: set "
        "NO_PROXY=localhost,127.0.0.1,0.0.0.0 (and no_proxy) where `ollama` runs, check "
        "OLLAMA_HOST, or ask a registry behind a proxy with HTTPS_PROXY in the server's unit.",
    ),
    "ollama.file": (
        "There is no {path}: paths in a Modelfile are relative to its own folder. Run `ollama "
        "create` in the folder with the file, or write its full path; FROM and ADAPTER take a "
        "folder with all files of a model or adapter, or one GGUF file.",
    ),
    "llama.model.version": (
        "The file is not a GGUF file that this release can read. FROM in a Modelfile takes a GGUF "
        "file, or the folder (not a single file) with config.json, tokenizer and safetensors of an "
        "architecture that Ollama can import; convert others with llama.cpp's "
        "convert_hf_to_gguf.py, and use a newer release.",
    ),
    "ollama.port.reserved": (
        "Windows has reserved port {port}, or forbids it: `netsh interface ipv4 show "
        "excludedportrange protocol=tcp` lists the ranges. Restart the winnat service, or set "
        "another port in OLLAMA_HOST.",
    ),
    "ollama.request.context": (
        "The text is longer than the model's context: send shorter pieces, or raise num_ctx as far "
        "as the model allows.",
    ),
    "ollama.model.unloadable": (
        "The runner could not load the model's file: install a newer release of Ollama first, as "
        "new models need it; then remove the model (`ollama rm`) and pull it again. The lines of "
        "the runner before this one say more.",
    ),
    "ollama.http": (
        "Ollama answered with its own error, and only its log shows the reason: `journalctl -u "
        "ollama`, `docker logs`, or server.log.",
    ),
    "ollama.request.image": (
        "The runner does not read {type}: convert the image to PNG or JPEG, or install the current "
        "release, which reads WebP.",
        "The model, or this release, does not take the image as it was sent: send one image a "
        "request where the line asks for it, as base64 of a PNG or JPEG file, not as a URL.",
    ),
    "ollama.tool-call": (
        "The model wrote a tool call that is no valid JSON or XML: small models and few bits do. "
        "Use a larger one, a longer num_ctx (a call may be cut off), simpler schemas of tools, or "
        "a newer release, whose parsers are more tolerant.",
    ),
    "ollama.numbers": (
        "The model computed values that are no numbers ({numbers}): its file is damaged, or a "
        "kernel of this release or card is wrong. Set OLLAMA_FLASH_ATTENTION=0 and "
        "OLLAMA_KV_CACHE_TYPE=f16, pull it again or another quantization, and try another release; "
        "num_gpu 0 shows whether the card is at fault.",
    ),
    "ollama.mlx": (
        "The model needs MLX, which this installation has not: it takes a Mac with Apple's own "
        "processor or a CUDA package with MLX. Use the model's GGUF tag otherwise, or install the "
        "current release whole.",
    ),
    "ollama.family.file": (
        "The model's file is damaged, or in a format that this Ollama does not read: install a "
        "newer release, remove the model (`ollama rm`), and pull or convert it again.",
    ),
    "ollama.family.import": (
        "Ollama cannot import this as it is: write a folder with all files of the model, or a GGUF "
        "file made by llama.cpp's convert_hf_to_gguf.py, in FROM, and use a newer release.",
    ),
    "ollama.family.context": (
        "The text is longer than the model's context: send shorter pieces, or raise num_ctx as far "
        "as the model allows.",
    ),
    "ollama.family.busy": (
        "More requests wait than the server takes: raise OLLAMA_MAX_QUEUE or OLLAMA_NUM_PARALLEL, "
        "or let clients send fewer at once.",
    ),
    "ollama.family.refused": (
        "Ollama refuses the request; the line says why: correct the request, the Modelfile "
        "or the client's setting.",
    ),
    "ollama.import": (
        "Ollama's own import (`ollama create` from safetensors) supports few architectures and "
        "needs the folder of the model in FROM: convert it to a GGUF file with llama.cpp's "
        "convert_hf_to_gguf.py and use that file, or install a newer release.",
    ),
    "ollama.template": (
        "The model's template uses {function}, which this release does not know: install a newer "
        "Ollama.",
        "The model's template fails on this request ({called}): install a newer Ollama and pull "
        "the model again (`ollama pull` fetches a corrected template alone), or simplify the tools "
        "that the client sends.",
    ),
    "ollama.gateway": (
        "The answer {status} is that of a proxy which does not reach the server, not Ollama's: "
        "set NO_PROXY=localhost,127.0.0.1 (and the server's address) where the client runs, or "
        "unset http_proxy there; if a proxy is meant to be in front of the server, see whether the "
        "server runs and the proxy's address for it.",
    ),
    "ollama.runner": (
        "The runner ended at a text for an embedding ({embedding}), usually because the text is "
        "longer than the embedding model's context (512 tokens for many): let the client cut "
        "shorter pieces (its chunk size), take a model with a longer context (bge-m3, "
        "nomic-embed-text), and update Ollama, whose older releases crash there.",
        "The model's runner ended, and this line does not show why: the server's log does, in the "
        "lines before (`journalctl -u ollama`, `docker logs`, server.log on Windows and macOS).",
        "Most often memory is short (lower num_ctx, a smaller model or tag, end what else uses the "
        "card), the release is older than the model (install the current one), or the card's "
        "driver is old.",
    ),
    "ollama.hub.denied": (
        "The registry refuses the model: sign in (`ollama signin`), or correct its name.",
    ),
    "ollama.runner.missing": (
        "Ollama's own runner is missing or cannot be executed: install Ollama again, and exclude "
        "its temporary folder from cleaners (OLLAMA_TMPDIR in older releases).",
    ),
    "ollama.instruction": (
        "The runner uses instructions that this CPU lacks (AVX or AVX2): install a release for it.",
    ),
    "ollama.library": (
        "A library of the runner is missing: install Ollama again, and Microsoft's Visual C++ "
        "runtime.",
    ),
    "ollama.client.gone": (
        "The client closed its connection while the model was loaded: raise the client's time-out "
        "(a proxy's, too), or load the model before use and keep it loaded (an empty request to "
        "/api/generate with keep_alive, or OLLAMA_KEEP_ALIVE=-1 for the server).",
    ),
    "ollama.ram.killed": (
        "The kernel killed the model's runner, most likely for lack of memory: journalctl -k | grep"
        " -i oom",
    ),
    "ollama.versions": (_OLD_SERVER,),
    "ollama.model.architecture": (
        _OLD_SERVER,
        *OTHER_KINDS,
        "This Ollama does not support the architecture {architecture}: install a newer release "
        "(the newest models may need a pre-release), or use another model, such as the library's "
        "own tag in place of a file from elsewhere.",
    ),
    "ollama.model.newer": (
        _OLD_SERVER,
        "The server that answers is too old for the model ({newer}). `ollama --version` shows its "
        "release, and warns if the client's differs: then the new one is installed, and an old "
        "server still runs, so restart it (`sudo systemctl restart ollama`; quit the app and open "
        "it; make the container anew). Otherwise install a newer release, which restarts it; the "
        "newest models may need a pre-release (OLLAMA_VERSION for the install script).",
    ),
    "ollama.slow.killed": (
        "The runner was killed while it loaded, and had been slow before: most likely the model "
        "is too large for the machine's memory (`free -h`, journalctl -k | grep -i oom). Pull a "
        "smaller model or a tag quantised to fewer bits, or add memory; only if plenty is free, "
        "it is the disk (OLLAMA_LOAD_TIMEOUT=30m).",
    ),
    "ollama.context-cut": (
        "A prompt of {prompt} tokens was cut to the context of {limit}: the answer lacks what was "
        "cut, often the instructions. Raise num_ctx in the request or Modelfile, or "
        "OLLAMA_CONTEXT_LENGTH for the server ([model] context), or send less.",
    ),
    "ollama.home": (
        "Ollama needs a home folder, and HOME is not set: set it for the server (Environment=HOME= "
        "in its unit, -e HOME= for a container, [engine] env), to a folder that its user can "
        "write.",
    ),
}


def _setting(rung: Rung) -> str:
    """Ollama's own variable; the context, which a request can set, too, by that name."""
    return "num_ctx" if rung.touches[0] == CONTEXT else rung.touches[0]


advise = adviser(_SPECIAL, _GENERAL, HEALING, _setting, OWN_ROWS.client)
