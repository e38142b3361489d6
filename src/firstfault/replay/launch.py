"""Replay calls in a process of their own, and say what came of it, however that process ends.

    answer = replay(Spec([...], …), Around())        →  [Replayed(verdict="CRASHED", text="killed by SIGSEGV", …)]

A tool can be put before the child's command: ``Around(before=["compute-sanitizer", "--tool", "memcheck"])``.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import firstfault
from firstfault.replay import spec as specs
from firstfault.replay.errors import NotRun
from firstfault.replay.spec import Begun, Done, Lies, Overwritten, Placed, Spec, Wrote
from firstfault.replay.verdict import Minimal, Replayed, Verdict
from firstfault.tools.captured import Finished, captured

CHILD = "firstfault.replay.child"
_OF_RECORDING = ("FIRSTFAULT_", "SGLANG_KERNEL_API_", "FLASHINFER_LOGLEVEL", "FLASHINFER_DUMP")
_LAST_LINES = 20


@dataclass(frozen=True)
class Around:
    """How the child is run.

    Attributes:
        before: words before its command: a tool.
        environ: variables that are added to ours.
        python: the Python to run it with.
        seconds: how long it may take; None for as long as it does.
    """

    before: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    seconds: float | None = None


@dataclass(frozen=True)
class Ran:
    """What came of a child.

    Attributes:
        results: one for each call of the spec.
        finished: how it ended.
        device: that it used.
        lies: where the tensors of the last call lay, where they were guarded.
        minimal: what is left of the input, where it was to be made small.
        overwritten: the guards that were written to.
    """

    results: list[Replayed]
    finished: Finished
    device: str = ""
    lies: Sequence[Lies] = ()
    overwritten: Sequence[Overwritten] = ()
    minimal: Minimal | None = None


def replay(spec: Spec, around: Around) -> Ran:
    """Run the child on a spec, whose ``results`` is filled in.

    Raises:
        CannotStart: there is no such Python or tool.
    """
    finished, lines = _run(spec, around)
    return _ran(spec, lines, finished, around.seconds)


def _run(spec: Spec, around: Around) -> tuple[Finished, list[specs.Line]]:
    """How the child ended, and what it told."""
    with tempfile.TemporaryDirectory(prefix="firstfault-replay-") as folder:
        results, told = Path(folder, "results.jsonl"), Path(folder, "spec.json")
        calls = [str(Path(call).resolve()) for call in spec.calls]
        told.write_bytes(msgspec.json.encode(msgspec.structs.replace(spec, results=str(results), calls=calls)))
        finished = captured(
            [*around.before, *command(told, around.python)], environment(around.environ), around.seconds
        )
        return finished, specs.lines(results)


def write_script(spec: Spec, around: Around) -> str:
    """Have the child write a stand-alone program, and say what was written.

    Raises:
        CannotStart: there is no such Python.
        NotRun: the program cannot be written.
    """
    finished, lines = _run(spec, around)
    wrote = next((line for line in lines if isinstance(line, Wrote)), None)
    if wrote is None:
        raise NotRun(f"the process that writes the script {ended(finished)}: {_last_line(finished.stderr)}")
    if wrote.why:
        raise NotRun(f"no script was written: {wrote.why}")
    return f"wrote {' and '.join(wrote.files)}"


def command(spec: Path, python: str = sys.executable) -> list[str]:
    """The child's command; a tool goes before it."""
    return [python, "-m", CHILD, str(spec)]


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: ours, without what would record it, and where firstfault is found."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_OF_RECORDING)}
    root = str(Path(firstfault.__file__).parent.parent)
    path = environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in path and not root.endswith("site-packages"):
        environ["PYTHONPATH"] = os.pathsep.join([*filter(None, path), root])
    return environ | dict(more)


def _ran(spec: Spec, lines: Sequence[specs.Line], finished: Finished, seconds: float | None) -> Ran:
    """The results that were told, and for the call that the child died in, and those after it, what that means."""
    results = [line.result for line in lines if isinstance(line, Done)]
    begun = next((line for line in reversed(lines) if isinstance(line, Begun)), None)
    devices = [line.device for line in lines if isinstance(line, Begun) and line.device]
    lies = next((line.tensors for line in reversed(lines) if isinstance(line, Placed)), [])
    overwritten = [line for line in lines if isinstance(line, Overwritten)]
    if len(results) < len(spec.calls):
        at = begun if begun is not None and len(results) < _times_begun(lines) else None
        results.append(_died(at, spec.calls[len(results)], finished, seconds))
    left = spec.calls[len(results) :]
    results += [Replayed(Verdict.NOT_RUN, dump=call, text="the process had died in a call before it") for call in left]
    minimal = next((line.minimal for line in lines if isinstance(line, Done) and line.minimal), None)
    return Ran(results, finished, devices[-1] if devices else "", lies, overwritten, minimal)


def _times_begun(lines: Sequence[specs.Line]) -> int:
    """How many calls were begun; each is told of once or twice before its result."""
    return sum(isinstance(line, Done) for line in lines) + (1 if lines and not isinstance(lines[-1], Done) else 0)


def _died(begun: Begun | None, dump: str, finished: Finished, seconds: float | None) -> Replayed:
    how = ended(finished, seconds)
    if begun is None or not begun.op:  # it died before the call was made
        why = _last_line(finished.stderr)
        text = f"the replay's process {how} before the call was made" + (f": {why}" if why else "")
        return Replayed(Verdict.NOT_RUN, dump=dump, text=text)
    found = Replayed(Verdict.CRASHED, begun.op, begun.call, begun.dump, f"the process of the replay {how}")
    found.exception = _signal_name(finished.signal) if finished.signal is not None else "exit"
    found.message = "\n".join(finished.stderr.strip().splitlines()[-_LAST_LINES:])
    return found


def ended(finished: Finished, seconds: float | None = None) -> str:
    """How a process ended, as a clause."""
    if finished.timed_out:
        return f"did not end within {seconds:g} seconds and was killed"
    if finished.signal is not None:
        return f"was killed by {_signal_name(finished.signal)}"
    return f"exited with {finished.exit_status}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else ""
