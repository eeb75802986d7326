// Arithmetic on two halves of a register.
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>

namespace caovan {

__device__ __forceinline__ uint32_t sub2(uint32_t a, uint32_t b) {
  __half2 r = __hsub2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
  return *reinterpret_cast<uint32_t*>(&r);
}

// The fp8 e4m3 in the low bytes of both halves of x, as halves 2^-8 as large: exact, subnormals too.
__device__ __forceinline__ uint32_t low_fp8(uint32_t x) { return (x << 7 & 0x3f803f80u) | (x << 8 & 0x80008000u); }

// The same of the high bytes.
__device__ __forceinline__ uint32_t high_fp8(uint32_t x) { return (x >> 1 & 0x3f803f80u) | (x & 0x80008000u); }

constexpr float kFp8Unit = 256.f;  // what a converted fp8 is to be multiplied by

}  // namespace caovan
