"""Messages of programs in Go and C++ when a hub, a registry or a mirror cannot be reached."""

from __future__ import annotations

from caovand.engines.common.logs.signature import signature

# A server talks to its own runner over loopback, and reports the runner's end in the same words. A
# line that announces a retry is not the last word.
_ELSEWHERE = r"(?!.{0,400}(?:(?:127\.0\.0\.1|localhost|\[::1\]):\d|\bretrying\b|\bprobe failed:))"
ROWS = (
    signature("net.clock", "cause", "network",
         rf"^{_ELSEWHERE}.{{0,900}}x509: certificate has expired or is not yet valid"),
    signature("net.certificate", "cause", "network",
         rf"^{_ELSEWHERE}.{{0,900}}(?:x509: |certificate signed by unknown authority"
         r"|SSL server verification failed|tls: failed to verify)"),
    signature("net.failed", "cause", "network",
         rf"^{_ELSEWHERE}.{{0,900}}(?:dial tcp:? |i/o timeout|TLS handshake timeout|no such host"
         r"|server misbehaving|[Cc]onnection reset by peer|proxyconnect |network is unreachable"
         r"|Client\.Timeout exceeded|max retries exceeded"
         r"|Temporary failure in name resolution|Could not resolve host"
         r"|stream error: stream ID \d|wsarecv: |http2: server sent GOAWAY)"
         r"|^(?:Error: |error: )?(?:[\w.-]{1,100}\.[a-z]{2,10}/\S{1,200}|max retries exceeded)"
         r": (?:unexpected )?EOF"
         r"|HTTPLIB failed: |download failed after "
         r"|curl_easy_perform\(\) failed"),
)  # fmt: skip
"""The first match is the more precise one."""
