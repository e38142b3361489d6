"""Find out what is wrong with a service: preserve the scene, save the request, replay it, then hand over."""

from __future__ import annotations

from types import ModuleType

from firstfault.cli.triage import capture, proxy, replay, requests

COMMANDS: tuple[ModuleType, ...] = (capture, proxy, requests, replay)
"""One file a command, in the order in which an incident goes."""
