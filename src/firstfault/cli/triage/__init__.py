"""Find out what is wrong with a service: preserve the scene, save the request, replay it, then hand over."""

from __future__ import annotations

from types import ModuleType

from firstfault.cli.triage import (
    capture,
    collect,
    diff,
    next,  # noqa: A004
    proxy,
    replay,
    requests,
    run,
    summarize,
    watch,
)

COMMANDS: tuple[ModuleType, ...] = (collect, summarize, diff, watch, capture, proxy, requests, replay, next, run)
"""One file a command, in the order in which an incident goes."""
