"""The processes of a server on this machine: who listens at its port, what it has started, where their logs go.

[{"pid": 17471, "name": "python", "status": "sleeping", "title": "sglang::scheduler", "rss_mib": 812.4, …}]
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MOST = 512


@dataclass(frozen=True)
class ServerProcess:
    """One process.

    Attributes:
        command: its words, secrets included: they are taken out before anything is written.
        logs: regular files that its stdout and stderr go to.
    """

    pid: int
    parent: int
    name: str
    status: str
    command: list[str]
    rss_mib: float
    cpu_seconds: float
    threads: int
    started: float
    logs: list[Path] = field(default_factory=list)


def below(port: int, pids: Iterable[int] = ()) -> list[ServerProcess]:
    """The process that listens at ``port``, those named by ``pids``, and everything that they have started."""
    found: dict[int, psutil.Process] = {}
    for root in [*_listening(port), *map(_process, pids)]:
        if root is None:
            continue
        found[root.pid] = root
        try:
            found |= {child.pid: child for child in root.children(recursive=True)}
        except psutil.Error:
            continue
    told = (_told(process) for _, process in sorted(found.items())[:MOST])
    return [one for one in told if one is not None]


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _listening(port: int) -> list[psutil.Process | None]:
    """Those that listen at a TCP port; the oldest of them is the server's own."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:
        return []
    pids = {c.pid for c in connections if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port and c.pid}
    return [_process(pid) for pid in sorted(pids)]


def _told(process: psutil.Process) -> ServerProcess | None:
    try:
        with process.oneshot():
            times = process.cpu_times()
            dead = process.status() == psutil.STATUS_ZOMBIE
            return ServerProcess(
                process.pid,
                process.ppid(),
                process.name(),
                process.status(),
                [] if dead else process.cmdline(),
                0.0 if dead else process.memory_info().rss / 2**20,
                times.user + times.system,
                process.num_threads(),
                process.create_time(),
                [] if dead else _logs(process.pid),
            )
    except psutil.Error:
        return None


def _logs(pid: int) -> list[Path]:
    found: list[Path] = []
    for descriptor in (1, 2):
        try:
            target = Path(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
            if stat.S_ISREG(target.stat().st_mode) and target not in found:
                found.append(target)
        except OSError:
            continue
    return found
