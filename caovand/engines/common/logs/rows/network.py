"""Rows for messages of Go and C++ programs that cannot reach a hub, a registry or a mirror."""

from __future__ import annotations

from caovand.engines.common.logs.signature import signature

# A server reports its own runner's end on loopback in the same words. Such a line is followed by a
# retry.
_ELSEWHERE = r"(?!.{0,400}(?:(?:127\.0\.0\.1|localhost|\[::1\]):\d|\bretrying\b|\bprobe failed:))"
ROWS = (
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
"""More precise rows come first."""
