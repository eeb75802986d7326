// Logits of 1 to 16 rows x from int8 weights with a scale for each row of the vocabulary.
//
// Transposed, W x^T: 16 rows of W fill the wide side of the tensor cores' tile, 8 rows of x the narrow one.
// A CTA takes 64 rows of W; each of its four warps 64 columns of every 256, and their sums meet at the end.
// The order of columns in a sum is free, so a lane takes 16 neighbouring bytes of a row of W and the same
// columns of x: W stays row by row as it was quantised, and nothing passes through shared memory.
#pragma once
#include <cuda_fp16.h>

#include "caovan_sm75.h"
#include "halves.cuh"
#include "ptx.cuh"

namespace caovan {
namespace lm_head {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kRows = 64, kTiles = kRows / 16;  // of W, a CTA
constexpr int kColumns = 64;                    // of a warp's step
constexpr int kMaxRows = 16;                    // of x

// Four int8, two and two, as half2: a byte plus 128 in the mantissa of 1024, less 1152, is exact.
__device__ __forceinline__ void to_halves(uint32_t bytes, uint32_t& low, uint32_t& high) {
  const uint32_t shifted = bytes ^ 0x80808080u;
  constexpr uint32_t k1024 = 0x64646464, k1152 = 0x64806480;
  low = sub2(__byte_perm(shifted, k1024, 0x4140), k1152);
  high = sub2(__byte_perm(shifted, k1024, 0x4342), k1152);
}

__device__ __forceinline__ uint32_t word(const uint4& x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

template <int Eights>  // of rows of x
__global__ void __launch_bounds__(kThreads, 3) lm_head_kernel(caovan_lm_head_args p) {
  constexpr int kPitch = kRows + 4;  // a warp's sums touch all banks
  __shared__ float sums[kWarps][Eights * 8][kPitch];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // The last CTA begins earlier, and writes some of the same bits as the one before it.
  const int row0 = min(int(blockIdx.x) * kRows, p.vocabulary - kRows);
  const int column0 = warp * kColumns + lane % 4 * 16;
  const int64_t eight = p.weight_stride * 8;
  const int8_t* weight = static_cast<const int8_t*>(p.weight) + (row0 + lane / 4) * p.weight_stride + column0;
  const __half* x = static_cast<const __half*>(p.x) + lane / 4 * p.x_stride + column0;

  uint4 w[kTiles * 2], next[kTiles * 2];
  const auto fetch = [&](uint4 (&to)[kTiles * 2], int column) {
    const int8_t* from = weight + column;
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) to[i] = __ldcs(reinterpret_cast<const uint4*>(from + i * eight));
  };

  float acc[kTiles][Eights][4] = {};
  const int end = p.hidden - warp * kColumns;
  if (end > 0) fetch(next, 0);
  for (int column = 0; column < end; column += kWarps * kColumns) {
    uint4 rows[Eights][2];
#pragma unroll
    for (int e = 0; e < Eights; ++e)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        rows[e][i] = e * 8 + lane / 4 < p.rows
                         ? __ldg(reinterpret_cast<const uint4*>(x + e * 8 * p.x_stride + column + i * 8))
                         : uint4{};
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) w[i] = next[i];
    if (column + kWarps * kColumns < end) fetch(next, column + kWarps * kColumns);
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        uint32_t low[2], high[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) to_halves(word(w[t * 2 + i], j), low[i], high[i]);
#pragma unroll
        for (int e = 0; e < Eights; ++e) {
          mma_m16n8k8(acc[t][e], low[0], low[1], word(rows[e][j / 2], j % 2 * 2));
          mma_m16n8k8(acc[t][e], high[0], high[1], word(rows[e][j / 2], j % 2 * 2 + 1));
        }
      }
  }

#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int e = 0; e < Eights; ++e)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[warp][e * 8 + lane % 4 * 2 + i % 2][t * 16 + i / 2 * 8 + lane / 4] = acc[t][e][i];
  __syncthreads();
  const int row = threadIdx.x % kRows;
  const float scale = p.scale[row0 + row];
  for (int n = threadIdx.x / kRows; n < p.rows; n += kThreads / kRows) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += sums[i][n][row];
    static_cast<__half*>(p.out)[n * p.out_stride + row0 + row] = __float2half_rn(sum * scale);
  }
}

}  // namespace lm_head
}  // namespace caovan
