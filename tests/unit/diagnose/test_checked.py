"""A replay under compute-sanitizer, judged."""

from __future__ import annotations

from firstfault.diagnose import checked
from firstfault.diagnose.accesses import Place
from firstfault.diagnose.checked import Checked, Verdict
from firstfault.errors import ExitCode
from firstfault.present import checked_text
from firstfault.read.formats.error_log import complaints
from tests.unit.read import samples

BASE = 0x7F57CEC00000
FAULT = f"""\
========= Invalid __global__ write of size 4 bytes
=========     at _copy+0x90 in overruns.py:20
=========     by thread (64,0,0) in block (4,0,0)
=========     Access to {BASE + 4100:#x} is out of bounds
=========     and is 1 bytes after the nearest allocation at {BASE - 512:#x} of size 4612 bytes
=========         Host Frame: write_one_past in overruns.py:50
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call to cuda.
========= ERROR SUMMARY: 2 errors
"""
PLACES = [Place("arg[0]", BASE - 2**20, BASE - 2**20 + 64, 4), Place("arg[1]", BASE, BASE + 4100, 4, BASE - 512)]


def judged(text: str, *, ran: bool = True, counted: int | None = 0) -> Checked:
    told = complaints(text.splitlines(), "memcheck")
    answer = Checked(
        Verdict.CANNOT_TELL, "memcheck", "write_one_past", 1, "dumps/x", faults=checked.faults(told, PLACES),
        api=checked.api_errors(told), counted=counted, replayed="NOT_RUN: no function" if not ran else "MATCH: same",
    )  # fmt: skip
    return checked.judge(answer, ran=ran)


def test_a_fault_is_put_down_to_its_argument() -> None:
    answer = judged(FAULT, counted=2)
    assert (answer.verdict, answer.verdict.exit_code) == (Verdict.FAULT, ExitCode.BAD)
    assert answer.text == "a write of 4 bytes in _copy, overruns.py:20, reaches 4 bytes past the end of arg[1]"
    [fault] = answer.faults
    assert (fault.argument, fault.block, fault.host) == ("arg[1]", (4, 0, 0), "overruns.py:50")
    assert len(answer.api) == 1


def test_errors_of_api_calls_alone_are_no_fault() -> None:
    answer = judged("\n".join(FAULT.splitlines()[-2:]), counted=1)
    assert (answer.verdict, answer.faults) == (Verdict.CLEAN, [])
    assert answer.api[0].startswith("Program hit cudaErrorLaunchFailure")


def test_nothing_reported_is_clean_only_where_it_ran_and_the_tool_ended() -> None:
    assert judged("", counted=0).verdict is Verdict.CLEAN
    assert judged("", counted=None).verdict is Verdict.CANNOT_TELL
    never = judged("", ran=False)
    assert (never.verdict, never.verdict.exit_code) == (Verdict.CANNOT_TELL, ExitCode.CANNOT_TELL)
    assert never.text == "NOT_RUN: no function"


def test_a_guard_that_was_written_to_is_a_fault_by_itself() -> None:
    answer = Checked(Verdict.CANNOT_TELL, "memcheck", faults=[checked.overwritten("arg[1]", 8)], counted=0)
    assert checked.judge(answer, ran=True).text == "a write begins 8 bytes before the start of arg[1]"


def test_of_several_faults_the_first_is_named() -> None:
    answer = judged(FAULT + FAULT.replace("overruns.py:20", "overruns.py:30"), counted=4)
    assert answer.text.endswith("arg[1], and 1 more")


def test_a_shared_or_unknown_address_names_no_argument() -> None:
    shared = "========= Invalid __shared__ atomic of size 4 bytes\n=========     at k+0x1 in a.cu:7\n" + (
        "=========     Access to 0x4000044 is out of bounds\n"
    )
    [fault] = judged(shared).faults
    assert (fault.text, fault.argument) == ("an atomic of 4 bytes in k, a.cu:7", "")


def test_the_text_says_it_in_its_first_line_and_what_next() -> None:
    lines = checked_text.render(judged(FAULT, counted=2)).splitlines()
    assert lines[0].startswith("FAULT       write_one_past (call 1): a write of 4 bytes")
    assert lines[-1] == "next: firstfault gdb dumps/x"
    assert any("then: Program hit" in line for line in lines)


def test_the_recorded_memcheck_text() -> None:
    told = complaints((samples.DATA / "failures" / "memcheck.txt").read_text().splitlines(), "memcheck.txt")
    [fault] = checked.faults(told, [])
    assert fault.text == "an atomic of 4 bytes in moe_align, crash.py:11"
