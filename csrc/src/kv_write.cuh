// Keys and values of new tokens into a paged cache: rotation, scale, zero point and packing at once.
//
// A warp takes one row, K or V of a token and KV head; lane l has dimensions l D/32 to (l + 1) D/32.
// vLLM's rounding: half away from zero, of the scaled value plus the zero point.
#pragma once
#include <cuda_fp16.h>

#include "caovan_sm75.h"
#include "hadamard.cuh"
#include "ptx.cuh"

namespace caovan {
namespace kv_write {

constexpr int kWarps = 4;

__device__ __forceinline__ int rounded(float x, int least, int most) {
  return min(max(int(x >= 0.f ? x + 0.5f : x - 0.5f), least), most);
}

// x as fp8 e4m3: nearest, ties to even, saturated.
__device__ __forceinline__ uint32_t to_fp8(float x) {
  const float size = fminf(fabsf(x), 448.f);
  const uint32_t bits = __float_as_uint(size), sign = __float_as_uint(x) >> 24 & 128u;
  const uint32_t normal = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3);  // exponents' biases: 127, 7
  return sign | (size < 0.015625f ? uint32_t(__float2int_rn(size * 512.f)) : normal);
}

__device__ __forceinline__ float half_of_pair(const uint32_t* pairs, int i) {
  const __half2 pair = *reinterpret_cast<const __half2*>(&pairs[i / 2]);
  return i % 2 ? __high2float(pair) : __low2float(pair);
}

template <int Format, int D>
__global__ void __launch_bounds__(kWarps * 32) write_kernel(caovan_kv_write_args p) {
  constexpr int N = D / 32;
  const int lane = threadIdx.x % 32, row = blockIdx.x * kWarps + threadIdx.x / 32;
  const int token = row / (2 * p.kv_heads), head = row / 2 % p.kv_heads;
  const bool value = row % 2;
  if (token >= p.tokens) return;
  const int64_t slot = p.slots[token];
  if (slot < 0) return;
  const __half* from = static_cast<const __half*>(value ? p.v : p.k) + token * (value ? p.v_stride : p.k_stride) +
                       head * D + lane * N;
  const int64_t block = slot / p.block_size;
  const int64_t at = block * p.block_stride + (slot - block * p.block_size) * p.token_stride + head * p.head_stride;
  char* const to = static_cast<char*>(value ? p.v_cache : p.k_cache) + at;

  uint32_t pairs[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) pairs[i] = reinterpret_cast<const uint32_t*>(from)[i];
  if constexpr (Format == CAOVAN_KV_HALF) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) reinterpret_cast<uint32_t*>(to)[lane * (N / 2) + i] = pairs[i];
  } else if constexpr (Format == CAOVAN_KV_FP8) {
    const float scale = *static_cast<const float*>(value ? p.v_scale : p.k_scale);
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      uint32_t word = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) word |= to_fp8(half_of_pair(pairs, i + j) / scale) << (8 * j);
      reinterpret_cast<uint32_t*>(to)[lane * (N / 4) + i / 4] = word;
    }
  } else {
    float x[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      x[i] = half_of_pair(pairs, i);
      if (Format == CAOVAN_KV_INT4) x[i] *= p.signs[lane * N + i];
    }
    if (Format == CAOVAN_KV_INT4) hadamard<32>(x, lane);
    float least = x[0], most = x[0];
#pragma unroll
    for (int i = 1; i < N; ++i) {
      least = fminf(least, x[i]);
      most = fmaxf(most, x[i]);
    }
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) {
      least = fminf(least, __shfl_xor_sync(~0u, least, mask));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
    }
    const float span = Format == CAOVAN_KV_INT4 ? (most - least) / 15.f : fmaxf(most, -least) / 127.f;
    const float scale = fmaxf(span, 1e-6f), inverse = 1.f / scale;
    uint32_t word = 0, high_word = 0, bits = __float_as_uint(scale);
    if (Format == CAOVAN_KV_INT4) {
      const int zero = rounded(-least / scale, 0, 15);
      bits = (bits & ~15u) | uint32_t(zero);
#pragma unroll
      for (int i = 0; i < N; ++i) word |= uint32_t(rounded(x[i] * inverse + float(zero), 0, 15)) << (4 * i);
      if (N == 8)
        reinterpret_cast<uint32_t*>(to)[lane] = word;
      else
        reinterpret_cast<uint16_t*>(to)[lane] = uint16_t(word);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i)
        (i < 4 ? word : high_word) |= uint32_t(rounded(x[i] * inverse, -128, 127) & 255) << (8 * (i % 4));
      reinterpret_cast<uint32_t*>(to)[lane * (N / 4)] = word;
      if (N == 8) reinterpret_cast<uint32_t*>(to)[lane * 2 + 1] = high_word;
    }
    if (lane == 0) *reinterpret_cast<uint32_t*>(static_cast<char*>(value ? p.v_scale : p.k_scale) + at) = bits;
  }
}

}  // namespace kv_write
}  // namespace caovan
