"""The daemon's metrics, as scraped, and under attempts to exhaust them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from caovand.adapters.servers import prometheus
from caovand.core.figures import track
from caovand.core.figures.counters import Counters
from caovand.core.figures.histogram import Histogram
from caovand.core.figures.track import Track
from caovand.core.health.observation import GpuSample
from tests.cli import fake_daemon
from tests.patience import LIMIT_S, soon
from tests.ports import free_port


def status(**changes: Any) -> dict[str, Any]:
    """The document of a daemon with one slot."""
    document = fake_daemon.status(**changes)
    return {**document, "slots": [{"name": "main", **document}]}


SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: caovan\r\n\r\n"


def serving(
    test: Callable[[int], Coroutine[Any, Any, None]],
    read: Callable[[], Mapping[str, Any]] = status,
) -> None:
    """Run `test` with the port of a server; nothing a client does may reach the loop's log."""

    async def story() -> None:
        faults: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        port = free_port()
        prometheus.serve(f"127.0.0.1:{port}", read)
        await asyncio.wait_for(test(port), LIMIT_S)
        assert faults == []

    asyncio.run(story())


async def ask(port: int, request: bytes = SCRAPE, whence: str = "127.0.0.1") -> bytes:
    """All that is answered; nothing where the connection is refused or reset."""
    with contextlib.suppress(ConnectionError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(whence, 0))
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.transport.abort()
    return b""


def card(index: int, **changes: Any) -> dict[str, Any]:
    """A card's sample as the status shows it."""
    return {**asdict(GpuSample(index, 2, 10, None, None, None, 0.0)), **changes}


def test_a_scrape_tells_state_restarts_failures_and_cards() -> None:
    figures = {**fake_daemon.STATUS["figures"], "restarts": {"hang": 2}}
    hot = card(1, temperature=80, throttled="heat, its power limit", sm_clock_mhz=1350)
    told = status(
        figures=figures, rungs=["mtp 2"], degraded={"why": []}, failed={"hang": 3},
        gpus=[hot, card(2, fault="GPU is lost")], log_bytes_lost=7,
        gateway={
            "serving": True, "waiting": 3, "at_engine": 2,
            "totals": {"ended": {"200": 7, "0": 1}, "waited_s": 2.5, "resent": 4},
        },
        forecast={"weights_gib": {"forecast": 2, "reported": 2**-20, "off": 0.5}},
    )  # fmt: skip

    async def test(port: int) -> None:
        head, _, body = (await ask(port)).decode().partition("\r\n\r\n")
        assert head.startswith("HTTP/1.0 200 OK")
        assert "Content-Type: text/plain; version=" in head
        lines = body.splitlines()
        for line in (
            'caovan_build_info{version="0.1"} 1.0',
            'caovan_state{model="/srv/m",slot="main",state="SERVING"} 1.0',
            'caovan_state{model="/srv/m",slot="main",state="HOLD"} 0.0',
            'caovan_engine_up{model="/srv/m",slot="main"} 1.0',
            "caovan_gateway_up 1.0",
            "caovan_gateway_requests_waiting 3.0",
            "caovan_gateway_requests_running 2.0",
            'caovan_gateway_requests_total{status="0"} 1.0',
            'caovan_gateway_requests_total{status="200"} 7.0',
            "caovan_gateway_waited_seconds_total 2.5",
            "caovan_gateway_requests_resent_total 4.0",
            'caovan_mtp_depth{model="/srv/m",slot="main"} 3.0',
            'caovan_degraded{model="/srv/m",slot="main"} 1.0',
            'caovan_rung_in_force{model="/srv/m",rung="mtp 2",slot="main"} 1.0',
            'caovan_restarts_total{cause="hang",model="/srv/m",slot="main"} 2.0',
            'caovan_restarts_total{cause="operator",model="/srv/m",slot="main"} 0.0',
            'caovan_log_lost_bytes_total{model="/srv/m",slot="main"} 7.0',
            'caovan_failures_total{failure="hang",model="/srv/m",slot="main"} 3.0',
            'caovan_failures_total{failure="gpu-lost",model="/srv/m",slot="main"} 0.0',
            'caovan_generation_tokens_total{model="/srv/m",slot="main"} 0.0',
            'caovan_memory_reported_bytes{model="/srv/m",part="weights",slot="main"} 1024.0',
            'caovan_gpu_memory_used_bytes{gpu="1"} 2.097152e+06',
            'caovan_gpu_temperature_celsius{gpu="1"} 80.0',
            'caovan_gpu_sm_clock_hertz{gpu="1"} 1.35e+09',
            'caovan_gpu_throttled{gpu="1",reason="heat"} 1.0',
            'caovan_gpu_throttled{gpu="1",reason="its power limit"} 1.0',
            'caovan_gpu_throttled{gpu="1",reason="heat (hardware)"} 0.0',
            'caovan_gpu_faulty{gpu="2"} 1.0',
        ):
            assert line in lines, line
        for unknown in (
            "caovan_requests_running{", "caovan_time_to_first_token_seconds_bucket",
            'caovan_gpu_power_watts{gpu="1"}', 'caovan_gpu_memory_used_bytes{gpu="2"}',
        ):  # fmt: skip
            assert unknown not in body

    serving(test, lambda: told)


def test_what_an_engine_counted_is_counters_and_histograms() -> None:
    times = Histogram((0.1, 1.0), (2.0, 1.0, 1.0), 3.5)
    total = Counters(generation_tokens=50, drafts=10, accepted=(9.0, 5.0), first_token_s=times)
    figures = {
        **track.describe(Track(total), 0.0), "restarts": {}, "running": 2.0,
        "memory": [
            {"gpu": 1, "others_mib": 0, "parts": {"kv": {"mib": 0, "from": "forecast"}}},
            {"gpu": 2, "others_mib": None, "parts": {}},
        ],
    }  # fmt: skip

    async def test(port: int) -> None:
        body = (await ask(port)).decode()
        name, labels = "caovan_time_to_first_token_seconds", 'model="/srv/m",slot="main"'
        for line in (
            f"caovan_generation_tokens_total{{{labels}}} 50.0",
            f"caovan_requests_running{{{labels}}} 2.0",
            'caovan_accepted_tokens_total{model="/srv/m",position="1",slot="main"} 9.0',
            'caovan_accepted_tokens_total{model="/srv/m",position="2",slot="main"} 5.0',
            f'{name}_bucket{{le="0.1",{labels}}} 2.0',
            f'{name}_bucket{{le="1.0",{labels}}} 3.0',
            f'{name}_bucket{{le="+Inf",{labels}}} 4.0',
            f"{name}_count{{{labels}}} 4.0",
            f"{name}_sum{{{labels}}} 3.5",
            'caovan_gpu_memory_part_bytes{gpu="1",model="/srv/m",part="kv",slot="main"} 0.0',
            'caovan_gpu_memory_part_bytes{gpu="1",model="/srv/m",part="others",slot="main"} 0.0',
        ):
            assert line in body.splitlines(), line

    serving(test, lambda: status(figures=figures))


def test_each_slot_has_metrics_of_its_own_and_a_card_has_them_once() -> None:
    document = status(gpus=[card(0)])
    (slot,) = document["slots"]
    other = {**slot, "name": "b", "model": None, "state": "HOLD", "failed": {"hang": 1}}
    told = {**document, "slots": [slot, other]}

    async def test(port: int) -> None:
        lines = (await ask(port)).decode().splitlines()
        for line in (
            'caovan_engine_up{model="/srv/m",slot="main"} 1.0',
            'caovan_engine_up{model="",slot="b"} 0.0',
            'caovan_failures_total{failure="hang",model="",slot="b"} 1.0',
            'caovan_gpu_memory_used_bytes{gpu="0"} 2.097152e+06',
        ):
            assert lines.count(line) == 1

    serving(test, lambda: told)


def test_a_port_that_is_taken_cannot_be_served_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match="in use"):
            asyncio.run(_serve(where))


async def _serve(listen: str) -> None:
    prometheus.serve(listen, status)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_any_address_of_version_6_is_any_of_version_4_too() -> None:
    async def story() -> None:
        port = free_port()
        prometheus.serve(f"[::]:{port}", status)
        assert b"200 OK" in await asyncio.wait_for(ask(port), LIMIT_S)

    asyncio.run(story())


def test_so_many_of_one_address_are_served_at_a_time_and_slow_ones_make_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prometheus, "NEW_CONNECTIONS_PER_S", None)

    async def test(port: int) -> None:
        held = [
            await asyncio.open_connection("127.0.0.1", port)
            for _ in range(prometheus.CONNECTIONS_PER_ADDRESS)
        ]
        assert await ask(port) == b""
        assert b"200 OK" in await ask(port, whence="127.0.0.2")
        monkeypatch.setattr(prometheus, "EXCHANGE_S", 0.2)
        held[0][1].transport.abort()  # its place is free at once
        for _, writer in held[:2]:
            writer.write(b"GET / HTTP/1.1\r\n")

        async def scraped() -> bool:
            return b"200 OK" in await ask(port)

        await soon(scraped)
        for _, writer in held:
            writer.transport.abort()

    serving(test)


def test_so_many_of_all_addresses_are_served_at_a_time() -> None:
    async def test(port: int) -> None:
        held = [
            await asyncio.open_connection(
                "127.0.0.1",
                port,
                local_addr=(f"127.0.0.{2 + number // prometheus.CONNECTIONS_PER_ADDRESS}", 0),
            )
            for number in range(prometheus.MAX_CONNECTIONS)
        ]
        assert await ask(port) == b""
        for _, writer in held:
            writer.transport.abort()

    serving(test)


def test_an_address_that_asks_too_often_is_refused_until_the_next_second() -> None:
    async def test(port: int) -> None:
        answers = []
        while b"" not in answers:
            answers.append(await ask(port))
            assert len(answers) < 100 * prometheus.NEW_CONNECTIONS_PER_S
        assert len(answers) > prometheus.NEW_CONNECTIONS_PER_S
        assert b"200 OK" in await ask(port, whence="127.0.0.2")
        await soon(lambda: ask(port))

    serving(test)


def test_a_drip_of_bytes_does_not_hold_a_place_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "EXCHANGE_S", 0.2)

    async def test(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        ended = asyncio.ensure_future(reader.read())

        async def drip() -> bool:
            with contextlib.suppress(ConnectionError):
                writer.write(b"x")
                await writer.drain()
            return ended.done()

        await soon(drip)
        with contextlib.suppress(ConnectionError):
            assert ended.result() == b""

    serving(test)


def test_a_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's buffers would take an ordinary answer: this one is too large for them."""
    monkeypatch.setattr(prometheus, "EXCHANGE_S", 0.2)
    monkeypatch.setattr(prometheus, "CONNECTIONS_PER_ADDRESS", 1)
    cards = [card(index) for index in range(5_000)]
    reads: list[bool] = []

    def read() -> Mapping[str, Any]:
        reads.append(True)
        return status(gpus=cards)

    async def test(port: int) -> None:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
            client.send(SCRAPE)
            await soon(lambda: reads)

            async def scraped() -> bool:
                return b"200 OK" in await ask(port)

            await soon(scraped)

    serving(test, read)


def test_a_request_that_is_too_long_is_not_read_to_its_end() -> None:
    async def test(port: int) -> None:
        request = b"GET /" + b"x" * (8 * prometheus.REQUEST_BYTES) + SCRAPE[4:]
        assert await ask(port, request) == b""
        assert b"200 OK" in await ask(port)

    serving(test)


@given(st.lists(st.binary(max_size=80) | st.sampled_from([SCRAPE, b"GET http://[ HTTP/1.0"])))
def test_no_request_is_a_fault_of_ours(requests: list[bytes]) -> None:
    async def test(port: int) -> None:
        for request in requests:
            await ask(port, request + b"\r\n\r\n", whence="127.0.0.2")
        assert b"200 OK" in await ask(port)

    serving(test)


def test_figures_are_written_out_once_a_second_for_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is what a scrape costs: requests that differ get the same text, and so do versions."""
    written: list[str] = []

    def counting(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
        encode, kind = choose_encoder(accept)

        def counted(registry: CollectorRegistry) -> bytes:
            written.append(kind)
            return encode(registry)

        return counted, kind

    monkeypatch.setattr(prometheus, "choose_encoder", counting)
    monkeypatch.setattr(prometheus, "FRESH_S", LIMIT_S)
    monkeypatch.setattr(prometheus, "NEW_CONNECTIONS_PER_S", None)
    open_metrics = b"\r\nAccept: text/plain;q=0.1, application/openmetrics-text; version=1.0.%d\r\n"

    async def test(port: int) -> None:
        for number in range(20):
            assert b"caovan_engine_up" in await ask(port)
            other = SCRAPE.replace(b"metrics", b"metrics?%d" % number)
            assert b"# EOF" not in await ask(port, other)
            assert b"# EOF" in await ask(port, other.replace(b"\r\n", open_metrics % number, 1))
        assert len(written) == len(set(written)) == 2

    serving(test)


@pytest.mark.parametrize(
    "accept", ["text/plain;version=x", ";", "application/openmetrics-text;q=x"]
)
def test_a_scraper_that_names_nonsense_gets_a_format_of_ours(accept: str) -> None:
    async def test(port: int) -> None:
        request = SCRAPE.replace(b"\r\n", f"\r\nAccept: {accept}\r\n".encode(), 1)
        assert b"caovan_engine_up" in await ask(port, request)

    serving(test)
