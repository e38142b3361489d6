import torch
import torch.nn.functional as F
from firstfault.diffusion import register_custom_op

def _fake_embedding(positions, cache):
    return torch.empty((*positions.shape, cache.shape[-1]), device=cache.device, dtype=cache.dtype)

@register_custom_op(op_name='mock_diffusion_cuda_crash', fake_impl=_fake_embedding)
def mock_diffusion_cuda_crash(positions, cache):
    out = F.embedding(positions, cache)
    torch.cuda.synchronize()
    return out

cache = torch.randn(4, 64, device='cuda', dtype=torch.float16)
positions = torch.tensor([0, 9], device='cuda', dtype=torch.long)
mock_diffusion_cuda_crash(positions, cache)
