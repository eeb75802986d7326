"""Messages of programs in Go and C++ when a hub, a registry or a mirror cannot be reached."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.engines.common.logs.signature import signature

# A server talks to its own runner over loopback, and reports the runner's end in the same words. A
# line that announces a retry is not the last word.
_NOT_LOCAL = r"(?!.{0,400}(?:(?:127\.0\.0\.1|localhost|\[::1\]):\d|\bretrying\b|\bprobe failed:))"
ROWS = (
    signature("net.clock", "cause", "network",
         rf"^{_NOT_LOCAL}.{{0,900}}x509: certificate has expired or is not yet valid"),
    # x509: certificate is valid for ollama.com, www.ollama.com, not registry.ollama.ai
    signature("net.certificate.name", "cause", "network",
         rf"^{_NOT_LOCAL}.{{0,900}}(?:x509: certificate is (?:not )?valid for "
         r"(?P<names>.{1,200}?)"
         r", (?:but )?not (?P<name>[\w.:-]{3,100})"
         r"|no alternative certificate subject name matches target host name '(?P<host>[^']{1,100})"
         r"|Hostname mismatch, certificate is not valid for '(?P<asked>[^']{1,100}))"),
    signature("net.certificate", "cause", "network",
         rf"^{_NOT_LOCAL}.{{0,900}}(?:x509: |certificate signed by unknown authority"
         r"|SSL server verification failed|tls: failed to verify)"),
    signature("net.proxy", "cause", "network",
         r"^(?!.{0,400}\bretrying\b).{0,900}(?:proxyconnect tcp: dial tcp:? "
         r"(?P<proxy>[\w.:\[\]-]{3,80}?): (?:connect|i/o|lookup)"
         r"|Unable to connect to proxy|Cannot connect to proxy)"),
    # lookup registry.ollama.ai on 10.89.3.1:53: read udp 10.89.3.11:54907->10.89.3.1:53: refused
    signature("net.nameserver", "cause", "network",
         rf"^{_NOT_LOCAL}.{{0,900}}\blookup (?P<name>[\w-]{{1,60}}(?:\.[\w-]{{1,60}}){{1,6}})"
         r" on (?P<server>[\w.:\[\]-]{3,60}): (?:read|dial|write) (?:udp|tcp) "),
    signature("net.unresolved", "cause", "network",
         rf"^{_NOT_LOCAL}.{{0,900}}\blookup (?P<name>[\w-]{{1,60}}(?:\.[\w-]{{1,60}}){{1,6}})"
         r"(?: on [\w.:\[\]-]{3,60})?: (?:no such host|server misbehaving|i/o timeout"
         r"|Temporary failure)"),
    signature("net.failed", "cause", "network",
         rf"^{_NOT_LOCAL}.{{0,900}}(?:dial tcp:? |i/o timeout|TLS handshake timeout|no such host"
         r"|server misbehaving|[Cc]onnection reset by peer|proxyconnect |network is unreachable"
         r"|Client\.Timeout exceeded|max retries exceeded"
         r"|Temporary failure in name resolution|Could not resolve host"
         r"|stream error: stream ID \d|wsarecv: |http2: server sent GOAWAY)"
         r"|\b(?:Get|Head|Put) \\?\"https://[^\s\"\\]{3,300}\\?\": (?:(?:unexpected )?EOF"
         r"|context deadline exceeded|http2: |local error: |remote error: )"
         r"|^(?:Error: |error: )?(?:[\w.-]{1,100}\.[a-z]{2,10}/\S{1,200}|max retries exceeded)"
         r": (?:unexpected )?EOF"
         r"|HTTPLIB failed: |download failed after "
         r"|curl_easy_perform\(\) failed"),
)  # fmt: skip
"""The first match is the more precise one."""
_OTHER_SERVER = (
    "/etc/hosts (Windows: drivers\\etc\\hosts) leads there, or the name server, a proxy, a filter "
    "or the login page of a network does: remove the entry, ask another name server, or leave that "
    "proxy out; `curl -v` shows which address answers."
)
ADVICE: Mapping[str, tuple[str, ...]] = {
    "net.proxy": (
        "The proxy {proxy} does not answer; the program has it from HTTPS_PROXY, HTTP_PROXY or "
        "ALL_PROXY in its own environment (a service's unit, the container, the shell). Start it, "
        "correct its address (in a container 127.0.0.1 is the container itself: use the host's "
        "address or host.docker.internal, and let the proxy listen there), or unset the variables "
        "and restart the server.",
        "A proxy that is set in the environment (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY) cannot be "
        "used: start it, correct it, or unset the variables.",
    ),
    "net.nameserver": (
        "The name server {server} does not answer, so {name} is not found. On a machine: name "
        "another one (1.1.1.1, 8.8.8.8) in the connection's settings or /etc/resolv.conf, and let "
        "the firewall pass port 53 (UDP and TCP). In a container the address is usually one of the "
        "engine's own network or of the host: set --dns (compose: dns:) or `dns` in "
        "/etc/docker/daemon.json, restart Docker or make Podman's network anew, or use the host's "
        "(--network host); under WSL switch generateResolvConf off in /etc/wsl.conf. Behind a "
        "proxy set HTTPS_PROXY for the server.",
    ),
    "net.unresolved": (
        "The name server of this machine does not resolve {name}: try again later, or use another "
        "one (such as 1.1.1.1 or 8.8.8.8: the connection's settings, /etc/resolv.conf, for "
        "containers `dns` in /etc/docker/daemon.json); a provider, filter or VPN may block that "
        "name. Behind a proxy set HTTPS_PROXY for the server.",
    ),
    "net.clock": (
        "A certificate is not valid at this machine's time: see whether its clock is right (`date`,"
        " `timedatectl`) first; if it is, the server or the proxy in between has an old one.",
    ),
    "net.certificate.name": (
        "Another server answers than {name}: its certificate is for {names}. An old entry in "
        + _OTHER_SERVER,
        "Another server answers than {host}. An old entry in " + _OTHER_SERVER,
        "Another server answers than {asked}. An old entry in " + _OTHER_SERVER,
    ),
    "net.certificate": (
        "A certificate is not trusted, as behind a proxy that inspects traffic: add its authority "
        "to those that the server's system trusts (Debian and Ubuntu: a .crt file in "
        "/usr/local/share/ca-certificates, update-ca-certificates; Fedora: "
        "/etc/pki/ca-trust/source/anchors, update-ca-trust; Windows and macOS: their own store; an "
        "image: built into it or mounted), and restart the server, which fetches, not the client.",
    ),
    "net.failed": (
        "A download failed: check the network, DNS, and HTTPS_PROXY of the server (for a service, "
        "in its unit). Downloaded parts are kept: try again.",
    ),
}
"""Sentences by row; one with an unknown {name} is left out."""
