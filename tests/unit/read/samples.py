"""The samples in ``tests/unit/data``, and small recordings and logs made of records."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from firstfault.diagnose.investigate import report_on
from firstfault.diagnose.report import Report
from firstfault.read.events import Event, Source
from firstfault.read.evidence import gather
from firstfault.read.history import History
from firstfault.read.process import Process
from firstfault.read.session import open_source
from firstfault.record import codec, schema, text_log

DATA = Path(__file__).parent.parent / "data"
LOGS = sorted(path.name.removesuffix(".log.gz") for path in DATA.glob("*.log.gz"))
DUMPS = sorted(path.name.removesuffix("_dumps.tgz") for path in DATA.glob("*_dumps.tgz"))

T0 = 1_764_418_858 * 10**9
MAIN_TID = 7


def log_bytes(name: str) -> bytes:
    """A sample of a text log."""
    return gzip.decompress((DATA / f"{name}.log.gz").read_bytes())


def write_log(name: str, folder: Path) -> Path:
    """The same, as a file."""
    path = folder / f"{name}.log"
    path.write_bytes(log_bytes(name))
    return path


def unpack_dumps(name: str, folder: Path) -> Path:
    """A sample of dumps; the folder that holds them."""
    with tarfile.open(DATA / f"{name}_dumps.tgz") as archive:
        archive.extractall(folder / name, filter="data")
    inner = folder / name / "dumps"
    return inner if inner.is_dir() else folder / name


def read(path: Path) -> tuple[list[Event], Source]:
    """Every record that a source yields, and the source."""
    source = open_source(path)
    return [*source.events(lambda count: None)], source


def history(path: Path) -> History:
    """What the calls of a source came to."""
    found = History()
    for event in read(path)[0]:
        found.feed(event)
    return found


def taken(*records: schema.Record) -> Process:
    """What the records of one process came to."""
    history = History()
    for record in records:
        history.feed(Event("main", record))
    return history.processes["main"]


def report(path: Path, last: int = 5) -> Report:
    """The report on a source."""
    return report_on(gather(path, lambda count: None), last=last)


# --- records


def tensor(*shape: int, **fields: Any) -> schema.Tensor:
    """A tensor as a kernel sees it."""
    described: dict[str, Any] = {"dtype": "torch.bfloat16", "device": "cuda:0", "nbytes": _nbytes(shape)}
    return schema.Tensor(**{"shape": shape} | described | fields)


def _nbytes(shape: Iterable[int]) -> int:
    size = 2
    for extent in shape:
        size *= extent
    return size


def header(level: int = 3, pid: int = 4242, **fields: Any) -> schema.Header:
    """The first line of a segment."""
    described: dict[str, Any] = {
        "schema": 1,
        "t": T0,
        "pid": pid,
        "host": "elsewhere",
        "rank": "0",
        "level": level,
        "segment": 1,
    }
    return schema.Header(**described | {"main_tid": MAIN_TID} | fields)


def call(n: int, op: str = "op", *args: schema.Value, **fields: Any) -> schema.Call:
    """A call of the main thread, a millisecond after the one before it."""
    wanted: dict[str, Any] = {"tid": MAIN_TID, "args": [*args], "kwargs": {}} | fields
    return schema.Call(n, T0 + n * 1_000_000, op, **wanted)


def returned(n: int, out: schema.Value = None, **fields: Any) -> schema.Return:
    """Its return."""
    return schema.Return(n, T0 + n * 1_000_000 + 1000, MAIN_TID, described=True, out=out, **fields)


def raised(n: int, exception: str = "ValueError", message: str = "no kernel") -> schema.Raise:
    """Its exception."""
    return schema.Raise(n, T0 + n * 1_000_000 + 1000, exception, message, MAIN_TID)


def recording(folder: Path, records: Iterable[schema.Record], *, name: str = "vm-4242", segment: int = 1) -> Path:
    """A recording of these records; its path."""
    process = folder / "recording" / name
    process.mkdir(parents=True, exist_ok=True)
    (process / f"calls.{segment:04d}.jsonl").write_bytes(b"".join(map(codec.encode, records)))
    return folder / "recording"


def as_text(records: Iterable[schema.Record]) -> str:
    """The text log that the recorder writes of them, in one process and its main thread."""
    text, ops = "", {}
    for record in records:
        if isinstance(record, schema.Call):
            ops[record.n] = record.op
            text += text_log.call(record)
        elif isinstance(record, schema.Return):
            text += text_log.returned(record)
        elif isinstance(record, schema.Raise):
            text += text_log.raised(record, ops[record.n])
        elif isinstance(record, schema.Dump):
            text += text_log.dumped(record)
    return text
