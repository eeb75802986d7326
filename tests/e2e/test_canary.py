"""The fixed prompt over two starts of a real vLLM with random weights, which prefer no token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from caovand.daemon import canary, memories
from tests.daemon_process import daemon, free_port
from tests.e2e.conftest import configuration

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_the_answer_of_the_first_start_is_compared_with_that_of_the_next(engine: Path) -> None:
    with daemon(configuration(engine, "hybrid", free_port())) as one:
        one.until_state("SERVING")
        path = memories.folder(one.folder / "state") / canary.FILE
        kept = json.loads(path.read_text())
        ((key, (tokens, margins)),) = kept.items()
        print(margins)
        assert len(tokens) == len(margins) == 16
        assert one.stop() == 0
        # As if that start had answered otherwise, at a near tie.
        path.write_text(json.dumps({key: [["other", *tokens[1:]], [0.1, *margins[1:]]]}))
        one.start()
        assert one.until_state("SERVING")["last_failure"] is None
        assert "after a near tie: rounding explains that" in " ".join(one.events())
        assert len(json.loads(path.read_text())) == 1
