"""Where the programs that come with CUDA are, and how to get one that is not there.

find(Program("cuda-gdb", …))  →  /usr/local/cuda/bin/cuda-gdb
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from firstfault.errors import ExitCode, FirstFaultError

_TOOLKITS = ("/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda")
_HOMES = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")


class NotInstalled(FirstFaultError):
    """A program that is needed and is not there; the text says how to get it."""

    exit_code = ExitCode.CANNOT_TELL


@dataclass(frozen=True)
class Program:
    """A program of the CUDA toolkit.

    Attributes:
        name: of its file.
        apt, conda: the package that it comes in.
        folders: where it lies below the toolkit's folder besides ``bin``.
    """

    name: str
    apt: str
    conda: str
    folders: tuple[str, ...] = ()


def find(program: Program, environ: Mapping[str, str] | None = None) -> Path:
    """A program's file: on PATH, in the toolkit that the environment names, or beside this Python.

    Raises:
        NotInstalled: it is in none of these places.
    """
    environ = os.environ if environ is None else environ
    on_path = shutil.which(program.name, path=environ.get("PATH"))
    if on_path is not None:
        return Path(on_path)
    for place in _places(program, environ):
        if os.access(place, os.X_OK) and place.is_file():
            return place
    raise NotInstalled(
        f"{program.name} is not on PATH, in CUDA_HOME or in {_TOOLKITS[0]}; it comes with the CUDA toolkit: "
        f"apt install {program.apt}, or conda install -c nvidia {program.conda}"
    )


def _places(program: Program, environ: Mapping[str, str]) -> Iterator[Path]:
    homes = [environ[name] for name in _HOMES if environ.get(name)]
    versions = sorted(map(str, Path("/usr/local").glob("cuda-[0-9]*")), reverse=True)
    for home in (*homes, *_TOOLKITS, *versions):
        for folder in ("bin", *program.folders):
            yield Path(home) / folder / program.name
    yield Path(sys.prefix) / "bin" / program.name
    for root in sys.path:
        yield from sorted(Path(root).glob(f"nvidia/*/bin/{program.name}") if root else ())
