"""The server behind the proxy: one request to it, with nothing added and nothing changed.

    async with upstream.sending(b"POST", b"/v1/completions", headers, body) as response: …

A request goes out with the headers that it came with, but for those of the connection itself (RFC 9110, 7.6.1), and
to the one server only: where it asks for another, as a client of a forward proxy does, it is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence

import httpx

from firstfault.serving.client import checked_url

CONNECT_SECONDS = 10.0
Header = tuple[bytes, bytes]
_OF_THE_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip


class Upstream:
    """A server.

    Args:
        base_url: of it.
        transport: httpx's, in place of the network.

    Raises:
        UsageError: the URL is none of a server.
    """

    def __init__(self, base_url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.base_url = checked_url(base_url)
        self._url = httpx.URL(self.base_url)
        self._prefix = self._url.raw_path.rstrip(b"/")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=4.0)
        self._transport = transport or httpx.AsyncHTTPTransport(limits=limits)

    @contextlib.asynccontextmanager
    async def sending(
        self, method: bytes, target: bytes, headers: Sequence[Header], body: bytes
    ) -> AsyncIterator[httpx.Response]:
        """Send a request, and give the response as soon as its head is there.

        Raises:
            httpx.HTTPError: the server cannot be reached, or does not speak HTTP.
        """
        kept = [
            header for header in passed_on(headers) if header[0].lower() not in (b"host", b"content-length", b"expect")
        ]
        request = httpx.Request(
            method.decode("ascii"),
            self._url.copy_with(raw_path=self._prefix + target),
            headers=kept,
            content=body or None,
            extensions={"timeout": {"connect": CONNECT_SECONDS, "read": None, "write": None, "pool": CONNECT_SECONDS}},
        )
        if not body and method in (b"POST", b"PUT", b"PATCH"):
            request.headers["content-length"] = "0"
        response = await self._transport.handle_async_request(request)
        try:
            yield response
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


def passed_on(headers: Iterable[Header]) -> list[Header]:
    """Headers without those that are of one connection alone."""
    given = list(headers)
    named = b",".join(value for name, value in given if name.lower() == b"connection")
    dropped = _OF_THE_CONNECTION | {name.strip().lower() for name in named.split(b",") if name.strip()}
    return [(name, value) for name, value in given if name.lower() not in dropped]
