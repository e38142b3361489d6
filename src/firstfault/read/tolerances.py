"""How near two values of a dtype must be to be the same.

torch.bfloat16  →  relative 0.016, absolute 1e-05
"""

from __future__ import annotations

TOLERANCES: dict[str, tuple[float, float]] = {
    "torch.float64": (1e-7, 1e-7),
    "torch.complex128": (1e-7, 1e-7),
    "torch.float32": (1.3e-6, 1e-5),
    "torch.complex64": (1.3e-6, 1e-5),
    "torch.float16": (1e-3, 1e-5),
    "torch.bfloat16": (1.6e-2, 1e-5),
    "torch.float8_e4m3fn": (0.125, 0.0),
    "torch.float8_e4m3fnuz": (0.125, 0.0),
    "torch.float8_e5m2": (0.25, 0.0),
    "torch.float8_e5m2fnuz": (0.25, 0.0),
}
"""Relative and absolute, as ``torch.testing.assert_close`` has them; of 8-bit floats one step. Others are exact."""
