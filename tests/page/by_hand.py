"""A daemon over the stand-in engine with the page, to look at: python -m tests.page.by_hand [PORT].

It ends with Ctrl-C. TOKEN in the environment makes the page ask for that token.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from tests.daemon_process import daemon
from tests.scenarios.test_supervision import configuration, make_model
from tests.secret_files import secret_file


def main() -> None:
    listen = f"127.0.0.1:{sys.argv[1] if len(sys.argv) > 1 else 9480}"
    with tempfile.TemporaryDirectory(prefix="caovan-page-") as folder:
        token = Path(folder) / "token"
        secret_file(token, os.environ.get("TOKEN", ""))
        lines = [f"listen = {json.dumps(listen)}"]
        lines += [f"token_file = {json.dumps(str(token))}"] if token.read_text() else []
        config = configuration(make_model(Path(folder) / "hybrid"), page="\n".join(lines))
        with daemon(config) as one:
            print(f"http://{listen}/  sockets: {one.folder / 'run'}", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()


if __name__ == "__main__":
    main()
