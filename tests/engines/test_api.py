"""Facts of the engines' HTTP servers: lines of the log about caovan's polls, idle connections."""

from __future__ import annotations

import pytest

from caovand.engines import registry


@pytest.mark.parametrize(
    ("kind", "line", "polled"),
    [
        ("vllm", '(APIServer pid=7) INFO:     127.0.0.1:5 - "GET /health HTTP/1.1" 200 OK', True),
        ("vllm", '(APIServer pid=7) INFO:     127.0.0.1:5 - "GET /load HTTP/1.1" 200 OK', True),
        ("vllm", 'INFO:     127.0.0.1:5 - "GET /metrics HTTP/1.1" 200 OK', True),
        ("vllm", 'INFO:     127.0.0.1:5 - "GET /health HTTP/1.1" 503 Service Unavailable', False),
        ("vllm", 'INFO:     127.0.0.1:5 - "GET /v1/models HTTP/1.1" 200 OK', False),
        ("vllm", 'INFO:     127.0.0.1:5 - "POST /health HTTP/1.1" 200 OK', False),
        ("vllm", "INFO 11-26 [x.py:1] GET /healthy 200 times", False),
        ("llamacpp", "srv  log_server_r: done request: GET /health 127.0.0.1 200", True),
        ("llamacpp", "srv  log_server_r: done request: POST /completion 127.0.0.1 200", False),
        ("llamacpp", "0.08.152.826 I srv  update_slots: all slots are idle", True),
        ("vllm", "0.08.152.826 I srv  update_slots: all slots are idle", False),
        ("ollama", '[GIN] 2026/11/26 | 200 | 21.1µs | 127.0.0.1 | GET      "/api/version"', True),
        (
            "sglang",
            '[11-24 04:47:03] INFO:     [::1]:5 - "GET /metrics HTTP/1.1" 200 OK',
            True,
        ),
    ],
)
def test_a_line_about_a_successful_poll_is_known(kind: str, line: str, polled: bool) -> None:
    assert registry.engine_of(kind).api.polled(line) is polled


def test_idle_connections_are_kept_as_long_as_each_engine_does() -> None:
    kept = {kind: registry.engine_of(kind).api.keeps_alive_s({}, {}) for kind in registry.MODULES}
    assert kept == {"vllm": 5.0, "sglang": 5.0, "llamacpp": 5.0, "ollama": 60.0}
    vllm = registry.engine_of("vllm").api
    assert vllm.keeps_alive_s({}, {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "1"}) == 0.0
