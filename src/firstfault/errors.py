"""Errors that a command answers with, and the exit codes they carry.

    firstfault: no such recording, log or dump: /tmp/nowhere

The message is the whole answer: it says what is wrong and what to do next. Only ``cli`` prints it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's exit status means, the same for every command but ``run``."""

    OK = 0
    BAD = 1
    """What was judged is bad: two runs differ."""
    USAGE = 2
    """Wrong usage, or input that cannot be read at all."""
    INCOMPLETE = 3
    """Answered, but the evidence or the collection was incomplete."""
    CANNOT_TELL = 125
    """Neither good nor bad, as ``git bisect run`` wants it: a commit to skip."""


class FirstFaultError(Exception):
    """A failure that a user can act on; its text is one line that says what and what next."""

    exit_code: int = ExitCode.USAGE


class SettingError(FirstFaultError):
    """An environment variable or option whose value is not among the accepted forms."""


class UsageError(FirstFaultError):
    """Options or paths that do not go together."""


class NanFound(FirstFaultError):
    """A call gave NaN for inputs without, and ``FIRSTFAULT_STOP_ON_NAN`` asked to stop the program then.

    It is raised in the program, at the next boundary after the device is known to have written the NaN.

    Attributes:
        op: the operator.
        call: the call's number.
        tensor: which of its results, ``return`` or ``return[1]``.
        nan_count: how many values are NaN.
        replay: at which replay of the CUDA graph that it was captured into, 0 if it was captured into none.
    """

    def __init__(self, op: str, call: int, tensor: str, nan_count: int, replay: int = 0) -> None:
        where = f"call {call}, at replay {replay} of its CUDA graph" if replay else f"call {call}"
        super().__init__(
            f"{op} ({where}) gave {nan_count} NaN in {tensor}, and none of its inputs had any; "
            "stopped because FIRSTFAULT_STOP_ON_NAN is set"
        )
        self.op = op
        self.call = call
        self.tensor = tensor
        self.nan_count = nan_count
        self.replay = replay


class UnreadableInput(FirstFaultError):
    """A path that holds nothing that firstfault can read."""


def tell(message: str) -> None:
    """One line to the user from inside the watched program: on stderr, if there is one that can be written to."""
    if sys.stderr is not None:  # ``print`` takes None for stdout, where the program's own output goes
        with suppress(Exception):
            print(f"firstfault: {message}", file=sys.stderr, flush=True)
