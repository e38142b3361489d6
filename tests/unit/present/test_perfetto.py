"""The trace for Perfetto: whole JSON of Chrome's format, spans that nest, and times that are the record's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from firstfault.present import perfetto
from firstfault.record import schema
from tests.unit.present.reports import EVIL, report
from tests.unit.read import samples
from tests.unit.read.samples import T0, call, header, raised, recording, returned, tensor

NEEDED: dict[str, dict[str, type | tuple[type, ...]]] = {
    "M": {"pid": int, "name": str, "args": dict},
    "X": {"pid": int, "tid": int, "ts": (int, float), "dur": (int, float), "name": str, "cat": str, "args": dict},
    "B": {"pid": int, "tid": int, "ts": (int, float), "name": str, "cat": str, "args": dict},
    "i": {"pid": int, "tid": int, "ts": (int, float), "name": str, "s": str},
}
"""Fields by phase, as the Trace Event Format has them."""


def trace(path: Path) -> dict[str, Any]:
    """The trace of what lies at a path, checked against the format."""
    events, _ = samples.read(path)
    text = "".join(perfetto.lines(samples.report(path), samples.history(path), events))
    found: dict[str, Any] = json.loads(text)
    for event in found["traceEvents"]:
        for name, kind in NEEDED[event["ph"]].items():
            assert isinstance(event[name], kind), event
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    check_nesting(found["traceEvents"])
    return found


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Spans of one track are inside each other or apart, to the nanosecond."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] in "XB":
            begin = round(event["ts"] * 1000)
            end = begin + round(event["dur"] * 1000) if event["ph"] == "X" else 2**62
            tracks.setdefault((event["pid"], event["tid"]), []).append((begin, end))
    for spans in tracks.values():
        ends: list[int] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while ends and ends[-1] <= begin:
                ends.pop()
            assert not ends or end <= ends[-1]
            ends.append(end)


def spans(found: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {event["args"]["call"]: event for event in found["traceEvents"] if event["ph"] in "XB"}


def test_calls_become_spans_with_their_times_and_arguments(tmp_path: Path) -> None:
    records: list[schema.Record] = [
        header(), call(1, "outer", 3, site="a.py:1"), call(2, "inner", tensor(4, min=1.0, max=2.0, mean=1.5), parent=1),
        returned(2, tensor(4)), raised(1, "ValueError", "no"), call(3, "open", kwargs={"scale": 2.5}),
    ]  # fmt: skip
    found = trace(recording(tmp_path, records))
    outer, inner, last = (spans(found)[n] for n in (1, 2, 3))
    assert found["otherData"]["clock_origin_ns"] == str(T0)
    assert (outer["ts"], outer["ph"], outer["args"]["raised"]) == (1000, "X", "ValueError: no")
    assert (inner["ts"], inner["dur"]) == (2000, 1)
    assert inner["args"]["arg[0]"] == "(4,) torch.bfloat16, cuda:0  1.000000 … 2.000000, mean 1.500000"
    assert inner["args"]["return"] == "(4,) torch.bfloat16, cuda:0"
    assert (last["ph"], last["args"]["end"], last["args"]["scale"]) == ("B", "in flight", "2.5")
    names = {event["args"]["name"] for event in found["traceEvents"] if event["ph"] == "M"}
    assert names == {"vm-4242", "thread 7"}
    [mark] = [event for event in found["traceEvents"] if event["ph"] == "i"]
    assert mark["name"].startswith("open (call 3) was in flight")


@given(
    st.lists(
        st.tuples(st.sampled_from(["call", "return", "raise", "inputs"]), st.integers(1, 6), st.integers(0, 6), st.integers(0, 1), st.integers(-9, 9)),
        max_size=30,
    )
)  # fmt: skip
def test_any_order_of_records_gives_spans_that_nest(
    tmp_path_factory: Any, steps: list[tuple[str, int, int, int, int]]
) -> None:
    records: list[schema.Record] = [header()]
    for kind, n, parent, tid, t in steps:
        made: dict[str, schema.Record] = {
            "call": schema.Call(n, T0 + t, "op", parent=parent, tid=tid),
            "return": schema.Return(n, T0 + t),
            "raise": schema.Raise(n, T0 + t, "E", "m"),
            "inputs": schema.Inputs(n, [1]),
        }
        records.append(made[kind])
    trace(recording(tmp_path_factory.mktemp("any"), records))


def test_hostile_names_stay_in_their_place(tmp_path: Path) -> None:
    for number, evil in enumerate(EVIL):
        folder = tmp_path / str(number)
        report(folder, evil)
        for event in trace(folder / "recording")["traceEvents"]:
            assert event["name"].isprintable()


def test_a_log_without_times_nests_by_order(tmp_path: Path) -> None:
    found = trace(samples.write_log("serving_level5", tmp_path))
    assert len(spans(found)) == samples.history(samples.write_log("serving_level5", tmp_path)).processes["main"].calls


def test_a_clock_that_was_set_back_leaves_no_span_before_the_first(tmp_path: Path) -> None:
    records: list[schema.Record] = [header()]
    for n, t in ((1, -900), (2, -800), (3, 5)):
        records += [schema.Call(n, T0 + t, "op", tid=7), schema.Return(n, T0 + t + 50)]
    found = spans(trace(recording(tmp_path, records)))
    assert [found[n]["ts"] for n in (1, 2, 3)] == sorted(found[n]["ts"] for n in (1, 2, 3))
