"""The plots of a bundle as inline SVG: latency percentiles, load of each rank, stages.

latencies(summary)  →  "<svg …>…</svg>", without scripts or anything fetched; None where there is nothing to show
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from firstfault.diagnose.serving.triage import RankLoad, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 6.4, 2.6
"""Inches."""
MOST_RANKS = 16
_INK = "#5f6b7a"
_COLOURS = ("#1e5bd6", "#c4262e", "#1a7f4b", "#96660a", "#7a3fb5", "#0f8b8d", "#b5446e", "#566573")
_PROLOGUE = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_NOT_NEEDED = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


def latencies(summary: Summary) -> str | None:
    """Percentiles of each latency, on a logarithmic scale."""
    shown = [one for one in summary.latencies if one.p50 is not None]
    if not shown:
        return None

    def draw(axes: Axes) -> None:
        for offset, (name, colour) in enumerate(zip(("p50", "p90", "p99"), _COLOURS, strict=False)):
            values = [max(getattr(one, name) or 0.0, 1e-6) for one in shown]
            axes.bar([index + offset * 0.25 for index in range(len(shown))], values, 0.22, label=name, color=colour)
        axes.set_xticks([index + 0.25 for index in range(len(shown))], [one.name for one in shown])
        axes.set_yscale("log")
        axes.set_ylabel("seconds")
        axes.legend(frameon=False, ncols=3, labelcolor=_INK)

    return _svg(draw, "Latency percentiles from histogram buckets")


def queue(summary: Summary) -> str | None:
    """Requests that wait, of each rank, over the samples."""
    return _over_time(summary, "waiting", "requests waiting", "Queue of each rank")


def usage(summary: Summary) -> str | None:
    """Share of the KV cache that is taken, of each rank, over the samples."""
    return _over_time(summary, "token_usage", "token usage", "Token usage of each rank")


def stages(summary: Summary) -> str | None:
    """Average seconds of each stage of a request."""
    if not summary.stages:
        return None
    names = sorted(summary.stages, key=lambda name: summary.stages[name])

    def draw(axes: Axes) -> None:
        axes.barh(names, [summary.stages[name] for name in names], color=_COLOURS[0])
        axes.set_xlabel("seconds on average, of the rank where it is longest")

    return _svg(draw, "Stages of a request")


def _over_time(summary: Summary, attribute: str, label: str, title: str) -> str | None:
    shown = [rank for rank in summary.ranks if any(value is not None for value in getattr(rank, attribute))]
    if not shown:
        return None
    times = _times(summary)
    draw = _bars if len(times) < 2 else _lines
    return _svg(lambda axes: draw(axes, shown[:MOST_RANKS], attribute, label, times), title)


def _times(summary: Summary) -> list[float]:
    """Seconds since the first sample; the number of a sample where its time was not noted."""
    known = [at for at in summary.at if at is not None]
    if len(known) == len(summary.at) and known:
        return [at - known[0] for at in known]
    return [float(index) for index in range(len(summary.at))]


def _bars(axes: Axes, ranks: list[RankLoad], attribute: str, label: str, times: list[float]) -> None:
    values = [getattr(rank, attribute)[-1] or 0.0 for rank in ranks]
    axes.bar([rank.name for rank in ranks], values, color=_COLOURS[0])
    axes.set_ylabel(label)


def _lines(axes: Axes, ranks: list[RankLoad], attribute: str, label: str, times: list[float]) -> None:
    for index, rank in enumerate(ranks):
        values = [float("nan") if value is None else value for value in getattr(rank, attribute)]
        axes.plot(times, values, marker="o", markersize=3, label=rank.name, color=_COLOURS[index % len(_COLOURS)])
    axes.set_xlabel("seconds since the first sample")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, ncols=4, labelcolor=_INK)


def _svg(draw: Callable[[Axes], None], title: str) -> str:
    """One plot; text stays text, so that it can be read and searched, and has the page's fonts."""
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": title,  # the same plot gives the same file
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "text.color"), _INK),
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes = figure.subplots()
        axes.set_title(title, fontsize=10, loc="left")
        draw(axes)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    return _NOT_NEEDED.sub("", _PROLOGUE.sub("", written.getvalue())).strip()
