"""How what is no data is described: by its ``repr``, of which these are recognised."""

from __future__ import annotations

import re

TORCHS_NAMES = ("dtype", "torch.dtype", "layout", "memory_format")
"""The types of what goes by a name of torch's own."""
DEVICE = re.compile(r"device\(type='(\w+)'(?:, index=(\d+))?\)")
OF_TORCH = re.compile(r"torch\.(\w+)")
"""A dtype, layout or memory format."""
OF_TRITON = re.compile(r"triton\.language\.(\w+)")
"""A dtype."""
