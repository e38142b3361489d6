"""Log-probabilities of every token of a long prompt, over a vocabulary that was padded: more than any machine has."""

import torch

from firstfault import debug_kernel_api

VOCABULARY = 151_936


@debug_kernel_api(op_name="gather_hidden")
def gather_hidden(tokens: int) -> torch.Tensor:
    return torch.zeros(tokens, 8, dtype=torch.float16)


@debug_kernel_api(op_name="prompt_logprobs")
def prompt_logprobs(hidden: torch.Tensor, vocabulary: int) -> torch.Tensor:
    padded = -(-vocabulary // 256) * 256
    return torch.empty(-(-hidden.shape[0] // 64) * 64, padded, dtype=torch.float32)


for tokens in (12, 90, 7_000_001):
    prompt_logprobs(gather_hidden(tokens), VOCABULARY)
