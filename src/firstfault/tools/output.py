"""What one short command writes, bounded in time and size: ``output(["nvidia-smi", …], seconds=5) → "0, 98 %\\n"``."""

from __future__ import annotations

import os
from collections.abc import Sequence

from firstfault.errors import FirstFaultError
from firstfault.tools.captured import captured
from firstfault.tools.runner import CannotStart


class ToolFailed(FirstFaultError):
    """A program that is not there, took too long, or said that it could not."""


def output(command: Sequence[str], seconds: float) -> str:
    """What ``command`` writes to stdout.

    Raises:
        ToolFailed: it is not there, did not end in time, or failed.
    """
    try:
        done = captured(command, os.environ, seconds)
    except CannotStart as error:
        raise ToolFailed(str(error)) from None
    if done.timed_out:
        raise ToolFailed(f"{command[0]} did not end in {seconds:g} s")
    if done.exit_status != 0:
        said = done.stderr[-500:].strip().replace("\n", "; ")
        raise ToolFailed(f"{command[0]} failed: {said or f'exit status {done.exit_status}'}")
    return done.stdout
