"""The chain of evidence: every link that is known, and for every other what would tell it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firstfault.diagnose.chain import NO_KERNEL, NO_PRODUCER, NO_VALUE, Chain
from firstfault.diagnose.report import Verdict
from firstfault.present import json as as_json
from firstfault.present import terminal
from firstfault.record import schema
from tests.unit.read import samples
from tests.unit.read.samples import call, header, raised, recording, returned, tensor

BAD = (1 << 30) + 36
GDB = (samples.DATA / "failures" / "cudagdb.txt").read_text()
ERROR = "CUDA error: an illegal memory access was encountered"


def at(ptr: int, *shape: int, **fields: Any) -> schema.Tensor:
    size = 4
    for extent in shape:
        size *= extent
    described = {"dtype": "torch.int32", "ptr": ptr, "storage": ptr, "nbytes": size, "version": 0, "stride": (1,)}
    return tensor(*shape, **described | fields)


def two_kernels(*, values: bool = True, producer: bool = True) -> list[schema.Record]:
    """A routing call whose ids a counting call trusts."""
    known = {"min": 0, "max": BAD, "mean": 1.0} if values else {}
    ids, counts = at(0x1000, 769, **known), at(0x7F0000, 128, **({"min": 0, "max": 0, "mean": 0.0} if values else {}))
    made: list[schema.Record] = [call(1, "x.topk_gating", tensor(769, 128)), returned(1, ids)] if producer else []
    return [header(5, versions={}), *made, call(2, "x.moe_align", ids, counts), raised(2, "RuntimeError", ERROR)]


def chain_of(folder: Path, records: list[schema.Record], *texts: tuple[str, str]) -> Chain | None:
    path = recording(folder, records)
    for name, text in texts:
        (path / "tools").mkdir(exist_ok=True)
        (path / "tools" / name).write_text(text)
    return samples.report(path).processes[0].chain


def test_all_five_links(tmp_path: Path) -> None:
    chain = chain_of(tmp_path, two_kernels(), ("cuda-gdb-4242.txt", GDB))
    assert chain is not None
    assert chain.whole
    texts = [link.text for _, link in chain.links]
    assert texts[0].startswith("moe_align, crash.py:11, block (17, 0, 0), thread (0, 0, 0), PC 0x7f2adf7a4770: Warp")
    assert texts[1] == "x.moe_align (call 2)"
    assert texts[2] == "arg[0], (769,) torch.int32"
    assert texts[3].startswith(f"arg[0] holds expert ids up to {BAD}, beyond 128, the length of arg[1]")
    assert texts[4] == "x.topk_gating (call 1)"
    assert [link.by for _, link in chain.links] == ["cuda-gdb", "cuda-gdb", "FF501", "FF501", "lineage"]
    assert len(chain.sass) == 8
    assert len(chain.frames) == 1


def test_the_address_joins_the_index_that_leads_there(tmp_path: Path) -> None:
    memcheck = (
        "========= Invalid __global__ atomic of size 4 bytes\n"
        "=========     at moe_align+0x170 in crash.py:11\n"
        "=========     by thread (0,0,0) in block (17,0,0)\n"
        f"=========     Access to {0x7F0000 + 4 * BAD:#x} is out of bounds\n"
    )
    chain = chain_of(tmp_path, two_kernels(), ("memcheck-4242.txt", memcheck))
    assert chain is not None
    assert chain.access == f"the access is to element {BAD:,} of arg[1], which has 128; arg[0] holds {BAD}"


def test_a_tools_text_of_another_process_is_not_its(tmp_path: Path) -> None:
    path = recording(tmp_path, two_kernels())
    (path / "tools").mkdir()
    (path / "tools" / "cuda-gdb-77.txt").write_text(GDB)
    assert samples.report(path).processes[0].verdict is not Verdict.CULPRIT


def test_without_values_the_links_say_what_would_tell(tmp_path: Path) -> None:
    chain = chain_of(tmp_path, two_kernels(values=False), ("cuda-gdb-4242.txt", GDB))
    assert chain is not None
    assert not chain.whole
    assert (chain.value.missing, chain.producer.missing) == (NO_VALUE, NO_VALUE)


def test_without_a_producer_that_is_said(tmp_path: Path) -> None:
    chain = chain_of(tmp_path, two_kernels(producer=False), ("cuda-gdb-4242.txt", GDB))
    assert chain is not None
    assert chain.value.text
    assert chain.producer.missing == NO_PRODUCER


def test_no_chain_where_nothing_failed_on_the_device(tmp_path: Path) -> None:
    assert chain_of(tmp_path, two_kernels()[:3]) is None


def test_nan_that_the_producer_was_given_leads_further_up(tmp_path: Path) -> None:
    nan = {"dtype": "torch.float32", "min": 0.0, "max": 1.0, "mean": "nan", "nan_count": 16, "inf_count": 0}
    good = nan | {"mean": 0.5, "nan_count": 0}
    hidden, scores = at(0x10000, 256, 64, **nan), at(0x20000, 256, 16, **nan)
    ids = at(0x30000, 256, min=0, max=1 << 28, mean=1.0)
    counts = at(0x40000, 16, min=0, max=0, mean=0.0)
    records: list[schema.Record] = [
        header(5, versions={}),
        call(1, "attention", at(0x5000, 256, 64, **good)), returned(1, hidden),
        call(2, "router", hidden), returned(2, scores),
        call(3, "choose_expert", scores), returned(3, ids),
        call(4, "x.expert_count", ids, counts), raised(4, "RuntimeError", ERROR),
    ]  # fmt: skip
    chain = chain_of(tmp_path, records, ("cuda-gdb-4242.txt", GDB.replace("moe_align", "expert_count")))
    assert chain is not None
    assert chain.producer.text == (
        "choose_expert (call 3), given 16 NaN in arg[0], which attention (call 1) made, 2 calls before it"
    )


def test_progress_markers_name_the_call_where_no_tool_names_a_kernel(tmp_path: Path) -> None:
    found = samples.report(recording(tmp_path, two_kernels())).processes[0]
    assert found.chain is None or found.chain.kernel.missing == NO_KERNEL


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\x9b31m"])
def test_what_a_tool_prints_cannot_steer_the_terminal(tmp_path: Path, hostile: str) -> None:
    path = recording(tmp_path, two_kernels())
    (path / "tools").mkdir()
    (path / "tools" / "cuda-gdb-4242.txt").write_text(GDB.replace("@P0", hostile).replace("crash.py", f"{hostile}.py"))
    report = samples.report(path)
    out = tmp_path / "out"
    with out.open("w") as file:
        terminal.show(report, file)
    assert hostile not in out.read_text()
    assert hostile not in as_json.render(report)
    assert "Chain of evidence" in out.read_text()
