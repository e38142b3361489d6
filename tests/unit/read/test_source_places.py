"""Which places are in CUDA's own headers, and which of some is the one to look at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.read.formats.source_places import INLINED, Place, is_cudas_own, places, to_look_at


@pytest.mark.parametrize(
    "file",
    [
        "device_atomic_functions.hpp",
        "sm_32_intrinsics.hpp",
        "sm_90_rt.hpp",
        "cuda_fp16.hpp",
        "cuda_bf16.h",
        "cuda_pipeline_helpers.h",
        "math_functions.hpp",
        "crt/mma.hpp",
        "cooperative_groups/details/sync.h",
        "cub/block/block_reduce.cuh",
        "/usr/local/cuda/include/anything.h",
        "/usr/local/cuda-13.0/targets/x86_64-linux/include/crt/sm_80_rt.hpp",
        "/opt/cuda/include/new_intrinsics.hpp",
        "/sw/cuda/12.4/include/new_intrinsics.hpp",
        "/env/targets/sbsa-linux/include/new_intrinsics.hpp",
        "/env/lib/python3.12/site-packages/nvidia/cu13/include/new_intrinsics.hpp",
        "/env/lib/python3.12/site-packages/nvidia/cuda_runtime/include/new_intrinsics.hpp",
        "/env/lib/python3.12/site-packages/triton/backends/nvidia/include/new_intrinsics.hpp",
        "/env/include/cccl/cuda/std/__atomic/api.h",
        "/env/include/cccl/cub/block/block_reduce.cuh",
    ],
)
def test_cudas_own(file: str) -> None:
    assert is_cudas_own(file)


@pytest.mark.parametrize(
    "file",
    [
        "",
        "shared_table.cu",
        "mma.h",
        "kernels/math_functions.hpp",
        "csrc/cuda/include/reduce.cuh",
        "/home/me/cuda/kernel.cu",
        "/src/cub/mine.cu",
        "/src/crt/kernel.cu",
        "/src/cutlass/include/cute/arch/copy_sm90_tma.hpp",
        "/env/site-packages/nvidia/cutlass/include/cute/util.hpp",
        "my_device_atomic_functions.hpp",
        "two_kernels.py",
    ],
)
def test_a_programs_own(file: str) -> None:
    assert not is_cudas_own(file)


def test_the_chain_of_what_is_inlined() -> None:
    text = "cuda_fp16.hpp:7 in __hadd(__half, __half) inlined from a b/c.cuh:8 in f::g inlined from k.cu:9"
    assert places(text) == [Place("cuda_fp16.hpp", 7), Place("a b/c.cuh", 8), Place("k.cu", 9)]
    assert to_look_at(places(text)) == Place("a b/c.cuh", 8)
    assert to_look_at([]) == Place("", 0)


FILES = st.sampled_from(["cuda_fp16.hpp", "k.cu", "lib/a.cuh", "/usr/local/cuda/include/crt/mma.hpp"])


@given(st.lists(st.builds(Place, FILES, st.integers(1, 10**6)), min_size=1))
def test_one_of_them_is_chosen_and_it_is_the_programs_where_there_is_one(every: list[Place]) -> None:
    assert places(INLINED.join(f"{file}:{line} in f" for file, line in every)) == every
    chosen = to_look_at(every)
    assert chosen in every
    assert is_cudas_own(chosen.file) == all(is_cudas_own(file) for file, _ in every)


@given(st.text(alphabet="ab:1 /(). infledrom", max_size=200))
def test_any_text(text: str) -> None:
    for file, line in places(text):
        assert file
        assert line >= 0
