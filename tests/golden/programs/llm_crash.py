import torch
import torch.nn.functional as F
from firstfault.llm import register_custom_op

def _fake_embedding(indices, table):
    return torch.empty((*indices.shape, table.shape[-1]), device=table.device, dtype=table.dtype)

@register_custom_op(op_name='mock_llm_cuda_crash', fake_impl=_fake_embedding)
def mock_llm_cuda_crash(indices, table):
    out = F.embedding(indices, table)
    torch.cuda.synchronize()
    return out

table = torch.randn(4, 8, device='cuda', dtype=torch.float16)
indices = torch.tensor([0, 7], device='cuda', dtype=torch.long)
mock_llm_cuda_crash(indices, table)
