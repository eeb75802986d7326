// Put the segments of a query row together; undo the rotation of an int4 cache.
//
// Grid: (rows of a KV head, KV heads, sequences). Four warps add up the parts of one row, lane l the
// D / 32 elements that it can load at once; then a thread has dimensions t and t + 128 (or one).
#pragma once
#include "attention.cuh"

namespace caovan {
namespace attention {

template <Format F, int D>
__global__ void __launch_bounds__(kThreads) combine_kernel(caovan_attention_args p, const float4* statistics,
                                                           const __half* partial, int rows, int parts) {
  constexpr int kRun = D / 32;
  __shared__ float weight[kMaxSegments * 2], sums[kWarps][D], inverse_sum;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x;
  const int kv_head = blockIdx.y, sequence = blockIdx.z, group = p.heads / p.kv_heads;
  const int first = p.cu_seqlens[sequence], tokens = p.cu_seqlens[sequence + 1] - first;
  if (row >= tokens * group) return;
  const int64_t record = (int64_t(sequence * p.kv_heads + kv_head) * rows + row) * parts;

  if (warp == 0) {
    float reference = kNone, sum = 0.f;
    for (int i = lane; i < parts; i += 32) reference = fmaxf(reference, statistics[record + i].x);
    reference = lanes_max<1>(reference);
    for (int i = lane; i < parts; i += 32) {
      const float4 part = statistics[record + i];
      const float share = part.y > 0.f ? ex2(part.x - reference) : 0.f;
      weight[i] = share * part.z;
      sum += share * part.y;
    }
    sum = lanes_sum<1>(sum);
    if (lane == 0) inverse_sum = sum > 0.f ? 1.f / sum : 0.f;
  }
  __syncthreads();

  float x[kRun] = {};
  for (int i = warp; i < parts; i += kWarps) {
    const float w = weight[i];
    if (w == 0.f) continue;
    const __half2* from = reinterpret_cast<const __half2*>(partial + (record + i) * D + lane * kRun);
#pragma unroll
    for (int j = 0; j < kRun / 2; ++j) {
      const __half2 pair = from[j];
      x[2 * j] += w * __low2float(pair);
      x[2 * j + 1] += w * __high2float(pair);
    }
  }
#pragma unroll
  for (int j = 0; j < kRun; ++j) sums[warp][dimension<F, D>(lane * kRun + j)] = x[j];
  __syncthreads();

  const float unit = F == kInt4 ? 1.f / D : F == kFp8 ? kFp8Unit * *static_cast<const float*>(p.v_scale) : 1.f;
  for (int d = threadIdx.x; d < D; d += kThreads) {
    float y = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) y += sums[w][d];
    sums[0][d] = y * inverse_sum * unit;
  }
  __syncthreads();
  if (F == kInt4)
    for (int h = 1; h < D; h *= 2) {
      if (threadIdx.x < D / 2) {
        const int d = threadIdx.x / h * 2 * h + threadIdx.x % h;
        const float a = sums[0][d], b = sums[0][d + h];
        sums[0][d] = a + b;
        sums[0][d + h] = a - b;
      }
      __syncthreads();
    }
  __half* out = static_cast<__half*>(p.out) + (first + row / group) * p.out_stride + (kv_head * group + row % group) * D;
  for (int d = threadIdx.x; d < D; d += kThreads)
    out[d] = __float2half_rn(F == kInt4 ? sums[0][d] * p.signs[d] : sums[0][d]);
}

}  // namespace attention
}  // namespace caovan
