// Arithmetic on two halves of a register.
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>

namespace caovan {

__device__ __forceinline__ uint32_t sub2(uint32_t a, uint32_t b) {
  __half2 r = __hsub2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
  return *reinterpret_cast<uint32_t*>(&r);
}

}  // namespace caovan
