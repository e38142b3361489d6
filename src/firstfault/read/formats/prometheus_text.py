"""Prometheus's text exposition format → points by name; a line that is none costs itself alone.

    sglang:num_running_reqs{tp_rank="0"} 3.0  →  .points["sglang:num_running_reqs"] == [Point({"tp_rank": "0"}, 3.0)]

``prometheus_client``'s own parser ends at the first line that it does not like, and holds a whole text several times
over; what is read here may be cut off, and comes from a server in trouble.
Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from firstfault.read.histogram import Histogram

MOST_POINTS = 1_000_000
LONGEST_LINE = 16_384

_SAMPLE = re.compile(
    r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)\s*(?:\{(?P<labels>(?:[^\"{}]|\"(?:[^\"\\]|\\.)*\")*)\})?"
    r"\s+(?P<value>[^\s#]+)(?:\s+-?\d+)?\s*(?:#.*)?"
)
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPED = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n"}


class Point(NamedTuple):
    """One value of a series."""

    labels: Mapping[str, str]
    value: float


@dataclass
class Metrics:
    """All points of one scrape.

    Attributes:
        points: by the name in front of the labels, ``_bucket`` and ``_sum`` included.
        skipped: lines that are neither a sample nor a comment.
        cut: whether there were more points than are kept.
    """

    points: dict[str, list[Point]] = field(default_factory=lambda: defaultdict(list))
    skipped: int = 0
    cut: bool = False

    def of(self, name: str, **labels: str) -> list[Point]:
        """The points of a name with these labels; none where the name is not there."""
        return [
            point
            for point in self.points.get(name, ())
            if all(point.labels.get(key) == value for key, value in labels.items())
        ]

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of the points of a name; None where there are none."""
        found = [point.value for point in self.of(name, **labels) if not math.isnan(point.value)]
        return math.fsum(found) if found else None

    def histograms(self, name: str, by: Iterable[str] = ()) -> dict[tuple[str, ...], Histogram]:
        """The histograms of a name, one for each combination of the labels ``by``; summed over all others."""
        keys = tuple(by)
        found: dict[tuple[str, ...], Histogram] = {}
        for suffix in ("_bucket", "_sum", "_count"):
            for point in self.points.get(name + suffix, ()):
                key = tuple(point.labels.get(label, "") for label in keys)
                found.setdefault(key, Histogram()).add(suffix, point.labels.get("le", ""), point.value)
        return found

    def histogram(self, name: str) -> Histogram | None:
        """The histogram of a name, summed over all labels."""
        return self.histograms(name).get(())


def parse(lines: Iterable[str]) -> Metrics:
    """Read the lines of a scrape."""
    found = Metrics()
    count = 0
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        sample = _SAMPLE.fullmatch(text) if len(text) <= LONGEST_LINE else None
        point = _point(sample) if sample is not None else None
        if sample is None or point is None:
            found.skipped += 1
            continue
        count += 1
        if count > MOST_POINTS:
            found.cut = True
            break
        found.points[sample["name"]].append(point)
    return found


def _point(sample: re.Match[str]) -> Point | None:
    try:
        value = float(sample["value"].replace("_", "x"))  # Python's digits may be grouped, Prometheus's not
    except ValueError:
        return None
    labels = _labels(sample["labels"] or "")
    return Point(labels, value) if labels is not None else None


def _labels(text: str) -> dict[str, str] | None:
    """The labels between braces; None where they are none."""
    found: dict[str, str] = {}
    at = 0
    text = text.strip()
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None:
            return None
        raw = match[2]
        found[match[1]] = _ESCAPED.sub(lambda m: _UNESCAPED.get(m[1], m[1]), raw) if "\\" in raw else raw
        at = match.end()
    return found
