"""Servers that misbehave, on real sockets: ``with serving(handler) as url:``."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

Handler: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.contextmanager
def serving(handler: Handler) -> Iterator[str]:
    """The URL of a server in a thread of its own, which speaks as ``handler`` does."""
    loop = asyncio.new_event_loop()
    ready: threading.Event = threading.Event()
    port: list[int] = []

    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await handler(reader, writer)
        writer.transport.abort() if not writer.is_closing() else None

    async def start() -> Any:
        server = await asyncio.start_server(quiet, "127.0.0.1", 0)
        port.append(server.sockets[0].getsockname()[1])
        return server

    def run() -> None:
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(start())
        loop.call_soon(ready.set)  # from within, so that a stop that comes at once is not lost
        loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield f"http://127.0.0.1:{port[0]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
