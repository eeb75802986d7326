// gdn_recurrent: the recurrence a token at a time, fp32 throughout. The reference the chunked
// kernel is compared with, and the path for head sizes it does not take.
//
// One warp owns 4 rows (value dimensions) of one head's state, lane l the key dimensions l, l+32,
// ...: 4 x 8 registers for heads up to 256. Per token 2 dot products a row, each a 5-step shuffle
// reduction; every warp reads q and k itself. Grid: (rows / 16, v heads, sequences).
//
// Model, RTX 2080 Ti, 24 heads of 128: 4 FP32 instructions a state element is 234 ns a token at
// full rate on 68 SMs; the dependent chain (load, reduce, update, reduce) costs 1 us or more.
#include <cuda_fp16.h>

#include "gates.cuh"
#include "kernels.h"
#include "status.h"

namespace caovan {
namespace recurrent {  // named, not anonymous: anonymous names hold a hash of the build folder

constexpr int kRows = 4;       // state rows a warp
constexpr int kWarps = 4;      // a block
constexpr int kMaxColumns = 8; // 32-wide column groups: head_k_dim <= 256

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

__global__ void __launch_bounds__(kWarps * 32) recurrent_kernel(caovan_gdn_prefill_args p) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row0 = (blockIdx.x * kWarps + warp) * kRows;
  const int head = blockIdx.y, seq = blockIdx.z;
  const int k_head = head / (p.v_heads / p.k_heads);
  const int begin = p.cu_seqlens[seq], end = p.cu_seqlens[seq + 1];
  if (begin >= end || row0 >= p.head_v_dim) return;

  const int slot = p.slots ? p.slots[seq * p.slots_stride] : seq;
  const bool has_slot = slot > p.null_slot && slot < p.num_slots && slot >= 0;
  const bool has_state = p.initial_state && has_slot && (!p.has_initial_state || p.has_initial_state[seq]);
  const int64_t state_base =
      has_slot ? slot * p.state_stride + int64_t(head) * p.head_v_dim * p.head_k_dim : 0;

  float s[kRows][kMaxColumns];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int c = 0; c < kMaxColumns; ++c) {
      const int row = row0 + r, column = c * 32 + lane;
      const bool inside = row < p.head_v_dim && column < p.head_k_dim;
      s[r][c] = inside && has_state ? p.initial_state[state_base + row * p.head_k_dim + column] : 0.f;
    }

  for (int64_t t = begin; t < end; ++t) {
    const __half* q_row = static_cast<const __half*>(p.q) + t * p.q_stride + k_head * p.head_k_dim;
    const __half* k_row = static_cast<const __half*>(p.k) + t * p.k_stride + k_head * p.head_k_dim;
    const __half* v_row = static_cast<const __half*>(p.v) + t * p.v_stride + head * p.head_v_dim;
    float q[kMaxColumns], k[kMaxColumns], qq = 0.f, kk = 0.f;
#pragma unroll
    for (int c = 0; c < kMaxColumns; ++c) {
      const int column = c * 32 + lane;
      q[c] = column < p.head_k_dim ? __half2float(q_row[column]) : 0.f;
      k[c] = column < p.head_k_dim ? __half2float(k_row[column]) : 0.f;
      qq += q[c] * q[c];
      kk += k[c] * k[c];
    }
    float q_scale = p.scale, k_scale = 1.f;
    if (p.flags & CAOVAN_GDN_L2NORM) {
      q_scale *= rsqrtf(warp_sum(qq) + kL2NormEps);
      k_scale = rsqrtf(warp_sum(kk) + kL2NormEps);
    }
    float g, beta;
    if (p.flags & CAOVAN_GDN_GATES) {
      g = gate_log_decay(__half2float(static_cast<const __half*>(p.g)[t * p.g_stride + head]), p.a_log[head],
                         load_dt_bias(p.dt_bias, p.flags & CAOVAN_GDN_DT_BIAS_HALF, head));
      beta = gate_beta(__half2float(static_cast<const __half*>(p.beta)[t * p.beta_stride + head]));
    } else {
      g = static_cast<const float*>(p.g)[t * p.g_stride + head];
      beta = static_cast<const float*>(p.beta)[t * p.beta_stride + head];
    }
    const float decay = expf(g);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float sk = 0.f, sq = 0.f;
#pragma unroll
      for (int c = 0; c < kMaxColumns; ++c) {
        s[r][c] *= decay;
        sk += s[r][c] * k[c];
      }
      const int row = row0 + r;
      const float v = row < p.head_v_dim ? __half2float(v_row[row]) : 0.f;
      const float u = beta * (v - warp_sum(sk) * k_scale) * k_scale;
#pragma unroll
      for (int c = 0; c < kMaxColumns; ++c) {
        s[r][c] += u * k[c];
        sq += s[r][c] * q[c];
      }
      sq = warp_sum(sq) * q_scale;
      if (lane == 0 && row < p.head_v_dim)
        static_cast<__half*>(p.out)[t * p.out_stride + head * p.head_v_dim + row] = __float2half_rn(sq);
    }
  }

  if (!p.final_state || !has_slot) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int c = 0; c < kMaxColumns; ++c) {
      const int row = row0 + r, column = c * 32 + lane;
      if (row < p.head_v_dim && column < p.head_k_dim)
        p.final_state[state_base + row * p.head_k_dim + column] = s[r][c];
    }
}

}  // namespace recurrent

int recurrent_load() {
  cudaFuncAttributes attributes;
  return check_cuda(cudaFuncGetAttributes(&attributes, recurrent::recurrent_kernel), "load gdn_recurrent");
}

int recurrent_launch(const caovan_gdn_prefill_args& p, cudaStream_t stream) {
  const dim3 grid((p.head_v_dim + recurrent::kRows * recurrent::kWarps - 1) / (recurrent::kRows * recurrent::kWarps), p.v_heads, p.sequences);
  recurrent::recurrent_kernel<<<grid, recurrent::kWarps * 32, 0, stream>>>(p);
  return check_cuda(cudaGetLastError(), "launch gdn_recurrent");
}

}  // namespace caovan
