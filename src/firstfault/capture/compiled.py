"""The way of calls in C (``crossing/``), where it was built for this Python; else None.

It is optional: without a compiler, or under another Python than the one that it was built for, all of it is done in
Python, and what is read of it is the same.
"""

from __future__ import annotations

from typing import Any

import torch

from firstfault.capture import guard, kinds, sites, tensor_words

_INTERFACE = 5
"""Of what is called here: one more whenever that changes, so that what was built before is left alone."""


def _load() -> Any:
    try:
        from firstfault.capture import _crossing as built

        words = tensor_words.found_out() if built.INTERFACE == _INTERFACE else None
        if words is None:
            return None
        built.use_torch(
            tensor=torch.Tensor,
            parameter=torch.nn.Parameter,
            words=tuple(words)[:-1],
            masks=words.masks,
            requires_grad=torch._C.TensorBase.requires_grad,
            modes=guard.function_modes,
        )
        built.use_sites(sites.told)
        built.use_kinds(kinds.told, kinds.described)
        built.use_compiler(vars(torch.compiler))
    except Exception:  # not built; or a torch in which these are something else
        return None
    return built


crossing: Any = _load()
"""The module ``_crossing``, or None."""
