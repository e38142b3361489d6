"""What a golden program left behind on a CPU, whose calls are written short, is read as it was then.

``python scripts/record_golden.py OUT cpu`` made it.
"""

from __future__ import annotations

from pathlib import Path

from firstfault.diagnose.report import Verdict
from firstfault.read.formats.recording import Recording
from firstfault.record import layout, schema
from tests.unit.read import samples

KILLED = Path(__file__).parent / "cpu" / "decode_killed.level3" / "recording"


def test_the_call_is_named() -> None:
    found = samples.report(KILLED)
    suspect = found.processes[0].suspect
    assert suspect is not None
    assert (found.processes[0].verdict, suspect.op, suspect.n) == (Verdict.IN_FLIGHT, "decode.attention", 5)
    assert found.problems == []


def test_its_calls_are_short() -> None:
    (segment,) = KILLED.glob(f"*/{layout.SEGMENTS}")
    calls = [line for line in segment.read_bytes().splitlines() if line.startswith(b'{"type":"call"')]
    assert [b'"storages"' in line for line in calls] == [False, False, True, True, True]


def test_what_was_another_at_each_step_is_read() -> None:
    records = [event.record for event in Recording(KILLED).events(lambda count: None)]
    calls = [record for record in records if isinstance(record, schema.Call)]
    for step, call in enumerate(calls):
        assert call.args is not None
        assert call.kwargs is not None
        query, cache, batch = call.args
        assert isinstance(query, schema.Tensor)
        assert isinstance(cache, schema.Tensor)
        assert isinstance(batch, schema.Mapping)
        number, positions, scale, lengths, mode = batch.values
        assert isinstance(positions, schema.Tensor)
        assert isinstance(lengths, schema.Sequence)
        assert (number, scale, lengths.items, mode) == (step, 0.5 / (step + 1), [step, step + 1], "decode")
        assert (cache.version, query.shape, query.ptr == query.storage != 0) == (2 * step, (4,), True)
    returns = [record for record in records if isinstance(record, schema.Return)]
    assert [record.mutated for record in returns] == [["arg[1]", "out"]] * 4
