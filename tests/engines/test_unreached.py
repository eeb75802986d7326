"""Clients that do not reach their server: where they asked, and what helps there."""

from __future__ import annotations

import pytest

from caovand.engines.writer import answer_for, explain_log


@pytest.mark.parametrize(
    ("text", "first", "never"),
    [
        (
            "[TypeError: fetch failed] {\n  cause:  [Error: connect ECONNREFUSED 127.0.0.1:11434]",
            "localhost is that container itself",
            "Docker Desktop",
        ),
        ("Error: connect ECONNREFUSED ::1:11434", "Write 127.0.0.1 instead", "Docker Desktop"),
        (
            "Cannot connect to host host.docker.internal:11434 ssl:default [Connect call failed ("
            "'172.17.0.1', 11434)]",
            "listens on 127.0.0.1 only",
            "localhost is that container",
        ),
        (
            "Cannot connect to host 192.168.1.5:11434 ssl:default [Connect call failed]",
            "192.168.1.5:11434",
            "localhost is that container",
        ),
        (
            "getaddrinfo ENOTFOUND host.docker.internal",
            "host.docker.internal is not known",
            "No server answers",
        ),
        (
            "HTTPConnectionPool(host='host.docker.internal', port=11434): Max retries (Caused by "
            "NameResolutionError(\"Failed to resolve 'host.docker.internal'\"))",
            "host.docker.internal is not known",
            "No server answers",
        ),
        (
            "localhost, 127.0.0.1, or 0.0.0.0 origins cannot be reached from inside the container.",
            "runs in a container, and says so",
            "does not run",
        ),
        ("    code: 'UND_ERR_HEADERS_TIMEOUT',", "waited for the server's answer", "reach"),
    ],
)
def test_the_remedy_fits_the_address(text: str, first: str, never: str) -> None:
    found = explain_log(text)
    assert found is not None
    writer, explanation = found
    assert writer.title == "Client of a server"
    assert first in explanation.advice[0]
    assert never not in " ".join(explanation.advice)
    assert explanation.finding is not None
    answer = answer_for(writer, explanation.finding, None)
    assert (answer.heals, answer.how) == ("no", "a client failed, and no engine that caovan runs")


def test_a_data_base_or_a_hub_is_no_engine_s_server() -> None:
    found = explain_log("Error: connect ECONNREFUSED 127.0.0.1:5432")
    assert found is not None
    assert found[1].finding is not None
    assert found[1].finding.failure == "unknown"
    assert explain_log("getaddrinfo ENOTFOUND registry.npmjs.org") is None
