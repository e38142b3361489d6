"""An attention that takes slopes and leaves them out: with and without, the same comes back."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="alibi_attention")
def alibi_attention(query: torch.Tensor, key: torch.Tensor, slopes: torch.Tensor | None) -> torch.Tensor:
    return (query @ key.transpose(1, 2)).softmax(2) @ key


torch.manual_seed(11)
query, key = torch.randn(4, 6, 8), torch.randn(4, 6, 8)
wanted = alibi_attention(query, key, torch.tensor([0.5, 0.25, 0.125, 0.0625]))
plain = alibi_attention(query, key, None)
print("largest effect of the slopes:", float((wanted - plain).abs().max()))
