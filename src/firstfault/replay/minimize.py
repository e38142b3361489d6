"""The smallest input that still fails, as far as leaving things out leads to it.

    arg[0]  (4096, 64) → (1, 1), 1 element that is not 0

Extents that are equal are taken for one thing, such as the rows of a batch, the tokens of a sequence or the heads, and
cut together, with the numbers among the arguments that equal them; then each alone; then values become 0. Each input is
tried in a process that is forked for it: one that crashes costs 20 ms and not an interpreter's start. What fails must
fail alike: with the same signal, the same exception, or by differing from the reference.
"""

from __future__ import annotations

import faulthandler
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from firstfault.errors import FirstFaultError
from firstfault.read.saved_call import SavedCall, read
from firstfault.replay import ddmin, smaller
from firstfault.replay.call import Prepared
from firstfault.replay.errors import NotRun
from firstfault.replay.outcome import judged, make
from firstfault.replay.reference import against_reference
from firstfault.replay.smaller import Input
from firstfault.replay.spec import Begun, Done, Line, Spec
from firstfault.replay.verdict import Replayed, Verdict

SECONDS = 60.0
"""After which a trial counts as hanging."""
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Failure:
    """How a call fails: two inputs fail alike where these are equal."""

    verdict: Verdict
    kind: str = ""


def minimize(spec: Spec, write: Callable[[Line], None]) -> Done:
    """Make the input of a call that fails as small as it gets."""
    torch.set_num_threads(1)  # a pool of threads does not live on in a forked process
    folder = Path(spec.calls[0])
    write(Begun(0, "", str(folder)))
    try:
        saved = read(folder)
        whole = smaller.load(saved)
        write(Begun(saved.n, saved.op, str(folder), spec.device))
        trials = _Trials(spec, saved)
        first = trials.run(whole)
        failure = _failure(first)
        if failure is None:
            return Done(_as_found(first, "it does not fail, so there is nothing to make small"))
        if failure.verdict is Verdict.MISMATCH and spec.against != "reference":
            return Done(_as_found(first, "a smaller input has nothing to be held against: add --against reference"))
        least = _shrunk(whole, lambda candidate: _failure(trials.run(candidate)) == failure, trials)
        minimal = smaller.save(least, whole, saved, Path(spec.minimal))
        minimal.tried = trials.count
        share = 100 * minimal.elements / max(1, minimal.original)
        minimal.text = (
            f"still {failure.verdict.value} with {minimal.elements:,} of {minimal.original:,} elements "
            f"({share:.2g} %) after {trials.count} trials"
        )
        return Done(first, minimal)
    except FirstFaultError as why:
        return Done(Replayed(Verdict.NOT_RUN, dump=str(folder), text=str(why)))


def _as_found(result: Replayed, note: str) -> Replayed:
    result.notes.append(note)
    return result


def _failure(result: Replayed) -> Failure | None:
    """How a result fails; None where it does not."""
    if result.verdict is Verdict.CRASHED:
        first = (result.message.splitlines() or [""])[0]
        return Failure(result.verdict, f"{result.exception}: {_NUMBER.sub('N', first)}")
    if result.verdict is Verdict.MISMATCH:
        return Failure(result.verdict, ", ".join(f"{found.what} of {found.name}" for found in result.differences))
    return None


# --- what is tried


def _shrunk(whole: Input, fails: Callable[[Input], bool], trials: _Trials) -> Input:
    """Cut extents as long as that helps, then set values to 0."""
    least = whole
    before = -1
    while before != smaller.elements(least) and trials.left:
        before = smaller.elements(least)
        for cut in smaller.cuts(least):
            least = _cut(least, cut, fails, trials)
    for key in smaller.by_size(least):
        least = _zeroed(least, key, fails, trials)
    return least


def _cut(least: Input, cut: smaller.Cut, fails: Callable[[Input], bool], trials: _Trials) -> Input:
    """What is left of an input when as much as possible of one extent is left out."""
    if not cut.fits(least):  # an earlier one has changed it
        return least

    def still(kept: Sequence[int]) -> bool:
        return trials.left > 0 and fails(cut.applied(least, kept))

    kept = ddmin.minimal(range(cut.extent), still)
    return cut.applied(least, kept) if len(kept) < cut.extent else least


def _zeroed(least: Input, key: str, fails: Callable[[Input], bool], trials: _Trials) -> Input:
    """What is left of an input when as many elements as possible of one tensor are 0."""
    places = smaller.nonzero(least, key)

    def still(kept: Sequence[int]) -> bool:
        return trials.left > 0 and fails(smaller.zeroed(least, key, kept))

    if not places:
        return least
    kept = [] if still([]) else ddmin.minimal(places, still)
    return smaller.zeroed(least, key, kept) if len(kept) < len(places) else least


# --- one trial


class _Trials:
    """Runs inputs, each in a process forked for it."""

    def __init__(self, spec: Spec, saved: SavedCall) -> None:
        self._spec = spec
        self._saved = saved
        self.count = 0

    @property
    def left(self) -> int:
        """How many more may be run."""
        return self._spec.trials - self.count

    def run(self, candidate: Input) -> Replayed:
        """What comes of one input."""
        self.count += 1
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            self._in_child(candidate, writer)
        os.close(writer)
        data = _read_all(reader, time.monotonic() + SECONDS, pid)
        os.close(reader)
        _, status = os.waitpid(pid, 0)
        if data:
            return msgspec.json.decode(data, type=Replayed)
        name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "exit"
        text = (
            f"the process of the replay was killed by {name}" if name != "exit" else "the process of the replay exited"
        )
        return Replayed(Verdict.CRASHED, self._saved.op, self._saved.n, str(self._saved.folder), text, exception=name)

    def _in_child(self, candidate: Input, writer: int) -> None:
        """Make the call and tell what came of it; never returns."""
        from firstfault.replay.child import stand_in

        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            if self.count > 1:  # what it says when it fails has been seen
                os.dup2(quiet, 2)
                faulthandler.disable()
            result = self._made(candidate, stand_in(self._spec))
        except NotRun as why:
            result = Replayed(Verdict.NOT_RUN, self._saved.op, self._saved.n, text=str(why))
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os.write(writer, msgspec.json.encode(result))
        os._exit(0)

    def _made(self, candidate: Input, function: Callable[..., object] | None) -> Replayed:
        saved = smaller.with_given(self._saved, candidate)
        prepared = Prepared(saved, device=self._spec.device, function=function, held=candidate.tensors)
        if self._spec.against == "reference":
            return against_reference(prepared, self._spec.reference)
        if self.count > 1:  # the results of a smaller input are not those that were recorded
            prepared.saved = smaller.without_outcome(saved)
        return judged(prepared, [make(prepared)])


def _read_all(reader: int, deadline: float, pid: int) -> bytes:
    """What a child tells until it ends; one that takes too long is killed."""
    pieces: list[bytes] = []
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            os.kill(pid, signal.SIGKILL)
            return b""
        piece = os.read(reader, 65536)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
