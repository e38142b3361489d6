"""FF402: the size in an out-of-memory message, taken apart into what the call was given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.diagnose.finding import Verdict
from firstfault.read.formats.errors_text import asked_for
from firstfault.record import schema
from tests.unit.diagnose.rules.judging import judged
from tests.unit.read.samples import call, raised, tensor

RULE = "ff402_out_of_memory"
CUDA = "CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 139.81 GiB of which 1.20 GiB is free."
CPU = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate {} bytes. Error code 12 (Cannot allocate memory)"  # fmt: skip


def text(message: str, *args: schema.Value, exception: str = "RuntimeError") -> str:
    [found] = judged(RULE, call(1, "op", *args), raised(1, exception, message))
    return found.text


def test_scores_of_tokens_by_tokens() -> None:
    query = tensor(1, 32, 65536, 128)
    assert text(CUDA.format("256.00 GiB"), query) == (
        "op (call 1) ran out of memory: it asked for 256.000 GiB, which is 65536 (dimension 2 of arg[0]) × "
        "65536 (dimension 2 of arg[0]) × 32 (dimension 1 of arg[0]) × 2 bytes"
    )


def test_the_exact_size_of_a_host_allocation() -> None:
    said = text(CPU.format(3 * 3 * 151936 * 4 * 1000), tensor(1000, 151936, dtype="torch.float32"), 3)
    assert said.endswith("151936 (dimension 1 of arg[0]) × 1000 (dimension 0 of arg[0]) × 3 (arg[1]) × 3 (arg[1]) × 4 bytes")  # fmt: skip


def test_a_size_that_is_no_product_of_the_call_is_only_named() -> None:
    message = CPU.format(1_000_000_007)
    [found] = judged(RULE, call(1, "op", tensor(17, 64)), raised(1, "RuntimeError", message))
    assert found.verdict is Verdict.SUSPICIOUS
    assert found.text == "op (call 1) ran out of memory: it asked for 0.931 GiB"


def test_other_errors_are_none_of_it() -> None:
    assert judged(RULE, call(1, "op", tensor(4)), raised(1, "RuntimeError", "no kernel image")) == []
    assert judged(RULE, call(1, "op", tensor(4))) == []
    assert text("", tensor(4), exception="torch.OutOfMemoryError") == "op (call 1) ran out of memory"


@pytest.mark.parametrize(("said", "nbytes"), [("20.00 GiB", 20 * 2**30), ("1.50 MiB", 3 * 2**19), ("77 bytes", 77)])
def test_sizes(said: str, nbytes: int) -> None:
    found = asked_for(CUDA.format(said))
    assert found is not None
    assert found.nbytes == nbytes


@given(st.text(max_size=60))
def test_any_message(message: str) -> None:
    asked_for(f"Tried to allocate {message}")
    judged(RULE, call(1, "op", tensor(4, 8), 5), raised(1, "OutOfMemoryError", f"Tried to allocate {message}"))


@given(st.lists(st.integers(2, 5000), min_size=1, max_size=4), st.sampled_from([1, 2, 4, 8]))
def test_a_product_of_extents_is_always_found(extents: list[int], size: int) -> None:
    nbytes = size
    for extent in extents:
        nbytes *= extent
    assert "which is" in text(CPU.format(nbytes), tensor(*extents))
