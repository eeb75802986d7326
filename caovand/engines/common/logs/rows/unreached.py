"""What clients print that do not reach their server, in Node, Python or Go: rows for every engine.

Front ends run in containers of their own, where localhost is another machine than people expect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.engines.common.logs.signature import signature

_LOOPBACK = r"localhost|0\.0\.0\.0|127\.\d{1,3}\.\d{1,3}\.\d{1,3}"
_LOOPBACK_6 = r"\[?::1?\]?"
_DOCKER_HOSTS = r"host\.docker\.internal|host\.containers\.internal|172\.1[6-9]\.\d{1,3}\.\d{1,3}"
_NAME = r"[a-z][\w-]{0,60}"
"""A name without a dot: of a container, or of a machine in the same network."""
_OTHERS = r"(?:443|80|5432|6379|3306|27017|9200|6333|19530|5672)\b"
"""Ports of hubs and of data bases."""
_SERVER = (
    rf"(?:(?P<server>{_LOOPBACK})|(?P<six>{_LOOPBACK_6})|(?P<docker>{_DOCKER_HOSTS})"
    r"|(?P<address>\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})"
    rf"|(?P<service>{_NAME})):(?!{_OTHERS})(?P<port>\d{{2,5}})\b"
)
# A server in Go reports its own runner's end on loopback in the same words, and Kubernetes a probe
# of /health, /healthz or /ready
_DIALLED = (
    rf"(?<![hzy]\": )(?<![hzy]\\\": )dial tcp (?!{_LOOPBACK}|\[::1)"
    r"(?=[\w.-]{1,60}:\d{2,5}: (?:connect(?:ex)?: "
    r"(?:connection refused|no route to host|No connection could be made)|i/o timeout))"
)
_UNRESOLVED = r"(?:host|gateway)\.(?:docker|containers)\.internal"
_UNKNOWN = (
    r"(?:Name or service not known|nodename nor servname|Temporary failure in name|getaddrinfo)"
)
_NO_ADDRESS = (
    "Name or service not known|Temporary failure in name resolution"
    "|No address associated with hostname"
)
_RAW = re.compile(
    r".{0,300}(?:\bECONNREFUSED\b|\bgetaddrinfo (?:ENOTFOUND|EAI_AGAIN)\b|Cannot connect to host "
    r"|\bdial tcp [\w.-]{1,60}:\d{2,5}: |\bConnectError: |\blookup [\w.-]{1,60} on "
    r"|origins cannot be reached from inside"
    r"|\bETIMEDOUT\b|[Oo]llama.{0,80}TypeError: fetch failed"
    r"|\bUND_ERR_(?:HEADERS|BODY)_TIMEOUT|server can't be reached at "
    r"|vllm_client - Server is not up yet|\[?W\d{3,4} .{0,80}TCP client failed to connect"
    r"|Failed to connect to Ollama\b|\bcurl: \((?:7|28)\) |\[WinError 10061\]"
    r"|\[Errno -[235]\] |\[Errno 111\] Connection refused"
    r"|[Cc]ould(?:n't| not) connect to [Oo]llama"
    r"|Ollama (?:could not be reached|is not reachable) at)"
)
ROWS = (
    # curl: (7) Failed to connect to host.docker.internal port 11434 after 0 ms: Could not connect
    signature("client.curl", "consequence", "network",
         r"curl: \((?:7|28)\) (?:Failed to connect to|Connection (?:timed|refused)|Failed connect)"
         rf".{{0,10}}?(?:(?P<docker>{_DOCKER_HOSTS})|(?P<server>{_LOOPBACK})"
         rf"|(?P<address>[\w.-]{{3,100}}))(?: port |:)(?!{_OTHERS})(?P<port>\d{{2,5}})\b"),
    signature("client.refused", "consequence", "network",
         r"^(?!.{0,900}(?:\bproxyconnect |\"https://)).{0,900}?(?P<windows>\[WinError 10061\]"
         r"|No connection could be made because the target machine actively refused)|"
         rf"(?:Cannot connect to host |ECONNREFUSED |{_DIALLED}){_SERVER}"
         rf"(?! ssl:\w{{1,10}} \[(?:Errno -\d\] )?{_UNKNOWN})"
         r"|(?:[Cc]ould(?:n't| not) connect to [Oo]llama|Ollama (?:could not be reached|is not "
         rf"reachable)) at https?://(?:(?P<named>(?:{_LOOPBACK})(?::\d{{1,5}})?)"
         r"|(?P<elsewhere>[\w.:-]{1,100}\w))"
         rf"|HTTPConnectionPool\(host='(?:(?P<pool>{_LOOPBACK})|(?P<pool_docker>{_DOCKER_HOSTS}))'"
         r"(?!.{0,400}(?:NameResolutionError|Failed to resolve|Read timed out|WinError 10061))"
         r"|HTTPConnectionPool\(host='(?P<pool_asked>[\w.-]{1,100})', port=\d{2,5}\): Max retries "
         r"exceeded with url: /(?:v\d/(?!models/)|generate|api/(?:chat|generate|embed|tags))"
         r"(?!.{0,400}(?:NameResolutionError|Failed to resolve|Read timed out|WinError 10061))"
         r"|(?P<local>origins cannot be reached from inside)"
         r"|(?P<code>code: 'ECONNREFUSED')"
         r"|(?P<python>(?:httpx|httpcore)\.ConnectError: (?:\[Errno 111\]|\[Errno 61\]"
         r"|\[WinError 10061\]|All connection attempts failed)"
         r"|ConnectionError: Failed to connect to Ollama)"
         r"|[Oo]llama.{0,80}(?P<node>TypeError: fetch failed)"),
    # request to http://192.168.1.5:11434/api/chat failed, reason: read ETIMEDOUT
    signature("client.late", "consequence", "network",
         r"request to https?://(?P<asked>[\w.-]{1,100}:\d{2,5})/\S{0,100} failed, reason: .{0,60}"
         r"ETIMEDOUT|connect ETIMEDOUT (?P<at>[\d.]{7,15}:\d{2,5})"),
    signature("client.unresolved", "consequence", "network",
         rf"getaddrinfo (?:ENOTFOUND|EAI_AGAIN) (?P<name>{_UNRESOLVED}|{_NAME})(?![\w.-])"
         rf"|\blookup (?P<host>{_UNRESOLVED}|{_NAME})(?: on \S{{1,60}})?: (?:no such host"
         r"|server mis)"
         rf"|Cannot connect to host (?P<asked>{_UNRESOLVED}|{_NAME}):\d{{2,5}} ssl:\w{{1,10}} "
         rf"\[(?:Errno -\d\] )?{_UNKNOWN}"
         rf"|Failed to resolve '(?P<failed>{_UNRESOLVED}|{_NAME})'"),
    signature("client.name", "cause", "network",
         rf"(?:httpx|httpcore)\.ConnectError: \[Errno -[235]\] (?P<why>{_NO_ADDRESS})"),
    # ConnectionError: The vLLM server can't be reached at 0.0.0.0:8000 after 240.0 seconds.
    signature("client.trainer", "cause", "network",
         r"The (?:vLLM|SGLang) server can't be reached at (?P<at>[\w.:/-]{3,100}) after"
         r"|vllm_client - (?P<waits>Server is not up yet)"
         # TRL's own port for the weights that it sends
         r"|timed out .{0,60}connect to \(?(?P<group>[\w.:-]{3,60}?)[:,] ?51216\b"),
    signature("client.slow", "consequence", "start-stall",
         r"UND_ERR_(?P<what>HEADERS|BODY)_TIMEOUT"),
)  # fmt: skip
IN_CONTAINER = (
    "If this client runs in a container, localhost is that container itself: let it use "
    "http://host.docker.internal:PORT (on Linux add --add-host=host.docker.internal:host-gateway, "
    "in a compose file extra_hosts: host.docker.internal:host-gateway), or the server's name where "
    "both are containers of one network; and let the server listen on all addresses "
    "(OLLAMA_HOST=0.0.0.0; --host 0.0.0.0 of vLLM, SGLang and llama-server)."
)
STARTS = "`ollama serve`, `sudo systemctl start ollama`"
_OUTSIDE_CONTAINER = (
    f"Otherwise the server does not run, or listens on another port: start it ({STARTS}), and ask "
    "it with curl from where the client runs."
)
_REMEDY = f"{IN_CONTAINER} {_OUTSIDE_CONTAINER}"
_ON_GATEWAY = (
    "The address leads to the host, where nothing answers on that port for a container: usually "
    "the server listens on 127.0.0.1 only (`ss -ltn` on the host shows it). Start it, let it "
    "listen on all addresses (OLLAMA_HOST=0.0.0.0; --host 0.0.0.0 of vLLM, SGLang and "
    "llama-server), restart it, and let the host's firewall pass the port."
)
_NOT_RESOLVED = (
    "A name was not resolved ({why}), and the line does not show which. If a server's address "
    "is configured (a base URL), its name is not known where this program runs: "
    "host.docker.internal needs --add-host=host.docker.internal:host-gateway on Linux, a "
    "container's name a network that both share. If a model was to be downloaded, the machine "
    "reaches no name server: check network, DNS and HTTPS_PROXY.",
)
_SILENT = (
    "that machine is off or has another address by now, a firewall there or between drops the "
    "connection (Windows: allow the port for private networks), or the server is busy with the "
    "model, which slow memory or a CPU makes slow. Ask it with curl from where the client "
    "runs, let it listen on all addresses (OLLAMA_HOST=0.0.0.0, or --host 0.0.0.0), and raise the "
    "client's time limit."
)
ADVICE: Mapping[str, tuple[str, ...]] = {
    "client.curl": (
        "No server answers at {docker}:{port}. " + _ON_GATEWAY,
        "No server answers at {server}:{port}. " + _REMEDY,
        "No server answers at {address}:{port}: it does not run, listens on 127.0.0.1 only or on "
        "another port (OLLAMA_HOST=0.0.0.0, or --host 0.0.0.0), or a firewall is between.",
    ),
    "client.refused": (
        "No server listens where this client on Windows asks ({windows}): start it (for Ollama the "
        "application, or `ollama serve`), and see with `netstat -ano` on which port it listens. A "
        "server in WSL or on another machine must listen on all addresses (OLLAMA_HOST=0.0.0.0).",
        "No server answers at {server}:{port}. " + _REMEDY,
        "No server answers at {six}, port {port}: localhost was taken for the IPv6 address, on "
        "which many servers do not listen. Write 127.0.0.1 instead. " + _REMEDY,
        "No server answers at {pool}. " + _REMEDY,
        "No server answers at {pool_asked}. " + _REMEDY,
        "No server answers at {named}. " + _REMEDY,
        "No server answers at {elsewhere}: it does not run (yet), or listens elsewhere. A "
        "container's name resolves only on a network that both share, where the "
        "container's own port counts (11434 for Ollama), not the published one; for a server on "
        "the host see that it listens on all addresses (OLLAMA_HOST=0.0.0.0).",
        "The client runs in a container, and says so ({local}). " + IN_CONTAINER,
        "No server answers where the client asks ({code}; the lines next to it have the address). "
        + _REMEDY,
        "No server answers where the client asks ({python}); the line has no address: see the base "
        "URL in its configuration. " + _REMEDY,
        "The client reached no Ollama ({node}), and the line has no address: see the base URL in "
        "its configuration. " + _REMEDY,
        "No server answers at {docker}:{port}. " + _ON_GATEWAY,
        "No server answers at {pool_docker}. " + _ON_GATEWAY,
        "No server answers at {address}:{port}: it does not run, listens on 127.0.0.1 only or on "
        "another port (OLLAMA_HOST=0.0.0.0, or --host 0.0.0.0), or a firewall is between. Ask it "
        "with curl from where the client runs, in its container if it has one; a container on the "
        "same machine may need host.docker.internal in place of the machine's own address.",
        "The container or machine {service} answers nothing on port {port}: its server does not "
        "run (yet), or listens on another port. Inside a network of containers its own port counts "
        "(11434 for Ollama), not the published one.",
    ),
    "client.late": (
        "{asked} did not answer in time: " + _SILENT,
        "{at} did not answer in time: " + _SILENT,
    ),
    "client.unresolved": (
        "The name {name} is not known where the client runs.",
        "The name {host} is not known where the client runs.",
        "The name {asked} is not known where the client runs.",
        "The name {failed} is not known where the client runs.",
        "host.docker.internal exists in containers of Docker Desktop; on Linux add it "
        "(--add-host=host.docker.internal:host-gateway, in a compose file extra_hosts: "
        "host.docker.internal:host-gateway), and outside of a container write localhost. A "
        "container's name resolves only on a network that both containers share, never on the "
        "host: connect them to one, or write the host's address.",
    ),
    "client.name": _NOT_RESOLVED,
    "client.trainer": (
        "The trainer cannot join the group over which it sends weights to the server, at {group}, "
        "port 51216 (vllm_group_port). Let vllm_server_host be the address of the server's "
        "machine, and the port open to it; let both use different cards; and start the server "
        "again before each training, as it keeps the group of an earlier one.",
        "The trainer (TRL) waits for a server that it does not start itself ({waits}): start it "
        "first, on cards that do not train (`trl vllm-serve --model MODEL`; its own log shows why "
        "it ended), and correct vllm_server_host and vllm_server_port, which a proxy must not "
        "serve (no_proxy=localhost,127.0.0.1,0.0.0.0). To train and generate in one process set "
        'vllm_mode="colocate".',
        "The trainer (TRL) waits for a server that it does not start itself, at {at}: start it "
        "first, on cards that do not train (`trl vllm-serve --model MODEL`; its own log shows why "
        "it ended), and correct vllm_server_host and vllm_server_port. To train and generate in "
        'one process set vllm_mode="colocate". Where Unsloth starts vLLM (fast_inference), its '
        "release and TRL's do not fit: update unsloth and unsloth_zoo.",
    ),
    "client.slow": (
        "The client gave up while it waited for the server's answer (Node waits 300 seconds for "
        "the first byte): the model still loaded, or a long prompt was computed slowly, often on "
        "the CPU. Let the client stream or wait longer, load the model before (keep_alive), "
        "shorten the prompt, or see whether the server uses the card.",
    ),
}  # fmt: skip
"""Sentences by row; one with an unknown {name} is left out."""


def is_raw(line: str) -> bool:
    """Whether a line is of a client that does not reach its server."""
    return bool(_RAW.match(line))
