// Chunked Gated DeltaNet: what the two kernels of gdn_prefill share.
//
// Theory. With gc_i the log decay summed inside a chunk of C = 32 tokens and S the state before it,
//     A_ij = beta_i e^(gc_i - gc_j) k_i.k_j  (j < i)        T = (I + A)^-1 diag(beta)
//     P_ij = scale e^(gc_i - gc_j) q_i.k_j   (j <= i)
//     X  = V - diag(e^gc) K S^T       V' = T X
//     O  = scale diag(e^gc) Q S^T + P V'
//     S <- e^(gc_C) S + V'^T diag(e^(gc_C - gc)) K
// T and P do not depend on S: gdn_chunk_prepare makes them for all chunks at once, gdn_chunk_scan
// walks the chunks. Only e^(gc_i - gc_j) with i >= j is formed, so nothing overflows.
//
// Why C = 32: K S, Q S and K^T V' cost the same for every C; T X and P V' grow with C, the number
// of sequential steps and of fp16 roundings of S falls with it. 32 fits two stages in 64 KiB.
//
// Chunk slots. Sequence n owns slots floor(cu[n] / 32) + n, ...: room for ceil(len / 32) of them
// whatever the lengths, so both kernels find their chunk from cu_seqlens alone, without a scan,
// a chunk list or the host. There are floor(tokens / 32) + sequences slots.
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>

namespace caovan {

constexpr int kChunk = 32;

// One record a (chunk slot, value head); gdn_chunk_scan stages all but the last array as it lies.
//   T, P     fp16 [32 rows i][32 columns j], 16-byte unit u of row i at u ^ ((i >> 1) & 3)
//   scalars  fp32 [4][32]: e^gc r, scale e^gc / |q|, e^(gc_C - gc) r, e^(gc_C) (the first only)
//   k_scale  fp32 [32]: a power of two, and 1 / |k| = k_scale r with 1 <= r < 2
// With CAOVAN_GDN_L2NORM the norms are folded in: gdn_chunk_scan multiplies K by k_scale, exactly,
// as it stages it, so that neither r V' nor a row of K can leave the range of fp16. Without the
// flag |k| = |q| = 1.
constexpr int kTBytes = kChunk * kChunk * 2;
constexpr int kRecordT = 0, kRecordP = kTBytes, kRecordScalars = 2 * kTBytes;
constexpr int kRecordStaged = kRecordScalars + 4 * kChunk * 4, kRecordKScale = kRecordStaged;
constexpr int kRecordBytes = kRecordKScale + kChunk * 4;

__host__ __device__ inline int chunk_slot(int cu_seqlen, int seq) { return cu_seqlen / kChunk + seq; }
__host__ __device__ inline int chunk_slots(int tokens, int sequences) { return tokens / kChunk + sequences; }

// K and Q tiles in shared memory: fp16 [32 tokens][D], 16-byte unit u of row i at u ^ (i & 7), so
// that ldmatrix reads 8 rows without bank conflicts. V tiles the same, 64 wide.
template <int D>
__device__ __forceinline__ int tile_offset(int row, int unit) {
  return row * D * 2 + ((unit ^ (row & 7)) << 4);
}

__device__ __forceinline__ int square_offset(int row, int unit) {
  return row * kChunk * 2 + ((unit ^ ((row >> 1) & 3)) << 4);
}

}  // namespace caovan
