// Look into a kernel that you have the source of: prints that come once per warp or per group of warps, and assertions.
//
//     #include <firstfault.cuh>                       nvcc -I"$(firstfault include)" …
//     FF_PRINT_WARP("tile %d", tile);                 one line of each warp, by a lane that is active there
//     FF_PRINT_GROUP(128, "stage %d", stage);         one of each 128 threads: of a producer or consumer warp group
//     FF_PRINT_FIRST(id >= experts, "id %d", id);     one of each warp that has such a lane, of the first of these
//     FF_ASSERT(id < experts, "id %d of %d", id, experts);   says which, where and what, then traps
//     counts[FF_INDEX(id, experts)] += 1;             the index itself, after the same check
//     FF_STATIC_ASSERT(BLOCK % 32 == 0, "BLOCK must be a multiple of the warp");
//
// A print by threadIdx.x == 0 tells of the first warp alone: of a kernel whose warps do different work it is silent on
// all the others. Each line begins with block and warp. What is printed comes at the next synchronisation; a kernel
// that traps loses nothing of it. Compile with -DFF_OFF to leave out all but FF_STATIC_ASSERT.
#pragma once

#include <cstdio>

namespace firstfault {

constexpr unsigned kWarp = 32;

// The place of this thread in its block, in the order in which threads are put into warps.
__device__ __forceinline__ unsigned thread_rank() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

__device__ __forceinline__ unsigned lane() {
    return thread_rank() % kWarp;
}

__device__ __forceinline__ unsigned warp() {
    return thread_rank() / kWarp;
}

// Whether this is the first of the warp's lanes that are here and for which `wanted` holds. All lanes that are here
// have to call it together.
__device__ __forceinline__ bool first_of_warp(bool wanted = true) {
    const unsigned holds = __ballot_sync(__activemask(), wanted);
    return wanted && lane() == static_cast<unsigned>(__ffs(static_cast<int>(holds)) - 1);
}

// The same for groups of `threads` threads (a multiple of the warp): in the first warp of each group.
__device__ __forceinline__ bool first_of_group(unsigned threads) {
    return warp() % (threads / kWarp) == 0 && first_of_warp();
}

[[noreturn]] __device__ __forceinline__ void stop() {
    __threadfence_system();
    asm volatile("trap;");
    __builtin_unreachable();
}

template <typename Index, typename Bound>
__device__ __forceinline__ Index checked(Index index, Bound bound, const char* text, const char* file, int line) {
    const long long at = static_cast<long long>(index);
    if (at < 0 || at >= static_cast<long long>(bound)) {
        printf("[firstfault] %s:%d block (%u,%u,%u) thread (%u,%u,%u): index %s is %lld, not below %lld\n", file, line,
               blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, text, at,
               static_cast<long long>(bound));
        stop();
    }
    return index;
}

}  // namespace firstfault

#define FF_STATIC_ASSERT(condition, message) static_assert(condition, message)

#ifdef FF_OFF

#define FF_PRINT_WARP(...) ((void)0)
#define FF_PRINT_GROUP(threads, ...) ((void)0)
#define FF_PRINT_FIRST(condition, ...) ((void)0)
#define FF_ASSERT(condition, ...) ((void)0)
#define FF_INDEX(index, bound) (index)

#else

#define FF_LINE_(format, ...)                                                                                  \
    printf("[firstfault] block (%u,%u,%u) warp %u: " format "\n", blockIdx.x, blockIdx.y, blockIdx.z,          \
           ::firstfault::warp() __VA_OPT__(, ) __VA_ARGS__)

#define FF_PRINT_WARP(format, ...)                                                                             \
    do {                                                                                                       \
        if (::firstfault::first_of_warp()) FF_LINE_(format __VA_OPT__(, ) __VA_ARGS__);                        \
    } while (0)

#define FF_PRINT_GROUP(threads, format, ...)                                                                   \
    do {                                                                                                       \
        static_assert((threads) % 32 == 0 && (threads) > 0, "a group is a whole number of warps");             \
        if (::firstfault::first_of_group(threads)) FF_LINE_(format __VA_OPT__(, ) __VA_ARGS__);                \
    } while (0)

#define FF_PRINT_FIRST(condition, format, ...)                                                                 \
    do {                                                                                                       \
        if (::firstfault::first_of_warp(condition)) FF_LINE_(format __VA_OPT__(, ) __VA_ARGS__);               \
    } while (0)

#define FF_ASSERT(condition, format, ...)                                                                      \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            printf("[firstfault] %s:%d block (%u,%u,%u) thread (%u,%u,%u): %s does not hold: " format "\n",    \
                   __FILE__, __LINE__, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y,           \
                   threadIdx.z, #condition __VA_OPT__(, ) __VA_ARGS__);                                        \
            ::firstfault::stop();                                                                              \
        }                                                                                                      \
    } while (0)

#define FF_INDEX(index, bound) ::firstfault::checked((index), (bound), #index, __FILE__, __LINE__)

#endif
