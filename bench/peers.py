"""SGLang's and FlashInfer's loggers as released: fetched from PyPI, with nothing but the logging modules taken out.

    load(PEERS["sglang"])  →  sglang.kernels.kernel_api_logging.debug_kernel_api

The wheels and what is taken out of them stay in ``.peers/``, which git ignores. Both loggers read their
environment variables when they are imported.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STORE = ROOT / ".peers"


@dataclass(frozen=True)
class Peer:
    """One logger to compare with.

    Attributes:
        title: its name in a table.
        distribution, version: the release on PyPI.
        module: where the decorator lives.
        decorator: what makes a function a logged one.
        files: what the module needs of its wheel, itself included.
        prefix: what its environment variables begin with.
    """

    title: str
    distribution: str
    version: str
    module: str
    decorator: str
    files: tuple[str, ...]
    prefix: str


PEERS = {
    "sglang": Peer(
        title="SGLang",
        distribution="sglang",
        version="0.5.23",
        module="sglang.kernels.kernel_api_logging",
        decorator="debug_kernel_api",
        files=("sglang/kernels/kernel_api_logging.py",),
        prefix="SGLANG_KERNEL_API",
    ),
    "flashinfer": Peer(
        title="FlashInfer",
        distribution="flashinfer-python",
        version="0.7.4",
        module="flashinfer.api_logging",
        decorator="flashinfer_api",
        # Every dump looks the version up; an import that fails each time would count against it.
        files=("flashinfer/api_logging.py", "flashinfer/version.py", "flashinfer/_build_meta.py"),
        prefix="FLASHINFER",
    ),
}


def fetch(peer: Peer) -> Path:
    """The folder with the peer's files, downloaded and taken out of the wheel where they are not there yet.

    Raises:
        subprocess.CalledProcessError: pip could not download the release.
        FileNotFoundError: PyPI has no wheel for this interpreter.
    """
    folder = STORE / f"{peer.distribution}-{peer.version}"
    if not all((folder / name).is_file() for name in peer.files):
        with zipfile.ZipFile(_wheel(peer)) as wheel:
            wheel.extractall(folder, peer.files)
    return folder


def load(peer: Peer) -> Callable[..., Any]:
    """The peer's decorator, from its own unmodified module, in the environment as it is now."""
    folder = fetch(peer)
    *parents, _ = peer.module.split(".")
    for depth in range(1, len(parents) + 1):
        _empty_package(".".join(parents[:depth]), folder.joinpath(*parents[:depth]))
    decorator: Callable[..., Any] = getattr(importlib.import_module(peer.module), peer.decorator)
    return decorator


def _wheel(peer: Peer) -> Path:
    pattern = f"{peer.distribution.replace('-', '_')}-{peer.version}-*.whl"
    if not any(STORE.glob(pattern)):
        requirement = f"{peer.distribution}=={peer.version}"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", str(STORE), requirement]
        subprocess.run(command, check=True, stdout=sys.stderr)
    found = next(STORE.glob(pattern), None)
    if found is None:
        raise FileNotFoundError(f"{STORE.name}/{pattern}: PyPI has no wheel of it for this interpreter")
    return found


def _empty_package(name: str, folder: Path) -> None:
    """Stand in for a package whose ``__init__`` would import CUDA libraries; its modules still import."""
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
