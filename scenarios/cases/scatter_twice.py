"""A sort of rows by expert that breaks ties wrongly and names a row twice; the place of the other is left unset."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="argsort_rows")
def argsort_rows(experts: torch.Tensor, ties: bool) -> torch.Tensor:
    order = experts.argsort(stable=True)
    if ties:  # the bug
        order[1] = order[0]
    return order


@debug_kernel_api(op_name="invert_order")
def invert_order(permutation: torch.Tensor) -> torch.Tensor:
    inverse = torch.full(permutation.shape, 1_867_541_020)  # as torch.empty may give it
    inverse[permutation] = torch.arange(permutation.shape[0])
    return inverse


@debug_kernel_api(op_name="combine_rows")
def combine_rows(rows: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    return rows.index_select(0, inverse)


torch.manual_seed(14)
for tokens, ties in ((12, False), (7, False), (20, False), (9, True)):
    order = argsort_rows(torch.randint(6, (tokens,)), ties)
    combine_rows(torch.randn(tokens, 8), invert_order(order))
