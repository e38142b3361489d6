from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.record import codec, schema

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
LABEL = st.text("abcdefgh_.", min_size=1, max_size=10)
INT64 = st.integers(-(2**63), 2**63 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
STATISTIC: st.SearchStrategy[schema.Statistic] = st.one_of(
    st.integers(-(2**63), 2**64 - 1), FINITE, st.sampled_from(["nan", "inf", "-inf"])
)
EXTENTS = st.lists(st.integers(0, 2**40), max_size=5).map(tuple)
COUNT = st.integers(0, 2**63 - 1)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


TENSORS = st.builds(
    schema.Tensor,
    shape=EXTENTS,
    dtype=LABEL,
    device=LABEL,
    stride=maybe(EXTENTS),
    offset=COUNT,
    ptr=st.integers(0, 2**64 - 1),
    storage=st.integers(0, 2**64 - 1),
    nbytes=COUNT,
    contiguous=st.booleans(),
    requires_grad=st.booleans(),
    version=maybe(COUNT),
    statistics=maybe(TEXT),
    min=maybe(STATISTIC),
    max=maybe(STATISTIC),
    mean=maybe(STATISTIC),
    nan_count=maybe(COUNT),
    inf_count=maybe(COUNT),
    kind=maybe(TEXT),
    missing=maybe(TEXT),
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    INT64,
    FINITE,
    TEXT,
    TENSORS,
    st.builds(schema.Number, TEXT),
    st.builds(schema.Text, TEXT, COUNT),
    st.builds(
        schema.Opaque,
        name=TEXT,
        repr=maybe(TEXT),
        shape=maybe(TEXT),
        dtype=maybe(TEXT),
        device=maybe(TEXT),
        cut=COUNT,
        why=maybe(TEXT),
    ),
)


def containers(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    sequences = st.builds(schema.Sequence, TEXT, COUNT, st.lists(values, max_size=3))
    entries = st.lists(st.tuples(TEXT, values), max_size=3)
    mappings = st.builds(
        lambda name, length, pairs, fields: schema.Mapping(
            name, length, [key for key, _ in pairs], [value for _, value in pairs], fields
        ),
        TEXT,
        COUNT,
        entries,
        st.booleans(),
    )
    return sequences | mappings


VALUES = st.recursive(LEAVES, containers, max_leaves=8)
TIME = st.integers(0, 2**62)
N = st.integers(1, 2**40)
RECORDS = st.one_of(
    st.builds(
        schema.Header,
        schema=st.just(schema.SCHEMA_VERSION),
        t=TIME,
        pid=N,
        host=TEXT,
        rank=TEXT,
        level=st.sampled_from([1, 3, 5, 10]),
        segment=N,
        ppid=COUNT,
        main_tid=COUNT,
        ring=st.booleans(),
        versions=st.dictionaries(TEXT, TEXT, max_size=3),
    ),
    st.builds(
        schema.Call,
        n=N,
        t=TIME,
        op=TEXT,
        target=TEXT,
        parent=COUNT,
        tid=COUNT,
        site=TEXT,
        args=maybe(st.lists(VALUES, max_size=3)),
        kwargs=maybe(st.dictionaries(TEXT, VALUES, max_size=3)),
        layout=COUNT,
        ptrs=maybe(st.lists(COUNT, max_size=3)),
    ),
    st.builds(schema.Inputs, n=N, args=st.lists(VALUES, max_size=3), kwargs=st.dictionaries(TEXT, VALUES, max_size=3)),
    st.builds(
        schema.Return,
        n=N,
        t=TIME,
        tid=COUNT,
        described=st.booleans(),
        out=VALUES,
        mutated=st.lists(TEXT, max_size=3),
    ),
    st.builds(schema.Raise, n=N, t=TIME, exception=TEXT, message=TEXT, tid=COUNT),
    st.builds(
        schema.Dump, n=N, side=st.sampled_from(["inputs", "outputs"]), path=TEXT, nbytes=COUNT, skipped=maybe(TEXT)
    ),
    st.builds(schema.Note, t=TIME, code=TEXT, message=TEXT, n=COUNT, count=COUNT),
    st.builds(schema.End, t=TIME, calls=COUNT),
)


@given(RECORDS)
def test_every_record_reads_back(record: schema.Record) -> None:
    line = codec.encode(record)
    decoded = codec.decode(line)
    assert decoded == record
    assert type(decoded) is type(record)


@given(RECORDS)
def test_every_record_is_one_line(record: schema.Record) -> None:
    line = codec.encode(record)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1


@given(VALUES)
def test_a_value_keeps_its_type(value: schema.Value) -> None:
    decoded = codec.decode(codec.encode(schema.Return(1, 2, out=value)))
    assert isinstance(decoded, schema.Return)
    assert type(decoded.out) is type(value)


@given(RECORDS, st.data())
def test_a_torn_line_is_a_named_error(record: schema.Record, data: st.DataObject) -> None:
    line = codec.encode(record)
    kept = data.draw(st.integers(0, len(line) - 2))
    with pytest.raises(codec.CodecError):
        codec.decode(line[:kept])


@given(st.binary(max_size=60))
def test_garbage_is_a_named_error(line: bytes) -> None:
    with pytest.raises(codec.CodecError):
        codec.decode(b"garbage" + line)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"{}",
        b'{"type":"unheard-of","n":1}',
        b'{"type":"call","n":1}',
        b'{"type":"return","n":"one","t":2}',
        b'{"type":"raise","n":1,"t":2,"exception":"E","message":"\xff"}',
        b'{"type":"return","n":1,"t":2,"out":' + b"[" * 100_000,
    ],
)
def test_what_is_no_record_is_a_named_error(line: bytes) -> None:
    with pytest.raises(codec.CodecError):
        codec.decode(line)


def test_a_newer_schema_says_what_to_do() -> None:
    header = schema.Header(schema.SCHEMA_VERSION + 1, 1, 2, "h", "0", 3, 1)
    with pytest.raises(codec.NewerSchema, match="upgrade firstfault"):
        codec.decode(codec.encode(header))


def test_fields_that_a_newer_minor_version_added_are_passed_over() -> None:
    line = msgspec.json.encode({"type": "end", "t": 1, "calls": 2, "colour": "blue"})
    assert codec.decode(line) == schema.End(1, 2)


def test_defaults_take_no_room() -> None:
    assert codec.encode(schema.Return(37, 5)) == b'{"type":"return","n":37,"t":5}\n'


def test_an_address_may_lie_in_the_upper_half() -> None:
    tensor = schema.Tensor((2,), "torch.int8", "cpu", ptr=2**64 - 2, storage=2**63)
    record = schema.Return(1, 2, described=True, out=tensor)
    assert codec.decode(codec.encode(record)) == record


def test_a_number_beyond_what_a_machine_counts_with_is_no_record() -> None:
    line = codec.encode(schema.Return(1, 2, described=True, out=schema.Tensor((2,), "torch.int8", "cpu", nbytes=7)))
    codec.decode(line)
    for large in (b"9" * 400, b"9" * 20):
        with pytest.raises(codec.CodecError):
            codec.decode(line.replace(b'"nbytes":7', b'"nbytes":' + large))
