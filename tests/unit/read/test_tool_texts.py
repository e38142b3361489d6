"""What NVIDIA's tools print, beyond what every text of errors is tried with: each kind of report, and hostile ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from firstfault.read.formats.complaint import MOST_FRAMES, MOST_INSTRUCTIONS, Complaint, Teller
from firstfault.read.formats.cuda_gdb_text import NO_EXCEPTION
from firstfault.read.formats.error_log import complaints
from firstfault.read.formats.sanitizer_text import counted
from tests.unit.read import samples

FAILURES = samples.DATA / "failures"


def told(text: str) -> list[Complaint]:
    return complaints(text.splitlines(), "log")


def only(text: str) -> Complaint:
    [one] = told(text)
    return one


# --- compute-sanitizer


def test_memcheck_names_the_address_and_the_nearest_allocation() -> None:
    first = told((FAILURES / "memcheck.txt").read_text())[0]
    assert (first.address, first.near, first.near_bytes) == (0x7F58C68611B0, 0x7F57CEC00000, 512)
    assert first.hosts[-1] == first.host == "crash.py:15"


def test_a_fault_in_a_device_function_has_its_frames() -> None:
    found = only(
        """\
========= Invalid __global__ write of size 4 bytes
=========     at store(int *)+0x30 in planted.cu:36
=========     by thread (1,0,0) in block (0,0,0)
=========     Access to 0x7f3a5ec00194 is out of bounds
=========     and is 5 bytes after the nearest allocation at 0x7f3a5ec00000 of size 400 bytes
=========     Device Frame: through_a_function(int *, int)+0xa0 in planted.cu:38
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main [0x8a7c] in planted
"""
    )
    assert (found.kernel, found.file, found.line) == ("store(int *)", "planted.cu", 36)
    assert found.frames == ["through_a_function(int *, int)+0xa0 in planted.cu:38"]
    assert (found.address, found.near_bytes, found.thread) == (0x7F3A5EC00194, 400, (1, 0, 0))


def test_a_fault_in_cudas_headers_is_the_callers() -> None:
    found = only(
        """\
========= Barrier error detected. Invalid arguments.
=========     at __syncwarp(unsigned int)+0xe0 in sm_30_intrinsics.hpp:110
=========         Device Frame: inner()+0xd0 in cooperative_groups/details/sync.h:9
=========         Device Frame: broken_sync(float *, unsigned long)+0xb0 in kernel.cu:12
=========         Device Frame: caller()+0x10 in kernel.cu:30
"""
    )
    assert (found.kernel, found.file, found.line) == ("broken_sync(float *, unsigned long)", "kernel.cu", 12)
    assert [frame.split("(")[0] for frame in found.frames] == ["__syncwarp", "inner", "broken_sync", "caller"]


def test_misaligned_and_older_words_for_the_address() -> None:
    found = only(
        """\
========= Invalid __global__ read of size 16 bytes
=========     at 0x110 in kernel.cu:7:vector_load(float4 const*)
=========     by thread (3,0,0) in block (0,0,0)
=========     Address 0x7f0ff3a00004 is misaligned
"""
    )
    assert (found.nbytes, found.address, found.near) == (16, 0x7F0FF3A00004, 0)


def test_a_leak_is_of_an_allocation() -> None:
    found = only(
        "========= Leaked 1,024 bytes at 0x7f3fa0a00000\n=========     Saved host backtrace up to driver entry point"
    )
    assert (found.near, found.near_bytes, found.kernel) == (0x7F3FA0A00000, 1024, "")


def test_initcheck() -> None:
    found = only(
        """\
========= Uninitialized __global__ memory read of size 4 bytes
=========     at vectorAdd(int *, int *)+0x70 in init.cu:9
=========     by thread (65,0,0) in block (0,0,0)
=========     Access to 0x7f7d5ea00104
========= ERROR SUMMARY: 1 error
"""
    )
    assert (found.text, found.kernel) == (
        "Uninitialized __global__ memory read of size 4 bytes",
        "vectorAdd(int *, int *)",
    )


def test_a_race_is_placed_by_its_first_access_and_keeps_the_second() -> None:
    found = only(
        """\
========= Error: Race reported between Write access at sumKernel(int *, int *)+0xa0 in block_error.cu:20
=========     and Read access at sumKernel(int *, int *)+0x350 in block_error.cu:24 [16 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
    )
    assert (found.kernel, found.file, found.line) == ("sumKernel(int *, int *)", "block_error.cu", 20)
    assert found.text == "Error: Race reported between Write access at sumKernel(int *, int *)"
    assert found.details == ["and Read access at sumKernel(int *, int *)+0x350 in block_error.cu:24 [16 hazards]"]


def test_single_hazards_of_a_race() -> None:
    found = only(
        """\
========= ERROR: Potential WAW hazard detected at __shared__ 0x0 in block (2,0,0) :
=========     Write Thread (0,0,0) at race(int *)+0x50 in planted.cu:27
=========     Write Thread (1,0,0) at race(int *)+0x90 in planted.cu:28
=========     Current Value : 0, Incoming Value : 2
"""
    )
    assert (found.kernel, found.line, found.block) == ("race(int *)", 27, (2, 0, 0))
    assert len(found.details) == 3


def test_synccheck() -> None:
    found = only(
        """\
========= Barrier error detected. Divergent thread(s) in block
=========     at divergent_barrier(int *)+0x40 in planted.cu:33
=========     by thread (40,0,0) in block (0,0,0)
"""
    )
    assert (found.kernel, found.thread) == ("divergent_barrier(int *)", (40, 0, 0))


def test_an_error_of_an_api_call_has_no_kernel() -> None:
    found = only(
        '========= Program hit cudaErrorInvalidValue (error 1) due to "invalid argument" on CUDA API call to cudaMemcpy.\n'
        "=========     Saved host backtrace up to driver entry point at error\n"
        "=========         Host Frame: main [0x8a7c] in planted"
    )
    assert (found.kernel, found.text.split()[2]) == ("", "cudaErrorInvalidValue")


def test_the_tools_own_count() -> None:
    assert counted(["========= ERROR SUMMARY: 0 errors"]) == 0
    assert counted(["x", "========= ERROR SUMMARY: 1 error", "========= ERROR SUMMARY: 3 errors"]) == 4
    assert counted(["========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)"]) == 2
    assert counted(["========= COMPUTE-SANITIZER", "ERROR SUMMARY: 2 errors"]) is None
    assert counted(["========= ERROR SUMMARY: 7 errors were not printed. Use --print-limit option"]) is None


# --- what the tools of CUDA 13.0 really printed of planted faults, on an H200


def test_memcheck_on_a_device_function() -> None:
    first, *_, last = told((FAILURES / "through_a_function.txt").read_text())
    assert (first.kernel, first.file, first.line) == ("through_a_function(int *, int)", "planted.cu", 31)
    assert first.frames == ["store(int *) in planted.cu:31", "through_a_function(int *, int)+0x90 in planted.cu:33"]
    assert (first.count, first.near_bytes) == (2, 400)
    assert last.text.startswith("Program hit cudaErrorLaunchFailure")


def test_each_tool_on_its_fault() -> None:
    expected = {
        "race": ("Error: Race reported between Write access at race(int *)", "race(int *)", 22),
        "uninitialized": ("Uninitialized __global__ memory read of size 4 bytes", "uninitialized(const int *, int *)", 17),
        "barrier": ("Barrier error detected. Divergent thread(s) in warp.", "divergent_barrier(int *)", 27),
        "illegal_instruction": ("Illegal instruction", "shared_out_of_bounds(int *, int)", 13),
        "hazards": ("Error: Potential WAR hazard detected at __shared__", "race(int *)", 22),
        "leak": ("Leaked 400 bytes at 0x7f2266800000", "", 0),
        "unused": ("Unused memory in allocation 0x7f24d8800200 of size 1,024 bytes", "", 0),
        "api_error": ('Program hit cudaErrorInvalidValue (error 1) due to "invalid argument" on CUDA API call to cudaMemcpy.', "", 0),
    }  # fmt: skip
    found = {name: told((FAILURES / f"{name}.txt").read_text())[0] for name in expected}
    assert {name: (one.text, one.kernel, one.line) for name, one in found.items()} == expected
    assert (found["uninitialized"].address, found["uninitialized"].count) == (0x7F76B4800000, 2)
    assert (found["unused"].near, found["unused"].near_bytes) == (0x7F24D8800200, 1024)
    assert found["hazards"].count == 2
    counts = {name: counted((FAILURES / f"{name}.txt").read_text().splitlines()) for name in expected}
    assert counts == {
        "race": 1, "uninitialized": 32, "barrier": 8, "illegal_instruction": 35, "hazards": 67, "leak": 1, "unused": 1,
        "api_error": 1,
    }  # fmt: skip


def test_cuda_gdb_on_a_process_tells_the_exception_once() -> None:
    found = only((FAILURES / "cudagdb_run.txt").read_text())
    assert (found.text, found.kernel) == ("Warp Illegal Instruction", "shared_out_of_bounds(int*, int)")
    assert (found.file, found.line, found.pc, found.grid) == ("planted.cu", 13, 0x7FFDDB7A15E0, (1, 1, 1))
    [failed] = [line for line in found.sass if line.startswith("=>")]
    assert failed == "=> 0x7ffddb7a15e0 <_Z20shared_out_of_boundsPii+224>: STS [UR5],R4"
    assert len(found.sass) == 16


# --- cuda-gdb


def test_the_code_around_the_fault_is_in_order_and_the_instruction_marked() -> None:
    text = (FAILURES / "cudagdb.txt").read_text() + (
        "   0x7f2adf7a4760 <moe_align+352>:\tIADD3 R2, P0, R2, c[0x0][0x218], RZ\n"
        "   0x7f2adf7a4770 <moe_align+368>:\tRED.E.ADD.STRONG.GPU desc[UR4][R2.64], R5\n"
        "=> 0x7f2adf7a4780 <moe_align+384>:\t@P0 CCTL.IVALL\n"
    )
    found = only(text)
    assert found.pc == 0x7F2ADF7A4770
    assert found.sass[0] == "   0x7f2adf7a4760 <moe_align+352>: IADD3 R2, P0, R2, c[0x0][0x218], RZ"
    assert found.sass[1].startswith("=> 0x7f2adf7a4770 <moe_align+368>: RED.E.ADD")
    assert found.sass[2].startswith("   0x7f2adf7a4780")


def test_the_stack_is_told_once() -> None:
    found = only((FAILURES / "cudagdb.txt").read_text())
    assert len(found.frames) == 1
    assert found.frames[0].startswith("moe_align<<<(769,1,1),(128,1,1)>>> () at ")


def test_frames_of_device_functions() -> None:
    found = only(
        "CUDA Exception: Warp Illegal Address\n"
        "The exception was triggered at PC 0x7ffa9a00 store (planted.cu:36)\n"
        "#0  0x00007ffa9a10 in store () at planted.cu:36\n"
        "#1  0x00007ffa9b00 in through_a_function<<<(1,1,1),(2,1,1)>>> (memory=0x7f, n=100) at planted.cu:38\n"
    )
    assert (found.kernel, found.line) == ("store", 36)
    assert [frame.split()[0] for frame in found.frames] == ["store", "through_a_function<<<(1,1,1),(2,1,1)>>>"]


def test_what_is_inlined_from_cudas_headers_is_placed_where_it_was_called() -> None:
    found = only((FAILURES / "cudagdb_inlined.txt").read_text())
    assert (found.kernel, found.file, found.line) == (
        "moe_align_block_size_kernel(int const*, int*, int, int)",
        "shared_table.cu",
        10,
    )
    inlined, thread = found.frames
    assert inlined.startswith("device_atomic_functions.hpp:107 in _ZN46_INTERNAL")
    assert inlined.endswith("atomicAddEPii inlined from shared_table.cu:10")
    assert thread == "moe_align_block_size_kernel<<<(1,1,1),(256,1,1)>>> () at shared_table.cu:9"


def test_a_place_in_cudas_headers_gives_way_to_the_first_frame_outside() -> None:
    found = only(
        "CUDA Exception: Warp Illegal Address\n"
        "The exception was triggered at PC 0x7ffa9a00 k(int*)  (sm_60_atomic_functions.hpp:77)\n"
        "#0  0x00007ffa9a10 in atomicAdd (p=0x7f) at /usr/local/cuda-13.0/include/sm_60_atomic_functions.hpp:77\n"
        "#1  0x00007ffa9b00 in add (p=0x7f) at ops/add.cuh:12\n"
        "#2  0x00007ffa9c00 in k<<<(1,1,1),(2,1,1)>>> (memory=0x7f, n=100) at ops/k.cu:38\n"
    )
    assert (found.file, found.line, len(found.frames)) == ("ops/add.cuh", 12, 3)


def test_a_frame_may_be_inlined_too() -> None:
    found = only(
        "CUDA Exception: Warp Illegal Instruction\n"
        "#0  k<<<(2,2,1),(384,1,1)>>> () at /usr/local/cuda-12.9/include/sm_20_intrinsics.hpp:151"
        " in _ZN52_INTERNAL_64778a7b_24__cvta_generic_to_sharedEPKv inlined from util.hpp:108\n"
    )
    assert (found.kernel, found.file, found.line) == ("k", "util.hpp", 108)


def test_where_all_is_in_cudas_headers_the_innermost_stays() -> None:
    found = only(
        "CUDA Exception: Warp Illegal Address\n"
        "The exception was triggered at PC 0x7ffa9a00 k(int*)  (cuda_fp16.hpp:7 in f(int) inlined from crt/mma.hpp:9)\n"
        "#0  0x00007ffa9a10 in k<<<(1,1,1),(2,1,1)>>> ()\n"
    )
    assert (found.kernel, found.file, found.line) == ("k(int*)", "cuda_fp16.hpp", 7)


def test_an_exception_may_name_its_line_and_no_kernel() -> None:
    said = "CUDA Exception: Warp Illegal Address\nThe exception was triggered at PC 0x555555ef1200"
    found = only(f"{said} (bug.cpp:11)\n")
    assert (found.kernel, found.file, found.line, found.pc) == ("", "bug.cpp", 11, 0x555555EF1200)
    assert only(f"{said}\n").pc == 0x555555EF1200


def test_a_core_dump_that_was_asked_for_names_the_running_kernel() -> None:
    found = only(
        "Opening GPU coredump: core.1\n"
        "[Current focus set to CUDA kernel 0, grid 1, block (0,0,0), thread (0,0,0), device 0, sm 0, warp 0, lane 0]\n"
        "#0  0x00007fffc3259840 in never_ends<<<(1,1,1),(32,1,1)>>> () at planted.cu:41\n"
        "  Kernel Parent Dev Grid Status   SMs Mask GridDim BlockDim Invocation\n"
        "*      0      -   0    1 Active 0x00000001 (1,1,1) (32,1,1) never_ends(volatile int *)\n"
        "=> 0x7fffc3259840 <never_ends(int volatile*)+64>:\tBRA 0x7fffc3259810\n"
    )
    assert (found.text, found.kernel, found.grid) == (NO_EXCEPTION, "never_ends", (1, 1, 1))
    assert found.sass[0].startswith("=> 0x7fffc3259840")


def test_a_core_dump_of_which_nothing_is_said_is_no_failure() -> None:
    assert told("Opening GPU coredump: core.1\nFailed to read core file: wrong format\n") == []


def test_a_process_that_is_stopped_by_an_exception() -> None:
    found = only(
        "Thread 1 received signal CUDA_EXCEPTION_14, Warp Illegal Address.\n"
        "[Switching focus to CUDA kernel 0, grid 12, block (17,0,0), thread (0,0,0), device 0, sm 2, warp 0, lane 0]\n"
        "#0  0x00007fff in moe_align<<<(769,1,1),(128,1,1)>>> () at crash.py:11\n"
    )
    assert (found.text, found.kernel, found.block) == ("Warp Illegal Address", "moe_align", (17, 0, 0))


def test_there_is_no_end_to_what_a_tool_may_print() -> None:
    frames = "".join(f"#{n}  0x1 in f{n} () at a.cu:1\n" for n in range(100))
    code = "".join(f"   0x{n:x} <k+{n}>:\tNOP\n" for n in range(500))
    found = only("CUDA Exception: x\n" + frames + code)
    assert (len(found.frames), len(found.sass)) == (MOST_FRAMES, MOST_INSTRUCTIONS)
    devices = "".join(f"=========     Device Frame: f{n}\n" for n in range(100))
    assert len(only("========= Invalid __global__ read of size 4 bytes\n" + devices).frames) == MOST_FRAMES


PIECES = [
    "========= Invalid __global__ write of size 4 bytes",
    "=========     at store(int *)+0x30 in planted.cu:36",
    "=========     Access to 0x7f3a5ec00194 is out of bounds",
    "=========     and is 5 bytes after the nearest allocation at 0x7f3a5ec00000 of size 4,00 bytes",
    "=========     Device Frame: f",
    "========= Error: Race reported between Write access at ",
    "========= ERROR: Potential WAW hazard detected at __shared__ 0x0 in block (2,0,0) :",
    "========= Leaked , bytes at 0x1",
    "========= ERROR SUMMARY: 3 errors",
    "Opening GPU coredump: x",
    "CUDA Exception: y",
    "The exception was triggered at PC 0x1 k (a.cu:1)",
    "#0  0x1 in k<<<(1,1,1),(1,1,1)>>> () at a.cu:1",
    "#1  0x1 in f ()",
    "The exception was triggered at PC 0x1 k (cuda_fp16.hpp:1 in f inlined from a.cu:1)",
    "=========     at atomicAdd(int *, int) in device_atomic_functions.hpp:107",
    "=========     Device Frame: k(int *)+0x1 in a.cu:1",
    "*      0      -   0    1 Active 0x1 (1,1,1) (32,1,1) k(int (*)(int))",
    "=> 0x1 <k+1>:\tNOP",
    "[Current focus set to CUDA kernel 0, grid 1, block (0,0,0), thread (0,0,0), device 0]",
]


LETTERS = "=#*<>()[]0x:,. aAcdefgikntl\t"
"""Of which no error of another teller can be made, as Hypothesis would of any: it tries the strings in our sources."""


@given(st.lists(st.sampled_from(PIECES) | st.text(LETTERS, max_size=40), max_size=30), st.integers(0, 80))
def test_any_order_and_any_cut(lines: list[str], cut: int) -> None:
    text = [line[: max(0, len(line) - cut)] if n == len(lines) // 2 else line for n, line in enumerate(lines)]
    for found in complaints(text, "log"):
        assert found.teller in (Teller.SANITIZER, Teller.GDB)
        assert found.text
        assert found.sass == sorted(found.sass, key=lambda line: int(line[3:].split(" ", 1)[0], 16))


@given(st.text(LETTERS, max_size=300))
def test_texts_of_their_letters(noise: str) -> None:
    for line in noise.splitlines():
        complaints(["========= Invalid x", f"=========     {line}", "CUDA Exception: x", line], "log")
