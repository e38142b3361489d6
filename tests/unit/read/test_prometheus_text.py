"""What prometheus_client reads is read the same; what it does not like costs a line."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from firstfault.read.formats import prometheus_text
from firstfault.read.formats.prometheus_text import Metrics, parse


def read(text: str) -> Metrics:
    return parse(text.split("\n"))


LABELS = st.text(st.characters(codec="utf-8", exclude_characters="\r\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e"), max_size=20)


@given(st.lists(st.tuples(LABELS, st.floats(allow_nan=False)), max_size=8, unique_by=lambda pair: pair[0]))
def test_it_reads_what_prometheus_writes_as_prometheus_does(values: list[tuple[str, float]]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("sglang:num_running_reqs", "Running.", ["name"], registry=registry)
    for label, value in values:
        gauge.labels(label).set(value)
    text = generate_latest(registry).decode()
    theirs = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    found = read(text)
    ours = {
        (name, tuple(sorted(point.labels.items()))): point.value for name, ps in found.points.items() for point in ps
    }
    assert ours == theirs
    assert found.skipped == 0


@given(st.text(max_size=200))
def test_nothing_breaks_it(text: str) -> None:
    found = read(text)
    assert sum(map(len, found.points.values())) + found.skipped <= text.count("\n") + 1


def test_histograms_are_summed_and_kept_apart() -> None:
    registry = CollectorRegistry()
    seconds = Histogram("ttft_seconds", "TTFT.", ["tp_rank"], buckets=(0.1, 1.0), registry=registry)
    for rank, value in (("0", 0.05), ("0", 0.5), ("1", 5.0)):
        seconds.labels(rank).observe(value)
    found = read(generate_latest(registry).decode())
    whole = found.histogram("ttft_seconds")
    assert whole is not None
    assert (whole.count, whole.sum) == (3.0, 5.55)
    assert whole.buckets == {0.1: 1.0, 1.0: 2.0, math.inf: 3.0}
    assert {key: one.count for key, one in found.histograms("ttft_seconds", ["tp_rank"]).items()} == {
        ("0",): 2.0,
        ("1",): 1.0,
    }


def test_counters_are_summed_over_labels() -> None:
    registry = CollectorRegistry()
    count = Counter("requests", "Requests.", ["reason"], registry=registry)
    count.labels("stop").inc(3)
    count.labels("length").inc(4)
    found = read(generate_latest(registry).decode())
    assert found.total("requests_total") == 7.0
    assert found.total("requests_total", reason="stop") == 3.0
    assert found.total("nowhere") is None


def test_a_line_that_is_none_costs_itself_alone() -> None:
    found = read(
        'a 1\na{b="c} 2\nb{x="y"} zwei\n} 3\nc{x="y"} NaN\nd{x="\\"\\n"} 4 1700000000\ne 1_000\n' + "f" * 20_000
    )
    assert sorted(found.points) == ["a", "c", "d"]
    assert found.skipped == 5
    assert found.points["d"][0].labels == {"x": '"\n'}
    assert found.total("c") is None


def test_the_number_of_points_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_text, "MOST_POINTS", 10)
    found = read("\n".join(f'a{{n="{index}"}} 1' for index in range(20)))
    assert found.cut
    assert len(found.points["a"]) == 10
