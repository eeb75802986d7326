"""One request from the desk to the engine, and the engine's answer back as it arrives.

Until the first byte of an answer is passed on, the policy may repeat an attempt that fails. Waiting
streams get comments with the phase and the expected seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import ClientError, ClientPayloadError, ClientResponse, web
from aiohttp.client_exceptions import ClientConnectorError
from yarl import URL

from caovand.core.gateway import last_words, protocol
from caovand.core.gateway.events import (
    Begun,
    Done,
    Effect,
    End,
    Faulted,
    Forward,
    Lost,
    Refuse,
    Release,
    Unsent,
)
from caovand.core.gateway.last_words import NOTHING, Stage
from caovand.core.gateway.naming import rewrite_body
from caovand.core.gateway.protocol import Fault
from caovand.core.gateway.usage import Meter
from caovand.core.problem import Problem
from caovand.gateway.call import HOP_BY_HOP, Call, payload
from caovand.gateway.desk import Desk, Refused, Ticket
from caovand.gateway.upstream import Upstream

FIRST_COMMENT_S = 10.0
"""Until a waiting stream's header is sent, its client sees an error's status, and its library
repeats the request if the gateway itself dies. Clients wait longer than this for a header."""
COMMENT_S = 5.0
MAX_FAULT_BYTES = 256 << 10
STREAM = "text/event-stream"
OURS_TO_CLIENT = HOP_BY_HOP | {"content-length", "date", "server"}


@dataclass(frozen=True)
class _Head:
    """The header of an engine's answer, and its first bytes."""

    status: int
    headers: Mapping[str, str]
    first: bytes


class _Response(web.StreamResponse):
    """Sends its header with the first chunk: each write wakes the client."""

    _send_headers_immediately = False


class Exchange:
    """Answers `request`, which has `ticket`, with the engine's answer to `call`.

    `marking` receives what the client gets if this process dies from then on.
    """

    def __init__(
        self,
        desk: Desk,
        upstream: Upstream,
        request: web.Request,
        ticket: Ticket,
        call: Call,
        marking: Callable[[int], None],
    ) -> None:
        self._desk, self._upstream = desk, upstream
        self._request, self._ticket, self._call = request, ticket, call
        self._response: web.StreamResponse | None = None
        self._fault: _Head | None = None  # the engine's own error, not passed on yet
        self._meter = Meter()
        self._marking, self._mark = marking, NOTHING  # the mark after each whole event

    async def run(self) -> web.StreamResponse:
        """Wait for an engine, and relay its answer."""
        while True:
            effect = await self._wait_for_turn()
            if isinstance(effect, Refuse):
                return await self._end_failed(protocol.fault_of(effect.why, effect.retry_after_s))
            if isinstance(effect, Release):
                assert self._fault is not None
                return await self._send_whole(self._fault)
            if isinstance(effect, Forward) and await self._attempt():
                assert self._response is not None
                return self._response

    # -- waiting ----------------------------------------------------------------------------

    async def _wait_for_turn(self) -> Effect:
        limit_s = FIRST_COMMENT_S if self._call.fields.stream else None
        while (effect := await self._ticket.next(limit_s)) is None:
            limit_s = COMMENT_S
            await self._begin(200, {"Content-Type": STREAM})
            await self._write(protocol.comment(self._desk.outlook))
        return effect

    # -- an attempt -------------------------------------------------------------------------

    async def _attempt(self) -> bool:
        """Send the request once; return whether it was answered, or ended for good."""
        self._fault = None
        response = await self._request_engine()
        if response is None:
            return False
        try:
            return await self._receive(response)
        finally:
            self._ticket.trying(None)
            response.close()

    async def _request_engine(self) -> ClientResponse | None:
        """Send the request; None if no answer begins, which the policy has then been informed
        of."""
        call, facts, ticket = self._call, self._desk.facts, self._ticket
        # The name may mean another model by now, after the request waited.
        ticket.record.sent, ticket.record.tries = self._desk.now(), ticket.record.tries + 1
        body = rewrite_body(call.body, call.fields, call.path, self._desk.naming, call.defaults)
        headers = dict(call.headers)
        if facts.key:
            headers["Authorization"] = f"Bearer {facts.key}"
        task = asyncio.current_task()
        assert task is not None
        ticket.trying(task.cancel)
        try:
            response = await self._upstream.session(facts).request(
                call.method,
                URL(facts.url + call.target, encoded=True),
                data=payload(body),
                headers=headers,
                allow_redirects=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            )
        except asyncio.CancelledError:
            if not ticket.aborted or self._request.transport is None:
                raise  # the client has disconnected
            ticket.trying(None)
            return None
        except (ClientError, OSError, asyncio.TimeoutError) as problem:
            ticket.trying(None)
            if not ticket.aborted:
                unsent = isinstance(problem, ClientConnectorError)
                self._desk.tell(ticket, Unsent if unsent else Lost)
            return None

        def abort() -> None:
            response.content.set_exception(ClientPayloadError("the engine exited"))

        ticket.trying(abort)
        return response

    async def _receive(self, response: ClientResponse) -> bool:
        """Relay an answer, or withhold it as the engine's fault; return whether it was relayed."""
        desk, ticket = self._desk, self._ticket
        headers = {k: v for k, v in response.headers.items() if k.lower() not in OURS_TO_CLIENT}
        head = _Head(response.status, headers, b"")
        try:
            first = await response.content.readany()
            while self._is_stream(head) and protocol.is_comment(first):  # no answer has begun
                with contextlib.suppress(ConnectionError):  # a client that disconnects is cancelled
                    await self._begin(response.status, headers)
                    await self._write(first)
                first = await response.content.readany()
            head = _Head(response.status, headers, first)
            broken = response.content_type == STREAM and protocol.error_at(first, fresh=True) == 0
            if broken or (response.status >= 500 and response.status != 501):
                rest = await self._read_rest(response, len(first))
                self._fault = _Head(head.status, headers, first + rest)
            elif self._response is not None and not self._is_stream(head):
                whole = _Head(
                    head.status, headers, first + await self._read_rest(response, len(first))
                )
                desk.tell(ticket, Begun)
                await self._send_whole(whole)
                desk.tell(ticket, Done)
                return True
        except (ClientError, OSError, asyncio.TimeoutError):
            if not ticket.aborted:
                desk.tell(ticket, Lost)
            return False
        if self._fault is not None:
            ticket.trying(None)
            desk.tell(ticket, Faulted)
            return False
        desk.tell(ticket, Begun)
        ticket.record.first = desk.now()
        return await self._relay_metered(response, head)

    async def _read_rest(self, response: ClientResponse, read: int) -> bytes:
        """The rest of a short answer."""
        pieces = []
        while read < MAX_FAULT_BYTES and (piece := await response.content.readany()):
            pieces.append(piece)
            read += len(piece)
        return b"".join(pieces)

    async def _relay_metered(self, response: ClientResponse, head: _Head) -> bool:
        """Relay the answer, and count its tokens."""
        try:
            return await self._relay(response, head)
        finally:
            self._desk.spend(self._ticket, self._meter.usage(len(self._call.body)))

    async def _relay(self, response: ClientResponse, head: _Head) -> bool:
        """Relay the answer, chunk by chunk as it arrives."""
        await self._begin(head.status, head.headers, response.content_length)
        ticket, content, write = self._ticket, response.content, self._write
        chunk, meter, error_at = head.first, self._meter.take, protocol.error_at
        streams, fresh = self._is_stream(head), True
        while True:
            meter(chunk)
            if streams and (place := error_at(chunk, fresh=fresh)) >= 0:
                chunk, self._fault = chunk[:place], _Head(head.status, {}, chunk[place:])
            ticket.writing_since = self._desk.now()
            if self._fault is None and content.at_eof():
                break  # the end is sent with the last chunk
            if chunk:
                await write(chunk)  # an error here means that the client disconnected
            ticket.writing_since = None
            if self._fault is not None:
                await self._end_faulted(response, self._fault)
                return True
            fresh = chunk.endswith(b"\n\n")
            try:
                chunk = await content.readany()
            except (ClientError, OSError, asyncio.TimeoutError):
                if not ticket.aborted:
                    self._desk.tell(ticket, Lost)
                await self._end_cut_off()
                return True
        self._desk.tell(ticket, Done)
        await self._write_last(chunk)
        ticket.writing_since = None
        return True

    async def _end_faulted(self, response: ClientResponse, fault: _Head) -> None:
        """End an answer with the engine's error event; with our own if the engine dies of it."""
        rest = b""
        with contextlib.suppress(ClientError, OSError, asyncio.TimeoutError):
            rest = await self._read_rest(response, len(fault.first))
        if not self._ticket.aborted:
            self._ticket.trying(None)
            self._desk.tell(self._ticket, Faulted)
        effect = await self._ticket.next(None)
        if isinstance(effect, End):
            await self._end_failed(protocol.fault_of(effect.why, effect.retry_after_s))
        else:
            await self._send_last(fault.first + rest)

    async def _end_cut_off(self) -> None:
        """End an answer that had begun."""
        effect = await self._ticket.next(None)
        assert isinstance(effect, End)
        await self._end_failed(protocol.fault_of(effect.why, effect.retry_after_s))

    # -- the client's side ------------------------------------------------------------------

    def _is_stream(self, head: _Head) -> bool:
        kind = head.headers.get("Content-Type", "")
        return head.status == 200 and kind.startswith(STREAM)

    async def _begin(
        self, status: int, headers: Mapping[str, str], length: int | None = None
    ) -> web.StreamResponse:
        """The response to the client, whose header is sent once."""
        if self._response is None:
            response = _Response(status=status, headers=dict(headers))
            if length is not None:
                response.content_length = length
            if response.headers.get("Content-Type", "").startswith(STREAM):
                response.headers.setdefault("X-Accel-Buffering", "no")
                response.headers.setdefault("Cache-Control", "no-cache")
            self._response = response
            await response.prepare(self._request)
            if self._is_stream(_Head(status, headers, b"")) and length is None:
                chunked = response.headers.get("Transfer-Encoding") == "chunked"
                stage = Stage.CHUNKED if chunked else Stage.UNFRAMED
                packed = "Content-Encoding" in response.headers
                self._mark = NOTHING if packed else last_words.mark(stage, self._call.form)
        return self._response

    async def _write(self, chunk: bytes) -> None:
        """Send a part of the answer; raises ConnectionError if the client has disconnected."""
        assert self._response is not None
        self._marking(NOTHING)
        await self._response.write(chunk)
        transport = self._request.transport
        # Last words fit in between two events, once all before them is the kernel's.
        whole = self._mark != NOTHING and chunk.endswith(b"\n\n")
        if whole and transport is not None and not transport.get_write_buffer_size():
            self._marking(self._mark)

    async def _write_last(self, chunk: bytes) -> None:
        """Send the end of the answer."""
        assert self._response is not None
        self._marking(NOTHING)
        await self._response.write_eof(chunk)

    async def _send_whole(self, head: _Head) -> web.StreamResponse:
        """Relay a short answer; as an event if comments have been sent already."""
        if self._response is None or self._is_stream(head):
            response = await self._begin(head.status, head.headers)
            await self._write_last(head.first)
            return response
        try:
            document = json.loads(head.first)
        except ValueError:
            document = None
        if not isinstance(document, dict) or "error" not in document:
            fact = f"the engine answered with HTTP {head.status}"
            fault = Fault(head.status, "engine_error", Problem("answer", fact, "check the request"))
            return await self._end_failed(fault)
        return await self._send_last(protocol.wrap_error(self._call.form, document))

    async def _end_failed(self, fault: Fault) -> web.StreamResponse:
        """End with an error: in the stream if one has begun, else as the complete answer."""
        response, self._ticket.record.outcome = self._response, fault.code
        if response is None:
            raise Refused(fault)
        if not response.headers.get("Content-Type", "").startswith(STREAM):
            # Half a document cannot be ended properly: the client must see that it is truncated.
            if self._request.transport is not None:
                self._request.transport.abort()
            return response
        return await self._send_last(protocol.error_event(self._call.form, fault))

    async def _send_last(self, event: bytes) -> web.StreamResponse:
        assert self._response is not None
        await self._write_last(event)
        return self._response
