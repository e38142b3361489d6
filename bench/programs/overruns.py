"""Small kernels that leave a tensor by a little, each a boundary: PyTorch's pool blocks hide all of them.

python overruns.py [NAME…]     makes each call once, or those that are named
"""

import sys

import torch
import triton
import triton.language as tl

from firstfault import debug_kernel_api


@triton.jit
def _copy(source, target, n, shift_in, shift_out, BLOCK: tl.constexpr):
    """Copy n elements; the shifts move what is read and what is written."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(target + at + shift_out, tl.load(source + at + shift_in, mask=inside), mask=inside)


@triton.jit
def _count(ids, counts, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.atomic_add(counts + tl.load(ids + at, mask=inside, other=0), 1, mask=inside)


@triton.jit
def _fill(target, n, value, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, value, mask=at < n)


@triton.jit
def _row_sums(matrix, sums, rows, stride, COLUMNS: tl.constexpr):
    """One row more than there is."""
    row = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    tl.store(sums + tl.minimum(row, rows - 1), tl.sum(tl.load(matrix + row * stride + column), 0))


def _launch(source: torch.Tensor, target: torch.Tensor, n: int, shift_in: int = 0, shift_out: int = 0) -> None:
    _copy[(triton.cdiv(n, 256),)](source, target, n, shift_in, shift_out, BLOCK=256)


@debug_kernel_api(op_name="write_one_past")
def write_one_past(source: torch.Tensor, target: torch.Tensor) -> None:
    _launch(source, target, len(target) + 1)


@debug_kernel_api(op_name="read_one_past")
def read_one_past(source: torch.Tensor, target: torch.Tensor) -> None:
    _launch(source, target, len(source), shift_in=1)


@debug_kernel_api(op_name="write_before")
def write_before(source: torch.Tensor, target: torch.Tensor) -> None:
    _launch(source, target, len(target), shift_out=-2)


@debug_kernel_api(op_name="past_a_slice")
def past_a_slice(source: torch.Tensor, target: torch.Tensor) -> None:
    """The target is the front of a larger tensor: what is behind it is the program's own, and none of the call's."""
    _launch(source, target, len(target) + 8)


@debug_kernel_api(op_name="count_past")
def count_past(ids: torch.Tensor, counts: torch.Tensor) -> None:
    _count[(triton.cdiv(len(ids), 256),)](ids, counts, len(ids), BLOCK=256)


@debug_kernel_api(op_name="one_row_more")
def one_row_more(matrix: torch.Tensor, sums: torch.Tensor) -> None:
    _row_sums[(matrix.shape[0] + 1,)](matrix, sums, matrix.shape[0], matrix.stride(0), COLUMNS=64)


@debug_kernel_api(op_name="half_of_a_byte_more")
def half_of_a_byte_more(target: torch.Tensor) -> None:
    """A size that was computed for four bytes an element, of two."""
    _fill[(1,)](target, len(target) + 3, 1.0, BLOCK=1024)


@debug_kernel_api(op_name="far_past")
def far_past(source: torch.Tensor, target: torch.Tensor) -> None:
    """As far as one row of a neighbour: another tensor of the pool takes it."""
    _launch(source, target, len(target), shift_out=600)


@debug_kernel_api(op_name="stays_inside")
def stays_inside(source: torch.Tensor, target: torch.Tensor) -> None:
    _launch(source, target, len(target))


def _line(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float32, device="cuda")


CASES = {
    "write_one_past": lambda: write_one_past(_line(1026), torch.zeros(1025, device="cuda")),
    "read_one_past": lambda: read_one_past(_line(1001), torch.zeros(1001, device="cuda")),
    "write_before": lambda: write_before(_line(1000), torch.zeros(1000, device="cuda")),
    "past_a_slice": lambda: past_a_slice(_line(600), torch.zeros(4096, device="cuda")[:500]),
    "count_past": lambda: count_past(
        torch.tensor([0, 5, 130, 7], dtype=torch.int32, device="cuda"),
        torch.zeros(129, dtype=torch.int32, device="cuda"),
    ),
    "one_row_more": lambda: one_row_more(torch.ones(33, 64, device="cuda"), torch.zeros(33, device="cuda")),
    "half_of_a_byte_more": lambda: half_of_a_byte_more(torch.zeros(777, dtype=torch.bfloat16, device="cuda")),
    "far_past": lambda: far_past(_line(640), torch.zeros(640, device="cuda")),
    "stays_inside": lambda: stays_inside(_line(640), torch.zeros(640, device="cuda")),
}
"""By name; each leaves its tensor by no more than the pool block's own rest, or lands in a neighbour."""


def main(names: list[str]) -> None:
    held = [torch.empty(2**18, device="cuda") for _ in range(4)]  # blocks of the pool around what follows
    for name in names or CASES:
        CASES[name]()
        torch.cuda.synchronize()
    print("all came back,", len(held), "blocks around")


if __name__ == "__main__":
    main(sys.argv[1:])
