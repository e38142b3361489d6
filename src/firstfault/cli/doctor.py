"""``firstfault doctor``."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

TP_HELP = "Over how many GPUs the server is to be split, as its own --tp."


def command(
    tp: Annotated[int, typer.Option(min=1, help=TP_HELP)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Explain, from this environment and machine, what goes wrong with operator backends and servers at their start.

    An empty dispatch log, an empty log of replaced ATen operators, forward_cuda on another device, ImportError:
    sgl_kernel, a server stuck or out of memory at its start, lost precision: what here causes it, and what to do.
    Run it with the Python and the variables of the server.
    """
    from firstfault.diagnose.symptoms import answers
    from firstfault.dispatch.machine import machine
    from firstfault.present import doctor_text

    found = answers(machine(os.environ, tp))
    if as_json:
        sys.stdout.write(doctor_text.as_json(found))
    else:
        sys.stdout.writelines(f"{line}\n" for line in doctor_text.lines(found))
