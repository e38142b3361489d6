"""A recorder's calls in C (``crossing/``), and what is left of them to Python."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from firstfault.capture import compiled, describe, guard, progress
from firstfault.capture.open_call import OpenCall, Thread
from firstfault.record import schema

if TYPE_CHECKING:
    from firstfault.capture.recorder import Recorder


class InC:
    """A recorder whose calls C begins and ends, where it was built and can; the rest comes back here.

    Attributes:
        box: its state there; None where C was not built.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.box: Any = None

    def use_markers(self, markers: progress.Markers | None) -> None:
        """Let the calls that C writes be marked too."""
        if self.box is None:
            return
        if markers is None:
            self.box.use_markers()
            return
        asked = markers.asked
        self.box.use_markers(
            markers=markers,
            capturing=asked.capturing,
            device=asked.device,
            stream=asked.stream,
            runtime=asked.runtime,
            in_graphs=markers.in_graphs,
        )

    def close(self) -> None:
        """Write no more in C."""
        if self.box is not None:
            self.box.close()

    def came_back(
        self,
        n: int,
        op: str,
        thread: Thread,
        mutates: Collection[int | str] | None,
        result: Any,
        t: int,
        device: int,
        stream: int,
        is_placed: bool,
    ) -> None:
        """Write the return at ``t`` of a call that C has begun and cannot end.

        ``is_placed`` tells that its marker has been written already, on ``stream`` of ``device``.
        """
        record = schema.Return(n, t, thread.tid, device=device, stream=stream)
        thread.busy = True
        try:
            if not is_placed and self.recorder.markers is not None:
                self.recorder.markers.end(record)
            self.end(op, thread, record, mutates or (), result)
        except Exception as error:
            guard.internal_error("recording a return", error)
        finally:
            thread.busy = False

    def failed(self, n: int, op: str, thread: Thread, is_marked: bool, error: BaseException) -> None:
        """Write that a call which C has begun ended in ``error``; ``is_marked`` tells whether its begin was."""
        call = OpenCall(self.recorder, n, op, thread, (), {})
        call.markers = self.recorder.markers if is_marked else None
        thread.calls.append(call)
        call.raised(error)

    def end(self, op: str, thread: Thread, record: schema.Return, mutates: Collection[int | str], result: Any) -> None:
        """Write a return whose marker is written."""
        raise NotImplementedError

    @staticmethod
    def mutated(mutates: Collection[int | str]) -> bytes:
        """What a call is declared to change, as it stands in the line of its return."""
        return b',"mutated":' + msgspec.json.encode(labels(mutates))

    def _make_box(self, **sink: Any) -> None:
        recorder = self.recorder
        self.box = compiled.crossing.Box(
            recorder=recorder,
            slow=self,
            threads=recorder.threads,
            counter=recorder.numbers,
            cuda=vars(torch.cuda),
            **sink,
        )


def labels(mutates: Collection[int | str]) -> list[str]:
    """The arguments that a call is declared to change, as they are named."""
    return [describe.label((where,)) for where in mutates]
