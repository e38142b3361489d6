"""Every recorded incident as a bundle → the class that triage gives it, beside the one that it was.

python -m bench.triage_cases

Writes ``results/triage_cases.md``; exits with 1 where a class is not right.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.triage import Summary, summarize
from firstfault.read.bundle import read
from tests.triage_cases import CASES, Case

RESULTS = Path(__file__).parent / "results" / "triage_cases.md"


def main() -> None:
    """Judge all cases, and write the table."""
    with tempfile.TemporaryDirectory() as folder:
        found = [(case, judged(case, Path(folder) / str(index))) for index, case in enumerate(CASES)]
    right = sum(summary.contract.problem_class is case.problem for case, summary in found)
    text = "\n".join([*head(right), *map(row, found), ""])
    RESULTS.write_text(text)
    print(text)
    sys.exit(right != len(CASES))


def judged(case: Case, folder: Path) -> Summary:
    """The summary of the bundle that a case's facts make."""
    bundle = read(case.make(folder / "bundle").folder)
    baseline = Scene(read(case.baseline(folder / "baseline").folder), "baseline") if case.baseline is not None else None
    return summarize(Scene(bundle, "bundle", baseline, case.client))


def head(right: int) -> Iterator[str]:
    """What the table is of."""
    yield "# Triage of recorded incidents"
    yield ""
    yield f"`python -m bench.triage_cases`: {right} of {len(CASES)} classes are right."
    yield "Each incident's recorded facts (metrics, loads, log lines, stacks, exit codes) are made into a bundle."
    yield ""
    yield "| incident | from | class | given | confidence | rule | right |"
    yield "|---|---|---|---|---|---|---|"


def row(found: tuple[Case, Summary]) -> str:
    """One incident."""
    case, summary = found
    contract = summary.contract
    rule = next((one.rule for one in summary.signals if one.problem is contract.problem_class), "")
    source = f"[report]({case.source})" if case.source.startswith("http") else case.source
    right = "yes" if contract.problem_class is case.problem else "**no**"
    given = (contract.problem_class.value, contract.confidence.value, rule, right)
    return f"| {' | '.join((case.name, source, case.problem.value, *given))} |"


if __name__ == "__main__":
    main()
