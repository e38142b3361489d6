"""What the recording proxy adds to a request: the same requests to a small server directly and through the proxy.

python -m bench.proxy_cost [--rounds 2000]

The server answers at once, so what is measured is the proxy alone; a model's answer takes a hundred times as long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

from firstfault.serving.proxy.recorder import Writer
from firstfault.serving.proxy.server import serving
from firstfault.serving.proxy.upstream import Upstream

BODY = json.dumps({"model": "tiny", "prompt": "hello " * 200, "max_tokens": 8, "stream": True}).encode()
REQUEST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)
EVENT = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
EVENTS = 16


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(BODY))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(EVENTS):
                writer.write(b"%x\r\n%s\r\n" % (len(EVENT), EVENT))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        writer.close()


async def timed(host: str, port: int, rounds: int) -> list[float]:
    reader, writer = await asyncio.open_connection(host, port)
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        writer.write(REQUEST)
        await reader.readuntil(b"\r\n0\r\n\r\n")
        times.append((time.perf_counter() - began) * 1000)
    writer.close()
    return times


async def measure(rounds: int) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder) / "requests.jsonl")
        async with serving(Upstream(f"http://127.0.0.1:{port}"), writer) as (host, proxied):
            direct, through = [], []
            for _ in range(5):  # in turns, so that the machine's other load falls on both
                direct += await timed("127.0.0.1", port, rounds // 5)
                through += await timed(host, proxied, rounds // 5)
        writer.close()
    server.close()
    print(f"{rounds} requests each, {EVENTS} events in an answer, in ms")
    for name, times in (("direct", direct), ("through the proxy", through)):
        cut = statistics.quantiles(times, n=100)
        print(f"{name:<18} median {cut[49]:6.3f}   p99 {cut[98]:6.3f}")
    print(f"added to the median: {statistics.median(through) - statistics.median(direct):.3f} ms")
    print(f"saved {writer.saved}, lost {writer.lost}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2000)
    asyncio.run(measure(parser.parse_args().rounds))
