"""What the device reads of tensors in one launch equals what torch reads of the same values on the host."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import pytest
import torch

from firstfault.capture import device_stats, stats
from firstfault.record.statistics_page import Statistics

DTYPES = list(device_stats.KIND_OF)
BLOCK = device_stats.BLOCK_BYTES


@pytest.fixture(autouse=True)
def reader(_gpu: None) -> device_stats.Reader:
    torch.cuda.init()
    found = device_stats.reader()
    assert found is not None
    return found


def random_bits(dtype: torch.dtype, count: int) -> torch.Tensor:
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8)
    return (raw & 1).view(dtype) if dtype == torch.bool else raw.view(dtype)


def ordinary(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Random values of the type that are all finite."""
    if dtype in (torch.uint16, torch.uint32, torch.uint64, torch.uint8, torch.bool):
        return torch.randint(0, 2 if dtype == torch.bool else 200, (count,)).to(dtype)
    values = torch.randn(count) * 3 + 1
    return values.abs().to(dtype) if dtype == torch.float8_e8m0fnu else values.to(dtype)


def views(dense: torch.Tensor) -> Iterator[torch.Tensor]:
    rows = dense[: dense.numel() // 64 * 64].view(-1, 64)
    yield dense
    yield dense[1:]
    yield dense[3:40]
    yield dense[7]
    yield rows.t()
    yield rows[:, 5:40]
    yield rows[::3, ::2]
    yield dense[:4096].view(8, 8, 8, 8).permute(3, 1, 0, 2)[::2, 1:, :, ::3]
    yield dense[7].expand(5, 6)
    yield dense[:4096].view(64, 1, 64).expand(64, 9, 64)


def on_device(reader: device_stats.Reader, tensors: list[torch.Tensor]) -> list[Statistics]:
    found = reader.read(tensors)
    assert None not in found
    return [each for each in found if each is not None]


def wide(values: torch.Tensor) -> torch.Tensor:
    """The values in double precision, of complex ones the magnitudes."""
    if values.is_complex():
        both = torch.view_as_real(values.to(torch.complex128))
        return torch.where(both.isnan().any(-1), math.nan, both.square().sum(-1).sqrt())
    return values.to(torch.float32).to(torch.float64) if values.itemsize == 1 else values.to(torch.float64)


def assert_equal(found: Statistics, values: torch.Tensor) -> None:
    """``found`` is what torch gives for ``values`` on the host, and its mean is the one in double precision."""
    expected = stats.read(values, contiguous=values.is_contiguous())
    assert isinstance(expected, Statistics)
    bounds = tuple(map(float, found[:2])), tuple(map(float, expected[:2]))
    if values.is_complex():
        assert bounds[0] == pytest.approx(bounds[1], rel=2e-7, nan_ok=True)
    else:
        assert found[:2] == expected[:2]
    assert found[3:] == expected[3:]
    if isinstance(expected.mean, str):
        assert found.mean == expected.mean
        return
    exact = wide(values)
    reference = exact.mean().item() if math.isfinite(exact.mean().item()) else exact.div(exact.numel()).sum().item()
    # Where values of both signs cancel, no sum is closer than its terms are.
    cancelled = 1e-9 * exact.abs().div(exact.numel()).sum().item()
    assert found.mean == pytest.approx(reference, rel=1e-6, abs=cancelled)


@pytest.mark.parametrize("make", [random_bits, ordinary])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_in_every_layout(reader: device_stats.Reader, dtype: torch.dtype, make: object) -> None:
    torch.manual_seed(1)
    assert callable(make)
    host = make(dtype, 3 * BLOCK + 5)
    device = list(views(host.cuda()))
    asked = [index for index, found in enumerate(reader.read(device)) if found is not None]
    found = on_device(reader, [device[index] for index in asked])
    on_host = list(views(host))
    for index, each in zip(asked, found, strict=True):
        assert_equal(each, on_host[index])
    left = set(range(len(device))) - set(asked)
    # What the device leaves to torch: a sum beyond float64.
    assert not left or dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("count", [1, 7, 511, 4096, 4097, 8192, 100_003, 5_000_000])
def test_any_size(reader: device_stats.Reader, dtype: torch.dtype, count: int) -> None:
    torch.manual_seed(count)
    host = ordinary(dtype, count)
    host[count // 2] = math.nan
    host[count // 3] = math.nan
    clean = ordinary(dtype, count)
    for each, values in zip(on_device(reader, [host.cuda(), clean.cuda()]), (host, clean), strict=True):
        assert_equal(each, values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_infinities_denormals_and_extremes(reader: device_stats.Reader, dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps
    for fill in (smallest, -smallest, info.smallest_normal, math.inf, -math.inf, math.nan):
        values = torch.full((3 * BLOCK,), fill, dtype=torch.float64).to(dtype)
        (found,) = on_device(reader, [values.cuda()])
        assert_equal(found, values)
    mixed = torch.zeros(3 * BLOCK, dtype=dtype)
    mixed[5], mixed[BLOCK], mixed[-1] = math.inf, -math.inf, smallest
    (found,) = on_device(reader, [mixed.cuda()])
    assert (found.min, found.max, found.mean, found.nan_count, found.inf_count) == ("-inf", "inf", "nan", 0, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_mask_of_lowest_values_has_a_finite_mean(dtype: torch.dtype) -> None:
    lowest = torch.finfo(dtype).min
    mask = torch.full((1000, 1000), lowest, dtype=dtype, device="cuda")
    (found,) = stats.read_all([mask], [True])
    assert isinstance(found, Statistics)
    assert (found.min, found.max, found.nan_count, found.inf_count) == (lowest, lowest, 0, 0)
    assert found.mean == pytest.approx(lowest, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64], ids=str)
def test_64_bit_integers_exactly(reader: device_stats.Reader, dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    values = torch.tensor([limits.min, limits.max, limits.max - 1, limits.min + 1, 3], dtype=dtype, device="cuda")
    first, second = on_device(reader, [values[:2], values[2:]])
    assert (first.min, first.max, second.min, second.max) == (limits.min, limits.max, limits.min + 1, limits.max - 1)
    small = torch.tensor([1, 2, 6], dtype=dtype, device="cuda")
    assert on_device(reader, [small]) == [Statistics(1, 6, 3.0)]


def test_more_tensors_than_one_launch_takes(reader: device_stats.Reader) -> None:
    tensors = [torch.full((index + 1,), float(index), device="cuda") for index in range(150)]
    found = on_device(reader, tensors)
    assert [each.mean for each in found] == [float(index) for index in range(150)]


def test_a_large_tensor_is_read_by_all_of_the_device_and_gives_the_same_bits_again(reader: device_stats.Reader) -> None:
    torch.manual_seed(2)
    values = torch.randn(2**28 + 12_345, device="cuda", dtype=torch.bfloat16)
    values[123_456_789] = 77.0
    low, high = values.aminmax()
    first, again = on_device(reader, [values]), on_device(reader, [values])
    assert first == again
    assert (first[0].min, first[0].max) == (low.item(), high.item())
    reference = sum(part.double().sum().item() for part in values.split(2**24)) / values.numel()
    assert first[0].mean == pytest.approx(reference, rel=1e-6)


def test_tensors_of_one_call_side_need_not_be_on_the_device() -> None:
    tensors = [torch.ones(3), torch.full((4,), 2.0, device="cuda"), torch.ones(0, device="cuda")]
    found = stats.read_all(tensors, [True] * 3)
    assert found == [Statistics(1.0, 1.0, 1.0, 0, 0), Statistics(2.0, 2.0, 2.0, 0, 0), "[empty tensor]"]


def test_it_reads_in_the_order_of_the_current_stream(reader: device_stats.Reader) -> None:
    values = torch.zeros(2**20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        values.fill_(4.0)
        (found,) = on_device(reader, [values])
    assert found.mean == 4.0


def test_threads_with_streams_of_their_own(reader: device_stats.Reader) -> None:
    wrong: list[object] = []

    def run(number: int) -> None:
        values = torch.full((300_000,), float(number), device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                (found,) = on_device(reader, [values])
                if (found.min, found.max, found.mean) != (number, number, number):
                    wrong.append(found)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_torch_allocates_nothing(reader: device_stats.Reader) -> None:
    values = torch.ones(1000, device="cuda", dtype=torch.float16)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    on_device(reader, [values, values.view(10, 100).t()[1:]])
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_what_the_device_leaves_to_torch(reader: device_stats.Reader) -> None:
    negated = torch.tensor([1 + 2j, 3 - 4j], device="cuda").conj().imag
    double = torch.ones(3, device="cuda", dtype=torch.complex128)
    assert reader.read([negated, double]) == [None, None]
    found = stats.read_all([negated, double], [False, True])
    assert [each.max for each in found if isinstance(each, Statistics)] == [4.0, 1.0]
