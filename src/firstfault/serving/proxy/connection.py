"""One client's connection to the proxy: request after request, each passed through as it comes.

    POST /v1/completions  →  to the server, its pieces back to the client as they arrive, and a line saved at the end

What the client would see without the proxy it sees with it: a stream arrives piece by piece, one that breaks breaks,
and when the client goes away the request to the server is ended, so that the engine stops working on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import h11
import httpx

from firstfault.record.requests import ENDPOINTS
from firstfault.serving.client import described
from firstfault.serving.proxy.recorder import Exchange, Writer
from firstfault.serving.proxy.upstream import Upstream, passed_on

MOST_HEAD = 64 * 2**10
MOST_BODY = 256 * 2**20
MOST_AHEAD = 2**20
"""Bytes that a client may send before the answer to what it sent has ended."""
IDLE_SECONDS = 75.0
"""How long a client may be silent between two requests, or within one."""
LINGER_SECONDS = 2.0
"""How long what a refused client still sends is read, and thrown away."""
_PIECE = 2**16


class Refused(Exception):
    """A request that is answered by the proxy itself."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClientGone(Exception):
    """The client has closed the connection, or broken it."""


class Connection:
    """One connection.

    Args:
        reader, writer: to the client.
        upstream: the server.
        saving: where requests go when they have ended.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: Upstream, saving: Writer
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._upstream = upstream
        self._saving = saving
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)
        self._ended = False
        self.busy = False
        """Whether a request is under way."""

    async def run(self) -> None:
        """Serve it to its end."""
        try:
            while await self._request():
                self._http.start_next_cycle()
        except (ClientGone, ConnectionError, TimeoutError, asyncio.TimeoutError):
            pass
        finally:
            self._writer.transport.abort() if self._http.our_state is h11.ERROR else self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    async def _request(self) -> bool:
        """One request and its answer; whether another can follow."""
        try:
            request = await self._event()
            if not isinstance(request, h11.Request):
                return False
            self._check(request)
            body = await self._body()
        except (h11.RemoteProtocolError, Refused) as error:
            await self._refuse(getattr(error, "status", 0) or getattr(error, "error_status_hint", 400), str(error))
            await self._linger()
            return False
        self.busy = True
        try:
            await self._pass(request, body)
        finally:
            self.busy = False
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE and not self._ended

    @staticmethod
    def _check(request: h11.Request) -> None:
        if not request.target.startswith(b"/"):
            raise Refused(400, "this proxy leads to one server: ask for a path, not for a URL")
        if any(name == b"upgrade" and value.lower() == b"websocket" for name, value in request.headers):
            raise Refused(501, "this proxy does not pass WebSockets")

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            data = await asyncio.wait_for(self._reader.read(_PIECE), IDLE_SECONDS)
            if not data and self._http.their_state is h11.IDLE:
                raise ClientGone
            self._http.receive_data(data)

    async def _body(self) -> bytes:
        body = bytearray()
        while not isinstance(event := await self._event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                body += event.data
                if len(body) > MOST_BODY:
                    raise Refused(413, f"the body has more than {MOST_BODY} bytes")
            elif not isinstance(event, h11.Request):
                raise ClientGone
        return bytes(body)

    async def _pass(self, request: h11.Request, body: bytes) -> None:
        """Pass a request on, save it, and end it when the client does."""
        began, at = time.monotonic(), time.time()
        exchange = _exchange(request, body, at)
        error = ""
        try:
            await self._or_gone(self._answer(request, body, exchange, began))
        except ClientGone:
            error = "the client closed the connection"
            raise
        except (httpx.HTTPError, httpx.StreamError) as caught:
            kind, message = described(caught)
            error = f"{kind}: {message}"
            await self._broken(error)
        except ConnectionError:
            error = "the client closed the connection"
            raise
        except asyncio.CancelledError:
            error = "" if self._http.our_state is h11.DONE else "the proxy was stopped"
            raise
        finally:
            if exchange is not None:
                self._saving.put(exchange.end(time.monotonic() - began, error))

    async def _answer(self, request: h11.Request, body: bytes, exchange: Exchange | None, began: float) -> None:
        headers = list(request.headers.raw_items())
        async with self._upstream.sending(request.method, request.target, headers, body) as response:
            if exchange is not None:
                exchange.begin(response.status_code, dict(response.headers))
            reason = response.extensions.get("reason_phrase", b"")
            await self._send(
                h11.Response(status_code=response.status_code, headers=passed_on(response.headers.raw), reason=reason)
            )
            async for piece in _pieces(response):
                if exchange is not None:
                    exchange.feed(piece, time.monotonic() - began)
                await self._send(h11.Data(data=piece))
            await self._send(h11.EndOfMessage())

    async def _or_gone(self, answering: Coroutine[Any, Any, None]) -> None:
        """Answer, unless the client goes away meanwhile."""
        answer = asyncio.ensure_future(answering)
        watch = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait((answer, watch), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() and self._http.our_state is not h11.DONE:
                raise ClientGone
            await answer  # a client that has all of it may go
        finally:
            for task in (answer, watch):
                task.cancel()
            await asyncio.gather(answer, watch, return_exceptions=True)

    async def _watch(self) -> None:
        """Return once the client is gone; what it sends ahead is kept."""
        ahead = 0
        while ahead < MOST_AHEAD:
            data = await self._reader.read(_PIECE)
            if not data:
                self._ended = True
                return
            ahead += len(data)
            self._http.receive_data(data)
        await asyncio.Event().wait()

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            self._writer.write(data)
            await self._writer.drain()

    async def _broken(self, error: str) -> None:
        """The server has failed: say so, or break what has begun, as it was broken."""
        if self._http.our_state is h11.SEND_RESPONSE:
            await self._refuse(502, error)
        else:
            self._http.send_failed()
            raise ClientGone

    async def _refuse(self, status: int, message: str) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = json.dumps({"error": {"message": f"firstfault proxy: {message}", "type": "proxy_error", "code": status}})
        data = body.encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(data))), ("connection", "close")]
        await self._send(h11.Response(status_code=status, headers=headers))
        await self._send(h11.Data(data=data))
        await self._send(h11.EndOfMessage())

    async def _linger(self) -> None:
        """Read on for a while: a connection that is closed while something comes in is reset, and the answer lost."""
        self._writer.write_eof()
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self._rest(), LINGER_SECONDS)

    async def _rest(self) -> None:
        while await self._reader.read(_PIECE):
            pass


async def _pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    """A body as it is on the wire."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    async for piece in response.stream:
        if piece:
            yield piece


def _exchange(request: h11.Request, body: bytes, at: float) -> Exchange | None:
    """What is to be saved of a request; None for one that only passes through."""
    path = request.target.partition(b"?")[0].decode("ascii", "replace")
    if request.method != b"POST" or path not in ENDPOINTS:
        return None
    try:
        return Exchange(path, body, at)
    except ValueError:
        return None
