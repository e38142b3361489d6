// A token counter whose table of experts lies in shared memory: an id that is too large is an address beyond it.
#include <cuda_runtime.h>

__global__ void moe_align_block_size_kernel(const int* ids, int* counts, int tokens, int experts) {
    extern __shared__ int table[];
    for (int e = threadIdx.x; e < experts; e += blockDim.x) table[e] = 0;
    __syncthreads();
    for (int t = threadIdx.x; t < tokens; t += blockDim.x) {
        const int expert = ids[t];
        atomicAdd(&table[expert], 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += blockDim.x) counts[e] = table[e];
}

__global__ void topk_gating_softmax_kernel(const float* scores, int* ids, int tokens, int experts, int bad) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= tokens) return;
    int best = 0;
    for (int e = 1; e < experts; ++e)
        if (scores[t * experts + e] > scores[t * experts + best]) best = e;
    ids[t] = t == bad ? best + (1 << 16) : best;
}

extern "C" int topk_gating_softmax(const float* scores, int* ids, int tokens, int experts, int bad, void* stream) {
    topk_gating_softmax_kernel<<<(tokens + 127) / 128, 128, 0, static_cast<cudaStream_t>(stream)>>>(scores, ids, tokens, experts, bad);
    return static_cast<int>(cudaGetLastError());
}

extern "C" int moe_align_block_size(const int* ids, int* counts, int tokens, int experts, void* stream) {
    const size_t shared = experts * sizeof(int);
    moe_align_block_size_kernel<<<1, 256, shared, static_cast<cudaStream_t>(stream)>>>(ids, counts, tokens, experts);
    return static_cast<int>(cudaGetLastError());
}
