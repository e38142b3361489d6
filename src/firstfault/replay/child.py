"""The process in which calls are made again: ``python -m firstfault.replay.child SPEC``.

    compute-sanitizer --tool memcheck python -m firstfault.replay.child spec.json

It writes to the file that the spec names: one line before each call, one with what came of it. Where it dies in
between, the first without the second says so. Nothing is printed; it exits with 0 unless there is no spec.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from firstfault.errors import ExitCode, FirstFaultError, UnreadableInput, tell
from firstfault.replay import spec as specs
from firstfault.replay.spec import Begun, Done, Line, Spec, Wrote
from firstfault.replay.verdict import Replayed, Verdict


def main(argv: list[str]) -> int:
    """Do what the spec says."""
    faulthandler.enable()
    if len(argv) != 1:
        tell("expected one argument: the spec of a replay")
        return ExitCode.USAGE
    try:
        spec = specs.read(Path(argv[0]))
    except FirstFaultError as error:
        tell(str(error))
        return ExitCode.USAGE
    fd = os.open(spec.results, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(line: Line) -> None:
        os.write(fd, msgspec.json.encode(line) + b"\n")

    replay_all(spec, write)
    return ExitCode.OK


def replay_all(spec: Spec, write: Callable[[Line], None]) -> None:
    """Replay the calls of a spec, in order; what a call gave goes into later ones that were given that."""
    from firstfault.replay.carry import Carried

    carried = Carried() if len(spec.calls) > 1 else None
    if spec.minimal:
        from firstfault.replay.minimize import minimize

        write(minimize(spec, write))
        return
    if spec.script:
        write(_written(spec))
        return
    for call in spec.calls:
        write(Done(_replayed(spec, Path(call), write, carried)))


def _replayed(spec: Spec, folder: Path, write: Callable[[Line], None], carried: Any) -> Replayed:
    from firstfault.read.saved_call import read
    from firstfault.replay import outcome
    from firstfault.replay.call import Prepared
    from firstfault.replay.errors import NotRun
    from firstfault.replay.guarded import Watch
    from firstfault.replay.memory import placer
    from firstfault.replay.reference import against_reference

    write(Begun(0, "", str(folder)))  # reading it, and importing what it names, can end the process too
    saved = None
    try:
        saved = read(folder)
        function = stand_in(spec)
        memory = placer(spec.redzone)
        prepared = Prepared(saved, device=spec.device, function=function, placer=memory)
        if carried is not None:
            carried.into(prepared)
        prepared.arguments()
        write(Begun(saved.n, saved.op, str(folder), ", ".join(sorted(prepared.devices.seen))))
        if spec.against == "reference":
            return against_reference(prepared, spec.reference)
        with Watch(prepared, memory, write):
            outcomes = outcome.make_all(prepared, spec.repeat)
        if carried is not None:
            carried.out_of(prepared, outcomes[-1])
        return outcome.judged(prepared, outcomes)
    except (NotRun, UnreadableInput) as why:
        text = str(why)
    except Exception as error:  # one of ours: it says nothing of the call
        text = f"replaying failed by itself with {type(error).__name__}: {error}; please report it"
        if outcome.device_failed():
            text = "the device had failed in a call before it"
    op, n = (saved.op, saved.n) if saved is not None else ("", 0)
    return Replayed(Verdict.NOT_RUN, op, n, str(folder), text)


def _written(spec: Spec) -> Wrote:
    """Write a stand-alone program in the place of a replay."""
    from firstfault.read.saved_call import read
    from firstfault.replay import script

    try:
        saved = read(Path(spec.calls[0]))
        return Wrote(script.write(saved, Path(spec.script), device=spec.device, private=spec.synthetic))
    except FirstFaultError as why:
        return Wrote([], str(why))


def stand_in(spec: Spec) -> Callable[..., Any] | None:
    """What stands in for what was called, if anything, after the imports that were asked for.

    Raises:
        NotRun: it cannot be found, or an import fails.
    """
    import importlib

    from firstfault.replay import resolve
    from firstfault.replay.errors import NotRun

    for module in spec.imports:
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            importlib.import_module(module)
        except Exception as error:
            raise NotRun(f"importing {module} raised {type(error).__name__}: {error}") from error
    return resolve.named(spec.function) if spec.function else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
