// gdn_chunk_prepare: T, P and the decay scalars of every chunk (theory and record: gdn_chunk.cuh).
//
// Grid (chunk slots, key heads), 4 warps. K K^T and Q K^T are made once a key head on tensor cores
// (warps 0, 1: K rows 0-15, 16-31; warps 2, 3: Q rows; tiles above the diagonal are skipped) and
// serve all value heads of the group, one warp a value head: lane i holds token i's gates, lane j
// owns column j of (I + A)^-1 and solves it by forward substitution in fp32, A read from shared
// memory as broadcasts. Nothing but the finished T and P is rounded to fp16.
//
// Rows past the end of a sequence are zero in K and Q and have g = beta = 0: T and P get zeros.
//
// Shared memory 24.5 KiB: K and Q tiles 16 KiB (reused for A, 4 KiB a warp), products 8.3 KiB.
// Modelled on an RTX 2080 Ti (card_model): two blocks an SM take 21,500 cycles, 26 ns a token and layer
// with 24 value and 8 key heads of 128; the load units are 60 % busy, with the two-byte stores of T and P
// first, memory 54 %.
#include "gates.cuh"
#include "gdn_chunk.cuh"
#include "kernels.h"
#include "ptx.cuh"
#include "status.h"

namespace caovan {
namespace chunk_prepare {  // named, not anonymous: anonymous names hold a hash of the build folder

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr float kLog2e = 1.4426950408889634f;

__device__ __forceinline__ float load_g(const caovan_gdn_prefill_args& p, int64_t token, int head) {
  if (!(p.flags & CAOVAN_GDN_GATES)) return static_cast<const float*>(p.g)[token * p.g_stride + head];
  return gate_log_decay(__half2float(static_cast<const __half*>(p.g)[token * p.g_stride + head]), p.a_log[head],
                        load_dt_bias(p.dt_bias, p.flags & CAOVAN_GDN_DT_BIAS_HALF, head));
}

__device__ __forceinline__ float load_beta(const caovan_gdn_prefill_args& p, int64_t token, int head) {
  if (!(p.flags & CAOVAN_GDN_GATES)) return static_cast<const float*>(p.beta)[token * p.beta_stride + head];
  return gate_beta(__half2float(static_cast<const __half*>(p.beta)[token * p.beta_stride + head]));
}

// Stage one [32, D] tile, zero past `valid`; rnorm[row] = 1 / |row| when `normalise`, else 1.
template <int D>
__device__ __forceinline__ void stage_tile(char* tile, float* rnorm, const __half* rows, int64_t stride, int valid,
                                           bool normalise) {
  constexpr int kUnits = D / 8;
#pragma unroll
  for (int i = threadIdx.x; i < kChunk * kUnits; i += kThreads) {
    const int row = i / kUnits, unit = i % kUnits;
    uint4 x = make_uint4(0, 0, 0, 0);
    if (row < valid) x = *reinterpret_cast<const uint4*>(rows + row * stride + unit * 8);
    *reinterpret_cast<uint4*>(tile + tile_offset<D>(row, unit)) = x;
    float sum = 0.f;
    const __half2* h = reinterpret_cast<const __half2*>(&x);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 f = __half22float2(h[e]);
      sum += f.x * f.x + f.y * f.y;
    }
#pragma unroll
    for (int offset = kUnits / 2; offset; offset >>= 1) sum += __shfl_xor_sync(~0u, sum, offset);
    if (unit == 0) rnorm[row] = normalise ? rsqrtf(sum + kL2NormEps) : 1.f;
  }
}

// products[row][column] = rows of `left` times rows of K, for 16 rows; columns past the diagonal
// blocks are left alone.
template <int D>
__device__ __forceinline__ void multiply(float (*products)[kChunk + 1], uint32_t left, uint32_t k_tile, int row0) {
  const int lane = threadIdx.x % 32;
  const int tiles = row0 / 8 + 2;
  float c[4][4] = {};
#pragma unroll
  for (int unit = 0; unit < D / 8; unit += 2) {
    uint32_t a[4], b0[4], b1[4];
    ldmatrix_x4(a, left + tile_offset<D>(row0 + lane % 16, unit + lane / 16));
    ldmatrix_x4(b0, k_tile + tile_offset<D>(lane, unit));
    ldmatrix_x4(b1, k_tile + tile_offset<D>(lane, unit + 1));
#pragma unroll
    for (int n = 0; n < 4; ++n)
      if (n < tiles) {
        mma_m16n8k8(c[n], a[0], a[1], b0[n]);
        mma_m16n8k8(c[n], a[2], a[3], b1[n]);
      }
  }
#pragma unroll
  for (int n = 0; n < 4; ++n)
    if (n < tiles) {
      const int row = row0 + lane / 4, column = n * 8 + lane % 4 * 2;
      products[row][column] = c[n][0];
      products[row][column + 1] = c[n][1];
      products[row + 8][column] = c[n][2];
      products[row + 8][column + 1] = c[n][3];
    }
}

template <int D>
__global__ void __launch_bounds__(kThreads) chunk_prepare_kernel(caovan_gdn_prefill_args p, char* workspace) {
  __shared__ __align__(16) char tiles[kWarps * kChunk * kChunk * 4];  // K, Q; later A of each warp
  __shared__ float products[2][kChunk][kChunk + 1];                   // K K^T, Q K^T
  __shared__ float rnorm[2][kChunk];                                  // of K, of Q
  __shared__ int found_seq;
  static_assert(2 * kChunk * D * 2 <= sizeof tiles, "K and Q fit");

  const int slot = blockIdx.x, k_head = blockIdx.y;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  if (threadIdx.x == 0) found_seq = -1;
  __syncthreads();
  for (int n = threadIdx.x; n < p.sequences; n += kThreads)
    if (chunk_slot(p.cu_seqlens[n], n) <= slot && slot < chunk_slot(p.cu_seqlens[n + 1], n + 1)) found_seq = n;
  __syncthreads();
  if (found_seq < 0) return;
  const int begin = p.cu_seqlens[found_seq];
  const int64_t token0 = begin + int64_t(slot - chunk_slot(begin, found_seq)) * kChunk;
  const int valid = min(int64_t(kChunk), p.cu_seqlens[found_seq + 1] - token0);
  if (valid <= 0) return;

  char* const k_tile = tiles;
  char* const q_tile = tiles + kChunk * D * 2;
  const bool normalise = p.flags & CAOVAN_GDN_L2NORM;
  stage_tile<D>(k_tile, rnorm[0], static_cast<const __half*>(p.k) + token0 * p.k_stride + k_head * D, p.k_stride,
                valid, normalise);
  stage_tile<D>(q_tile, rnorm[1], static_cast<const __half*>(p.q) + token0 * p.q_stride + k_head * D, p.q_stride,
                valid, normalise);
  __syncthreads();
  multiply<D>(products[warp / 2], shared_address(warp / 2 ? q_tile : k_tile), shared_address(k_tile), warp % 2 * 16);
  __syncthreads();

  float(*const a)[kChunk] = reinterpret_cast<float(*)[kChunk]>(tiles + warp * kChunk * kChunk * 4);
  const int group = p.v_heads / p.k_heads;
  const float k_rnorm = rnorm[0][lane], q_rnorm = rnorm[1][lane];
  for (int member = warp; member < group; member += kWarps) {
    const int head = k_head * group + member;
    const bool inside = lane < valid;
    float gc = inside ? load_g(p, token0 + lane, head) * kLog2e : 0.f;
    const float beta = inside ? load_beta(p, token0 + lane, head) : 0.f;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
      const float before = __shfl_up_sync(~0u, gc, offset);
      if (lane >= offset) gc += before;
    }
    const float gc_last = __shfl_sync(~0u, gc, 31);

    char* const record = workspace + (int64_t(slot) * p.v_heads + head) * kRecordBytes;
    float* const scalars = reinterpret_cast<float*>(record + kRecordScalars);
    const float decay = ex2(gc);
    const float k_scale = __int_as_float(__float_as_int(k_rnorm) & 0x7f800000), r = k_rnorm / k_scale;
    scalars[lane] = decay * r;
    scalars[kChunk + lane] = decay * q_rnorm * p.scale;
    scalars[2 * kChunk + lane] = ex2(gc_last - gc) * r;
    scalars[3 * kChunk + lane] = ex2(gc_last);
    reinterpret_cast<float*>(record + kRecordKScale)[lane] = k_scale;

    const float row_k = beta * k_rnorm, row_q = q_rnorm * p.scale;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const float gc_i = __shfl_sync(~0u, gc, i);
      const float e = lane <= i ? ex2(gc_i - gc) * k_rnorm : 0.f;
      const float row_k_i = __shfl_sync(~0u, row_k, i), row_q_i = __shfl_sync(~0u, row_q, i);
      a[i][lane] = lane < i ? e * row_k_i * products[0][i][lane] : 0.f;
      const float pij = lane <= i ? e * row_q_i * products[1][i][lane] : 0.f;
      *reinterpret_cast<__half*>(record + kRecordP + square_offset(i, lane / 8) + lane % 8 * 2) = __float2half_rn(pij);
    }
    __syncwarp();

    float t[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      float even = lane == i ? 1.f : 0.f, odd = 0.f;
#pragma unroll
      for (int m = 0; m < i; m += 4) {
        const float4 row = *reinterpret_cast<const float4*>(&a[i][m]);
        even -= row.x * t[m];
        if (m + 1 < i) odd -= row.y * t[m + 1];
        if (m + 2 < i) even -= row.z * t[m + 2];
        if (m + 3 < i) odd -= row.w * t[m + 3];
      }
      t[i] = even + odd;
      *reinterpret_cast<__half*>(record + kRecordT + square_offset(i, lane / 8) + lane % 8 * 2) =
          __float2half_rn(t[i] * beta);
    }
    __syncwarp();
  }
}

template <int D>
int load() {
  cudaFuncAttributes attributes;
  return check_cuda(cudaFuncGetAttributes(&attributes, chunk_prepare_kernel<D>), "load gdn_chunk_prepare");
}

}  // namespace chunk_prepare

int chunk_prepare_load() {
  const int status = chunk_prepare::load<64>();
  return status ? status : chunk_prepare::load<128>();
}

int chunk_prepare_launch(const caovan_gdn_prefill_args& p, void* workspace, cudaStream_t stream) {
  const dim3 grid(chunk_slots(p.tokens, p.sequences), p.k_heads);
  auto* const kernel = p.head_k_dim == 64 ? chunk_prepare::chunk_prepare_kernel<64> : chunk_prepare::chunk_prepare_kernel<128>;
  kernel<<<grid, chunk_prepare::kThreads, 0, stream>>>(p, static_cast<char*>(workspace));
  return check_cuda(cudaGetLastError(), "launch gdn_chunk_prepare");
}

}  // namespace caovan
