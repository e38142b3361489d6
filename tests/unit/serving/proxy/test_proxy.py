"""The proxy: what a client sees is what it would see without it, and what is saved can be replayed."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from firstfault.errors import UsageError
from firstfault.read.formats import request_lines
from firstfault.record.requests import Request
from firstfault.serving.proxy import connection, server
from firstfault.serving.proxy.recorder import Writer, saved_body
from firstfault.serving.proxy.server import serving
from firstfault.serving.proxy.upstream import Upstream, passed_on
from tests.unit.serving.servers import Handler
from tests.unit.serving.servers import serving as misbehaving

KEY = "sk-planted-0123456789abcdef"
BODY = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "stream": True}
EVENTS = [
    b'data: {"id":"c1","choices":[{"index":0,"text":"a"}]}\n\n',
    b'data: {"id":"c1","choices":[{"index":0,"text":"b","finish_reason":"length"}]}\n\n',
    b"data: [DONE]\n\n",
]
DEADLINE = 60.0
"""Seconds after which a test stops waiting for what should take none."""
Test = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[Any]]


def through(handler: Handler, out: Path, test: Test) -> tuple[Any, list[Request]]:
    """What a test of a client's connection gives, and the requests that were saved of it."""

    async def go(url: str) -> Any:
        writer = Writer(out)
        try:
            async with serving(Upstream(url), writer) as (host, port):
                reader, client = await asyncio.open_connection(host, port)
                try:
                    return await asyncio.wait_for(test(reader, client), DEADLINE)
                finally:
                    client.close()
        finally:
            writer.close()

    with misbehaving(handler) as url:
        result = asyncio.run(go(url))
    lines = out.read_bytes().count(b"\n")
    return result, request_lines.read(out).requests if lines > 1 else []


async def happens(event: threading.Event) -> None:
    """Wait for what another thread tells."""
    deadline = time.monotonic() + DEADLINE
    while not event.is_set():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def head_of(reader: asyncio.StreamReader) -> tuple[bytes, dict[bytes, bytes]]:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    return first, {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines if line)}


async def whole_request(reader: asyncio.StreamReader) -> tuple[bytes, dict[bytes, bytes], bytes]:
    first, headers = await head_of(reader)
    return first, headers, await reader.readexactly(int(headers.get(b"content-length", b"0")))


def post(body: bytes, path: str = "/v1/completions", *extra: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: proxy",
        f"Authorization: Bearer {KEY}",
        f"Content-Length: {len(body)}",
        *extra,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def streaming(*pieces: bytes, head: bytes = b"content-type: text/event-stream\r\n") -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await whole_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"transfer-encoding: chunked\r\n\r\n")
        for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    return handle


async def chunks(reader: asyncio.StreamReader) -> list[bytes]:
    found = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        found.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return found


def test_a_stream_passes_piece_by_piece_and_is_saved(tmp_path: Path) -> None:
    received = threading.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Sends the second piece only when the client has the first one."""
        await whole_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in EVENTS:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            while not received.is_set():
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.1)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
        writer.write(post(json.dumps(BODY | {"x_api_key": KEY}).encode()))
        first, headers = await head_of(reader)
        size = int(await reader.readuntil(b"\r\n"), 16)
        piece = await reader.readexactly(size + 2)
        received.set()
        return first, headers, [piece[:-2], *await chunks(reader)]

    out = tmp_path / "requests.jsonl"
    (first, headers, pieces), [saved] = through(handle, out, client)
    assert (first, headers[b"content-type"]) == (b"HTTP/1.1 200 OK", b"text/event-stream")
    assert pieces == EVENTS
    assert (saved.path, saved.body, saved.omitted, saved.id) == ("/v1/completions", BODY, ["x_api_key"], "c1")
    assert saved.output is not None
    assert saved.timing is not None
    assert (saved.output.text, saved.state, saved.status, saved.error) == ("ab", "finished", 200, "")
    assert saved.timing.longest_gap is not None
    assert saved.timing.longest_gap > 0.08
    assert KEY.encode() not in out.read_bytes()
    assert out.stat().st_mode & 0o777 == 0o600


def test_headers_and_bodies_arrive_as_they_were_sent(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await whole_request(reader))
        writer.write(
            b"HTTP/1.1 418 Teapot\r\ncontent-length: 3\r\nset-cookie: a=1\r\nset-cookie: b=2\r\nX-Kept: Yes\r\nconnection: close\r\n\r\nabc"
        )
        await writer.drain()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
        writer.write(post(b"{}", "/a%20b/c?d=e%2Ff&g", "X-Mine: 1", "Connection: X-Hop", "X-Hop: 1", "TE: trailers"))
        return await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(3)

    answer, saved = through(handle, tmp_path / "r.jsonl", client)
    [(first, headers, body)] = seen
    assert first == b"POST /a%20b/c?d=e%2Ff&g HTTP/1.1"
    assert headers[b"authorization"] == f"Bearer {KEY}".encode()
    assert (headers[b"x-mine"], body) == (b"1", b"{}")
    assert not headers.keys() & {b"x-hop", b"te", b"user-agent", b"accept", b"accept-encoding"}
    assert answer.startswith(b"HTTP/1.1 418 Teapot\r\n")
    assert answer.count(b"set-cookie: ") == 2
    assert answer.endswith(b"\r\n\r\nabc")
    assert saved == []


def test_requests_follow_each_other_on_one_connection(tmp_path: Path) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, _, body = await whole_request(reader)
            answer = json.dumps({"choices": [{"text": json.loads(body)["prompt"], "finish_reason": "stop"}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> list[str]:
        for number in range(3):
            writer.write(
                post(json.dumps({"prompt": f"{number}"}).encode())
            )  # the later ones before the first is answered
        found = []
        for _ in range(3):
            _, headers = await head_of(reader)
            found.append(json.loads(await reader.readexactly(int(headers[b"content-length"])))["choices"][0]["text"])
        return found

    found, saved = through(handle, tmp_path / "r.jsonl", client)
    assert found == ["0", "1", "2"]
    assert [request.output and request.output.text for request in saved] == ["0", "1", "2"]


def test_chunked_bodies_and_expectations(tmp_path: Path) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
        data = json.dumps(BODY).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        first, _ = await head_of(reader)
        writer.write(b"5\r\n" + data[:5] + b"\r\n%x\r\n" % (len(data) - 5) + data[5:] + b"\r\n0\r\n\r\n")
        await head_of(reader)
        return first, await chunks(reader)

    (first, pieces), [saved] = through(streaming(*EVENTS), tmp_path / "r.jsonl", client)
    assert (first.split()[1], b"".join(pieces), saved.body) == (b"100", b"".join(EVENTS), BODY)


def test_an_old_client_gets_a_body_that_ends_with_the_connection(tmp_path: Path) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        data = json.dumps(BODY).encode()
        writer.write(b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        return await reader.read()

    answer, _ = through(streaming(*EVENTS), tmp_path / "r.jsonl", client)
    assert answer.partition(b"\r\n\r\n")[2] == b"".join(EVENTS)


def test_a_stream_that_breaks_breaks_for_the_client(tmp_path: Path) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await whole_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%s\r\n" % (len(EVENTS[0]), EVENTS[0]))
        await writer.drain()
        await asyncio.sleep(0.1)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(post(json.dumps(BODY).encode()))
        return await reader.read()

    answer, [saved] = through(handle, tmp_path / "r.jsonl", client)
    assert EVENTS[0] in answer
    assert not answer.endswith(b"0\r\n\r\n"), "a stream that broke must not look whole"
    assert (saved.state, saved.output and saved.output.text) == ("unfinished", "a")
    assert saved.error


def test_a_server_that_is_gone_is_a_bad_gateway(tmp_path: Path) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
        writer.write(post(json.dumps(BODY).encode()))
        first, headers = await head_of(reader)
        return first, json.loads(await reader.readexactly(int(headers[b"content-length"])))

    (first, body), [saved] = through(refuse, tmp_path / "r.jsonl", client)
    assert first.split()[1] == b"502"
    assert body["error"]["message"].startswith("firstfault proxy: ")
    assert (saved.state, saved.status) == ("unfinished", None)


def test_when_the_client_goes_the_server_is_told(tmp_path: Path) -> None:
    asked, gone = threading.Event(), threading.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await whole_request(reader)
        asked.set()
        assert await reader.read(1) == b""  # an engine stops generating at this
        gone.set()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(post(json.dumps(BODY).encode()))
        await happens(asked)
        writer.close()
        await happens(gone)  # while the proxy goes on, so that its own end is not what ends the request
        return True

    told, [saved] = through(handle, tmp_path / "r.jsonl", client)
    assert told
    assert (saved.state, saved.error) == ("unfinished", "the client closed the connection")


@pytest.mark.parametrize("seconds", [DEADLINE, 0.1])
def test_what_is_under_way_may_end_when_the_proxy_is_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(server, "DRAIN_SECONDS", seconds)
    asked = threading.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await whole_request(reader)
        asked.set()
        await asyncio.sleep(0.5 if seconds > 1 else 2 * DEADLINE)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async def go(url: str) -> bytes:
        saving = Writer(tmp_path / "r.jsonl")
        async with serving(Upstream(url), saving) as (host, port):
            reader, client = await asyncio.open_connection(host, port)
            client.write(post(json.dumps(BODY).encode()))
            await happens(asked)
        saving.close()
        return await reader.read()

    with misbehaving(handle) as url:
        answer = asyncio.run(go(url))
    [saved] = request_lines.read(tmp_path / "r.jsonl").requests
    assert (answer.endswith(b"{}"), saved.error) == ((True, "") if seconds > 1 else (False, "the proxy was stopped"))


def test_a_slow_client_holds_the_server_back(tmp_path: Path) -> None:
    written: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await whole_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (64 * 2**20))
        for _ in range(1024):
            writer.write(bytes(2**16))
            await writer.drain()
            written.append(2**16)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
        writer.write(post(b"{}", "/other"))
        await asyncio.sleep(0.5)
        held = sum(written)
        await head_of(reader)
        left = 64 * 2**20
        while left:
            left -= len(await reader.read(min(left, 2**20)))
        return held

    held, _ = through(handle, tmp_path / "r.jsonl", client)
    assert held < 32 * 2**20


@pytest.mark.parametrize(("request_bytes", "status"), [
    (b"GET http://elsewhere/ HTTP/1.1\r\nhost: elsewhere\r\n\r\n", b"400"),
    (b"CONNECT elsewhere:443 HTTP/1.1\r\nhost: elsewhere:443\r\n\r\n", b"400"),
    (b"GET /ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n", b"501"),
    (b"nonsense\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 200_000, b"431"),
    (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
    (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2000\r\n\r\n" + bytes(2000), b"413"),
], ids=["absolute", "connect", "websocket", "nonsense", "no host", "endless head", "smuggled", "too large"])  # fmt: skip
def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_bytes: bytes, status: bytes) -> None:
    monkeypatch.setattr(connection, "MOST_BODY", 1000)
    asked: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(100))

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(request_bytes)
        first, _ = await head_of(reader)
        return first

    first, saved = through(handle, tmp_path / "r.jsonl", client)
    assert first.split()[1] == status
    assert (asked, saved) == ([], [])


def test_who_is_refused_while_still_sending_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is closed while something comes in is reset, and the answer may be lost with it."""
    monkeypatch.setattr(connection, "MOST_BODY", 1000)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(post(bytes(32 * 2**20)))
        await writer.drain()
        first, _ = await head_of(reader)
        return first

    first, saved = through(streaming(*EVENTS), tmp_path / "r.jsonl", client)
    assert (first.split()[1], saved) == (b"413", [])


def test_who_never_stops_sending_is_not_read_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_BODY", 1000)
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.1)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(post(b"")[:-4].replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"\r\n\r\n")
        with pytest.raises(ConnectionError):
            await sends_for_ever(writer)

    async def sends_for_ever(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"1000\r\n" + bytes(0x1000) + b"\r\n")
            await writer.drain()

    through(streaming(*EVENTS), tmp_path / "r.jsonl", client)


def test_a_client_that_says_nothing_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.1)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
        return await reader.read()

    assert through(streaming(*EVENTS), tmp_path / "r.jsonl", client)[0] == b""


def test_compressed_answers_pass_as_they_are_and_are_read(tmp_path: Path) -> None:
    packed = gzip.compress(b"".join(EVENTS))

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(post(json.dumps(BODY).encode(), "/v1/completions", "Accept-Encoding: gzip"))
        await head_of(reader)
        return b"".join(await chunks(reader))

    head = b"content-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
    raw, [saved] = through(streaming(packed[:20], packed[20:], head=head), tmp_path / "r.jsonl", client)
    assert raw == packed
    assert saved.output is not None
    assert saved.output.text == "ab"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"prompt":' + b"[" * 900 + b"]" * 900 + b"}"]
)
def test_bodies_that_are_no_requests_pass_and_are_not_saved(tmp_path: Path, body: bytes) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
        writer.write(post(body))
        first, _ = await head_of(reader)
        return first, await chunks(reader)

    (first, pieces), saved = through(streaming(*EVENTS), tmp_path / "r.jsonl", client)
    assert (first.split()[1], pieces, saved) == (b"200", EVENTS, [])


def test_lone_surrogates_are_saved_as_text() -> None:
    assert saved_body(b'{"prompt": "\\ud800"}') == ({"prompt": "\\ud800"}, [])


def test_a_second_run_goes_on_with_the_same_file(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    for _ in range(2):
        writer = Writer(out)
        writer.put(Request("/generate", {"text": "a"}))
        writer.close()
        assert (writer.saved, writer.lost) == (1, 0)
    assert len(out.read_bytes().splitlines()) == 3
    assert len(request_lines.read(out).requests) == 2


def test_headers_of_the_connection_are_not_passed_on() -> None:
    given = [(b"Connection", b"close, X-Hop"), (b"X-Hop", b"1"), (b"Keep-Alive", b"1"), (b"X-Mine", b"1")]
    assert passed_on(given) == [(b"X-Mine", b"1")]


def test_an_upstream_has_to_be_a_server() -> None:
    with pytest.raises(UsageError):
        Upstream("localhost:8000")


def test_it_costs_little(tmp_path: Path) -> None:
    """A bound that no noise reaches; what it really costs is measured against a real server."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await whole_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
        times = []
        for _ in range(50):
            began = time.monotonic()
            writer.write(post(json.dumps(BODY).encode()))
            await head_of(reader)
            await reader.readexactly(2)
            times.append(time.monotonic() - began)
        return sorted(times)[len(times) // 2]

    assert through(handle, tmp_path / "r.jsonl", client)[0] < 0.2


def test_httpx_itself_understands_it(tmp_path: Path) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
        host, port = writer.get_extra_info("peername")
        async with httpx.AsyncClient() as other:
            return (await other.post(f"http://{host}:{port}/v1/completions", json=BODY)).content

    content, [saved] = through(streaming(*EVENTS), tmp_path / "r.jsonl", client)
    assert (content, saved.body) == (b"".join(EVENTS), BODY)
