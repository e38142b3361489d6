"""Find out what is wrong with a service: preserve the scene, save the request, replay it, then hand over."""

from __future__ import annotations

from types import ModuleType

from firstfault.cli.triage import requests

COMMANDS: tuple[ModuleType, ...] = (requests,)
"""One file a command, in the order in which an incident goes."""
