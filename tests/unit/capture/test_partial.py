"""Tensors that are too large to be dumped whole: the rows that a call refers to, else a sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from firstfault.capture import boundary
from firstfault.capture import part as part_of
from firstfault.capture import partial as parts
from firstfault.capture.describe import Walk, describe_call
from firstfault.capture.dump import Dumper
from firstfault.capture.dump_keys import by_key, input_key
from firstfault.record import schema
from firstfault.record.partial import Partial, Rows, Sample, decoded
from firstfault.replay.partial import renumbered, restored
from firstfault.settings import Level, Settings
from tests.conftest import Record
from tests.unit.recording import Recording, inputs_of, outputs_of, same

SLOTS = 20_000


def chosen(op: str, *args: Any, most: int = 2**28, **kwargs: Any) -> dict[str, part_of.Part]:
    """What of some arguments would not be dumped whole."""
    walk = Walk()
    describe_call(args, kwargs, walk)
    return parts.choose(op, dict(by_key(walk.found, input_key)), most)


def taken(part: part_of.Part) -> torch.Tensor:
    """The values that a part keeps."""
    storage = part.copy()
    view = part.views(0)[0]
    return torch.empty(0, dtype=view.dtype).set_(storage.untyped_storage(), 0, view.shape, view.stride)


def store_cache(k: Any, v: Any, k_cache: Any, v_cache: Any, indices: Any, *, row_bytes: int = 0) -> None:
    k_cache[indices], v_cache[indices] = k, v


def recorded(record: Record, function: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Recording:
    """One call of a function at level 10."""
    found = record(10)
    boundary.wrap(function, name)(*args, **kwargs)
    return found


def partial_of(found: Recording) -> dict[str, Partial]:
    return decoded(found.metadata(found.dumps()[0])["partial"])


def cache(seed: int = 0, width: int = 64) -> torch.Tensor:
    return torch.randn(SLOTS, width, generator=torch.Generator().manual_seed(seed))


# --- a write to a cache


def test_a_cache_write_is_dumped_by_its_slots_and_runs_again_on_them(record: Record) -> None:
    keys, values = cache(1), cache(2)
    k, v, slots = torch.randn(3, 64), torch.randn(3, 64), torch.tensor([700, 19_999, 5])
    before = keys[slots].clone()
    found = recorded(record, store_cache, "jit_kernel.kvcache.store_cache", k, v, keys, values, slots, row_bytes=256)
    (folder,) = found.dumps()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 40_000
    held, how = inputs_of(folder), partial_of(found)
    assert set(how) == {"arg_2", "arg_3", "mutated_arg_2", "mutated_arg_3"}
    rows = how["arg_2"]
    assert isinstance(rows, Rows)
    assert (rows.shape, rows.runs, rows.indices) == (
        (SLOTS, 64),
        [(0, 1), (5, 6), (700, 701), (19_999, SLOTS)],
        ["arg_4"],
    )
    assert not rows.rest_changed
    assert rows.words == "the 4 of 20000 rows that arg_4 refer to"
    again = restored(held, how)
    assert again.missing == []
    assert same(again.tensors["arg_2"][again.tensors["arg_4"]], before)
    store_cache(*(again.tensors[f"arg_{index}"] for index in range(5)))
    after = outputs_of(folder)
    assert same(again.tensors["arg_2"], after["mutated_arg_2"])
    assert same(again.tensors["arg_3"], after["mutated_arg_3"])


def test_a_write_outside_of_the_slots_is_noticed(record: Record) -> None:
    def careless(k: Any, v: Any, k_cache: Any, v_cache: Any, indices: Any) -> None:
        k_cache[indices + 1] = k

    args = (torch.ones(1, 64), torch.ones(1, 64), cache(1), cache(2), torch.tensor([7]))
    found = recorded(record, careless, "kvcache.store_cache", *args)
    how = partial_of(found)
    assert isinstance(how["arg_2"], Rows)
    assert isinstance(how["arg_3"], Rows)
    assert how["arg_2"].rest_changed
    assert not how["arg_3"].rest_changed
    assert found.metadata(found.dumps()[0])["mutated_tensor_keys"] == ["mutated_arg_2"]


def test_one_cache_given_twice_stays_one(record: Record) -> None:
    both = cache()
    args = (torch.ones(1, 64), torch.ones(1, 64), both, both, torch.tensor([7]))
    held = inputs_of(recorded(record, store_cache, "kvcache.store_cache", *args).dumps()[0])
    assert held["arg_2"].data_ptr() == held["arg_3"].data_ptr()


def test_a_slot_beyond_the_end_stays_as_far_beyond_it() -> None:
    part = chosen(
        "x.store_cache", torch.ones(3, 64), torch.ones(3, 64), cache(), cache(), torch.tensor([SLOTS + 4, -1, 3])
    )
    how = part["arg_2"].how
    assert isinstance(how, Rows)
    assert how.kept == 2
    assert renumbered(torch.tensor([SLOTS + 4, -1, 3]), how).tolist() == [6, -1, 1]


# --- other tables


def test_pages_of_a_cache_are_rows_of_it() -> None:
    keys = torch.randn(500, 16, 2, 32)  # blocks, slots, heads, head size
    slots = torch.tensor([16 * 3 + 5, 16 * 499])
    given: dict[str, Any] = {
        "key": torch.ones(2, 2, 32),
        "value": torch.ones(2, 2, 32),
        "key_cache": keys,
        "value_cache": keys.clone(),
    }
    part = chosen("_C_cache_ops.reshape_and_cache", **given, slot_mapping=slots)["kwarg_key_cache"]
    assert isinstance(part.how, Rows)
    assert (part.how.per, part.how.runs) == (16, [(0, 1), (3, 4), (499, 500)])
    again = renumbered(slots, part.how)
    assert again.tolist() == [16 + 5, 32]
    assert same(taken(part).flatten(0, 1)[again], keys.flatten(0, 1)[slots])


def test_keys_and_values_in_one_cache_are_cut_by_their_second_dimension() -> None:
    both = torch.randn(2, 500, 16, 2, 32)
    table = torch.tensor([[7, 9, 0], [499, 0, 0]], dtype=torch.int32)
    part = chosen("vllm.unified_attention", torch.ones(2, 64), kv_cache=both, block_table=table)["kwarg_kv_cache"]
    assert isinstance(part.how, Rows)
    assert (part.how.dim, part.how.kept) == (1, 4)
    assert same(taken(part)[:, renumbered(table, part.how)], both[:, table.long()])


def test_the_order_of_dimensions_in_memory_is_kept() -> None:
    keys = torch.randn(16, 2000, 32).transpose(0, 1)
    part = chosen("x.flash_attn_with_kvcache", k_cache=keys, page_table=torch.tensor([[5, 6]]))["kwarg_k_cache"]
    assert part.views(0)[0].stride == (32, 3 * 32, 1)
    assert torch.equal(taken(part), keys[[0, 5, 6]])


def test_all_tables_of_the_same_indices_are_cut_alike() -> None:
    w1, w2 = torch.randn(64, 128, 64), torch.randn(64, 64, 8)
    ids = torch.tensor([[3, 4], [60, 3]], dtype=torch.int32)
    found = chosen("fused_moe.inplace_fused_experts", hidden_states=torch.ones(2, 64), w1=w1, w2=w2, topk_ids=ids)
    assert w2.nbytes < parts.ROWS_FROM
    assert set(found) == {"kwarg_w1", "kwarg_w2"}
    assert same(taken(found["kwarg_w2"]), w2[[0, 3, 4, 60]])


def test_rows_of_a_token_pool_are_chosen_by_its_requests() -> None:
    pool = torch.arange(2048 * 256, dtype=torch.int32).reshape(2048, 256) % SLOTS
    keys = cache().reshape(SLOTS, 2, 32)
    given: dict[str, Any] = {
        "k_buffer": keys,
        "v_buffer": keys + 1,
        "req_to_token": pool,
        "req_pool_indices": torch.tensor([9]),
    }
    found = chosen("sgl_kernel.decode_attention_cpu", torch.ones(1, 2, 32), **given)
    assert {key: part.how.kept for key, part in found.items() if isinstance(part.how, Rows)} == {
        "kwarg_k_buffer": 257, "kwarg_v_buffer": 257, "kwarg_req_to_token": 2,
    }  # fmt: skip


def test_the_kernels_of_a_latent_cache_and_of_last_slots_name_theirs() -> None:
    latent = torch.zeros(SLOTS, 1, 64)
    found = chosen("mla.set_mla_kv_buffer_kernel", kv_buffer_ptr=latent, loc_ptr=torch.tensor([9, 9, 40]))
    assert [(key, part.how) for key, part in found.items()] == [
        ("kwarg_kv_buffer_ptr", Rows((SLOTS, 1, 64), 0, 1, [(0, 1), (9, 10), (40, 41)], ["kwarg_loc_ptr"]))
    ]
    pool = torch.zeros(4096, 512, dtype=torch.int32)
    found = chosen("common.get_last_loc_kernel", req_to_token=pool, req_pool_indices_tensor=torch.tensor([3]))
    assert isinstance(found["kwarg_req_to_token"].how, Rows)


def test_places_are_named_by_the_schema_of_the_operator() -> None:
    library = torch.library.Library("firstfault_partial", "DEF")
    library.define("attention(Tensor q, Tensor page_table, Tensor k_cache) -> Tensor")
    table = torch.tensor([[5]], dtype=torch.int32)
    found = chosen("firstfault_partial.attention", torch.ones(1), table, torch.randn(2000, 16, 32))
    assert set(found) == {"arg_2"}


@pytest.mark.parametrize("op", ["pkg.matmul", "pkg.gather"])
def test_what_is_not_known_to_be_a_table_is_whole(op: str) -> None:
    assert chosen(op, cache(), torch.tensor([1])) == {}


def test_a_table_most_of_which_is_referred_to_is_whole() -> None:
    assert chosen("x.embedding", torch.arange(SLOTS), cache()) == {}


def test_without_indices_only_the_first_row_is_there() -> None:
    found = chosen("x._fwd_kernel", K_Buffer=torch.randn(SLOTS, 2, 32), kv_indices=torch.empty(0, dtype=torch.int64))
    assert isinstance(found["kwarg_K_Buffer"].how, Rows)
    assert found["kwarg_K_Buffer"].how.runs == [(0, 1)]


# --- nothing known of it


@pytest.mark.parametrize("tensor", [cache(), cache().t(), cache().to(torch.bfloat16), torch.ones(3_000_001) > 0])
def test_a_sample_has_both_ends_and_some_between(tensor: torch.Tensor) -> None:
    part = chosen("pkg.op", tensor, most=2**20)["arg_0"]
    assert isinstance(part.how, Sample)
    held, flat = taken(part), tensor.reshape(-1)
    assert len(held) < 2 * part_of.ENDS + 2 * part_of.SAMPLED
    assert same(held[: part_of.ENDS], flat[: part_of.ENDS])
    assert same(held[-part_of.ENDS :], flat[-part_of.ENDS :])
    assert same(held[part_of.ENDS : -part_of.ENDS], flat[part_of.ENDS : -part_of.ENDS : part.how.step].contiguous())
    assert part.how.sum != 0


def test_one_changed_element_changes_the_sum() -> None:
    tensor = cache()
    part = chosen("pkg.op", tensor, most=2**20)["arg_0"]
    before = part.copy()
    assert part.changed_since(before) == []
    tensor[100, 3] += 1
    assert part.changed_since(before) == ["arg_0"]


def test_a_result_that_is_a_cut_argument_is_cut_like_it(record: Record) -> None:
    def store(k: Any, v: Any, k_cache: Any, v_cache: Any, indices: Any) -> Any:
        store_cache(k, v, k_cache, v_cache, indices)
        return k_cache

    args = (torch.ones(1, 64), torch.ones(1, 64), cache(1), cache(2), torch.tensor([7]))
    found = recorded(record, store, "kvcache.store_cache", *args)
    assert isinstance(partial_of(found)["result"], Rows)
    assert outputs_of(found.dumps()[0])["result"].shape == (2, 64)


def test_what_is_only_sampled_cannot_be_run_on() -> None:
    again = restored({"arg_0": torch.ones(3), "arg_1": torch.ones(2)}, {"arg_0": Sample((9,), 1, 7)})
    assert again.missing == ["arg_0"]
    assert set(again.tensors) == {"arg_1"}


# --- renumbering


@given(st.data())
def test_renumbering_keeps_what_an_index_refers_to(data: st.DataObject) -> None:
    extent, per = data.draw(st.integers(2, 60)), data.draw(st.integers(1, 4))
    indices = torch.tensor(data.draw(st.lists(st.integers(-3, extent * per + 9), min_size=1, max_size=20)))
    how = Rows((extent,), 0, per, parts._runs(indices, extent, per), ["arg_0"])
    table = torch.arange(extent * per).reshape(extent, per)
    kept = torch.cat([table[begin:end] for begin, end in how.runs])
    again = renumbered(indices, how)
    assert again.tolist() == [how.renumbered(int(index)) for index in indices]
    inside = (indices >= 0) & (indices < extent * per)
    assert torch.equal(kept.reshape(-1)[again[inside]], indices[inside])
    assert torch.equal(again[indices < 0], indices[indices < 0])
    beyond = indices >= extent * per
    assert torch.equal(again[beyond] - kept.numel(), indices[beyond] - extent * per)
    assert again[indices == 0].tolist() == [0] * int((indices == 0).sum())


def test_an_index_to_a_row_that_is_not_there_is_told() -> None:
    with pytest.raises(KeyError):
        Rows((9,), 0, 1, [(0, 1), (5, 6)], ["arg_0"]).renumbered(3)


def test_foreign_metadata_is_left_out() -> None:
    assert decoded({"arg_0": {"kind": "rows"}, "arg_1": 3, "arg_2": {"kind": "none"}}) == {}
    assert decoded([1]) == {}


def test_sums_wrap_as_sixty_four_bits_do() -> None:
    tensor = torch.full((2**18,), torch.iinfo(torch.int64).max)
    assert part_of._sum(tensor, 8) == (math.prod(tensor.shape) * torch.iinfo(torch.int64).max + 2**63) % 2**64 - 2**63


@given(
    st.sampled_from([torch.int8, torch.bfloat16, torch.float32, torch.int64]),
    st.integers(1, 9),
    st.sampled_from(["contiguous", "transposed", "shifted", "sliced"]),
    st.sampled_from([0, 1]),
)
def test_a_write_is_told_to_be_in_the_rows_that_are_there_or_in_others(
    dtype: torch.dtype, width: int, laid_out: str, inside: int
) -> None:
    """Whatever words are summed up: the rows that are kept and the rest have to be summed up in the same ones."""
    whole = (torch.arange(64 * 20) % 7).to(dtype)
    tensor = {
        "contiguous": whole[: 8 * width].view(8, width),
        "transposed": whole[: 8 * width].view(width, 8).t(),
        "shifted": whole[1 : 1 + 8 * width].view(8, width),
        "sliced": whole[: 8 * 2 * width].view(8, 2 * width)[:, :width],
    }[laid_out]
    part = part_of.Part(tensor, Rows(tuple(tensor.shape), 0, 1, [(0, 1), (3, 5)], ["arg_1"]), [("arg_0", tensor)])
    before = part.copy()
    assert part.changed_since(before) == []
    tensor[4 if inside else 6] += 1
    assert part.changed_since(before) == ["arg_0"]
    assert isinstance(part.how, Rows)
    assert part.how.rest_changed is not bool(inside)


# --- what a dump costs


class Made(TorchDispatchMode):
    """Adds up the bytes of all that operators make, views left out: of copies, casts, masks and gathered rows."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {item.untyped_storage().data_ptr() for item in args if isinstance(item, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in given:
            self.nbytes += result.untyped_storage().nbytes()
        return result


@pytest.mark.parametrize("slots", [2**16, 2**20])
def test_a_dump_makes_no_more_than_the_rows_however_large_the_cache_is(slots: int, tmp_path: Path) -> None:
    """A cache takes half of a GPU: a copy of it, or only a mask, for each token that is written would be the end."""
    keys, values = (torch.zeros(slots, 128, dtype=torch.bfloat16) for _ in range(2))
    new, at = torch.ones(9, 128, dtype=torch.bfloat16), torch.arange(5, 14)
    walk = Walk(dump=True)
    described, _ = describe_call((new, new, keys, values, at), {}, walk)
    dumper = Dumper(tmp_path, Settings(level=Level.DUMPS), 1)
    with Made() as made:
        opened = dumper.begin(schema.Call(1, 1, "kvcache.store_cache", args=described), walk.found, 0)
        keys[5:14], values[5:14] = new, new
        assert opened.finish(None, [], 0) == [(2,), (3,)]
    rows = 10 * 256
    assert 4 * rows < made.nbytes < 64 * rows
    assert opened.nbytes < 16 * rows
