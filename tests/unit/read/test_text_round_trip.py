"""What the recorder's text log says is what the reader takes from it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.read.events import Replayed
from firstfault.read.formats import values
from firstfault.record import schema, text_log
from tests.unit.read import samples
from tests.unit.read.strategies import ARGUMENTS, NAMED_ARGUMENTS, OPS, PLAIN, VALUES, carried, tensors


def written_and_read(tmp_path: Path, text: str) -> list[schema.Record]:
    path = tmp_path / "log.txt"
    path.write_text(text, encoding="utf-8", newline="")
    events, source = samples.read(path)
    assert source.problems.lines() == []
    return [event.record for event in events if not isinstance(event.record, Replayed)]


@given(op=OPS, args=ARGUMENTS, kwargs=NAMED_ARGUMENTS, out=VALUES)
def test_a_call_and_its_result(
    tmp_path: Path, op: str, args: list[schema.Value], kwargs: dict[str, schema.Value], out: schema.Value
) -> None:
    begun = schema.Call(1, samples.T0, op, args=args, kwargs=kwargs)
    given_back = schema.Return(1, 0, described=True, out=out, mutated=["arg[0]", "x"])
    found = written_and_read(tmp_path, text_log.call(begun) + text_log.returned(given_back))
    [first, second] = found
    assert isinstance(first, schema.Call)
    assert isinstance(second, schema.Return)
    assert (first.op, first.t) == (op, samples.T0)
    assert first.args == ([carried(value) for value in args] if args or kwargs else None)
    assert (first.kwargs or {}) == {name: carried(value) for name, value in kwargs.items()}
    assert (second.n, second.out, second.mutated) == (1, carried(out), ["arg[0]", "x"])


@given(op=OPS, exception=st.from_regex(r"[A-Za-z_][\w.]{0,20}", fullmatch=True), message=PLAIN)
def test_an_exception(tmp_path: Path, op: str, exception: str, message: str) -> None:
    raised = schema.Raise(1, samples.T0, exception, message)
    found = written_and_read(tmp_path, samples.as_text([samples.call(1, op, 1), raised]))
    assert found[1] == schema.Raise(1, samples.T0, exception, text_log.one_line(message))


@given(tensors())
def test_the_quick_way_to_read_a_tensor_gives_the_same_as_the_thorough_one(tensor: schema.Tensor) -> None:
    text = text_log._value(tensor, "    ")
    assert values.parse(text).value == values.parse(text.replace("\n", "\n\n")).value == carried(tensor)


@given(
    st.lists(st.tuples(st.sampled_from([11, 12, 13]), OPS, st.sampled_from(["return", "raise", "nest"])), max_size=30)
)
def test_threads_keep_their_calls_apart(tmp_path: Path, steps: list[tuple[int, str, str]]) -> None:
    """Whatever interleaving, each return or exception reaches the innermost call of its own thread."""
    text, expected, count = "", [], 0
    stacks: dict[int, list[tuple[int, str]]] = {}
    for tid, op, what in steps:
        identity = text_log.identity(4242, tid)
        stack = stacks.setdefault(tid, [])
        if what == "nest" or not stack:
            count += 1
            text += text_log.call(samples.call(count, op, 1), identity)
            stack.append((count, op))
            expected.append(("call", tid, count))
            continue
        n, name = stack.pop()
        expected.append((what, tid, n))
        if what == "return":
            text += text_log.returned(samples.returned(n, 1), identity)
        else:
            text += text_log.raised(samples.raised(n), name, identity)
    if not text:
        return
    path = tmp_path / "log.txt"
    path.write_text(text)
    calls: dict[int, int] = {}
    found = []
    for event in samples.read(path)[0]:
        record = event.record
        assert isinstance(record, (schema.Call, schema.Return, schema.Raise))
        assert event.process == "pid 4242"
        if isinstance(record, schema.Call):
            calls[record.n] = record.tid
        kind = {schema.Call: "call", schema.Return: "return", schema.Raise: "raise"}[type(record)]
        found.append((kind, calls[record.n], record.n))
    # A raise closes the innermost call of its name: with equal names nested, that is the same one.
    assert found == expected


@pytest.mark.parametrize("level", [1, 3, 5, 10])
def test_what_a_real_run_writes_both_ways_is_the_same(level: int, record: object, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from firstfault.capture import boundary

    running = record(level)  # type: ignore[operator]
    x = torch.randn(4, 8)[:, ::2]

    def inner(x: object, *, flag: object) -> object:
        return [x, {"k": (x, None)}]

    def outer(x: object, scale: float, text: str) -> object:
        return wrapped(x, flag=torch.bfloat16)

    wrapped = boundary.wrap(inner, "inner")
    boundary.wrap(outer, "outer")(x, float("nan"), "it's\n====\x1b[0m \u202e")
    thread = threading.Thread(target=boundary.wrap(outer, "in thread"), args=(x, 1e-9, ""))
    thread.start()
    thread.join()
    path = running.text_path
    from_text = [event.record for event in samples.read(path)[0]]
    from_record = [event.record for event in samples.read(running.folder)[0]]
    calls = [item for item in from_record if isinstance(item, schema.Call)]
    assert [item.op for item in calls] == ["outer", "inner", "in thread", "inner"]
    assert [item.op for item in from_text if isinstance(item, schema.Call)] == [item.op for item in calls]
    for mine, theirs in zip(calls, (item for item in from_text if isinstance(item, schema.Call)), strict=True):
        assert theirs.args == (None if level == 1 else [carried(value) for value in mine.args or ()])
        assert theirs.kwargs == (None if level == 1 else {k: carried(v) for k, v in (mine.kwargs or {}).items()})
        assert (theirs.parent != 0) == (mine.parent != 0 and level > 1)
