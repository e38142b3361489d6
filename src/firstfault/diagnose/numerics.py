"""Variables by which libraries compute with fewer bits than a dtype has.

rounding({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"})  →  [("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")]
"""

from __future__ import annotations

from collections.abc import Mapping

ROUNDING = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": ("1",), "TRITON_F32_DEFAULT": ("tf32", "tf32x3")}
"""By name, the values with which they do; torch's is read by ATen, before any code of the user's."""

NUMERICS = (*ROUNDING, "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "TORCH_BLAS_PREFER_CUBLASLT")
"""Those that a difference in values between two runs may come from."""


def rounding(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Those that are set so."""
    return [(name, environment[name]) for name, values in ROUNDING.items() if environment.get(name) in values]
