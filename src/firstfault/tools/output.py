"""What one short command writes, bounded in time and size: ``output(["nvidia-smi", …], seconds=5) → "0, 98 %\\n"``."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from firstfault.errors import FirstFaultError

LARGEST = 4 * 2**20
"""Bytes that are kept."""


class ToolFailed(FirstFaultError):
    """A program that is not there, took too long, or said that it could not."""


def output(command: Sequence[str], seconds: float) -> str:
    """What ``command`` writes to stdout.

    Raises:
        ToolFailed: it is not there, did not end in time, or failed.
    """
    try:
        done = subprocess.run(  # noqa: S603 -- fixed words of ours
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except FileNotFoundError:
        raise ToolFailed(f"there is no {command[0]}; install it, or leave it") from None
    except subprocess.TimeoutExpired:
        raise ToolFailed(f"{command[0]} did not end in {seconds:g} s") from None
    except OSError as error:
        raise ToolFailed(f"cannot run {command[0]}: {error.strerror}") from None
    if done.returncode:
        said = done.stderr[-500:].decode("utf-8", "replace").strip().replace("\n", "; ")
        raise ToolFailed(f"{command[0]} failed: {said or f'exit status {done.returncode}'}")
    return done.stdout[:LARGEST].decode("utf-8", "replace")
