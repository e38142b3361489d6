"""What stderr, server logs and tools say of a failure: real texts, torn ones, and hostile ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.errors import UnreadableInput
from firstfault.read.formats.complaint import MOST_COMPLAINTS, Complaint, Complaints, Teller
from firstfault.read.formats.error_log import ErrorLog, complaints, is_error_log
from firstfault.read.session import open_source
from tests.unit.read import samples

FAILURES = samples.DATA / "failures"
FILES = sorted(FAILURES.glob("*.txt"))


def told(*lines: str) -> list[Complaint]:
    return complaints(lines, "log")


def only(*lines: str) -> Complaint:
    [one] = told(*lines)
    return one


def of_file(name: str) -> list[Complaint]:
    return complaints((FAILURES / name).read_text().splitlines(), name)


def test_compute_sanitizer() -> None:
    first, second, third = of_file("memcheck.txt")
    assert (first.teller, first.kernel, first.file, first.line) == (Teller.SANITIZER, "moe_align", "crash.py", 11)
    assert (first.block, first.thread, first.nbytes, first.host) == ((17, 0, 0), (0, 0, 0), 4, "crash.py:15")
    assert first.text == "Invalid __global__ atomic of size 4 bytes"
    assert first.details[0] == "Access to 0x7f58c68611b0 is out of bounds"
    assert second.text.startswith("Program hit cudaErrorLaunchFailure (error 719)")
    assert (third.teller, third.host) == (Teller.CUBLAS, "crash.py:16")


def test_cuda_gdb() -> None:
    [found] = of_file("cudagdb.txt")
    assert (found.teller, found.text, found.kernel) == (Teller.GDB, "Warp Invalid Address Space", "moe_align")
    assert (found.file, found.line, found.block, found.grid) == ("crash.py", 11, (17, 0, 0), (769, 1, 1))


def test_cuda_gdb_on_a_kernel_of_templates() -> None:
    found = only(
        "CUDA Exception: Warp Illegal Address",
        "The exception was triggered at PC 0xe7a2f69b3a0  void kernels::finalize<__nv_bfloat16, (Mode)1>(int const*, int)",
        "[Current focus set to CUDA kernel 0, grid 1, block (3,0,0), thread (32,0,0), device 0, sm 124, warp 0, lane 0]",
        "#0  0x00000e7a2f69b460 in void kernels::finalize<...>(...)<<<(1,1,1),(256,1,1)>>> ()",
    )
    assert found.kernel == "void kernels::finalize<__nv_bfloat16, (Mode)1>(int const*, int)"
    assert (found.block, found.thread, found.grid) == ((3, 0, 0), (32, 0, 0), (1, 1, 1))


def test_the_log_of_a_core_dump() -> None:
    [found] = of_file("coredump.txt")
    assert (found.teller, found.text, found.kernel) == (Teller.COREDUMP, "warp invalid address space", "moe_align")
    assert found.details == ["Device 0", "SM 3", "Warp 1", "PC 0x7f2adf7a4770", "written to cuda_coredump"]


def test_a_device_side_assertion_is_one_however_many_threads_say_it() -> None:
    assertion, raised = of_file("devassert.txt")
    assert (assertion.teller, assertion.kernel, assertion.line) == (Teller.ASSERT, "indexSelectSmallIndex", 1515)
    assert assertion.text == "Assertion `srcIndex < srcSelectDimSize` failed."
    assert (assertion.count, assertion.block, assertion.thread) == (8, (0, 0, 0), (0, 0, 0))
    assert (raised.teller, raised.host) == (Teller.CUDA, "crash.py:3")
    assert raised.text == "torch.AcceleratorError: CUDA error: device-side assert triggered"


LINES = [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has", Teller.MEMORY, {"nbytes": 20 * 2**30}),
    ("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered", Teller.TRITON, {}),
    ("Failed: Cuda error csrc/custom_all_reduce.cuh:455 'invalid argument'", Teller.CUDA, {"file": "csrc/custom_all_reduce.cuh", "line": 455}),
    ("CUDA Error at test.cu:62 - cudaMemcpy(h, d, size): an illegal memory access was encountered", Teller.CUDA, {"file": "test.cu", "line": 62}),
    ("NVRM: Xid (PCI:0000:06:00): 31, pid=4242, name=python, Ch 00000008, intr 00000000. MMU Fault", Teller.DRIVER, {"pid": 4242}),
    ("[rank3]:[E1] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=87, OpType=ALLREDUCE)", Teller.NCCL, {"rank": "3"}),
    ("vm:77:99 [0] NCCL WARN Cuda failure 'out of resources'", Teller.NCCL, {}),
    ("  what():  [enforce fail at third_party/gloo/gloo/transport/tcp/pair.cc:454] op.preamble.length <= op.nbytes. 8 vs 4", Teller.GLOO, {}),
    ("Subprocess scheduler_0 (pid=17622) crashed with exit code -9.", Teller.PROCESS, {"pid": 17622}),
    ("Worker proc VllmWorker-1 died unexpectedly, shutting down executor.", Teller.PROCESS, {}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "teller", "fields"), LINES, ids=[teller.value for _, teller, _ in LINES])
def test_errors_of_one_line(line: str, teller: Teller, fields: dict[str, object]) -> None:
    found = only("INFO: starting", line, "INFO: bye")
    assert (found.teller, found.at) == (teller, 2)
    assert {name: getattr(found, name) for name in fields} == fields


def test_a_traceback_is_told_by_the_programs_own_last_line() -> None:
    found = only(
        "Traceback (most recent call last):",
        '  File "serve.py", line 12, in step',
        "    model(ids)",
        '  File "/x/site-packages/torch/nn/functional.py", line 2546, in embedding',
        "    return torch.embedding(weight, input)",
        "IndexError: index out of range in self",
    )
    assert (found.teller, found.host, found.text) == (
        Teller.PYTHON,
        "serve.py:12",
        "IndexError: index out of range in self",
    )


def test_an_exception_that_is_quoted_without_its_traceback() -> None:
    found = only(
        "AssertionError: src OOB: sz=661, required=4738048, src.numel=21504", "hidden_states.shape: (1111, 7168)"
    )
    assert (found.teller, found.host) == (Teller.PYTHON, "")
    found = only(
        '  File "base.py", line 335, in forward',
        "RuntimeError: shape '[1911, -1, 64]' is invalid for input of size 2048",
    )
    assert found.host == "base.py:335"


def test_a_log_without_failures_holds_none() -> None:
    assert (
        told("INFO: 0 errors", "Decode batch, #running-req: 3", "Error rate: 0.0", "=========", "assert nothing") == []
    )


def test_files_are_recognised_by_what_they_say(tmp_path: Path) -> None:
    for path in FILES:
        source = open_source(path)
        assert isinstance(source, ErrorLog)
        assert list(source.events(lambda count: None)) == []
        assert source.complaints[0].source == path.name
    (tmp_path / "plain.txt").write_text("nothing to see\n")
    with pytest.raises(UnreadableInput, match="no error that is known; expected a recording folder"):
        open_source(tmp_path / "plain.txt")


def test_there_are_never_more_than_so_many() -> None:
    found = Complaints()
    for n in range(MOST_COMPLAINTS + 5):
        found.add(Complaint(Teller.CUDA, f"CUDA error: {n}"))
    assert (len(found.every), found.left_out) == (MOST_COMPLAINTS, 5)


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_any_beginning_and_any_damage_is_survived(tmp_path: Path, path: Path) -> None:
    whole = path.read_bytes()
    chance = random.Random(path.name)
    damaged = tmp_path / "log.txt"
    for _ in range(60):
        data = bytearray(whole[: chance.randrange(len(whole))])
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(data) + 1)
            data[at : at + chance.choice([1, 30])] = chance.choice([b"", b"\0", b"\xff\x1b[2J", b"\n", data[:50]])
        damaged.write_bytes(data)
        list(ErrorLog(damaged).events(lambda count: None))
        is_error_log(damaged)


PIECES = sorted({line for path in FILES for line in path.read_text().splitlines()}) + [line for line, _, _ in LINES]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=60), max_size=40))
def test_lines_in_any_order(lines: list[str]) -> None:
    for found in told(*lines):
        assert 1 <= found.at <= len(lines)
        assert found.text


@pytest.mark.parametrize(
    "piece", ["a", "gloo/", "block: [", "x:1: ", "CUDA error ", "+0x1", "#0 a ", '  File "', "Rank "]
)
def test_a_long_line_is_cut(tmp_path: Path, piece: str) -> None:
    path = tmp_path / "log.txt"
    path.write_text(piece * (10**6 // len(piece)) + "\nRuntimeError: CUDA error: unspecified launch failure\n")
    source = ErrorLog(path)
    list(source.events(lambda count: None))
    assert any("unspecified launch failure" in found.text and found.at == 2 for found in source.complaints)
    assert all(len(found.text) <= 500 for found in source.complaints)
