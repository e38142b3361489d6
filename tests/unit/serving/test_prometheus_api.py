"""A matrix becomes readings, and what is none is told."""

from __future__ import annotations

import json

import httpx
import pytest

from firstfault.errors import UsageError
from firstfault.read.formats.prometheus_text import parse
from firstfault.serving.client import Client
from firstfault.serving.prometheus_api import range_of, readings
from firstfault.serving.redaction import Redaction

MATRIX = {
    "status": "success",
    "data": {
        "resultType": "matrix",
        "result": [
            {
                "metric": {"__name__": "sglang:num_queue_reqs", "tp_rank": str(rank), "pod": "secret-pod"},
                "values": [[1000.0 + 15 * step, str(step * (rank + 1))] for step in range(3)],
            }
            for rank in range(2)
        ],
    },
}


def test_a_matrix_is_a_reading_for_each_time() -> None:
    found = readings(json.dumps(MATRIX), Redaction())
    assert [one.at for one in found] == [1000.0, 1015.0, 1030.0]
    assert parse(found[2].metrics.split("\n")).total("sglang:num_queue_reqs") == 6.0
    assert "secret-pod" not in found[0].metrics


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"data": {"result": [1]}}', '{"data": {"result": [{"metric": {}}]}}']
)
def test_what_is_no_matrix_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="no matrix"):
        readings(text, Redaction())


def test_the_range_is_asked_for_as_prometheus_wants_it() -> None:
    asked: list[httpx.URL] = []

    def prometheus(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        return httpx.Response(200, json=MATRIX)

    client = Client("http://prometheus:9090", transport=httpx.MockTransport(prometheus))
    assert len(range_of(client, selector='instance="gpu7:30000"', last=1800.0, redaction=Redaction())) == 3
    assert asked[0].path == "/api/v1/query_range"
    query = dict(asked[0].params)
    assert query["query"] == '{__name__=~"(sglang|vllm)[:_].+",instance="gpu7:30000"}'
    assert float(query["end"]) - float(query["start"]) == pytest.approx(1800.0)
    assert float(query["step"]) == pytest.approx(150.0)


def test_a_refusal_is_told() -> None:
    client = Client("http://x", transport=httpx.MockTransport(lambda request: httpx.Response(422)))
    with pytest.raises(UsageError, match="status 422"):
        range_of(client, selector="", last=60.0, redaction=Redaction())
