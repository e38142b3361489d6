"""cuda-gdb in batch: what it is told to print of a GPU core dump, or of a command that it runs until it fails.

cuda-gdb -batch -nx -ex "target cudacore FILE" -ex "info cuda kernels" -ex bt -ex "x/16i $errorpc-64" …
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from firstfault.tools import programs

PROGRAM = programs.Program("cuda-gdb", "cuda-gdb-13-0", "cuda-gdb")
AROUND = 16
"""Instructions around the one that failed; each takes 16 bytes on all that cuda-gdb supports."""

_QUIET = ("set pagination off", "set width 0", "set confirm off", "set cuda disassemble_from elf_image")
_LOOK = (
    "info cuda kernels",
    "bt",
    "info cuda devices",
    "print $errorpc",
    f"x/{AROUND}i $pc-{AROUND // 2 * 16}",
)


def on_core_dump(core: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """The command line that prints what a GPU core dump holds.

    Args:
        core: the file; cuda-gdb takes the rest of a line for its name, as it stands.
        environ: in which cuda-gdb is looked for.

    Raises:
        NotInstalled: there is no cuda-gdb.
    """
    return [*_batch((*_QUIET, f"target cudacore {core}", *_LOOK), environ)]


def on_command(command: Sequence[str], environ: Mapping[str, str] | None = None) -> list[str]:
    """The command line that runs a command until its device fails, and prints where.

    Raises:
        NotInstalled: there is no cuda-gdb.
    """
    looks = (*_QUIET, "set cuda api_failures ignore", "run", *_LOOK, "kill")
    return [*_batch(looks, environ), "--args", *command]


def _batch(commands: Sequence[str], environ: Mapping[str, str] | None) -> list[str]:
    program = str(programs.find(PROGRAM, os.environ if environ is None else environ))
    return [program, "-batch", "-nx", *(word for command in commands for word in ("-ex", command))]
