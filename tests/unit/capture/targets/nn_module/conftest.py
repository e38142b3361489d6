"""Every test of a target runs with modules recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from firstfault.capture.targets import nn_module
from tests.conftest import Record
from tests.unit.capture.targets.nn_module.modules import ORIGINAL
from tests.unit.recording import Recording


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    nn_module._names.clear()
    nn_module._fruitless = 0
    nn_module.install(torch)
    yield
    nn_module.uninstall()
    assert nn.Module.__call__ is ORIGINAL


@pytest.fixture
def recorded(record: Record) -> Recording:
    return record(3)
