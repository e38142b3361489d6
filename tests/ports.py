"""Ports that nothing else takes between the choice of one and its use: ``free_port()``  →  ``17342``."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

_LOWEST, _USUAL_END = 10_240, 32_768
_STRIDE = 97
_asked = itertools.count()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens at; each call gives another one.

    It lies below those that the system gives out by itself. One of those would soon be another socket's, or its own
    client's: a connection to a port that nobody listens at yet may be given that very port as its own, and be
    connected to itself.
    """
    count = _end() - _LOWEST
    while True:
        port = _LOWEST + (os.getpid() * _STRIDE + next(_asked)) % count  # processes side by side begin apart
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that is only being forgotten will do
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _end() -> int:
    """The first port that the system gives out by itself."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return _USUAL_END
    return first if first > 2 * _LOWEST else _USUAL_END
