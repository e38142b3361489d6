// header.cu CASE: prints as CASE says, or fails as it says.
#include <cstring>

#include <firstfault.cuh>

#ifdef NOT_ALIGNED
constexpr int kBlock = 100;
#else
constexpr int kBlock = 256;
#endif
FF_STATIC_ASSERT(kBlock % 32 == 0, "kBlock must be a multiple of the warp");

__global__ void prints(int block) {
    FF_PRINT_WARP("of all, %d threads", block);
    FF_PRINT_GROUP(128, "of the group");
    if (threadIdx.x % 32 >= 5) FF_PRINT_WARP("without lane 0, by lane %u", firstfault::lane());
    FF_PRINT_FIRST(threadIdx.x == 70 || threadIdx.x == 90, "thread %d", static_cast<int>(threadIdx.x));
}

__global__ void asserts(const int* ids, int experts) {
    const int id = ids[threadIdx.x];
    FF_ASSERT(id < experts, "id %d of %d", id, experts);
}

__global__ void counts(const int* ids, int* into, int experts) {
    atomicAdd(into + FF_INDEX(ids[threadIdx.x], experts), 1);
}

int main(int, char** argv) {
    int* memory;
    cudaMallocManaged(&memory, 2 * kBlock * sizeof(int));
    for (int i = 0; i < 2 * kBlock; ++i) memory[i] = i % 8;
    memory[37] = 1 << 20;
    if (!strcmp(argv[1], "prints")) prints<<<2, kBlock>>>(kBlock);
    if (!strcmp(argv[1], "assert")) asserts<<<1, kBlock>>>(memory, 8);
    if (!strcmp(argv[1], "index")) counts<<<1, kBlock>>>(memory, memory + kBlock, 8);
    const cudaError_t error = cudaDeviceSynchronize();
    printf("%s\n", cudaGetErrorName(error));
    return error == cudaSuccess ? 0 : 1;
}
