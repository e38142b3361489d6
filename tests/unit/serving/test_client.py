"""Whatever a server does, an answer comes back in time and fits; the token goes nowhere else."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from firstfault.errors import UsageError
from firstfault.serving.client import (
    BAD_ENCODING,
    MOST_BYTES,
    REDIRECTED,
    TIMED_OUT,
    TOO_LARGE,
    Answer,
    Client,
    checked_url,
)
from tests.ports import free_port
from tests.unit.serving.servers import Handler, serving

TOKEN = "planted-token-5f1c"


def ask(path: str, url: str, **chosen: Any) -> Answer:
    async def once() -> Answer:
        async with Client(url, **chosen) as client:
            return await client.get(path)

    return asyncio.run(once())


def fake(handler: Callable[[httpx.Request], httpx.Response], **chosen: Any) -> Answer:
    return ask("/x", "http://server:30000", transport=httpx.MockTransport(handler), **chosen)


def test_an_answer_comes_as_it_is() -> None:
    answer = fake(lambda request: httpx.Response(503, text="not yet"))
    assert (answer.status, answer.text, answer.ok, answer.error) == (503, "not yet", False, "")
    assert answer.first_byte is not None


def test_the_token_goes_to_the_origin() -> None:
    seen: list[str | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(200)

    fake(handler, token=TOKEN)
    fake(handler)
    assert seen == [f"Bearer {TOKEN}", None]


@pytest.mark.parametrize("target", ["http://elsewhere/x", "https://server:30000/x", "http://server:30001/", "//evil/x"])
def test_no_other_origin_is_asked(target: str) -> None:
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(307, headers={"location": target})

    answer = fake(handler, token=TOKEN)
    assert answer.error == REDIRECTED
    assert not answer.ok
    assert asked == ["http://server:30000/x"]
    assert TOKEN not in answer.message


def test_a_redirect_to_nowhere_is_told() -> None:
    answer = fake(lambda request: httpx.Response(307, headers={"location": "http://server:x/"}), token=TOKEN)
    assert answer.error
    assert not answer.ok


def test_a_redirect_within_the_origin_is_followed_a_few_times() -> None:
    def once(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/x":
            return httpx.Response(308, headers={"location": "/y/"})
        return httpx.Response(200, text="there")

    assert fake(once).text == "there"
    assert fake(lambda request: httpx.Response(308, headers={"location": "/x"})).error == REDIRECTED


def test_a_body_is_limited_on_the_wire() -> None:
    answer = fake(lambda request: httpx.Response(200, content=bytes(2000)), most_bytes=1000)
    assert answer.error == TOO_LARGE
    assert "1000 bytes" in answer.message
    assert fake(lambda request: httpx.Response(200, content=bytes(1000)), most_bytes=1000).ok


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_bomb_is_stopped(encoding: str) -> None:
    import zlib

    bomb = gzip.compress(bytes(MOST_BYTES * 4)) if encoding == "gzip" else zlib.compress(bytes(MOST_BYTES * 4))
    assert len(bomb) < MOST_BYTES / 50

    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": encoding}, stream=Pieces([bomb]))

    answer = fake(handler)
    assert answer.error == TOO_LARGE
    assert len(answer.body) <= MOST_BYTES


def test_compressed_bodies_are_read() -> None:
    packed = gzip.compress(b"hello" * 100)

    def handler(request: httpx.Request) -> httpx.Response:
        pieces = [packed[at : at + 7] for at in range(0, len(packed), 7)]
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=Pieces(pieces))

    assert fake(handler).text == "hello" * 100


@pytest.mark.parametrize(("encoding", "error"), [("br", BAD_ENCODING), ("gzip", "ValueError")])
def test_other_encodings_are_told(encoding: str, error: str) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": encoding}, stream=Pieces([b"not gzip"]))

    assert fake(handler).error == error


def test_what_is_no_utf_8_is_escaped() -> None:
    assert fake(lambda request: httpx.Response(200, content=b"a\xff\xfeb")).text == "a\\xff\\xfeb"


class Pieces(httpx.AsyncByteStream):
    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    await asyncio.sleep(60)


async def drips_its_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def drips_its_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    for byte in b"HTTP/1.1 200 OK\r\nx-long: " + b"y" * 5000:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


async def never_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(bytes(65536))
        await writer.drain()


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    import socket
    import struct

    await reader.readline()
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


async def speaks_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"220 smtp ready\r\n")
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("handler", [silent, drips_its_body, drips_its_headers])
def test_a_slow_server_is_left_in_time(handler: Handler) -> None:
    status = 200 if handler is drips_its_body else None
    with serving(handler) as url:
        for timeout in (0.4, 10.0):  # a machine under load may be late with the first bytes
            began = time.monotonic()
            answer = ask("/x", url, timeout=timeout)
            seconds = time.monotonic() - began
            if answer.status == status:
                break
    assert answer.error == TIMED_OUT
    assert answer.message == "timed out"
    assert seconds < timeout + 5  # a minute or more, were it waited for
    assert answer.status == status


@pytest.mark.parametrize(
    ("handler", "errors"),
    [
        (never_ends, {TOO_LARGE}),
        (resets, {"ConnectionResetError"}),
        (speaks_nonsense, {"RemoteProtocolError"}),
    ],
)
def test_a_broken_server_is_told(handler: Handler, errors: set[str]) -> None:
    with serving(handler) as url:
        answer = ask("/x", url, timeout=60, most_bytes=2**20)
    assert answer.error in errors, answer


def test_a_refused_connection_has_pythons_name() -> None:
    answer = ask("/x", f"http://127.0.0.1:{free_port()}")
    assert answer.error == "ConnectionRefusedError"
    assert "Connection refused" in answer.message


@pytest.mark.parametrize(
    "text", ["", "host:30000", "ftp://x", "http://", "http://x:99999", "http://u:p@x", "http://x/?a=1", "file:///etc"]
)
def test_a_url_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        checked_url(text)


def test_a_prefix_of_the_path_stays() -> None:
    assert checked_url("https://host/serve/") == "https://host/serve"


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "schlüssel"])
def test_a_token_that_is_none_is_refused(token: str) -> None:
    with pytest.raises(UsageError):
        Client("http://x", token=token)


def test_chunks_are_seen_as_they_come() -> None:
    seen: list[bytes] = []

    async def once() -> Answer:
        transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=Pieces([b"a", b"b"])))
        async with Client("http://x", transport=transport) as client:
            return await client.post("/v1/completions", {"prompt": "x"}, on_chunk=lambda piece, at: seen.append(piece))

    assert asyncio.run(once()).body == b"ab"
    assert seen == [b"a", b"b"]
