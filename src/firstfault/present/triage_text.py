"""The summary of a bundle as lines, in the words of SGLang's own triage method, and the contract below them.

    Health: /health=ok /health_generate=ok
    Point-in-time load: running=1 waiting=0 total=1 token_usage=0.410 throughput=29.800 cache_hit_rate=0.970
    …
    Problem class: prefill-side latency (high confidence)

Whatever came from the server is made inert: no control character of it reaches the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.serving.comparison import Comparison
from firstfault.diagnose.serving.handover import Path
from firstfault.diagnose.serving.triage import NO_SIGNAL, Contract, Percentiles, RankLoad, Summary
from firstfault.record.text_log import one_line

MOST_EVIDENCE = 8
MOST_CHANGES = 60


def render(summary: Summary) -> str:
    """The whole summary."""
    return "".join(f"{one_line(line)}\n" for line in _lines(summary))


def render_path(path: Path) -> str:
    """The way on, step by step."""
    lines = [f"Problem class: {path.problem.value}", f"Path: {path.tool.value}", f"Why: {path.why}", ""]
    for index, step in enumerate(path.steps, 1):
        lines += [f"{index}. {step.why}", f"   {step.command}"]
    return "".join(f"{one_line(line)}\n" for line in lines)


def render_comparison(found: Comparison) -> str:
    """What changed, ranked."""
    lines = [found.conclusion, "", f"Good: {found.good}", f"Bad: {found.bad}", f"Equal settings: {found.same}"]
    lines += [f"Not compared: {missing}" for missing in found.missing]
    lines += ["", "What changed:"] if found.changes else []
    for change in found.changes[:MOST_CHANGES]:
        times = f" ({change.times:.2f} times)" if change.times else ""
        lines.append(f"- {change.kind.value}: {change.name}: {change.before} → {change.after}{times}")
    if len(found.changes) > MOST_CHANGES:
        lines.append(f"- {len(found.changes) - MOST_CHANGES} more, in --json")
    return "".join(f"{one_line(line)}\n" for line in lines)


def _lines(summary: Summary) -> Iterator[str]:
    yield f"Bundle: {summary.source}"
    yield f"Base URL: {summary.base_url or 'n/a'}"
    yield f"Collected At: {summary.collected_at or 'n/a'}"
    yield f"Engine: {summary.engine or 'n/a'} {summary.engine_version}".rstrip()
    yield ""
    yield from summary_lines(summary)
    yield ""
    yield "What stands out:"
    for signal in summary.signals:
        yield f"- {signal.text}"
        for evidence in signal.evidence[:MOST_EVIDENCE]:
            yield f"    {evidence}"
    if not summary.signals:
        yield f"- {NO_SIGNAL}"
    yield ""
    yield from contract_lines(summary.contract)
    if summary.problems:
        yield ""
        yield f"Incomplete: {len(summary.problems)} things could not be had:"
        yield from (f"- {problem}" for problem in summary.problems[:20])


def summary_lines(summary: Summary) -> Iterator[str]:
    """Health to Queues: the numbers."""
    for name, fields in summary.lines.items():
        yield f"{name}: " + " ".join(f"{key}={value}" if key else value for key, value in fields.items())
    if summary.stages:
        told = ", ".join(f"{name}={seconds:.3f}s" for name, seconds in sorted(summary.stages.items()))
        yield f"Stage Averages (max across TP ranks): {told}"
    if summary.queues:
        yield "Queues: " + ", ".join(f"{name}={value}" for name, value in summary.queues.items())
    if summary.disaggregation:
        yield "Disaggregation: " + ", ".join(f"{name}={value}" for name, value in summary.disaggregation.items())
    if len(summary.ranks) > 1:
        yield from map(_rank, summary.ranks)
    yield from map(_latency, summary.latencies)


def _rank(rank: RankLoad) -> str:
    usage = rank.token_usage[-1] if rank.token_usage else None
    return (
        f"Rank {rank.name}: running={_last(rank.running)} waiting={_last(rank.waiting)} "
        f"token_usage={'n/a' if usage is None else f'{usage:.3f}'}"
    )


def _last(values: list[float | None]) -> str:
    return f"{values[-1]:.0f}" if values and values[-1] is not None else "n/a"


def _latency(of: Percentiles) -> str:
    parts = (("mean", of.mean), ("p50", of.p50), ("p90", of.p90), ("p99", of.p99))
    told = " ".join(f"{name}={'n/a' if value is None else f'{value:.3f}s'}" for name, value in parts)
    return f"Latency {of.name}: {told} count={of.count:.0f} of={'window' if of.window else 'lifetime'}"


def contract_lines(contract: Contract) -> Iterator[str]:
    """The contract, one line each."""
    yield f"Problem class: {contract.problem_class.value} ({contract.confidence.value} confidence)"
    yield f"What was checked: {'; '.join(contract.checked) or 'nothing'}"
    yield f"Strongest signal: {contract.strongest_signal}"
    yield f"Best guess: {contract.best_guess}"
    yield f"Ruled out: {'; '.join(contract.ruled_out) or 'nothing yet'}"
    yield f"Next step: {contract.next_step}"
    yield f"    {contract.next_why}"
    yield f"Production risk: {contract.production_risk}"
