// The Hadamard transform that int4 caches are rotated by, without its factor.
#pragma once

namespace caovan {

// Of a row that `Lanes` neighbouring lanes hold, N dimensions each.
template <int Lanes, int N>
__device__ __forceinline__ void hadamard(float (&x)[N], int lane) {
#pragma unroll
  for (int h = 1; h < N; h *= 2)
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (!(i & h)) {
        const float a = x[i], b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      }
#pragma unroll
  for (int mask = 1; mask < Lanes; mask *= 2)
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float other = __shfl_xor_sync(~0u, x[i], mask);
      x[i] = lane & mask ? other - x[i] : x[i] + other;
    }
}

}  // namespace caovan
