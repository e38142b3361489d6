"""Reports of records that a hostile program made."""

from __future__ import annotations

from pathlib import Path

from firstfault.diagnose.report import Report
from firstfault.record import schema
from tests.unit.read import samples
from tests.unit.read.samples import call, header, raised, recording, returned, tensor

EVIL = [
    "\x1b[2J\x1b]0;owned\x07", "\x9b31m", "\x7f\b\r", "\u202egnp.exe", "a\nb\n\n# heading\n- item\n1. one", "| a | b |\n|---|---|",
    "[link](http://x.example)", "![img](http://x.example/i.png)", "<script>alert(1)</script>", "<img src=x>", "&lt;b&gt;",
    "`code` ``` ```", "**bold** _em_ ~~s~~", "http://x.example www.x.example a@x.example", "$math$ \\(x\\)", "[bold red]rich[/]",
    "- item", "+ item", "1. one", "1) one", "=== ---", "> quote", "# h", "    indented", "\\|", "\\", "|", "é ❤ 漢字", "\ufeff",
]  # fmt: skip
"""Text that would steer a terminal, or mean something in Markdown, HTML or rich's markup."""


def report(folder: Path, evil: str) -> Report:
    """A report in which that text stands everywhere that a program's text can."""
    bad = tensor(4, 8, dtype=evil, device=evil, contiguous=False, stride=(9, 1), kind=evil, statistics=evil)
    nan = tensor(4, 8, min=evil, max=1e9, mean="nan", nan_count=3, inf_count=0)
    mapping = schema.Mapping(evil, 3, [evil], [schema.Opaque(evil, evil, why=evil)], fields=True)
    records: list[schema.Record] = [
        header(rank=evil, host=evil),
        call(1, evil, bad),
        returned(1, mapping, mutated=[evil]),
        call(
            2,
            evil,
            bad,
            nan,
            mapping,
            evil,
            schema.Text(evil, 10**6),
            schema.Number(evil),
            site=evil,
            kwargs={evil: nan},
        ),
        schema.Dump(2, "inputs", evil),
        schema.Dump(2, "outputs", skipped=evil),
        schema.Note(0, evil, evil, count=2),
        raised(2, evil, evil),
    ]
    path = recording(folder, records, name="vm-1")
    recording(folder, [header(pid=2), call(1, evil, nan)], name="vm-2")
    path.joinpath("session.json").write_bytes(b'{"exit_status": 1, "command": %s}' % _quoted(["python", evil]))
    path.joinpath("stderr.tail").write_text(" ".join(evil.splitlines()) * 2)
    found = samples.report(path)
    assert len(found.processes) == 2
    assert any(process.findings for process in found.processes)
    found.problems = [evil]
    return found


def _quoted(words: list[str]) -> bytes:
    import json

    return json.dumps(words).encode()
