"""Every route of the page, requested by a real HTTP client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from caovand.page import chat as tries
from caovand.page import feed, files, guard, live, server
from tests.page.client import Browser, browser
from tests.patience import LIMIT_S, soon

TOKEN = "secret-of-the-page"
EXAMPLES = 20  # each takes a server of its own
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def run(folder: Path, test: Callable[[Browser], Awaitable[None]], **more: Any) -> None:
    async def all_of_it() -> None:
        async with browser(folder, **more) as one:
            await asyncio.wait_for(test(one), LIMIT_S)

    asyncio.run(all_of_it())


# -- the page itself ---


def test_it_serves_its_own_files_and_no_others(folder: Path) -> None:
    async def test(one: Browser) -> None:
        status, text = await one.get("/")
        assert (status, "<html" in text) == (200, True)
        own = files.load()
        assert {"index.html", "login.html"} <= own.keys()
        for name, file in own.items():
            async with one.session.get(f"{one.url}/static/{name}") as got:
                assert await got.read() == file.data
                assert got.content_type == file.kind
                tag = got.headers["ETag"]
            again = {"If-None-Match": tag}
            assert (await one.get(f"/static/{name}", headers=again))[0] == 304
        for path in ("/static/server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py"):
            status, answer = await one.get(path)
            assert status == 404
            assert answer["error"]["remedy"]

    run(folder, test)


def test_every_answer_is_private_and_runs_no_foreign_script(folder: Path) -> None:
    async def test(one: Browser) -> None:
        for path in ("/", "/api/plan", "/nowhere", "/static/index.html"):
            async with one.session.get(one.url + path) as got:
                policy = got.headers["Content-Security-Policy"]
                assert "default-src 'self'" in policy
                assert "frame-ancestors 'none'" in policy
                assert got.headers["X-Content-Type-Options"] == "nosniff"
                assert got.headers["Referrer-Policy"] == "no-referrer"
                kept = "no-cache" if "static" in path else "no-store"
                assert got.headers["Cache-Control"] == kept

    run(folder, test)


def test_a_stranger_s_name_that_leads_here_is_refused_on_loopback(folder: Path) -> None:
    async def test(one: Browser) -> None:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "["):
            status, answer = await one.get("/api/plan", headers={"Host": host})
            assert status in (400, 421), host
            if status == 421:
                assert "Host" in answer["error"]["fact"]
        for host in ("localhost", "localhost:1234", "127.0.0.1:9", "[::1]:9480", "LOCALHOST"):
            assert (await one.get("/api/plan", headers={"Host": host}))[0] == 200, host

    run(folder, test)


# -- the token ---


def test_without_the_token_there_is_a_login_page_and_no_data(folder: Path) -> None:
    async def test(one: Browser) -> None:
        status, text = await one.get("/")
        assert status == 200
        assert 'name="token"' in text
        for path in ("/api/live", "/api/plan", "/api/history", "/api/incidents", "/api/nothing"):
            status, answer = await one.get(path)
            assert (status, set(answer["error"])) == (401, {"cannot", "fact", "remedy"})
        assert (await one.post("/api/try", data="{}", headers=JSON))[0] == 401

    run(folder, test, token=TOKEN)


def test_the_token_opens_it_as_a_cookie_or_as_a_bearer(folder: Path) -> None:
    async def test(one: Browser) -> None:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert (await one.get("/api/plan", headers=bearer))[0] == 200
        assert (await one.get("/api/plan"))[0] == 401
        async with one.session.post(
            f"{one.url}/login", data={"token": TOKEN}, allow_redirects=False
        ) as got:
            assert (got.status, got.headers["Location"]) == (303, "/")
            cookie = got.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert TOKEN not in cookie
        pair = {"Cookie": cookie.split(";")[0]}
        assert (await one.get("/api/plan", headers=pair))[0] == 200
        wrong = {"Cookie": "caovan_page=" + "0" * 64}
        one.session.cookie_jar.clear()
        assert (await one.get("/api/plan", headers=wrong))[0] == 401

    run(folder, test, token=TOKEN)


def test_wrong_tokens_are_refused_slowly_and_the_right_one_never_waits_for_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a proxy everybody comes from one address: who guesses must lock nobody out."""

    async def test(one: Browser) -> None:
        monkeypatch.setattr(server, "WRONG_TOKEN_S", LIMIT_S)
        wrong = {"Authorization": "Bearer wrong"}
        guesses = [
            asyncio.ensure_future(request)
            for _ in range(20)
            for request in (
                one.post("/login", data={"token": "wrong"}),
                one.get("/api/plan", headers=wrong),
                one.get("/", headers=wrong),
            )
        ]
        await soon(lambda: len(one.page.guard._streaming) == len(guesses))
        proxys = {"Authorization": "Basic eDp5"}
        assert (await one.get("/", headers=proxys))[0] == 200
        assert (await one.post("/login", data={"token": TOKEN}))[0] == 303
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert (await one.get("/api/plan", headers=right))[0] == 200
        assert not any(guess.done() for guess in guesses)
        for guess in guesses:
            guess.cancel()
        await soon(lambda: not one.page.guard._streaming)
        one.session.cookie_jar.clear()
        monkeypatch.setattr(server, "WRONG_TOKEN_S", 0.0)
        for token in ("wrong", "ü" * 50, ""):
            status, text = await one.post("/login", data={"token": token})
            assert status == 403
            assert "the token is wrong" in text
        assert (await one.get("/api/plan", headers=wrong))[0] == 401

    run(folder, test, token=TOKEN)


MULTIPART = b"POST /login HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
MALFORMED = {
    "multipart": (MULTIPART, b"--x\r\nno header\r\n"),
    "multipart without a boundary": (MULTIPART.replace(b"; boundary=x", b""), b"x"),
    "unknown charset": (b"POST /login HTTP/1.1\r\nContent-Type: text/x; charset=none\r\n", b"x"),
    "no type": (b"POST /login HTTP/1.1\r\n", b"token=x"),
    "no UTF-8": (
        b"POST /login HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\n",
        b"token=\xff",
    ),
    "many fields": (
        b"POST /login HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\n",
        b"a=1&" * 100,
    ),
}


@pytest.mark.parametrize(("head", "body"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_form_is_refused_as_one(folder: Path, head: bytes, body: bytes) -> None:
    async def test(one: Browser) -> None:
        more = b"Host: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        reader, writer = await one.raw(head + more + body)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()

    run(folder, test, token=TOKEN)


def test_without_a_token_there_is_no_login(folder: Path) -> None:
    async def test(one: Browser) -> None:
        assert (await one.post("/login", data={"token": ""}))[0] == 404

    run(folder, test)


def test_a_post_from_another_site_is_refused(folder: Path) -> None:
    async def test(one: Browser) -> None:
        for origin in (
            "http://evil.example",
            "null",
            f"http://127.0.0.1:{one.port + 1}",
            "http://[",
        ):
            headers = {**JSON, "Origin": origin}
            assert (await one.post("/api/try", data="{}", headers=headers))[0] == 403, origin
            login = await one.post("/login", data={"token": TOKEN}, headers={"Origin": origin})
            assert login[0] == 403
        own = {**JSON, "Origin": one.url}
        assert (await one.post("/api/try", data="{}", headers=own))[0] == 401

    run(folder, test, token=TOKEN)


# -- what the daemon knows ---


def test_history_comes_in_columns_of_one_length(folder: Path) -> None:
    async def test(one: Browser) -> None:
        status, found = await one.get("/api/history?span=1d")
        assert status == 200
        assert found["times"] == [60, 120, 180]
        assert found["series"]["up"] == [1.0, None, 0.5]
        assert found["series"]["gpu_power_w"] == [100.0, None, None]
        assert found["cards"]["0"]["temperature"] == [50.0, None, None]
        status, found = await one.get("/api/history?span=5m")
        first, *later = found["times"]
        assert [at - first for at in later] == pytest.approx([1.0, 5.0])
        assert found["series"] == {"generation_tokens_per_s": [1.0, None, 2.0]}
        assert found["cards"]["0"]["power_w"] == [None, 200.0, None]
        assert found["cards"]["0"]["temperature"] == [None, 70, 71]
        assert (await one.get("/api/history?span=1y"))[0] == 400

    run(folder, test)


def test_before_there_is_a_plan_its_answer_is_null(folder: Path) -> None:
    async def test(one: Browser) -> None:
        one.daemon.plan = None
        assert await one.get("/api/plan") == (200, None)

    run(folder, test)


def test_plan_and_incidents_are_the_daemon_s(folder: Path) -> None:
    async def test(one: Browser) -> None:
        assert (await one.get("/api/plan"))[1]["argv"] == ["vllm"]
        assert (await one.get("/api/incidents"))[1] == {"incidents": [{"number": 1}]}
        status, found = await one.get("/api/incidents/1")
        assert status == 200
        assert found["remedy"] == "the same plan again"
        assert "  how sure  likely" in found["answer"]
        assert "  resembles a/b#1, https://github.com/a/b/issues/1" in found["answer"]
        assert "> it hung" in found["text"]
        assert "node n2, rank 1: no evidence: the node is silent" in found["text"]
        assert "node n3, rank 2: its evidence has not arrived" in found["text"]
        status, answer = await one.get("/api/incidents/2")
        assert (status, answer["error"]["cannot"]) == (404, "find incident 2")
        assert (await one.get("/api/incidents/x"))[0] == 404
        assert (await one.get("/api/plan?model=" + "x" * 500))[0] == 400

    run(folder, test)


def test_an_incident_is_listed_as_soon_as_its_event_is_heard(folder: Path) -> None:
    async def test(one: Browser) -> None:
        async with one.live() as events:
            await events.next("log")
            # As good as just asked, however slow this machine is.
            kept = asyncio.get_running_loop().create_future()
            kept.set_result({"incidents": []})
            one.page._daemon._kept[("incidents", "", ())] = kept  # type: ignore[assignment]
            assert (await one.get("/api/incidents"))[1] == {"incidents": []}
            one.daemon.events.append({**one.daemon.events[0], "seq": 4, "kind": "incident"})
            await events.until("event", lambda data: data["seq"] == 4)
            assert (await one.get("/api/incidents"))[1] == {"incidents": [{"number": 1}]}

    run(folder, test)


def test_of_several_models_the_named_one_is_asked_or_the_first(folder: Path) -> None:
    async def test(one: Browser) -> None:
        one.daemon.status["slots"] = [{"name": "small"}, {"name": "large"}]
        await one.get("/api/plan?model=small")
        await one.get("/api/plan")
        asked = [model for op, model, _ in one.daemon.asked if op == "plan"]
        assert asked == ["small", "large"]

    run(folder, test)


def test_many_readers_of_the_same_cost_the_daemon_one_request(folder: Path) -> None:
    async def test(one: Browser) -> None:
        await asyncio.gather(*(one.get("/api/history?span=30d") for _ in range(30)))
        assert len([op for op, _, _ in one.daemon.asked if op == "history"]) <= 2

    run(folder, test)


def test_without_the_daemon_every_answer_says_so(folder: Path) -> None:
    async def test(one: Browser) -> None:
        await one.daemon.stop()
        for path in ("/api/plan", "/api/history", "/api/incidents", "/api/incidents/1"):
            status, answer = await one.get(path)
            assert (status, answer["error"]["cannot"]) == (503, "ask caovand"), path
        assert (await one.get("/"))[0] == 200

    run(folder, test)


# -- live ---


def test_live_begins_with_all_there_is(folder: Path) -> None:
    async def test(one: Browser) -> None:
        async with one.live() as events:
            assert (await events.next())[:2] == ("daemon", {"reachable": True})
            assert (await events.next("status"))[1] == {**one.daemon.status, "processes": []}
            assert (await events.next("recent"))[1]["age_s"] == [5.0, 0.0]
            ids = [(await events.next("event"))[2] for _ in range(3)]
            assert ids == ["1@0.0", "2@0.0", "3@0.0"]
            log = (await events.next("log"))[1]
            assert log == {"lines": one.daemon.lines, "end": 5}

    run(folder, test)


def test_live_goes_on_with_what_is_new(folder: Path) -> None:
    async def test(one: Browser) -> None:
        async with one.live() as events:
            await events.next("log")
            one.daemon.lines.append("line 6")
            one.daemon.events.append({**one.daemon.events[0], "seq": 4})
            one.daemon.status["state"] = "FAILED"
            await events.until("status", lambda data: data["state"] == "FAILED")
            assert (await events.next("event"))[2] == "4@0.0"
            assert (await events.next("log"))[1] == {"lines": ["line 6"], "end": 6}

    run(folder, test)


def test_the_nodes_of_a_cluster_come_again_at_once_where_one_of_them_goes(folder: Path) -> None:
    async def test(one: Browser) -> None:
        one.daemon.status["cluster"] = {"role": "head", "missing": 0, "lost": []}
        one.daemon.cluster = {"role": "head", "nodes": ["n1", "n2"]}
        async with one.live() as events:
            assert (await events.next("cluster"))[1] == one.daemon.cluster
            one.page._feeds._feeds[""]._nodes_at = float("inf")  # it is not asked for by time
            one.daemon.status["cluster"] = {"role": "head", "missing": 1, "lost": ["n2"]}
            one.daemon.cluster = {"role": "head", "nodes": ["n1"]}
            assert (await events.next("cluster"))[1] == one.daemon.cluster
            async with one.live() as later:
                assert (await later.next("cluster"))[1] == one.daemon.cluster

    run(folder, test)


def test_a_daemon_without_a_cluster_is_not_asked_for_its_nodes(folder: Path) -> None:
    async def test(one: Browser) -> None:
        async with one.live() as events:
            await events.next("status")
            await events.next("status")
        assert "cluster" not in [op for op, _, _ in one.daemon.asked]

    run(folder, test)


REQUEST = {"at": 1.0, "key": "alice", "status": 200}


def test_the_gateway_s_requests_come_as_they_change_and_to_whoever_comes_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "REQUESTS_S", 0.0)

    async def test(one: Browser) -> None:
        async with one.live(Authorization=f"Bearer {TOKEN}") as events:
            await events.next("status")
            await events.next("status")
            assert "requests" not in [op for op, _, _ in one.daemon.asked], "there is no gateway"
            one.daemon.status["gateway"] = {"waiting": 0}
            assert (await events.next("requests"))[1] == []
            one.daemon.requests = [REQUEST]
            assert (await events.next("requests"))[1] == [REQUEST]
            async with one.live(Authorization=f"Bearer {TOKEN}") as later:
                assert (await later.next("requests"))[1] == [REQUEST]
            assert (await events.next("requests", "recent"))[0] == "recent", "nothing has changed"

    run(folder, test, token=TOKEN)


def test_who_needs_no_token_does_not_learn_who_sent_a_request(folder: Path) -> None:
    async def test(one: Browser) -> None:
        one.daemon.status["gateway"] = {"waiting": 0}
        one.daemon.requests = [REQUEST]
        async with one.live() as events:
            assert (await events.next("requests"))[1] == [{**REQUEST, "key": ""}]

    run(folder, test)


def test_who_comes_later_gets_the_backlog_and_who_comes_again_the_rest(folder: Path) -> None:
    async def test(one: Browser) -> None:
        async with one.live() as first:
            await first.next("log")
            async with one.live() as second:
                assert (await second.next("event"))[2] == "1@0.0"
                assert (await second.next("log"))[1]["end"] == 5
            async with one.live(**{"Last-Event-ID": "2@0.0"}) as third:
                assert (await third.next("event"))[2] == "3@0.0"
            async with one.live(**{"Last-Event-ID": "2@9.0"}) as fourth:  # of an earlier daemon
                assert (await fourth.next("event"))[2] == "1@0.0"

    run(folder, test)


def test_a_daemon_that_goes_and_another_that_comes(folder: Path) -> None:
    async def test(one: Browser) -> None:
        async with one.live() as events:
            await events.next("log")
            await one.daemon.stop()
            lost = (await events.next("daemon"))[1]
            assert lost["reachable"] is False
            assert "cannot ask caovand" in lost["message"]
            one.daemon.status["daemon"]["pid"] = 2
            del one.daemon.events[1:], one.daemon.lines[2:]
            await one.daemon.start()
            assert await events.until("daemon", lambda data: data["reachable"])
            assert (await events.next("event"))[2] == "1@0.0"
            assert (await events.next("log"))[1]["end"] == 2

    run(folder, test)


def test_a_status_comes_with_the_processes_on_the_cards(folder: Path) -> None:
    async def test(one: Browser) -> None:
        one.daemon.status["gpus"] = [{"index": 0, "users": [[os.getpid(), 500]]}]
        async with one.live() as events:
            (found,) = (await events.next("status"))[1]["processes"]
            assert (found["pid"], found["mib"], found["own"]) == (os.getpid(), 500, False)

    run(folder, test)


def test_one_poll_serves_all_readers_and_none_is_made_for_nobody(folder: Path) -> None:
    async def test(one: Browser) -> None:
        async with one.live() as first, one.live() as second, one.live() as third:
            for events in (first, second, third):
                await events.next("log")
            await first.next("status")
            asked = [op for op, _, _ in one.daemon.asked]
            assert asked.count("recent") == 1
        feeds = one.page._feeds
        await soon(lambda: not feeds._feeds)
        assert feeds._left == live.MAX_READERS

    run(folder, test)


def test_the_65th_reader_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(one: Browser) -> None:
        held = []
        for _ in range(live.MAX_READERS):
            reader, writer = await one.raw(b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" in await reader.readline()
            held.append((reader, writer))
        status, answer = await one.get("/api/live")
        assert status == 503
        assert "64 readers" in answer["error"]["fact"]
        held[0][1].transport.abort()
        await soon(lambda: one.page._feeds._left == 1)
        async with one.live() as events:
            await events.next("status")
        for _, writer in held:
            writer.transport.abort()

    run(folder, test)


def test_a_reader_that_never_reads_is_sent_no_more_and_let_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "STUCK_S", 1.0)
    monkeypatch.setattr(feed, "TICK_S", 0.05)
    monkeypatch.setattr(feed, "STATUS_S", 0.0)

    async def test(one: Browser) -> None:
        one.daemon.status["reason"] = "x" * 500_000  # the kernel buffers megabytes of it
        _, writer = await one.raw(b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await soon(lambda: one.page._feeds._left == live.MAX_READERS - 1)
        await soon(lambda: one.page._feeds._left == live.MAX_READERS)

    run(folder, test)


# -- rude connections ---


def test_half_a_request_is_closed_after_a_while(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "REQUEST_S", 0.3)

    async def test(one: Browser) -> None:
        for part in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n"):
            reader, writer = await one.raw(part)
            assert await reader.read() == b""
            writer.close()

    run(folder, test)


def test_a_body_that_never_comes_is_closed_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "REQUEST_S", 0.3)

    async def test(one: Browser) -> None:
        for path in (b"/login", b"/api/try"):
            reader, writer = await one.raw(unfinished(path))
            assert await reader.read() == b""
            writer.close()
        assert one.page._tries._under_way == 0

    run(folder, test, token=TOKEN)


def unfinished(path: bytes) -> bytes:
    """A request whose body does not come, from somebody who has the token."""
    kind = b"application/json" if path == b"/api/try" else b"application/x-www-form-urlencoded"
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n" % (path, kind)
    return head + b"Authorization: Bearer %s\r\nContent-Length: 100\r\n\r\n{" % TOKEN.encode()


def test_a_body_that_is_encoded_or_too_large_from_a_stranger_is_refused(folder: Path) -> None:
    async def test(one: Browser) -> None:
        head = b"POST /login HTTP/1.1\r\nHost: localhost\r\n"
        for more, status in (
            (b"Transfer-Encoding: chunked\r\n\r\n", b"411"),
            (b"Content-Encoding: gzip\r\nContent-Length: 7\r\n\r\ntoken=x", b"411"),
            (b"Content-Length: 5000\r\n\r\n", b"413"),
        ):
            reader, writer = await one.raw(head + more)
            assert (await reader.read()).startswith(b"HTTP/1.1 %s " % status)
            writer.close()

    run(folder, test, token=TOKEN)


def test_endless_heads_and_huge_bodies_are_cut(folder: Path) -> None:
    async def test(one: Browser) -> None:
        for data in (
            b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 100_000,
            b"x" * 200_000,
            b"POST /api/try HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
        ):
            reader, writer = await one.raw(data)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()

    run(folder, test)


def test_requests_sent_ahead_are_dropped(folder: Path) -> None:
    async def test(one: Browser) -> None:
        request = b"GET /api/plan HTTP/1.1\r\nHost: localhost\r\n\r\n"
        reader, writer = await one.raw(request * 1000)
        try:
            answer = await reader.read()
        except ConnectionResetError:
            answer = b"HTTP/1.1 "
        assert answer.count(b"HTTP/1.1 ") == 1
        writer.close()

    run(folder, test)


LOCAL = b"HTTP/1.1\r\nHost: localhost\r\n"
FLOODS = {
    "silent": b"",
    "no body for the login": b"POST /login " + LOCAL + b"Content-Length: 9\r\n\r\n",
    "no chunks": b"POST /login " + LOCAL + b"Transfer-Encoding: chunked\r\n\r\n",
    "wrong tokens": b"GET / " + LOCAL + b"Authorization: Bearer x\r\n\r\n",
    "no body for a chat": unfinished(b"/api/try"),
}


@pytest.mark.parametrize("sent", FLOODS.values(), ids=FLOODS)
def test_a_flood_of_connections_that_come_to_nothing_keeps_nobody_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    for name in ("REQUEST_S", "EXCHANGE_S"):
        monkeypatch.setattr(guard, name, 10 * LIMIT_S)
    monkeypatch.setattr(server, "WRONG_TOKEN_S", 10 * LIMIT_S)
    monkeypatch.setattr(server, "LINGER_S", 10 * LIMIT_S)

    async def test(one: Browser) -> None:
        flood = [await one.raw(sent) for _ in range(guard.MAX_CONNECTIONS + 50)]
        assert (await one.get("/api/plan", headers={"Authorization": f"Bearer {TOKEN}"}))[0] == 200
        assert (await one.post("/login", data={"token": TOKEN}))[0] == 303
        for _, writer in flood:
            writer.transport.abort()

    run(folder, test, token=TOKEN)


class Seat(asyncio.Transport):
    """A connection that is only counted."""

    def abort(self) -> None:
        pass


def test_a_stranger_that_reads_nothing_gives_way_and_a_reader_with_the_token_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "EXCHANGE_S", 10 * LIMIT_S)

    async def test(one: Browser) -> None:
        async with one.live(Authorization=f"Bearer {TOKEN}") as reader:
            kept, seats = one.page.guard, set(one.page.guard._open)
            for _ in range(guard.MAX_CONNECTIONS + 5):
                stranger = Seat()
                assert kept.opened(stranger)
                kept.asked(stranger, known=False)
            assert seats <= set(kept._open)
            assert len(kept._open) == guard.MAX_CONNECTIONS
            assert await reader.next("status")

    run(folder, test, token=TOKEN)


# -- the box to try the model ---


class Engine:
    """Answers chats as an engine does; `status` and `key` are what it asks and answers with."""

    def __init__(self) -> None:
        self.status, self.key, self.words = 200, "sk-engine", ["Hello", " world"]
        self.chats: list[dict[str, Any]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def start(self) -> int:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == f"Bearer {self.key}"
        self.chats.append(await request.json())
        if self.status != 200:
            return web.Response(status=self.status, text=f"no, {self.key} is wrong")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for word in self.words:
            await self.go_on.wait()
            piece = json.dumps({"choices": [{"delta": {"content": word}}]})
            await response.write(f"data: {piece}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


async def with_engine(one: Browser) -> Engine:
    engine = Engine()
    one.daemon.endpoint = {
        "host": "127.0.0.1", "port": await engine.start(), "tls": False, "key": engine.key,
        "path": "/v1/chat/completions", "model": "small",
    }  # fmt: skip
    return engine


def test_a_chat_is_streamed_with_the_key_that_nobody_sees(folder: Path) -> None:
    async def test(one: Browser) -> None:
        engine = await with_engine(one)
        status, text = await one.post("/api/try", json={"prompt": "hi", "max_tokens": 5})
        assert status == 200
        assert "Hello" in text
        assert text.endswith("data: [DONE]\n\n")
        assert engine.key not in text
        (chat,) = engine.chats
        assert chat["messages"] == [{"role": "user", "content": "hi"}]
        assert (chat["model"], chat["max_tokens"], chat["stream"]) == ("small", 5, True)

    run(folder, test)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b'{"prompt": ""}', b'{"prompt": 1}', b'{"prompt": "x", "n": 9}',
        b'{"prompt": "x", "max_tokens": 0}', b'{"prompt": "x", "max_tokens": 1025}',
        b'{"prompt": "x", "max_tokens": true}', b'{"prompt": "x", "max_tokens": "5"}',
        b'{"prompt": "x", "model": 1}', json.dumps({"prompt": "x" * 32_001}).encode(),
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_out_of_bounds_never_reaches_the_engine(folder: Path, body: bytes) -> None:
    async def test(one: Browser) -> None:
        engine = await with_engine(one)
        status, answer = await one.post("/api/try", data=body, headers=JSON)
        assert status == 400
        assert answer["error"]["remedy"]
        assert engine.chats == []

    run(folder, test)


def test_a_form_of_another_site_cannot_send_a_chat(folder: Path) -> None:
    async def test(one: Browser) -> None:
        await with_engine(one)
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            headers = {"Content-Type": kind}
            status, _ = await one.post("/api/try", data=b'{"prompt": "x"}', headers=headers)
            assert status == 415

    run(folder, test)


def test_two_chats_at_a_time_and_no_more(folder: Path) -> None:
    async def test(one: Browser) -> None:
        engine = await with_engine(one)
        engine.go_on.clear()
        chats = [asyncio.ensure_future(one.post("/api/try", json={"prompt": "x"})) for _ in "12"]
        await soon(lambda: len(engine.chats) == tries.MAX_CONCURRENT)
        assert (await one.post("/api/try", json={"prompt": "x"}))[0] == 429
        engine.go_on.set()
        assert [status for status, _ in await asyncio.gather(*chats)] == [200, 200]
        assert (await one.post("/api/try", json={"prompt": "x"}))[0] == 200

    run(folder, test)


def test_a_chat_lasts_as_long_as_it_takes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "EXCHANGE_S", 0.2)
    monkeypatch.setattr(guard, "REQUEST_S", 0.3)

    async def test(one: Browser) -> None:
        engine = await with_engine(one)
        engine.go_on.clear()
        chat = asyncio.ensure_future(one.post("/api/try", json={"prompt": "x"}))
        await soon(lambda: engine.chats)
        silent, writer = await one.raw()
        assert await silent.read() == b""  # so long that any other request would be over
        writer.close()
        engine.go_on.set()
        assert (await chat)[0] == 200

    run(folder, test)


def test_who_leaves_gives_its_turn_back_even_while_the_engine_is_silent(folder: Path) -> None:
    async def test(one: Browser) -> None:
        engine = await with_engine(one)
        engine.go_on.clear()
        chat = asyncio.ensure_future(one.post("/api/try", json={"prompt": "x"}))
        await soon(lambda: engine.chats)
        chat.cancel()
        await soon(lambda: one.page._tries._under_way == 0)

    run(folder, test)


def test_an_engine_that_refuses_or_does_not_serve_is_reported(folder: Path) -> None:
    async def test(one: Browser) -> None:
        status, answer = await one.post("/api/try", json={"prompt": "x"})
        assert (status, answer["error"]["fact"]) == (503, "the engine is STARTING")
        engine = await with_engine(one)
        engine.status = 401
        status, answer = await one.post("/api/try", json={"prompt": "x"})
        assert status == 502
        assert engine.key not in json.dumps(answer)
        assert one.daemon.endpoint is not None
        one.daemon.endpoint["port"] = 1
        assert (await one.post("/api/try", json={"prompt": "x"}))[0] == 502

    run(folder, test)


@settings(max_examples=EXAMPLES)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=10))
def test_no_bytes_are_a_fault_of_ours(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    requests: list[bytes],
) -> None:
    monkeypatch.setattr(guard, "REQUEST_S", 0.1)  # for what never becomes a request

    async def test(one: Browser) -> None:
        for data in requests:
            for head in (data, b"GET /api/plan?" + data, b"POST /api/try HTTP/1.1\r\n" + data):
                reader, writer = await one.raw(head + b"\r\n\r\n")
                with contextlib.suppress(ConnectionResetError):
                    assert b" 500 " not in (await reader.read())[:15]
                writer.close()
        assert (await one.get("/api/plan"))[0] == 200

    run(tmp_path_factory.mktemp("p"), test)
