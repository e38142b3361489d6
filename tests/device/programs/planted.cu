// planted.cu CASE: one fault of each kind that compute-sanitizer's tools look for.
#include <cstdio>
#include <cstring>

__global__ void out_of_bounds(int* memory, int n) { memory[n + threadIdx.x] = 1; }

__global__ void far_out_of_bounds(int* memory) { memory[1ull << 34] = 1; }

__global__ void misaligned(char* memory) { *reinterpret_cast<int*>(memory + 1) = 1; }

__global__ void shared_out_of_bounds(int* memory, int n) {
    __shared__ int table[32];
    table[threadIdx.x] = 0;
    __syncthreads();
    table[n + (1 << 16)] = 1;
    memory[threadIdx.x] = table[threadIdx.x];
}

__global__ void uninitialized(const int* memory, int* out) { out[threadIdx.x] = memory[threadIdx.x]; }

__global__ void race(int* out) {
    __shared__ int total;
    if (threadIdx.x == 0) total = 0;
    total += threadIdx.x;
    out[threadIdx.x] = total;
}

__global__ void divergent_barrier(int* out) {
    if (threadIdx.x < 40) __syncthreads();
    out[threadIdx.x] = 1;
}

__device__ __noinline__ void store(int* at) { *at = 1; }

__global__ void through_a_function(int* memory, int n) { store(memory + n + threadIdx.x); }

__global__ void never_ends(volatile int* flag) {
    while (*flag == 0) {
    }
}

int main(int, char** argv) {
    const auto is = [&](const char* name) { return !strcmp(argv[1], name); };
    int *memory, *out;
    cudaMalloc(&memory, 100 * sizeof(int));
    cudaMalloc(&out, 256 * sizeof(int));
    if (!is("uninitialized")) cudaMemset(memory, 0, 100 * sizeof(int));
    if (is("out_of_bounds")) out_of_bounds<<<1, 2>>>(memory, 100);
    if (is("far_out_of_bounds")) far_out_of_bounds<<<1, 2>>>(memory);
    if (is("through_a_function")) through_a_function<<<1, 2>>>(memory, 100);
    if (is("misaligned")) misaligned<<<1, 1>>>(reinterpret_cast<char*>(memory));
    if (is("shared_out_of_bounds")) shared_out_of_bounds<<<1, 32>>>(memory, 0);
    if (is("uninitialized")) uninitialized<<<1, 32>>>(memory, out);
    if (is("race")) race<<<1, 64>>>(out);
    if (is("divergent_barrier")) divergent_barrier<<<1, 64>>>(out);
    if (is("never_ends")) never_ends<<<1, 32>>>(memory);
    if (is("api_error")) cudaMemcpy(memory, nullptr, 4, cudaMemcpyHostToDevice);
    if (is("freed")) {
        cudaFree(memory);
        out_of_bounds<<<1, 2>>>(memory, 0);
    }
    const cudaError_t error = cudaDeviceSynchronize();
    printf("%s\n", cudaGetErrorName(error));
    if (!is("leak") && !is("freed")) cudaFree(memory);
    cudaFree(out);
    return 0;
}
