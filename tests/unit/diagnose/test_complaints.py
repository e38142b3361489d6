"""From what was said of a failure to the kernel, the call that ran it, and the class of fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstfault.diagnose import complaints
from firstfault.diagnose.finding import Kind
from firstfault.diagnose.investigate import report_on
from firstfault.diagnose.report import Report
from firstfault.read.evidence import gather
from firstfault.read.formats.complaint import Complaint, Teller
from firstfault.record import schema
from tests.unit.read import samples
from tests.unit.read.samples import call, header, raised, recording, returned, taken, tensor

FAILURES = samples.DATA / "failures"


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("sglang.custom_op.moe_align", "moe_align"),
        (
            "void tensorrt::kernels::finalizeMoeRoutingKernel<__nv_bfloat16, (Mode)1>(int const*, int)",
            "finalizemoerouting",
        ),
        ("_topk_gating_kernel_0d1d2d", "topk_gating"),
        ("illegalMemoryAccessKernel(int*, int)", "illegalmemoryaccess"),
        ("", ""),
    ],
)
def test_names_without_what_surrounds_them(name: str, bare: str) -> None:
    assert complaints.bare_name(name) == bare


def test_a_kernel_is_of_the_last_call_of_its_operator() -> None:
    process = taken(
        call(1, "x.moe_align"), returned(1), call(2, "x.moe_align"), returned(2), call(3, "x.norm"), returned(3)
    )
    found = complaints.call_of("moe_align_small", process)
    assert found is not None
    assert found.n == 2
    assert complaints.call_of("other_kernel", process) is None
    assert complaints.call_of("k", process) is None


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB", Kind.OUT_OF_MEMORY),
        ("CUDA error: operation not permitted when stream is capturing", Kind.GRAPH),
        ("CUDA error: misaligned address", Kind.ILLEGAL_ACCESS),
        ("shape '[1911, -1, 64]' is invalid for input of size 2048", Kind.MISMATCH),
        ("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)", Kind.MISMATCH),
        ("Expected all tensors to be on the same device, but found at least two devices", Kind.MISMATCH),
        ("no such file", Kind.UNKNOWN),
    ],
)
def test_classes(message: str, kind: Kind) -> None:
    assert complaints.kind_of_message(message) is kind


def told(teller: Teller, text: str) -> Kind:
    return complaints.kind_of(Complaint(teller, text))


def test_classes_by_who_said_it() -> None:
    assert told(Teller.NCCL, "timeout") is Kind.HANG
    assert told(Teller.SANITIZER, "Invalid __global__ read") is Kind.ILLEGAL_ACCESS
    assert told(Teller.PYTHON, "ValueError: x") is Kind.UNKNOWN


def report(path: Path, *beside: Path) -> Report:
    return report_on(gather(path, lambda count: None, beside), last=5)


def test_texts_of_errors_alone_name_the_kernel_by_the_best_witness() -> None:
    found = report(FAILURES / "memcheck.txt", FAILURES / "cudagdb.txt", FAILURES / "coredump.txt")
    assert found.conclusion == "moe_align failed on the device: cuda-gdb: Warp Invalid Address Space in crash.py:11, block (17, 0, 0), thread (0, 0, 0)."  # fmt: skip
    assert found.diagnosis is not None
    assert (found.diagnosis.culprit_op, found.diagnosis.kind) == ("moe_align", Kind.ILLEGAL_ACCESS)
    assert found.complete


def test_an_error_that_only_surfaced_names_nobody(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("RuntimeError: CUDA error: an illegal memory access was encountered\n")
    found = report(log)
    assert "That is where the device's error surfaced" in found.conclusion
    assert found.diagnosis is not None
    assert (found.diagnosis.culprit, found.diagnosis.culprit_op) == (0, "")


def late(folder: Path) -> Path:
    """A recording whose process has no progress markers: the kernel of call 1 failed, call 2 raised."""
    good = tensor(4, min=-1.0, max=1.0, mean=0.0, nan_count=0, inf_count=0)
    records: list[schema.Record] = [
        header(5), call(1, "mine.moe_align", good), returned(1), call(2, "norm", good),
        raised(2, "torch.AcceleratorError", "CUDA error: an illegal memory access was encountered"),
    ]  # fmt: skip
    return recording(folder, records)


def test_the_call_that_raised_a_device_error_is_not_taken_for_the_culprit(tmp_path: Path) -> None:
    found = report(late(tmp_path))
    assert found.processes[0].findings[0].rule == "FF101"
    assert found.diagnosis is not None
    assert (found.diagnosis.culprit, found.diagnosis.kind) == (0, Kind.ILLEGAL_ACCESS)


def test_a_recording_and_what_a_sanitizer_saw_are_joined_by_the_kernels_name(tmp_path: Path) -> None:
    found = report(late(tmp_path), FAILURES / "memcheck.txt")
    assert found.conclusion.startswith(
        "The kernel of mine.moe_align (call 1) failed on the device. compute-sanitizer: "
    )
    assert found.diagnosis is not None
    assert (found.diagnosis.culprit, found.diagnosis.culprit_op) == (1, "mine.moe_align")
    assert report(FAILURES / "memcheck.txt", late(tmp_path / "again")).conclusion == found.conclusion


def test_two_recordings_keep_their_processes_apart(tmp_path: Path) -> None:
    first, second = (recording(tmp_path / name, [header(), call(1, name)]) for name in ("a", "b"))
    found = report(first, second)
    assert sorted(process.name for process in found.processes) == ["recording/vm-4242", "vm-4242"]


def test_two_collectives_that_met_are_told_by_their_sizes() -> None:
    told = Complaint(Teller.GLOO, "gloo/transport/tcp/pair.cc:454] op.preamble.length <= op.nbytes. 8 vs 4")
    text = complaints.conclusion([Complaint(Teller.GLOO, "gloo::EnforceNotMet"), told])
    assert text.startswith("Two ranks met in different collectives: one sent 8 bytes where the other expected 4.")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Failed: Cuda error custom_all_reduce.cuh:455 'invalid argument'", "CUDA graph only"),
        ("CUDA error: invalid argument", "not known"),
        ("AssertionError: Tensor-likes are not close!", "precision"),
        (
            "expected input[2, 4, 16, 16] to have 9 channels, but got 4 channels",
            "shape, dtype, stride or device mismatch",
        ),
        ("ValueError: unsupported dtype torch.float32", "shape, dtype, stride or device mismatch"),
        ("KeyError: 'weight'", "not known"),
        ("RuntimeError: Connection reset by peer", "hang or divergence of ranks"),
    ],
)
def test_the_class_of_a_message(text: str, kind: str) -> None:
    assert complaints.kind_of_message(text).value == kind
