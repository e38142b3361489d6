"""One bounded exchange with a server: whatever it does, an answer comes back in time, and fits.

    Answer(path="/health", status=None, error="TimeoutError", message="timed out", seconds=10.0)
    Answer(path="/metrics", status=200, body=b"# HELP sglang:…", seconds=0.014)

A failure is data, not an exception: that a server refuses, resets or keeps silent is what a bundle is about. The
deadline is of the whole exchange, so a server that answers a byte a second does not hold it up. Sizes are limited on
the wire and, on their own, after decompression. A redirect is followed only within the origin that was given, because
only that one may see the token.
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from firstfault.errors import UsageError
from firstfault.record.plain import plain_text

if TYPE_CHECKING:
    import httpx

MEBIBYTE = 2**20
MOST_BYTES = 16 * MEBIBYTE
"""Of one body, on the wire and once more after decompression; a large fleet's ``/metrics`` has 5 MB."""
MOST_REDIRECTS = 3
LONGEST_MESSAGE = 500
TOO_LARGE = "BodyTooLarge"
REDIRECTED = "RedirectRefused"
BAD_ENCODING = "BadContentEncoding"
TIMED_OUT = "TimeoutError"

_NAMES = {
    "ReadTimeout": TIMED_OUT,
    "ConnectTimeout": TIMED_OUT,
    "PoolTimeout": TIMED_OUT,
    "WriteTimeout": TIMED_OUT,
    "ReadError": "ConnectionResetError",
    "RemoteProtocolError": "RemoteProtocolError",
}
"""httpx's names → those that Python has for the same, which bundles show."""
DECODERS = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""Content encodings that are read → zlib's window bits."""

Chunk = Callable[[bytes, float], None]
"""Called with each piece of a body as it arrives, and the seconds since the request was begun."""


@dataclass(frozen=True)
class Answer:
    """What came of one request.

    Attributes:
        path: with its query, as it was asked for.
        status: None where no status line came.
        headers: by name in lower case.
        body: as far as it came; decompressed.
        error: the class of what went wrong, empty where nothing did; a status is no error.
        message: what went wrong, in one line.
        seconds: from the beginning to the end of the exchange.
        first_byte: until the first byte of the body; None where none came.
    """

    path: str
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    error: str = ""
    message: str = ""
    seconds: float = 0.0
    first_byte: float | None = None

    @property
    def ok(self) -> bool:
        """Whether a complete answer came that is none of an error."""
        return not self.error and self.status is not None and 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body as text; what is no UTF-8 is escaped."""
        return self.body.decode("utf-8", "backslashreplace")


class Client:
    """Exchanges with one server.

    Args:
        base_url: of the server, such as ``http://127.0.0.1:30000``; a path prefix is kept.
        token: sent as bearer token to this origin, and to no other.
        timeout: seconds for one whole exchange, connecting included.
        most_bytes: of one body.
        transport: httpx's, in place of the network.

    Raises:
        UsageError: the URL is none of a server, or holds a password.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str = "",
        timeout: float = 10.0,
        most_bytes: int = MOST_BYTES,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = checked_url(base_url)
        self.timeout = timeout
        self.most_bytes = most_bytes
        self._token = checked_token(token)
        self._transport = transport
        self._http: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Client:
        import httpx

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        # The deadline is ours, of the whole exchange: httpx's are each of one read.
        self._http = httpx.AsyncClient(
            transport=self._transport,
            timeout=None,  # noqa: S113
            follow_redirects=False,
            limits=limits,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def get(self, path: str, *, timeout: float | None = None) -> Answer:
        """Ask for a path."""
        return await self.ask("GET", path, timeout=timeout)

    async def post(
        self, path: str, body: Any = None, *, timeout: float | None = None, on_chunk: Chunk | None = None
    ) -> Answer:
        """Send a JSON body."""
        return await self.ask("POST", path, body=body, timeout=timeout, on_chunk=on_chunk)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
        on_chunk: Chunk | None = None,
    ) -> Answer:
        """One exchange, bounded in time and size.

        Args:
            method: ``GET``, ``POST`` …
            path: below the base URL, with its query.
            body: sent as JSON, where there is one.
            timeout: seconds, where it is another than the client's.
            headers: to send besides; the token comes last, so they cannot replace it.
            on_chunk: sees each piece of the body as it arrives; for streams.
        """
        exchange = _Exchange(self, path, on_chunk)
        limit = self.timeout if timeout is None else timeout
        try:
            await asyncio.wait_for(exchange.run(method, self.base_url + path, body, dict(headers or {})), limit)
        except (TimeoutError, asyncio.TimeoutError):
            exchange.fail(TIMED_OUT, "timed out")
        return exchange.answer()

    def sent_headers(self, extra: Mapping[str, str]) -> dict[str, str]:
        """What goes to the server's origin with each request."""
        own = {"accept-encoding": "identity", "user-agent": "firstfault"}
        return own | dict(extra) | ({"authorization": f"Bearer {self._token}"} if self._token else {})

    @property
    def http(self) -> httpx.AsyncClient:
        """The open connection pool."""
        assert self._http is not None, "use it in an `async with`"
        return self._http


class _Exchange:
    """One exchange under way; what came so far is kept when it fails."""

    def __init__(self, client: Client, path: str, on_chunk: Chunk | None) -> None:
        self._client = client
        self._path = path
        self._on_chunk = on_chunk
        self._began = time.monotonic()
        self._status: int | None = None
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._size = 0
        self._first: float | None = None
        self._error = self._message = ""

    async def run(self, method: str, url: str, body: Any, headers: dict[str, str]) -> None:
        """Send it, and read the answer, following redirects within the origin."""
        import httpx

        try:
            for _ in range(MOST_REDIRECTS + 1):
                target = await self._once(method, url, body, headers)
                if target is None:
                    return
                url = target
            self.fail(REDIRECTED, f"more than {MOST_REDIRECTS} redirects")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            self.fail(*described(error))

    async def _once(self, method: str, url: str, body: Any, headers: dict[str, str]) -> str | None:
        """One request; where it is redirected within the origin, the URL to go on with."""
        async with AsyncExitStack() as stack:
            sent = {"headers": self._client.sent_headers(headers)} | ({"json": body} if body is not None else {})
            response = await stack.enter_async_context(self._client.http.stream(method, url, **sent))
            self._status = response.status_code
            self._headers = {plain_text(name.lower()): plain_text(value) for name, value in response.headers.items()}
            target = self._headers.get("location", "")
            if not 300 <= response.status_code < 400 or not target:
                await self._read(response)
                return None
            followed = urljoin(url, target)
            if origin(followed) == origin(self._client.base_url) and method == "GET":
                return followed
            self.fail(REDIRECTED, f"not followed to {_without_secrets(followed)}")
            return None

    async def _read(self, response: httpx.Response) -> None:
        """The body, as long as it fits."""
        most = self._client.most_bytes
        encoding = self._headers.get("content-encoding", "identity").strip().lower()
        decode = _decoder(encoding)
        if decode is None:
            self.fail(BAD_ENCODING, f"its content encoding {encoding[:40]!r} was not asked for and is not read")
            return
        wire = 0
        async for raw in _pieces(response):
            wire += len(raw)
            piece = decode(raw, most + 1 - self._size)
            if piece and self._first is None:
                self._first = time.monotonic() - self._began
            self._size += len(piece)
            if wire > most or self._size > most:
                self.fail(TOO_LARGE, f"its body has more than {most} bytes")
                return
            self._pieces.append(piece)
            if self._on_chunk is not None and piece:
                self._on_chunk(piece, time.monotonic() - self._began)

    def fail(self, error: str, message: str) -> None:
        """Keep what went wrong."""
        self._error, self._message = error, plain_text(message)[:LONGEST_MESSAGE]

    def answer(self) -> Answer:
        """What came of it."""
        return Answer(
            self._path,
            self._status,
            self._headers,
            b"".join(self._pieces),
            self._error,
            self._message,
            time.monotonic() - self._began,
            self._first,
        )


async def _pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    """The body as it is on the wire; httpx's own fake transport hands it over whole."""
    if response.is_stream_consumed:
        yield response.content
        return
    async for piece in response.aiter_raw():
        yield piece


def described(error: BaseException) -> tuple[str, str]:
    """The class and the text of an error of the network, by the names that Python has for its own.

    httpx wraps what the socket said; the innermost error that has a number is what a reader looks for:
    ``ConnectionRefusedError: [Errno 111] Connection refused``.
    """
    for inner in _causes(error):
        if isinstance(inner, OSError) and inner.errno is not None:
            said = os.strerror(inner.errno) if inner.errno > 0 else str(inner.strerror)
            return type(inner).__name__, f"[Errno {inner.errno}] {said}"
    name = type(error).__name__
    return _NAMES.get(name, name), str(error) or name


def _causes(error: BaseException) -> list[BaseException]:
    """An error and what led to it, innermost first."""
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo and len(found) < 20:
        current = todo.pop()
        if current is None or current in found:
            continue
        found.append(current)
        todo += [current.__context__, current.__cause__, *getattr(current, "exceptions", ())]
    return found[::-1]


def _decoder(encoding: str) -> Callable[[bytes, int], bytes] | None:
    """What turns bytes of the wire into at most so many of the body; None for an encoding that is not read."""
    if encoding in ("", "identity"):
        return lambda raw, most: raw
    bits = DECODERS.get(encoding)
    if bits is None:
        return None
    state = zlib.decompressobj(bits)

    def decode(raw: bytes, most: int) -> bytes:
        try:
            return state.decompress(raw, max(most, 1))
        except zlib.error as error:
            raise ValueError(f"its body is no {encoding}: {error}") from None

    return decode


def checked_url(text: str) -> str:
    """The base URL of a server, without a slash at its end.

    Raises:
        UsageError: it is none.
    """
    try:
        parts = urlsplit(text.strip())
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        known = False
    if not known:
        raise UsageError(f"{text!r} is no URL of a server; give one such as http://127.0.0.1:30000")
    if parts.username or parts.password:
        raise UsageError("the URL holds a user or a password, which would be recorded; give a token with --token")
    if parts.query or parts.fragment:
        raise UsageError(f"{text!r} has a query; give the server alone, such as {parts.scheme}://{parts.netloc}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def checked_token(token: str) -> str:
    """A token that a header can carry.

    Raises:
        UsageError: it cannot be one.
    """
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError("the token has characters that no header can carry; give the bare token, without Bearer")
    return token


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL: what a token may be sent to."""
    try:
        parts = urlsplit(url)
        default = {"http": 80, "https": 443}.get(parts.scheme, 0)
        return parts.scheme, (parts.hostname or "").lower(), parts.port or default
    except ValueError:
        return "", "", 0


def _without_secrets(url: str) -> str:
    """The scheme, host and port of a URL alone: its user and its query may be secrets."""
    scheme, host, port = origin(url)
    return f"{scheme}://{host}:{port}"
