"""The page's routes, and the rules for every request and response."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from caovand.adapters.network.daemon_socket import Declined
from caovand.adapters.servers.faults import Faults
from caovand.adapters.system import wall_clock
from caovand.core.problem import Problem, ProblemError
from caovand.core.reporting.answer_text import evidence, remedy
from caovand.core.reporting.incident_text import REPORT, lines, node_files
from caovand.page import charts, files, live
from caovand.page.access import COOKIE, Access
from caovand.page.ask import Daemon
from caovand.page.chat import Chats
from caovand.page.feed import Feeds, default_model
from caovand.page.guard import BODY_BYTES, Guard
from caovand.page.refusal import Refusal, document

SPANS = {"5m": 300, "1h": 3600, "1d": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400}
PUBLIC = ("/static/", "/login")
MAX_MODEL = 200
LINGER_S = 1.0  # time to read the rest of an unwanted body
WRONG_TOKEN_S = 1.0  # delay before refusing a wrong token
LOGIN_BYTES = 4096
FORM = "application/x-www-form-urlencoded"
STATUS_OF = {
    "no-incident": 404, "unknown-model": 404, "which-model": 400, "bad-argument": 400,
    "no-history": 409,
}  # fmt: skip
"""The daemon's codes for invalid requests of readers; any other code is the daemon's own
problem."""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none';"
    " form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Page:
    """The HTTP application; `start` attaches it to a listening socket."""

    def __init__(self, daemon: Daemon, access: Access, own: Mapping[str, files.File]) -> None:
        self._daemon, self._access, self._files = daemon, access, own
        self._feeds = Feeds(daemon, live.MAX_READERS, names=access.requires_token)
        self._tries = Chats(daemon)
        self._faults = Faults(
            "open /", "this is a bug in caovan", lambda _, *refused: _problem(*refused)
        )
        self.guard: Guard | None = None
        self.app = web.Application(middlewares=[self._rules], client_max_size=BODY_BYTES)
        self.app.on_response_prepare.append(self._add_headers)
        self.app.add_routes([
            web.get("/", self._index),
            web.get("/static/{name}", self._static),
            web.post("/login", self._login),
            web.get("/api/live", self._live),
            web.get("/api/history", self._history),
            web.get("/api/plan", self._plan),
            web.get("/api/incidents", self._incidents),
            web.get("/api/incidents/{number:[0-9]{1,9}}", self._incident),
            web.post("/api/try", self._try),
        ])  # fmt: skip

    # -- every request ------------------------------------------------------------------------

    @web.middleware
    async def _rules(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        return await self._faults.catch(request, self._answer(request, handler))

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            await self._check(request)
            return await handler(request)
        except Refusal as problem:
            return _problem(problem.problem, problem.status)
        except Declined as problem:
            return _problem(problem.problem, STATUS_OF.get(problem.code, 502))
        except ProblemError as problem:
            return _problem(problem.problem, 503)

    async def _check(self, request: web.Request) -> None:
        access = self._access
        if not access.knows_host(request.headers.get("Host", "")):
            fact = f"the Host header is {request.headers.get('Host', '')[:100]!r}"
            raise Refusal(421, "answer", fact, "open the address that `caovanctl status` shows")
        if request.method == "POST":
            origin, host = request.headers.get("Origin"), request.headers.get("Host", "")
            if not access.is_own(origin, host):
                fact = "a page of another site sent it"
                raise Refusal(403, "accept this request", fact, "send it from caovan's own page")
        known = self._is_admitted(request)
        # Another scheme is for a proxy in front of the page: browsers send it along.
        if not known and request.headers.get("Authorization", "").lower().startswith("bearer"):
            await self._delay_wrong_token(request)
        if not known and request.path != "/" and not request.path.startswith(PUBLIC):
            raise Refusal(401, "answer", "the token is missing or wrong", "log in at /")
        if not known and (request.content_length or 0) > LOGIN_BYTES:
            fact = f"its body has more than {LOGIN_BYTES:,} bytes"
            raise Refusal(413, "accept this request", fact, "log in first")
        await request.read()
        if self.guard is not None:
            self.guard.asked(request.transport, known=known)

    def _is_admitted(self, request: web.Request) -> bool:
        return self._access.admits(request.cookies, request.headers.get("Authorization", ""))

    async def _delay_wrong_token(self, request: web.Request) -> None:
        """Delay wrong tokens to slow down guessing; a correct token never waits.

        Attempts are not counted by address, because all clients of a proxy share one.
        """
        self._streams(request)
        await asyncio.sleep(WRONG_TOKEN_S)

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        response.force_close()
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Cache-Control", "no-store")
        response.headers["Connection"] = "close"  # called after the library has set it
        response.headers["Server"] = "caovan"

    # -- the page ---------------------------------------------------------------------------

    async def _index(self, request: web.Request) -> web.Response:
        if not self._is_admitted(request):
            return self._login_page(None, 200)
        return _html(self._files[files.INDEX].data, 200)

    async def _static(self, request: web.Request) -> web.Response:
        file = self._files.get(request.match_info["name"])
        if file is None:
            raise Refusal(404, "answer", "no such file", "open /")
        headers = {"Cache-Control": "no-cache", "ETag": f'"{file.tag}"'}
        if request.headers.get("If-None-Match") == f'"{file.tag}"':
            return web.Response(status=304, headers=headers)
        charset = "utf-8" if file.kind.startswith("text/") else None
        return web.Response(
            body=file.data, content_type=file.kind, charset=charset, headers=headers
        )

    async def _login(self, request: web.Request) -> web.Response:
        if not self._access.requires_token:
            raise web.HTTPNotFound
        if self._access.is_token(await _token_of(request)):
            answer = web.Response(status=303, headers={"Location": "/"})
            answer.set_cookie(COOKIE, self._access.cookie, httponly=True, samesite="Strict")
            return answer
        await self._delay_wrong_token(request)
        fact = "the token is wrong"
        remedy = "enter the token in [page] token_file"
        return self._login_page(Problem("log in", fact, remedy), 403)

    def _login_page(self, problem: Problem | None, status: int) -> web.Response:
        answer = _html(files.login(self._files[files.LOGIN].data, problem), status)
        # With "no-referrer", browsers send a form's Origin as "null".
        answer.headers["Referrer-Policy"] = "same-origin"
        return answer

    # -- data from the daemon -----------------------------------------------------------------

    async def _live(self, request: web.Request) -> web.StreamResponse:
        self._streams(request)
        return await live.stream(request, self._feeds, _model(request))

    async def _try(self, request: web.Request) -> web.StreamResponse:
        self._streams(request)
        return await self._tries.handle(request)

    def _streams(self, request: web.Request) -> None:
        if self.guard is not None:
            self.guard.streams(request.transport)

    async def _history(self, request: web.Request) -> web.Response:
        span = request.query.get("span", "1d")
        if span not in SPANS:
            fact = f"span is {span[:20]!r}"
            raise Refusal(400, "show a history", fact, f"use one of {', '.join(SPANS)}")
        model = await self._slot(request)
        if span == "5m":
            answer = await self._daemon.ask_shared("recent", model)
            return _json(charts.recent_columns(answer, wall_clock.now()))
        answer = await self._daemon.ask_shared("history", model, seconds=float(SPANS[span]))
        return _json(charts.history_columns(answer))

    async def _plan(self, request: web.Request) -> web.Response:
        """The plan, or null before there is one: a page may open at any time."""
        try:
            plan = await self._daemon.ask_shared("plan", await self._slot(request))
        except Declined as problem:
            if problem.code != "no-plan":
                raise
            plan = None
        return _json(plan)

    async def _incidents(self, request: web.Request) -> web.Response:
        return _json(await self._daemon.ask_shared("incidents", await self._slot(request)))

    async def _incident(self, request: web.Request) -> web.Response:
        model, number = await self._slot(request), int(request.match_info["number"])
        incident = await self._daemon.ask_shared("incident", model, number=number, offset=0)
        report = json.loads(await self._daemon.file(REPORT, number, model))
        nodes = {
            name: json.loads(await self._daemon.file(name, number, model))
            for name in node_files(report, incident["files"])
        }
        decision, answer = report["decision"] or {}, report.get("answer")
        return _json({
            "number": report["number"],
            "at": report["at"],
            "failure": report["failure"],
            "text": "\n".join(lines(report, incident["files"], nodes)),
            "answer": [*evidence(answer), *remedy(answer)] if answer else [],
            "cause": report["cause"],
            "remedy": decision.get("text", ""),
            "obstacles": decision.get("obstacles", []),
        })  # fmt: skip

    async def _slot(self, request: web.Request) -> str:
        """The model that a request names or implies."""
        return _model(request) or default_model(await self._daemon.ask_shared("status"))


async def _token_of(request: web.Request) -> str:
    """The token in a login form; raises Refusal for a malformed form."""
    try:
        if request.content_type != FORM:
            raise ValueError(f"it is not {FORM}")
        text = (await request.read()).decode()
        return dict(parse_qsl(text, max_num_fields=8)).get("token", "").strip()
    except ValueError as problem:
        fact = f"the form cannot be read: {str(problem)[:100]}"
        raise Refusal(400, "log in", fact, "log in at /") from None


def _model(request: web.Request) -> str:
    name = request.query.get("model", "")
    if len(name) > MAX_MODEL:
        raise Refusal(
            400,
            "answer",
            "the model's name is too long",
            "use a name that `caovanctl status` lists",
        )
    return name


def _html(data: bytes, status: int) -> web.Response:
    return web.Response(body=data, status=status, content_type="text/html", charset="utf-8")


def _json(document: Mapping[str, Any] | None, status: int = 200) -> web.Response:
    text = json.dumps(document, separators=(",", ":"))
    return web.Response(text=text, status=status, content_type="application/json")


def _problem(problem: Problem, status: int) -> web.Response:
    return _json(document(problem), status)


async def start(listener: socket.socket, listen: str, daemon: Path, token: str) -> Page:
    """Serve on `listener` while the loop runs."""
    page = Page(Daemon(daemon), Access(listen, token), files.load())
    # Otherwise strangers who send something other than HTTP would fill the daemon's log.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    runner = web.AppRunner(page.app, access_log=None, lingering_time=LINGER_S)
    await runner.setup()
    assert runner.server is not None
    page.guard = Guard(runner.server)
    loop = asyncio.get_running_loop()
    await loop.create_server(page.guard, sock=listener, backlog=32)
    return page
