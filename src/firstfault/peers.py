"""Packages that firstfault works with and never installs: the watched program decides which of them are there."""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata

RECORDED_VERSIONS = ("torch", "triton", "sglang", "vllm", "flashinfer-python", "flag-gems", "transformers")
"""Distributions whose versions a recording's header names when they are installed."""


def installed_versions() -> dict[str, str]:
    """Versions of the peers that are installed, read from their metadata without importing them."""
    versions = {}
    for name in RECORDED_VERSIONS:
        with suppress(Exception):  # what is installed may be broken in any way
            version = metadata.version(name)
            if isinstance(version, str):  # None where its metadata is empty
                versions[name] = version
    return versions
