"""Tests that need an NVIDIA GPU; skipped where there is none."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
