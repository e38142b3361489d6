"""The proxy's listening end.

async with serving(Upstream("http://127.0.0.1:8000"), Writer(Path("requests.jsonl")), port=8001) as address: …
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

from firstfault.serving.proxy.connection import Connection
from firstfault.serving.proxy.recorder import Writer
from firstfault.serving.proxy.upstream import Upstream

MOST_CONNECTIONS = 4096
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_BACKLOG = 1024
DRAIN_SECONDS = 10.0
"""How long requests under way may go on once the proxy is to end."""
_LOOK_SECONDS = 0.02
_WRITE_BUFFER = 2**18
"""Bytes that wait for a slow client before the server is not read any further."""


@contextlib.asynccontextmanager
async def serving(
    upstream: Upstream, saving: Writer, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[tuple[str, int]]:
    """Serve until the block ends; gives the address that it listens at.

    Raises:
        OSError: the address cannot be listened at.
    """
    open_now: dict[asyncio.Task[None], Connection] = {}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(open_now) >= MOST_CONNECTIONS:
            writer.write(_BUSY)
            writer.close()
            return
        open_now[task] = connection = Connection(reader, writer, upstream, saving)
        try:
            writer.transport.set_write_buffer_limits(_WRITE_BUFFER)
            await connection.run()
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            del open_now[task]

    server = await asyncio.start_server(connected, host, port, backlog=_BACKLOG)
    try:
        yield _address(server.sockets[0])
    finally:
        server.close()
        until = time.monotonic() + DRAIN_SECONDS
        while any(connection.busy for connection in open_now.values()) and time.monotonic() < until:
            await asyncio.sleep(_LOOK_SECONDS)
        for task in list(open_now):
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)
        await upstream.close()


def _address(listening: socket.socket) -> tuple[str, int]:
    name = listening.getsockname()
    return str(name[0]), int(name[1])
