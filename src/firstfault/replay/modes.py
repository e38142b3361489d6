"""The state that a call ran in: gradients, autocast, default dtype, precision, random numbers.

with restored({"grad": false, "autocast": {"cpu": "torch.bfloat16"}, …}): function(*args)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


@contextmanager
def restored(modes: Mapping[str, Any]) -> Iterator[None]:
    """Run what is inside as it ran; what a dump does not tell is left as it is here."""
    before = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    with ExitStack() as entered:
        if "inference" in modes:
            entered.enter_context(torch.inference_mode(bool(modes["inference"])))
        if "grad" in modes and not modes.get("inference"):
            entered.enter_context(torch.set_grad_enabled(bool(modes["grad"])))
        autocast = modes.get("autocast")
        for device, dtype in autocast.items() if isinstance(autocast, dict) else ():
            entered.enter_context(torch.autocast(device, _dtype(dtype)))
        try:
            if "default_dtype" in modes:
                torch.set_default_dtype(_dtype(modes["default_dtype"]))
            if "matmul_precision" in modes:
                torch.set_float32_matmul_precision(str(modes["matmul_precision"]))
            if modes.get("deterministic") and not deterministic:
                torch.use_deterministic_algorithms(True)  # which imports the compiler: seconds
            yield
        finally:
            torch.set_default_dtype(before[0])
            torch.set_float32_matmul_precision(before[1])
            if torch.are_deterministic_algorithms_enabled() != deterministic:
                torch.use_deterministic_algorithms(deterministic)


def set_random_state(states: Mapping[str, torch.Tensor], device: str = "") -> None:
    """Set the random-number generators as they were; a device's state goes to ``device`` where that is another."""
    for name, state in states.items():
        if name == "cpu":
            torch.set_rng_state(state)
        elif torch.cuda.is_available():
            torch.cuda.set_rng_state(state, device if device.startswith("cuda") else name)


def _dtype(text: Any) -> torch.dtype:
    found = getattr(torch, str(text).removeprefix("torch."), None)
    return found if isinstance(found, torch.dtype) else torch.get_default_dtype()
