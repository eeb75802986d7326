"""The gateway's HTTP server: requests for the engine, and its own health and list of models."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import io
from collections.abc import Awaitable, Callable

from aiohttp import StreamReader, web

from caovand.adapters.servers.faults import Faults
from caovand.adapters.system import wall_clock
from caovand.core.gateway import last_words, protocol
from caovand.core.gateway.body import Fields
from caovand.core.gateway.events import EngineState
from caovand.core.gateway.fair import Lane
from caovand.core.gateway.keys import ClientKey, digest_of, wrong_key
from caovand.core.gateway.last_words import Stage
from caovand.core.gateway.prefixes import prefix_parts
from caovand.core.gateway.protocol import Fault, Form
from caovand.core.gateway.record import CLIENT_GONE, Record
from caovand.core.gateway.usage import expected_tokens
from caovand.core.problem import Problem
from caovand.gateway.bodies import BodyReader
from caovand.gateway.call import Call, to_engine
from caovand.gateway.connections import Connections
from caovand.gateway.desk import Desk, Refused, Ticket
from caovand.gateway.exchange import Exchange
from caovand.gateway.upstream import Upstream

PROXIED_PATHS = (
    "/v1/",
    "/v2/",
    "/tokenize",
    "/detokenize",
    "/rerank",
    "/score",
    "/classify",
    "/pooling",
)
BODY_SILENCE_S = 15.0
BODY_GRACE_S = 30.0
MAX_SHAPE = 300
SHARED_KEY = ClientKey("", "")
"""The identity of clients without a key of their own."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gateway:
    """The HTTP application `app`: authenticates, admits and forwards requests."""

    def __init__(self, desk: Desk, upstream: Upstream, connections: Connections) -> None:
        self._desk, self._upstream, self._connections = desk, upstream, connections
        self._faults = Faults("use /v1/...", "this is a bug in caovan", self._refuse_fault)
        self._bodies = BodyReader()
        self.app = web.Application(middlewares=[self._rules])
        self.app.on_response_prepare.append(self._add_headers)
        self.app.add_routes([
            web.get("/health", self._health),
            web.get("/v1/models", self._models),
            web.get("/v1/models/{name:.+}", self._model),
            web.route("*", "/{path:.*}", self._forward),
        ])  # fmt: skip

    # -- every request ------------------------------------------------------------------------

    @web.middleware
    async def _rules(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connections = self._connections
        if request.transport is None:
            raise ConnectionResetError("the client disconnected before its request was read")
        connections.asked(request.transport)
        try:
            return await self._faults.catch(request, self._answer(request, handler))
        finally:
            connections.answered(request.transport)

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if len(request.headers) > (most := self._desk.facts.limits.max_headers):
                fact = f"the request has more than {most} headers, [gateway] max_headers"
                problem = Problem("answer", fact, "send fewer")
                raise Refused(Fault(431, "too_many_headers", problem))
            return await handler(request)
        except Refused as refused:
            return self._refuse(request, refused.fault)

    def _authenticate(self, request: web.Request) -> ClientKey:
        """The owner of a request; raises Refused."""
        facts = self._desk.facts
        if facts.keys is None and not facts.key:
            return SHARED_KEY
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        sent = (
            bearer.strip() if scheme.lower() == "bearer" else request.headers.get("X-Api-Key", "")
        )
        if facts.keys is not None:
            owner = facts.keys.get(digest_of(sent))
        else:
            right = hmac.compare_digest(sent.encode("utf-8", "replace"), facts.key.encode())
            owner = SHARED_KEY if right else None
        if owner is None:
            self._desk.turn_away(401)
            raise Refused(Fault(401, "invalid_api_key", wrong_key()))
        return owner

    def _refuse_fault(self, request: web.Request, problem: Problem, status: int) -> web.Response:
        code = "gateway_fault" if status == 500 else "not_found"
        return self._refuse(request, Fault(status, code, problem))

    def _refuse(self, request: web.Request, fault: Fault) -> web.Response:
        response = web.json_response(protocol.document(_form(request), fault), status=fault.status)
        if fault.retry_after_s is not None:
            response.headers["Retry-After"] = str(fault.retry_after_s)
        if request.can_read_body and not request.content.is_eof():
            response.force_close()  # its body is not needed
        return response

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Server"] = "caovan"

    # -- its own answers --------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        facts = self._desk.facts
        status = 200 if facts.engine.state is EngineState.SERVING else 503
        return web.json_response({"state": facts.state, **self._desk.counts}, status=status)

    async def _models(self, request: web.Request) -> web.Response:
        facts, names = self._desk.facts, self._names(self._authenticate(request))
        expected_s = facts.engine.expected_s
        return web.json_response(protocol.models(names, facts.context, facts.state, expected_s))

    async def _model(self, request: web.Request) -> web.Response:
        facts, name = self._desk.facts, request.match_info["name"]
        self._check_model(self._authenticate(request), name)
        listed = protocol.models([name], facts.context, facts.state, facts.engine.expected_s)
        return web.json_response(listed["data"][0])

    def _names(self, key: ClientKey) -> list[str]:
        """The model names that a client may use."""
        naming = self._desk.naming
        meant = ((name, naming.resolve(name)) for name in naming.names)
        return [name for name, model in meant if model and key.may_use(name, model.model)]

    def _check_model(self, key: ClientKey, name: str | None) -> None:
        naming = self._desk.naming
        if not naming.served or (name is None and not key.models):
            return
        meant = naming.resolve(name or "")
        if meant is None or not key.may_use(name or "", meant.model):
            raise Refused(protocol.unknown_model(name or "", self._names(key)))

    # -- the engine's -----------------------------------------------------------------------

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        desk, key = self._desk, self._authenticate(request)
        record = Record(wall_clock.now(), desk.now(), key.name, request.path)
        try:
            response = await self._serve(request, key, record)
            record.status = response.status
            return response
        except Refused as problem:
            record.status, record.outcome = problem.fault.status, problem.fault.code
            raise
        except (ConnectionError, asyncio.CancelledError):
            record.outcome = CLIENT_GONE
            raise
        finally:
            desk.ended(record)

    async def _serve(
        self, request: web.Request, key: ClientKey, record: Record
    ) -> web.StreamResponse:
        path = request.path
        if not path.startswith(PROXIED_PATHS) or ".." in path.split("/"):
            problem = Problem("answer", f"no resource at {path[:100]}", "use /v1/...")
            raise Refused(Fault(404, "not_found", problem))
        desk, most = self._desk, self._desk.facts.max_body_bytes
        desk.admit(key)
        announced = request.content_length or 0
        if announced > most:
            raise Refused(_too_large(most))
        lane = Lane(key.name, key.band)
        ticket = desk.arrive(announced, lane, record, request.transport)
        try:
            call = await self._read_call(request, ticket, key, announced, most)
            marking = self._connections.complete(request.transport)
            marking(last_words.mark(Stage.UNANSWERED, call.form))
            tokens = expected_tokens(len(call.body), call.fields.max_tokens)
            desk.complete(ticket, call.digest, tokens)
            try:
                return await Exchange(desk, self._upstream, request, ticket, call, marking).run()
            finally:
                # Now that no answer waits for it.
                parts = tuple(prefix_parts(call.body, call.fields.spans))
                record.prefix = desk.prefixes.take(key.name, parts, desk.facts.reading_rate)
        finally:
            desk.leave(ticket)

    async def _read_call(
        self, request: web.Request, ticket: Ticket, key: ClientKey, announced: int, most: int
    ) -> Call:
        """Read a request's body, and check which model it is for; raises Refused."""
        body, digest = await self._read_body(request, ticket, announced, most)
        plain = "json" in request.content_type and "Content-Encoding" not in request.headers
        fields = await self._bodies.read(body) if plain else Fields()
        if key.models and body and not plain:
            fact = "the key is restricted to some models, but the body does not name a model"
            problem = Problem("answer", fact, "send plain JSON as application/json")
            raise Refused(Fault(403, "model_unknown", problem))
        ticket.record.model = fields.model or ""
        self._check_model(key, fields.model)
        named = f" with {', '.join(fields.names)}" if fields.names else ""
        shape = f"{request.method} {request.path[:100]}, {len(body)} bytes{named}"
        ticket.shape = shape[:MAX_SHAPE]
        return Call(
            request.method,
            request.path,
            request.rel_url.raw_path_qs,
            to_engine(request.headers),
            body,
            digest,
            fields,
            _form(request),
            key.defaults,
        )

    async def _read_body(
        self, request: web.Request, ticket: Ticket, announced: int, most: int
    ) -> tuple[bytes, bytes]:
        """The body, and the request's identity for repetitions; raises Refused."""
        content, began = request.content, asyncio.get_running_loop().time()
        size, kept = 0, io.BytesIO()
        what = f"{request.method} {request.path}\0".encode("utf-8", "surrogateescape")
        known = hashlib.blake2b(what, digest_size=16)
        bytes_per_s = self._desk.facts.limits.min_body_kib_s << 10
        while True:
            due = began + BODY_GRACE_S + size / bytes_per_s
            if not (piece := await _read_piece(content, due)):
                # BytesIO hands it over without a copy.
                return kept.getvalue(), known.digest()
            size += len(piece)
            if size > most:
                raise Refused(_too_large(most))
            if size > announced:
                self._desk.grow(ticket, size)
            self._desk.check(ticket)
            kept.write(piece)
            known.update(piece)


async def _read_piece(content: StreamReader, due: float) -> bytes:
    """The next piece of a body, which must come before the loop's time `due`; raises Refused."""
    left_s = due - asyncio.get_running_loop().time()
    try:
        # Data that is there already needs no wait, which would cost a task.
        if (piece := content.read_nowait()) or content.at_eof():
            return piece
        return await asyncio.wait_for(content.readany(), min(left_s, BODY_SILENCE_S))
    except asyncio.TimeoutError:
        problem = Problem("read the request", "its body arrives too slowly", "send it again")
        raise Refused(Fault(408, "body_too_slow", problem)) from None
    except web.RequestPayloadError:
        problem = Problem("read the request", "its body is not valid HTTP", "check the client")
        raise Refused(Fault(400, "bad_body", problem)) from None


def _form(request: web.Request) -> Form:
    return protocol.form_of(request.path, anthropic="anthropic-version" in request.headers)


def _too_large(most: int) -> Fault:
    fact = f"its body exceeds {most >> 20} MiB, the limit in [gateway] max_body_mib"
    return Fault(413, "request_too_large", Problem("read the request", fact, "shorten it"))
