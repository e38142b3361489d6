"""Packages that firstfault works with and never installs: used when present, imported late.

The watched program decides which of them are there; asking for one that is missing is a named error.
"""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from types import ModuleType

from firstfault.errors import FirstFaultError

RECORDED_VERSIONS = ("torch", "triton", "sglang", "vllm", "flashinfer-python", "flag-gems", "transformers")
"""Distributions whose versions a recording's header names when they are installed."""


class PeerMissing(FirstFaultError):
    """A feature was asked for whose library is not installed."""


def require(name: str, needed_for: str) -> ModuleType:
    """Import the peer ``name``, or say what it was needed for.

    Raises:
        PeerMissing: the package is not installed in this interpreter.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PeerMissing(f"{needed_for} needs the package {name!r}, which is not installed here ({error})") from error


def loaded(name: str) -> ModuleType | None:
    """The peer ``name`` if the program has imported it already; never imports it."""
    return sys.modules.get(name)


def installed_versions() -> dict[str, str]:
    """Versions of the peers that are installed, read from their metadata without importing them."""
    versions = {}
    for name in RECORDED_VERSIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
