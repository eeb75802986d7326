// gdn_chunk_scan: the sequential half of chunked Gated DeltaNet (theory and record: gdn_chunk.cuh).
//
// Grid (D / 64, value heads, sequences), 8 warps. Warps 0-3 compute, each 16 rows of the state
// (value dimensions) and no others; warps 4-7 stage the next chunk into the other half of shared
// memory (SM75 has no cp.async; separate warps keep the staging registers out of the computing
// ones and hide the latency). One barrier a chunk.
//
// The transposed register chain: a warp keeps S^T's 16 rows x D in fp32 accumulators. An m16n8k8
// accumulator, packed to half2, is the A operand of the next product, so in
//     X^T = V^T - e^gc (S^T K^T)    V'^T = X^T T^T    O^T = e^gc (S^T Q^T) + V'^T P^T
//     S^T = e^gc_C S^T + (e^(gc_C - gc) V'^T) K
// each left operand is already in registers, each right operand one ldmatrix away (the last K with
// .trans): S, X and V' never pass through shared memory. Rows of S^T are rows of vLLM's state
// cache [slot, head, D_v, D_k], read and written in place with 8-byte accesses.
//
// Numerics: products fp16 x fp16 with fp32 sums; S fp32 in registers, rounded to fp16 only as an
// operand; X, V' likewise; decays fp32. Relative error about 5e-4 against float64.
// Shared memory, a stage: K 8 + Q 8 + T 2 + P 2 + V 4 + scalars 0.5 = 24.5 KiB; two: 49 KiB.
//
// A chunk is 64 (K S) + 64 (Q S) + 10 (T X) + 10 (P V') + 64 (K^T V') = 212 HMMA a warp, 3,392 cycles
// of an RTX 2080 Ti's tensor cores; modelled there, 4,484 (card_model): 24 value heads of 128 (TP 2) are 192
// computing warps, each alone on its partition. TP 4 takes as long (96 partitions), TP 1 or a second
// sequence twice as long (a block fills an SM, and 96 blocks are two waves on 68).
#include "gdn_chunk.cuh"
#include "kernels.h"
#include "ptx.cuh"
#include "status.h"

namespace caovan {
namespace chunk_scan {  // named, not anonymous: anonymous names hold a hash of the build folder

constexpr int kComputeWarps = 4;
constexpr int kThreads = 2 * kComputeWarps * 32;
constexpr int kStagers = kThreads / 2;
constexpr int kRows = kComputeWarps * 16;  // state rows (value dimensions) a block

template <int D>
struct Stage {  // byte offsets in one half of shared memory
  static constexpr int kTile = kChunk * D * 2;
  static constexpr int kK = 0, kQ = kTile, kV = 2 * kTile, kRecord = kV + kChunk * kRows * 2;
  static constexpr int kBytes = kRecord + kRecordStaged;
};

template <int Units, int Threads>
struct Rows {  // one thread's 16-byte units of a [32, Units * 8] tile, in flight
  static constexpr int kCount = kChunk * Units / Threads;
  uint4 x[kCount];

  __device__ __forceinline__ void load(const __half* rows, int64_t stride, int valid, int thread) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int index = thread + i * Threads, row = index / Units, unit = index % Units;
      x[i] = make_uint4(0, 0, 0, 0);
      if (row < valid) x[i] = *reinterpret_cast<const uint4*>(rows + row * stride + unit * 8);
    }
  }

  // multiply each row by a power of two
  __device__ __forceinline__ void scale_rows(const float* scales, int thread) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const __half2 scale = __float2half2_rn(scales[(thread + i * Threads) / Units]);
      __half2* h = reinterpret_cast<__half2*>(&x[i]);
#pragma unroll
      for (int e = 0; e < 4; ++e) h[e] = __hmul2(h[e], scale);
    }
  }

  __device__ __forceinline__ void store(char* tile, int thread) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int index = thread + i * Threads;
      *reinterpret_cast<uint4*>(tile + tile_offset<Units * 8>(index / Units, index % Units)) = x[i];
    }
  }
};

// Stage one chunk: all loads are issued before the first store.
template <int D>
__device__ __forceinline__ void stage_chunk(char* stage, const __half* q, const __half* k, const __half* v,
                                            const char* record, const caovan_gdn_prefill_args& p, int valid) {
  using S = Stage<D>;
  const int thread = threadIdx.x - kStagers;
  constexpr int kRecordUnits = kRecordStaged / 16;
  Rows<D / 8, kStagers> k_rows, q_rows;
  Rows<kRows / 8, kStagers> v_rows;
  uint4 r[(kRecordUnits + kStagers - 1) / kStagers];
  k_rows.load(k, p.k_stride, valid, thread);
  q_rows.load(q, p.q_stride, valid, thread);
  v_rows.load(v, p.v_stride, valid, thread);
#pragma unroll
  for (int i = 0; i * kStagers < kRecordUnits; ++i)
    if (thread + i * kStagers < kRecordUnits) r[i] = reinterpret_cast<const uint4*>(record)[thread + i * kStagers];
  if (p.flags & CAOVAN_GDN_L2NORM) k_rows.scale_rows(reinterpret_cast<const float*>(record + kRecordKScale), thread);
  k_rows.store(stage + S::kK, thread);
  q_rows.store(stage + S::kQ, thread);
  v_rows.store(stage + S::kV, thread);
#pragma unroll
  for (int i = 0; i * kStagers < kRecordUnits; ++i)
    if (thread + i * kStagers < kRecordUnits)
      reinterpret_cast<uint4*>(stage + S::kRecord)[thread + i * kStagers] = r[i];
}

struct Accumulator {  // [16 rows, 32 tokens]
  float c[4][4] = {};

  // scale column (token) t by scalars[t]
  __device__ __forceinline__ void scale_columns(const float* scalars, int lane) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 s = *reinterpret_cast<const float2*>(scalars + n * 8 + lane % 4 * 2);
      c[n][0] *= s.x;
      c[n][1] *= s.y;
      c[n][2] *= s.x;
      c[n][3] *= s.y;
    }
  }

  __device__ __forceinline__ void pack(uint32_t (&a)[4][2]) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      a[n][0] = pack_half2(c[n][0], c[n][1]);
      a[n][1] = pack_half2(c[n][2], c[n][3]);
    }
  }

  // += left [16, 32] times the transpose of a lower triangular [32, 32] matrix in shared memory
  __device__ __forceinline__ void multiply_lower(const uint32_t (&left)[4][2], uint32_t square, int lane) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t b[4];
      ldmatrix_x4(b, square + square_offset(lane, j));
#pragma unroll
      for (int n = j; n < 4; ++n) mma_m16n8k8(c[n], left[j][0], left[j][1], b[n]);
    }
  }
};

template <int D>
__device__ __forceinline__ void compute_chunk(float (&s)[D / 8][4], const char* stage, __half* out, int64_t out_stride,
                                              int valid, int warp, int lane) {
  using L = Stage<D>;
  const uint32_t base = shared_address(stage);
  const float* const scalars = reinterpret_cast<const float*>(stage + L::kRecord + kRecordScalars);

  Accumulator x, o;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    const uint32_t a0 = pack_half2(s[n][0], s[n][1]), a1 = pack_half2(s[n][2], s[n][3]);
    uint32_t k[4], q[4];
    ldmatrix_x4(k, base + L::kK + tile_offset<D>(lane, n));
    ldmatrix_x4(q, base + L::kQ + tile_offset<D>(lane, n));
#pragma unroll
    for (int t = 0; t < 4; ++t) mma_m16n8k8(x.c[t], a0, a1, k[t]);
#pragma unroll
    for (int t = 0; t < 4; ++t) mma_m16n8k8(o.c[t], a0, a1, q[t]);
  }

  x.scale_columns(scalars, lane);
  o.scale_columns(scalars + kChunk, lane);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t v[4];
    ldmatrix_x4_trans(v, base + L::kV + tile_offset<kRows>(lane, warp * 2 + h));
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&v[t]));
      x.c[t][2 * h] = f.x - x.c[t][2 * h];
      x.c[t][2 * h + 1] = f.y - x.c[t][2 * h + 1];
    }
  }

  uint32_t left[4][2];
  x.pack(left);
  Accumulator v_new;
  v_new.multiply_lower(left, base + L::kRecord + kRecordT, lane);
  v_new.pack(left);
  o.multiply_lower(left, base + L::kRecord + kRecordP, lane);

  v_new.scale_columns(scalars + 2 * kChunk, lane);
  v_new.pack(left);
  const float decay = scalars[3 * kChunk];
#pragma unroll
  for (int n = 0; n < D / 8; n += 2) {
    uint32_t k0[4], k1[4];
    ldmatrix_x4_trans(k0, base + L::kK + tile_offset<D>(lane, n));
    ldmatrix_x4_trans(k1, base + L::kK + tile_offset<D>(lane, n + 1));
#pragma unroll
    for (int e = 0; e < 4; ++e) s[n][e] *= decay, s[n + 1][e] *= decay;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      mma_m16n8k8(s[n], left[t][0], left[t][1], k0[t]);
      mma_m16n8k8(s[n + 1], left[t][0], left[t][1], k1[t]);
    }
  }

#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const int token = t * 8 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t pair = movmatrix_trans(pack_half2(o.c[t][2 * h], o.c[t][2 * h + 1]));
      if (token < valid) *reinterpret_cast<uint32_t*>(out + token * out_stride + h * 8 + lane % 4 * 2) = pair;
    }
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads, 1) chunk_scan_kernel(caovan_gdn_prefill_args p, const char* workspace) {
  extern __shared__ __align__(16) char shared[];
  constexpr int kStage = Stage<D>::kBytes;
  const int row0 = blockIdx.x * kRows, head = blockIdx.y, seq = blockIdx.z;
  const int begin = p.cu_seqlens[seq], end = p.cu_seqlens[seq + 1];
  if (begin >= end) return;
  const int chunks = (end - begin + kChunk - 1) / kChunk;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (warp >= kComputeWarps) {
    const int k_head = head / (p.v_heads / p.k_heads);
    const __half* q = static_cast<const __half*>(p.q) + begin * p.q_stride + k_head * D;
    const __half* k = static_cast<const __half*>(p.k) + begin * p.k_stride + k_head * D;
    const __half* v = static_cast<const __half*>(p.v) + begin * p.v_stride + head * D + row0;
    const char* record = workspace + (int64_t(chunk_slot(begin, seq)) * p.v_heads + head) * kRecordBytes;
    for (int c = 0; c < chunks; ++c) {
      stage_chunk<D>(shared + (c & 1) * kStage, q, k, v, record, p, min(kChunk, end - begin - c * kChunk));
      q += kChunk * p.q_stride;
      k += kChunk * p.k_stride;
      v += kChunk * p.v_stride;
      record += int64_t(p.v_heads) * kRecordBytes;
      barrier_sync(kThreads);
    }
    return;
  }

  const int slot = p.slots ? p.slots[seq * p.slots_stride] : seq;
  const bool has_slot = slot > p.null_slot && slot < p.num_slots && slot >= 0;
  const bool has_state = p.initial_state && has_slot && (!p.has_initial_state || p.has_initial_state[seq]);
  const int64_t state_offset = (has_slot ? slot * p.state_stride : 0) +
                               (int64_t(head) * D + row0 + warp * 16 + lane / 4) * D + lane % 4 * 2;
  float s[D / 8][4];
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    float2 low = make_float2(0.f, 0.f), high = low;
    if (has_state) {
      low = *reinterpret_cast<const float2*>(p.initial_state + state_offset + n * 8);
      high = *reinterpret_cast<const float2*>(p.initial_state + state_offset + 8 * D + n * 8);
    }
    s[n][0] = low.x, s[n][1] = low.y, s[n][2] = high.x, s[n][3] = high.y;
  }

  __half* out = static_cast<__half*>(p.out) + begin * p.out_stride + head * D + row0 + warp * 16;
  for (int c = 0; c < chunks; ++c) {
    barrier_sync(kThreads);  // chunk c is staged, and every warp is done with chunk c - 1
    compute_chunk<D>(s, shared + (c & 1) * kStage, out, p.out_stride, min(kChunk, end - begin - c * kChunk), warp,
                     lane);
    out += kChunk * p.out_stride;
  }

  if (!p.final_state || !has_slot) return;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    *reinterpret_cast<float2*>(p.final_state + state_offset + n * 8) = make_float2(s[n][0], s[n][1]);
    *reinterpret_cast<float2*>(p.final_state + state_offset + 8 * D + n * 8) = make_float2(s[n][2], s[n][3]);
  }
}

template <int D>
int load() {
  return check_cuda(cudaFuncSetAttribute(chunk_scan_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         2 * Stage<D>::kBytes),
                    "give gdn_chunk_scan 49 KiB of shared memory");
}

template <int D>
int launch(const caovan_gdn_prefill_args& p, const void* workspace, cudaStream_t stream) {
  const dim3 grid(D / kRows, p.v_heads, p.sequences);
  chunk_scan_kernel<D><<<grid, kThreads, 2 * Stage<D>::kBytes, stream>>>(p, static_cast<const char*>(workspace));
  return check_cuda(cudaGetLastError(), "launch gdn_chunk_scan");
}

}  // namespace chunk_scan

int chunk_scan_load() {
  const int status = chunk_scan::load<64>();
  return status ? status : chunk_scan::load<128>();
}

int chunk_scan_launch(const caovan_gdn_prefill_args& p, const void* workspace, cudaStream_t stream) {
  return p.head_k_dim == 64 ? chunk_scan::launch<64>(p, workspace, stream) : chunk_scan::launch<128>(p, workspace, stream);
}

}  // namespace caovan
