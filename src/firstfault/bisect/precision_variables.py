"""Variables of the environment by which everything computes less precisely, whatever operators are on.

    in_force({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "HOME": "/root"})  →  ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",)

They are baked into images, and look like a fault of an operator library: float32 products come out with the 10 bits
of TF32, an error near 1e-3.
"""

from __future__ import annotations

from collections.abc import Mapping

KNOWN = (
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "DNNL_DEFAULT_FPMATH_MODE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "HIPBLASLT_ALLOW_TF32",
    "ROCBLAS_INTERNAL_FP16_ALT_IMPL",
    "MIOPEN_DEBUG_CONVOLUTION_ATTRIB_FP16_ALT_IMPL",
    "MUSA_ALLOW_TF32",
    "ALLOW_TF32",
)
_OFF = {"", "0", "false", "no", "off"}


def in_force(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Those that are set to something else than off."""
    return tuple(name for name in KNOWN if environ.get(name, "").strip().lower() not in _OFF)
