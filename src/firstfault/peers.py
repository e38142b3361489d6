"""Packages that firstfault works with and never installs: the watched program decides which of them are there."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import metadata

RECORDED_VERSIONS = ("torch", "triton", "sglang", "vllm", "flashinfer-python", "flag-gems", "transformers")
"""Distributions whose versions a recording's header names when they are installed."""


def version(distribution: str) -> str:
    """The version of an installed distribution, empty where there is none that says one."""
    try:
        found = metadata.version(distribution)
    except Exception:  # what is installed may be broken in any way
        return ""
    return found if isinstance(found, str) else ""  # None where its metadata is empty


@cache
def entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    """What installed distributions offer under a group, by name."""
    with suppress(Exception):
        return {point.name: point for point in metadata.entry_points(group=group)}
    return {}


def installed_versions() -> dict[str, str]:
    """Versions of the peers that are installed, read from their metadata without importing them."""
    found = {name: version(name) for name in RECORDED_VERSIONS}
    return {name: number for name, number in found.items() if number}
