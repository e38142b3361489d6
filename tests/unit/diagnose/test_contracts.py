"""What serving operators index by what, under the names that the engines give them."""

from __future__ import annotations

import pytest

from firstfault.diagnose import contracts
from firstfault.record import schema
from tests.unit.read.samples import taken, tensor


def ids(*shape: int, dtype: str = "torch.int32") -> schema.Tensor:
    return tensor(*shape, dtype=dtype, min=0, max=1, mean=0.5)


def found(op: str, *args: schema.Value, **kwargs: schema.Value) -> list[tuple[str, int]]:
    """Arguments that hold indices, and what they must stay below."""
    process = taken(schema.Call(1, 1, op, args=[*args], kwargs=kwargs))
    return [(use.label, use.bound.limit) for use in contracts.uses(process.by_number[1])]


HIDDEN, TABLE = tensor(7, 64), tensor(1000, 64)
CASES: list[tuple[str, list[schema.Value], dict[str, schema.Value], list[tuple[str, int]]]] = [
    ("sgl_kernel.moe_align_block_size", [ids(7, 2), 64, 16, ids(500), ids(40), ids(1)], {}, [("arg[0]", 64)]),
    ("vllm.moe_align_block_size", [], {"topk_ids": ids(7, 2), "num_experts": 8, "block_size": 16}, [("topk_ids", 8)]),
    ("mine.moe_align", [ids(769), ids(128)], {}, [("arg[0]", 128)]),
    ("torch.embedding", [TABLE, ids(7)], {}, [("arg[1]", 1000)]),
    ("F.embedding", [ids(7, dtype="torch.int64"), TABLE], {}, [("arg[0]", 1000)]),
    ("model.embed_tokens", [ids(7)], {}, []),
    ("rotary_embedding", [ids(7), HIDDEN, HIDDEN, 64, tensor(4096, 64), True], {}, [("arg[0]", 4096)]),
    ("apply_rope_inplace", [HIDDEN, HIDDEN], {"cos_sin_cache": tensor(2048, 64), "positions": ids(7)}, [("positions", 2048)]),
    ("rotary_embedding", [ids(7), HIDDEN, 64], {}, []),
    ("store_cache", [HIDDEN, HIDDEN, tensor(900, 64), tensor(900, 64), ids(7)], {}, [("arg[4]", 900)]),
    ("reshape_and_cache_flash", [tensor(7, 2, 32), tensor(7, 2, 32), tensor(50, 16, 2, 32), tensor(50, 16, 2, 32), ids(7), "auto"], {}, [("arg[4]", 800)]),
    ("paged_attention_v1", [HIDDEN], {"key_cache": tensor(50, 16, 2, 32), "block_tables": ids(3, 9)}, [("block_tables", 50)]),
    ("torch.index_select", [tensor(5, 9), 1, ids(3)], {}, [("arg[2]", 9)]),
    ("torch.gather", [tensor(5, 9), -1, ids(5, 2)], {}, [("arg[2]", 9)]),
    ("torch.index_select", [tensor(5, 9), 7, ids(3)], {}, []),
    ("cross_entropy", [tensor(5, 100), ids(5)], {}, [("arg[1]", 100)]),
    ("rmsnorm", [HIDDEN, ids(4)], {}, []),
    ("moe_align", [], {}, []),
    ("embedding", [tensor(-1, 64), ids(3)], {}, []),
    ("aten.embedding.default", [TABLE, ids(7)], {}, [("arg[1]", 1000)]),
    ("torch.ops.aten.embedding.default", [TABLE, ids(7)], {}, [("arg[1]", 1000)]),
    ("torch.ops.sgl_kernel.moe_align_block_size", [ids(7, 2), 64], {}, [("arg[0]", 64)]),
    ("_C.moe_align_block_size.default", [ids(7, 2), 64], {}, [("arg[0]", 64)]),
    ("aten.embedding_dense_backward.default", [tensor(7, 64), ids(7), 1000, -1, False], {}, []),
    ("aten.gather.default", [tensor(5, 9), 1, ids(5, 2)], {}, [("arg[2]", 9)]),
    ("aten.scatter.value", [tensor(5, 9), 0, ids(5, 2), 1.0], {}, [("arg[2]", 5)]),
    ("take_along_dim", [tensor(5, 9), ids(5, 2), 1], {}, [("arg[1]", 9)]),
    ("aten.slice_scatter.default", [ids(5, 9), ids(2, 9), 0, 1, 3], {}, []),
    ("aten.masked_scatter.default", [ids(5), tensor(5, dtype="torch.bool"), ids(2)], {}, []),
    ("torch.distributed.all_gather_into_tensor", [ids(8), ids(4)], {}, []),
    ("aten.nll_loss_forward.default", [tensor(5, 100), ids(5), None, 1, -100], {}, [("arg[1]", 100)]),
    ("aten.nll_loss_backward.default", [tensor(), tensor(5, 100), ids(5), None, 1, -100, tensor()], {}, []),
]  # fmt: skip


@pytest.mark.parametrize(("op", "args", "kwargs", "expected"), CASES, ids=[case[0] for case in CASES])
def test_what_is_indexed(op: str, args: list[schema.Value], kwargs: dict[str, schema.Value], expected: list[tuple[str, int]]) -> None:  # fmt: skip
    assert found(op, *args, **kwargs)[:1] == expected


def outside(op: str, low: int, high: int, *args: schema.Value, **kwargs: schema.Value) -> int | None:
    """What a call is found to be given that indexes nothing; its first two arguments are a matrix and the indices."""
    given = tensor(100, dtype="torch.int64", min=low, max=high, mean=1.0)
    (use,) = contracts.uses(
        taken(schema.Call(1, 1, op, args=[tensor(100, 100), given, *args], kwargs=kwargs)).by_number[1]
    )
    return use.outside(use.tensor)


LOSS: list[schema.Value] = [None, 1]


@pytest.mark.parametrize(
    ("op", "low", "high", "more", "expected"),
    [
        ("cross_entropy", -100, 99, [], None),
        ("cross_entropy", -1, 99, [], None),
        ("cross_entropy", -7, 99, [], -7),
        ("cross_entropy", 0, 100, [], 100),
        ("torch.nn.functional.cross_entropy", 0, 255, [None, None, 255], None),
        ("torch.nn.functional.cross_entropy", 0, 254, [None, None, 255], 254),
        ("aten.nll_loss_forward.default", -100, 99, [*LOSS, -100], None),
        ("aten.nll_loss_forward.default", -1, 99, [*LOSS, -100], -1),
        ("aten.nll_loss_forward.default", -7, 99, [*LOSS, -7], None),
        ("aten.embedding.default", -1, 99, [], -1),
        ("aten.embedding.default", -1, 99, [-1, False], -1),
    ],
)
def test_what_a_call_tells_to_leave_out_is_no_index(
    op: str, low: int, high: int, more: list[schema.Value], expected: int | None
) -> None:
    assert outside(op, low, high, *more) == expected


def test_what_is_left_out_may_be_told_by_name() -> None:
    assert outside("cross_entropy", 0, 255, ignore_index=255) is None
    assert outside("parallel_embedding", -100, 99, padding_idx=-100) is None
    assert outside("parallel_embedding", -1, 99, padding_idx=3) == -1
