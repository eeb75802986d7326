"""Makes the pictures in packaging/docs/pictures anew, in five minutes: a real daemon with the page
over the stand-in engine and two pretended cards, and a headless Chromium.

    unshare -mnp --fork --mount-proc sh -c 'ip link set lo up && mount -t tmpfs none /srv &&
        python -m tests.page.pictures /srv/demo packaging/docs/pictures'

The first folder, which it makes, is seen in the pictures, and so is every process named like the
engine's: hence the namespaces. Fonts: Inter, JetBrains Mono, Noto Sans CJK. Afterwards
reduce each to 256 colours, a third of its size.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import sys
import threading
import time
import urllib.request
from pathlib import Path

from tests.daemon_process import Daemon
from tests.faults.test_standin_faults import cards
from tests.page.browser.test_processes import named
from tests.page.browser.window import DESK, PHONE, chromium, window
from tests.patience import LIMIT_S
from tests.standin_daemon import configuration, make_model

LISTEN = "127.0.0.1:9480"
PORT = 8000
WORK_S = 290.0  # nearly all that the plots show
KILLED_AFTER_S = 170.0
CLIENTS = 6
ENGINE, OTHER = {"VLLM::EngineCor": 17_600}, {"Xorg": 480}
LOADED = "INFO 11-20 08:53:12 [gpu_model_runner.py:5000] Model loading took 10.42 GiB and 5.1 s"
SIZED = "INFO 11-20 08:53:13 [gpu_worker.py:462] Available KV cache memory: 5.41 GiB"
ORDERS = {
    "boot_s": 0.4,
    "pace_s": 0.02,
    "at": {"profile": LOADED, "kv": SIZED},
    "drafting": {"step_s": 0.03, "draft_s": 0.002, "chance": 0.8},
}
# What is shown, and with what name.
PICTURES = (
    ("page-light", DESK, "light", "en-GB"),
    ("page-dark", DESK, "dark", "en-GB"),
    ("page-zh", DESK, "light", "zh-CN"),
    ("page-phone", PHONE, "dark", "en-GB"),
)


def load(at: float) -> float:
    """How busy clients keep the engine, from 0 to 1."""
    return 0.5 + 0.35 * math.sin(at / 17) + 0.1 * math.sin(at / 5)


def client(ends: threading.Event) -> None:
    """Asks for completions, more while there is more load."""
    while not ends.wait(random.uniform(0.2, 0.8) / load(time.monotonic())):
        length = int(random.uniform(40, 120) * load(time.monotonic()))
        body = {"model": "demo", "prompt": [1], "max_tokens": length, "stream": True}
        url = f"http://127.0.0.1:{PORT}/v1/completions"
        request = urllib.request.Request(url, json.dumps(body).encode())
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=LIMIT_S) as got:
            got.read()


def pretend(folder: Path) -> dict[str, str]:
    """Let the cards be as busy as the engine; the environment of a daemon that sees them."""
    busy = load(time.monotonic())
    return cards(
        folder,
        of={**ENGINE, **OTHER},
        utilization=[round(40 + 55 * busy), round(36 + 55 * busy)],
        temperature=[round(64 + 9 * busy), round(66 + 9 * busy)],
        power_w=[round(110 + 130 * busy), round(100 + 130 * busy)],
    )


def work(one: Daemon) -> None:
    """Five minutes of requests, in which the engine is killed once."""
    ends = threading.Event()
    clients = [threading.Thread(target=client, args=(ends,)) for _ in range(CLIENTS)]
    for each in clients:
        each.start()
    begun, killed = time.monotonic(), False
    try:
        while (seconds := time.monotonic() - begun) < WORK_S:
            pretend(one.folder)
            if seconds > KILLED_AFTER_S and not killed:
                os.kill(one.status()["engine_pid"], signal.SIGKILL)
                killed = True
            time.sleep(1)
        take(Path(sys.argv[2]))
    finally:
        ends.set()
        for each in clients:
            each.join()


def take(folder: Path) -> None:
    """All pictures, of the page from its top to the processes, or of what a telephone shows."""
    with chromium() as browser:
        for name, size, theme, language in PICTURES:
            with window(browser, f"http://{LISTEN}/", size, theme, language) as shown:
                shown.shows(".chart[data-chart=load]")
                shown.shows("#processes tr[data-pid]")
                bottom = shown.run(
                    "document.getElementById('cards').getBoundingClientRect().bottom"
                )
                height = size[1] if size == PHONE else math.ceil(bottom) + 12
                clip = {"x": 0, "y": 0, "width": size[0], "height": height}
                path = folder / f"{name}.png"
                shown.page.screenshot(path=path, clip=clip, full_page=size != PHONE)


def main() -> None:
    """Make them."""
    folder = Path(sys.argv[1])
    folder.mkdir()
    model = make_model(folder / "demo")
    (model / "tokenizer.json").write_text("{}")
    (model / "chat_template.jinja").write_text("{{ messages }}")
    config = configuration(model, ORDERS, page=f'listen = "{LISTEN}"')
    port = [line for line in config.splitlines() if line.startswith("port = ")]
    one = Daemon(folder, config.replace(port[0], f"port = {PORT}"), pretend(folder))
    with named(*OTHER):
        try:
            one.start()
            one.until_state("SERVING")
            work(one)
        finally:
            one.stop()


if __name__ == "__main__":
    main()
