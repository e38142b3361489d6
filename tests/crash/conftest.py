"""Programs that really die."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.harness import Warm


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    server = Warm()
    yield server
    server.close()
