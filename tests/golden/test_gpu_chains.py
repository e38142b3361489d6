"""What the chains' faults left behind on a GPU gives the same whole chains of evidence, without one.

``scenarios/chains/run.py`` made the recordings on an H200; their tensors and dumps are left out, and what said where.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from firstfault.cli import app
from firstfault.diagnose.chain import Chain
from scenarios.chains.run import LINKS, TRUTHS, judged
from tests.unit.read import samples

CHAINS = Path(__file__).parent / "gpu_chains"
CASES = sorted(folder.name for folder in CHAINS.iterdir())
KERNELS = {
    "two_kernels": "_moe_align, two_kernels.py:25, block (17, 0, 0), thread (0, 0, 0), PC 0x7fe3757b5470: "
    "Warp Invalid Address Space",
    "shared_table": "moe_align_block_size_kernel(int const*, int*, int, int), shared_table.cu:10, block (0, 0, 0), "
    "thread (0, 0, 0), PC 0x7f96b37b6020: Warp Out-of-range Address",
    "nan_upstream": "_scatter, nan_upstream.py:29, block (100, 0, 0), thread (0, 0, 0), PC 0x7fe33f7e1d70: "
    "Warp Invalid Address Space",
}
CALLS = {
    "two_kernels": "moe_align (call 8), from two_kernels.py:50",
    "shared_table": "moe_align_block_size (call 4), from shared_table.py:59",
    "nan_upstream": "nan_upstream._scatter (call 14), from nan_upstream.py:58",
}
ARGUMENTS = {
    "two_kernels": "arg[0], (769,) torch.int32",
    "shared_table": "arg[0], (769,) torch.int32",
    "nan_upstream": "ids, (256,) torch.int32",
}
VALUES = {
    "two_kernels": "arg[0] holds expert ids up to 1073741847, beyond 128, the length of arg[1]",
    "shared_table": "arg[0] holds expert ids up to 65657, beyond 128, the length of arg[1]",
    "nan_upstream": "ids reaches 1073741824, and the largest other argument has 16 elements",
}
PRODUCERS = {
    "two_kernels": "two_kernels._topk_gating (call 7)",
    "shared_table": "topk_gating_softmax (call 3)",
    "nan_upstream": "nan_upstream._choose (call 12), given 16 NaN in probabilities, which attention (call 8) made, "
    "3 calls before it",
}


def chain_of(case: str) -> Chain:
    found = samples.report(CHAINS / case / "recording")
    assert found.problems == []
    chain = found.processes[0].chain
    assert chain is not None
    return chain


def report(case: str, *options: str) -> str:
    """What ``firstfault report`` prints on a case."""
    done = CliRunner().invoke(app, ["report", str(CHAINS / case / "recording"), *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_every_case_is_there() -> None:
    assert set(CASES) == set(TRUTHS)


@pytest.mark.parametrize("case", CASES)
def test_all_five_links(case: str) -> None:
    chain = chain_of(case)
    assert chain.whole
    assert (chain.kernel.text, chain.call.text) == (KERNELS[case], CALLS[case])
    assert (chain.argument.text, chain.producer.text) == (ARGUMENTS[case], PRODUCERS[case])
    assert chain.value.text.partition(";")[0] == VALUES[case]
    assert [link.by for _, link in chain.links] == ["cuda-gdb", "cuda-gdb", "FF501", "FF501", "lineage"]


@pytest.mark.parametrize("case", CASES)
def test_the_truth_of_the_scenarios_holds(case: str) -> None:
    """The same patterns that a run on a GPU is held against, on the report as ``--json`` gives it."""
    [process] = json.loads(report(case, "--json"))["processes"]
    right = judged(process["chain"], TRUTHS[case])
    assert set(right) >= set(LINKS)
    assert all(right.values()), right


@pytest.mark.parametrize("case", CASES)
def test_the_report_is_the_same_each_time(case: str) -> None:
    first = report(case)
    assert report(case) == first
    assert "Stack on the device" in first
    assert "=> 0x" in first


def test_what_was_inlined_stays_in_the_stack() -> None:
    frames = chain_of("shared_table").frames
    assert "device_atomic_functions.hpp:107" in frames[0]
    assert frames[1].endswith("at shared_table.cu:9")


@pytest.mark.parametrize("case", CASES)
def test_nothing_says_where_it_was_made(case: str) -> None:
    for file in filter(Path.is_file, (CHAINS / case).rglob("*")):
        assert re.search(r"/(tmp|home|root|mnt)/", file.read_text()) is None, file
