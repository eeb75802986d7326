// Decode and verification attention over a paged KV cache: what its kernels share.
//
// The keys of a sequence are split into segments; a CTA takes one segment of one KV head for up to
// 32 query rows (token x query head of the group), and leaves an unnormalised output, a maximum and
// a sum for each row. attention_combine.cu puts segments together. An extension of a sequence has more
// rows than a CTA takes, and as many CTAs for each segment as they need.
//
// A warp owns eight rows, for all dimensions: scores, maxima and output stay in its registers, and
// warps meet only where a tile of the cache is staged. Everything is transposed, S^T = K Q^T and
// O^T = V^T P^T, so that eight rows fill the narrow side of the tensor cores' tiles: five tokens of
// six heads take 32 rows, one token 8. With at most 16 rows two pairs of warps share a tile's keys.
//
// Packed caches stay packed in shared memory. Keys: ldmatrix loads 8 keys x 16 bytes as the A of an
// integer product; a query row is 16 bits of fixed point, so a score is two exact int8 products.
// Values: ldmatrix.trans takes 16 bits as an element (4 nibbles or 2 bytes of one key) and returns two
// neighbouring keys in a register; masking nibbles into the mantissa of 1024 gives half2 of the two
// keys, and subtracting 1024 + zero point is exact. The value's scale joins the weight, in its
// exponent: weights are 2^(score + log2(scale) - reference), so that fp16 holds them whatever the scale.
#pragma once
#include <cuda_fp16.h>

#include "caovan_sm75.h"
#include "hadamard.cuh"
#include "halves.cuh"
#include "ptx.cuh"

namespace caovan {
namespace attention {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kMaxSegments = 256;
constexpr int kMaxTokens = 512;  // of a sequence; prefill attention is faster long before
constexpr float kNone = -1e30f;  // the reference of a row that has seen no key: finite, so no NaN
constexpr float kLog2E = 1.4426950408889634f;

enum Format { kHalf = CAOVAN_KV_HALF, kInt8 = CAOVAN_KV_INT8, kInt4 = CAOVAN_KV_INT4, kFp8 = CAOVAN_KV_FP8 };

// Whether each key and each value has a scale of its own.
template <Format F>
constexpr bool kScaled = F == kInt8 || F == kInt4;

// CTAs a multiprocessor. Three at head size 256 leave 168 registers: fp16 would spill, and a product
// waits until the one before has released its operands. On an H200 that made int4, and int8 with 32
// rows, 5 to 23 % slower; int8 with fewer rows gained 11 %.
constexpr int resident(Format format, int head_dim, int groups) {
  return head_dim == 128 || (format == kInt8 && groups < 4) ? 3 : 2;
}

// The dimension of element `at` of a partial output. A lane stores its D / 8 values in a row.
template <Format F, int D>
__device__ __forceinline__ int dimension(int at) {
  const int lane = at / (D / 8), i = at % (D / 8), high = i % 2, tile = i / 2;
  if (F == kInt4) return tile / 2 * 32 + lane * 4 + tile % 2 * 2 + high;
  if (F == kInt8 || F == kFp8) return tile * 16 + lane * 2 + high;
  return tile * 16 + high * 8 + lane;
}

// What a lane loads at once. Rows with scales start on 4 bytes: records are 264 of them, or 136, 520.
template <bool Scaled>
struct Word {
  using Type = uint32_t;
};
template <>
struct Word<false> {
  using Type = uint4;
};

template <Format F, int D>
struct Shape {
  using Word = typename attention::Word<kScaled<F>>::Type;
  static constexpr int kKeys = F == kInt4 ? 32 : 16;  // a tile
  static constexpr int kStages = F == kHalf && D == 256 ? 1 : 2;
  static constexpr int kRowBytes = F == kInt4 ? D / 2 : F == kHalf ? 2 * D : D;
  static constexpr int kPitch = kRowBytes + 16;  // eight rows of 16 bytes touch all banks
  static constexpr int kRowWords = kRowBytes / int(sizeof(Word));
  static constexpr int kWarpKeys = kKeys / kWarps;                    // that a warp stages
  static constexpr int kLoads = kWarpKeys * kRowWords / 32;           // of a lane, for K and again for V
  static constexpr int kMatrices = kRowBytes / 16;                    // 8x8 of 16 bits, of 8 keys
  static constexpr int kTiles = D / 16;                               // output tiles of 16 x 8
  // Shared memory: stages of K rows, of V rows, of constants, then a ring of V zero points.
  static constexpr int kTileBytes = kKeys * kPitch;
  static constexpr int kValues = kStages * kTileBytes, kConstants = 2 * kValues;
  static constexpr int kOffsets = kConstants + kStages * kKeys * 16, kRing = 4;
  static constexpr int kShared = kScaled<F> ? kOffsets + kRing * kKeys * 2 : kConstants;
};

// One query row's dot product with a key, scaled for exp2.
template <Format F, int D>
struct Query {
  uint32_t high[D / 16], low[D / 16];  // int8 halves of fixed point, B fragments
  int sum[2];                          // of rows 2(l%4)+{0,1}: what a zero point counts
  float step[2];                       // of the same rows: value of the lowest bit, times scale and log2 e
};
template <int D>
struct Query<kHalf, D> {
  uint32_t half[D / 8];
  float step;
};
template <int D>
struct Query<kFp8, D> : Query<kHalf, D> {};

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// Row `row` of q (a lane has row l/4 of its warp) as B fragments; NULL is a row of zeros.
template <Format F, int D>
__device__ __forceinline__ void load_query(Query<F, D>& out, const caovan_attention_args& p, const __half* row,
                                           int lane) {
  constexpr int kRun = F == kInt4 ? 8 : 4;  // neighbouring dimensions of a lane
  const int quad = lane % 4;
  float x[D / 4];
#pragma unroll
  for (int c = 0; c < D / 4 / kRun; ++c) {
    const int d = (c * 4 + quad) * kRun;
#pragma unroll
    for (int i = 0; i < kRun; i += 2) {
      const __half2 pair = row ? *reinterpret_cast<const __half2*>(row + d + i) : __half2{};
      x[c * kRun + i] = __low2float(pair);
      x[c * kRun + i + 1] = __high2float(pair);
    }
    if (F == kInt4)
#pragma unroll
      for (int i = 0; i < kRun; ++i) x[c * kRun + i] *= p.signs[d + i];
  }
  // Lane l%4 has dimensions 32c + 8(l%4) + i.
  if (F == kInt4) hadamard<4>(x, lane);
  float largest = 0.f;
#pragma unroll
  for (int i = 0; i < D / 4; ++i) largest = fmaxf(largest, fabsf(x[i]));
  largest = quad_max(largest);
  constexpr float kLimit = 127 * 256;
  const float inverse = largest > 0.f ? __fdividef(kLimit, largest) : 0.f;
  int sum = 0;
#pragma unroll
  for (int f = 0; f < D / 16; ++f) {
    uint32_t high = 0, low = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // int4: the even dimensions of a run of eight, then the odd ones
      const float value = F == kInt4 ? x[f / 2 * 8 + i * 2 + f % 2] : x[f * 4 + i];
      const int fixed = __float2int_rn(value * inverse);
      const int upper = (fixed + 128) >> 8;
      sum += fixed;
      high |= uint32_t(upper & 255) << (8 * i);
      low |= uint32_t((fixed - upper * 256) & 255) << (8 * i);
    }
    out.high[f] = high;
    out.low[f] = low;
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  if (F == kInt4) sum *= 16;
  const float step = largest * (1 / kLimit) * p.scale * kLog2E * (F == kInt4 ? 1.f / (16 * D) : 1.f);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    out.sum[i] = __shfl_sync(~0u, sum, (quad * 2 + i) * 4);
    out.step[i] = __shfl_sync(~0u, step, (quad * 2 + i) * 4);
  }
}

template <int D>
__device__ __forceinline__ void load_query(Query<kHalf, D>& out, const caovan_attention_args& p, const __half* row,
                                           int lane) {
#pragma unroll
  for (int f = 0; f < D / 8; ++f)
    out.half[f] = row ? *reinterpret_cast<const uint32_t*>(row + f * 8 + lane % 4 * 2) : 0;
  out.step = p.scale * kLog2E;
}

// Of 16 dimensions a lane has four neighbours: first the even two, then the odd two.
template <int D>
__device__ __forceinline__ void load_query(Query<kFp8, D>& out, const caovan_attention_args& p, const __half* row,
                                           int lane) {
#pragma unroll
  for (int f = 0; f < D / 16; ++f) {
    const uint2 four = row ? *reinterpret_cast<const uint2*>(row + f * 16 + lane % 4 * 4) : uint2{};
    out.half[f * 2] = __byte_perm(four.x, four.y, 0x5410);
    out.half[f * 2 + 1] = __byte_perm(four.x, four.y, 0x7632);
  }
  out.step = p.scale * kLog2E * kFp8Unit * *static_cast<const float*>(p.k_scale);
}

// Where a warp reads the cache: the rows of its next keys, in the block that holds them.
template <int Keys>
struct Pages {
  const int32_t* table;
  int block, slot, block_size, entry;

  __device__ __forceinline__ Pages(const caovan_attention_args& p, int sequence, int key, int keys)
      : table(p.block_table + sequence * p.block_table_stride), block_size(p.block_size) {
    block = key / block_size;
    slot = key - block * block_size;
    entry = key < keys ? table[block] : 0;
  }
  // The entry for the tile after is loaded a tile early.
  __device__ __forceinline__ void advance(int key, int keys) {
    slot += Keys;
    const int before = block;
    while (slot >= block_size) {
      slot -= block_size;
      ++block;
    }
    if (block != before && key < keys) entry = table[block];
  }
};

// Load a warp's rows of a tile from `at`, where its first key `key` is.
template <Format F, int D>
__device__ __forceinline__ void fetch(typename Shape<F, D>::Word (&to)[Shape<F, D>::kLoads], const char* at,
                                      int token_stride, int key, int keys, int lane) {
  using S = Shape<F, D>;
  using Word = typename S::Word;
#pragma unroll
  for (int i = 0; i < S::kLoads; ++i) {
    const int n = i * 32 + lane, row = n / S::kRowWords, word = n % S::kRowWords;
    // Of rows that are no keys integers and fp8 may be anything, fp16 no NaN.
    if (F == kHalf ? key + row < keys : key < keys)
      to[i] = __ldg(reinterpret_cast<const Word*>(at + row * token_stride + word * int(sizeof(Word))));
    else if (F == kHalf)
      to[i] = Word{};
  }
}

template <Format F, int D>
__device__ __forceinline__ void stage(uint32_t shared, const typename Shape<F, D>::Word (&rows)[Shape<F, D>::kLoads],
                                      int warp, int lane) {
  using S = Shape<F, D>;
#pragma unroll
  for (int i = 0; i < S::kLoads; ++i) {
    const int n = i * 32 + lane, row = n / S::kRowWords, word = n % S::kRowWords;
    store_shared(shared + (warp * S::kWarpKeys + row) * S::kPitch + word * int(sizeof(typename S::Word)), rows[i]);
  }
}

// Of each key float4 {K scale, K zero point, log2 V scale, 1 / V scale} and the half 1024 + V zero
// point, from the scale that lane l has of key l / 2, with odd l of V. Scales of padding are zero,
// their log -inf: it weighs nothing.
template <Format F, int D>
__device__ __forceinline__ void stage_scales(uint32_t constants, uint32_t offsets, float scale, int warp, int lane) {
  if (lane >= 2 * Shape<F, D>::kWarpKeys) return;
  const uint32_t bits = __float_as_uint(scale);
  if (F == kInt4) scale = __uint_as_float(bits & ~15u);
  const int zero = F == kInt4 ? bits & 15 : 0, key = warp * Shape<F, D>::kWarpKeys + lane / 2;
  const bool value = lane % 2;
  store_shared(constants + key * 16 + (value ? 8 : 0), __float_as_uint(value ? __log2f(scale) : scale));
  store_shared(constants + key * 16 + (value ? 12 : 4),
               value ? __float_as_uint(scale > 0.f ? __fdividef(1.f, scale) : 0.f) : zero);
  if (value) store_shared(offsets + key * 2, __half_as_ushort(__int2half_rn(1024 + (F == kInt4 ? zero : 128))));
}

// Scores of a warp's keys: C fragments (key l/4, rows 2(l%4)+{0,1}), in units of log2, which the
// log of the value's scale has joined. A step takes four matrices: of integers those of eight keys,
// of floats two of each eight (of the same eight, if there is but one; of fp8 then four of it).
// int4: odd dimensions stay in the high nibble, 16 times too large, and have sums of their own.
template <Format F, int D, int Eights>
struct Scores {
  using S = Shape<F, D>;
  static constexpr int kPerEight = S::kMatrices / 4;
  static constexpr bool kOneEight = F == kFp8 && Eights == 1;
  static constexpr int kSteps = kScaled<F> ? Eights * kPerEight : S::kMatrices / (kOneEight ? 4 : 2);
  float s[Eights][2];
  uint32_t k[4];
  int high[2][2], low[2][2];
  float sum[4];

  __device__ __forceinline__ void load(uint32_t keys, int step, int lane) {
    const int row = kScaled<F> ? step / kPerEight * 8 : lane & 8 && Eights > 1 ? 8 : 0;
    const int matrix = kScaled<F>   ? step % kPerEight * 4 + lane / 8
                       : kOneEight ? step * 4 + lane / 8
                                   : step * 2 + lane / 16;
    ldmatrix_x4(k, keys + (row + lane % 8) * S::kPitch + matrix * 16);
  }

  __device__ __forceinline__ void multiply(const Query<F, D>& q, int step, int i) {
    if constexpr (F == kHalf) {
      if (step == 0 && i == 0) sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
      if (i % 2 == 0) mma_m16n8k8(sum, k[i], k[i + 1], q.half[(step * 2 + i / 2) % (D / 8)]);
    } else if constexpr (F == kFp8) {
      if (step == 0 && i == 0) sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
      if (!kOneEight && i % 2) return;
      const uint32_t a = k[i], b = kOneEight ? a : k[(i + 1) % 4];
      const int at = kOneEight ? (step * 4 + i) * 2 : step * 4 + i;
      mma_m16n8k8(sum, low_fp8(a), low_fp8(b), q.half[at % (D / 8)]);
      mma_m16n8k8(sum, high_fp8(a), high_fp8(b), q.half[(at + 1) % (D / 8)]);
    } else {
      const int m = step % kPerEight * 4 + i;
      if (m == 0) high[0][0] = high[0][1] = high[1][0] = high[1][1] = low[0][0] = low[0][1] = low[1][0] = low[1][1] = 0;
      if (F == kInt4) {
        const uint32_t even = k[i] & 0x0f0f0f0f, odd = k[i] & 0xf0f0f0f0;
        mma_u8s8(high[0], even, q.high[m * 2 % (D / 16)]);
        mma_u8s8(low[0], even, q.low[m * 2 % (D / 16)]);
        mma_u8s8(high[1], odd, q.high[(m * 2 + 1) % (D / 16)]);
        mma_u8s8(low[1], odd, q.low[(m * 2 + 1) % (D / 16)]);
      } else {
        mma_s8s8(high[m % 2], k[i], q.high[m % (D / 16)]);
        mma_s8s8(low[m % 2], k[i], q.low[m % (D / 16)]);
      }
    }
  }

  // After the last matrix of eight keys.
  __device__ __forceinline__ void finish(const Query<F, D>& q, uint32_t constants, int step, int lane) {
    if constexpr (!kScaled<F>) {
      if (step == kSteps - 1)
#pragma unroll
        for (int i = 0; i < 2 * Eights; ++i) s[i / 2][i % 2] = sum[i] * q.step;
    } else if (step % kPerEight == kPerEight - 1) {
      const int e = step / kPerEight;
      const float4 c = load_shared4(constants + (e * 8 + lane / 4) * 16);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int x;
        if (F == kInt4)  // 16 times the score's integer: at most 16 x 15 x 127 x 256 x 256 < 2^31
          x = ((high[0][i] * 16 + high[1][i]) * 256 + (low[0][i] * 16 + low[1][i])) - __float_as_int(c.y) * q.sum[i];
        else
          x = (high[0][i] + high[1][i]) * 256 + (low[0][i] + low[1][i]);
        s[e][i] = float(x) * (c.x * q.step[i]) + c.z;
      }
    }
  }
};

// The output of a warp's rows: O^T, tile t of the C fragments as `dimension` numbers them.
template <Format F, int D, int Eights>
struct Output {
  using S = Shape<F, D>;
  static constexpr int kPerEight = S::kMatrices / 4, kSteps = Eights * kPerEight;
  float acc[D / 16][4];
  uint32_t v[4], offset, offset16;

  __device__ __forceinline__ void load(uint32_t values, int step, int lane) {
    ldmatrix_x4_trans(v, values + (step / kPerEight * 8 + lane % 8) * S::kPitch + (step % kPerEight * 4 + lane / 8) * 16);
  }

  __device__ __forceinline__ void multiply(const uint32_t (&weights)[Eights], uint32_t offsets, int step, int i,
                                           int lane) {
    const int e = step / kPerEight, m = step % kPerEight * 4 + i;
    const uint32_t x = v[i], w = weights[e];
    if (kScaled<F> && m == 0) offset = load_shared(offsets + (e * 8 + lane % 4 * 2) * 2);
    if (F == kInt4) {
      if (m == 0) {  // 1024 + 16 zero points, from 1024 + zero points
        const __half2 r = __hfma2(*reinterpret_cast<__half2*>(&offset), __float2half2_rn(16.f),
                                  __float2half2_rn(-15360.f));
        offset16 = *reinterpret_cast<const uint32_t*>(&r);
      }
      constexpr uint32_t kOne = 0x000f000f, kTwo = 0x00f000f0, k1024 = 0x64006400;
      const uint32_t y = x >> 8;
      mma_m16n8k8(acc[m * 2 % (D / 16)], sub2(mask_or(x, kOne, k1024), offset), sub2(mask_or(x, kTwo, k1024), offset16),
                  w);
      mma_m16n8k8(acc[(m * 2 + 1) % (D / 16)], sub2(mask_or(y, kOne, k1024), offset),
                  sub2(mask_or(y, kTwo, k1024), offset16), w);
    } else if (F == kInt8) {
      const uint32_t y = x ^ 0x80808080u;
      mma_m16n8k8(acc[m % (D / 16)], sub2(__byte_perm(y, 0x64646464u, 0x4240), offset),
                  sub2(__byte_perm(y, 0x64646464u, 0x4341), offset), w);
    } else if (F == kFp8) {
      mma_m16n8k8(acc[m % (D / 16)], low_fp8(x), high_fp8(x), w);
    } else if (i % 2 == 0) {
      mma_m16n8k8(acc[m / 2 % (D / 16)], x, v[i + 1], w);
    }
  }
};

// Over the lanes that differ in the bits from `First` on: 4 are those of a column, 1 all of them.
template <int First>
__device__ __forceinline__ float lanes_max(float x) {
#pragma unroll
  for (int mask = First; mask < 32; mask *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
  return x;
}

template <int First>
__device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
  for (int mask = First; mask < 32; mask *= 2) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}

// Grid: (segments x row blocks, KV heads, sequences). Each CTA takes the tiles [s T / S, (s + 1) T / S).
//
// A lap multiplies the values of tile t and the keys of tile t + 1, which do not wait for each other,
// while the keys of t + 3 and the values of t + 2 are under way.
template <Format F, int D, int Groups>
__global__ void __launch_bounds__(kThreads, resident(F, D, Groups))
    attention_kernel(caovan_attention_args p, float4* statistics, __half* partial) {
  using S = Shape<F, D>;
  constexpr int kShares = kWarps / Groups;         // of a tile's keys
  constexpr int kEights = S::kKeys / 8 / kShares;  // keys of a warp, in eights
  const uint32_t shared = dynamic_shared();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int segment = blockIdx.x % p.segments, row_block = blockIdx.x / p.segments;
  const int kv_head = blockIdx.y, sequence = blockIdx.z;
  const int first = p.cu_seqlens[sequence], tokens = p.cu_seqlens[sequence + 1] - first;
  const int keys = p.kv_lengths[sequence], group = p.heads / p.kv_heads;
  if (tokens <= 0 || row_block * Groups * 8 >= tokens * group) return;

  const int row_group = warp % Groups, share = warp / Groups;
  const int row0 = (row_block * Groups + row_group) * 8;
  const int tiles = (keys + S::kKeys - 1) / S::kKeys;
  int tile = tiles * segment / p.segments;  // fits: 2^31 / 256 tiles are 100 million keys
  const int end = tiles * (segment + 1) / p.segments;

  Output<F, D, kEights> o;
#pragma unroll
  for (int t = 0; t < S::kTiles; ++t)
#pragma unroll
    for (int i = 0; i < 4; ++i) o.acc[t][i] = 0.f;
  float reference[2] = {kNone, kNone}, sum[2] = {};
  if (tile < end) {
    const int staged = warp * S::kWarpKeys;  // of a tile, what this warp stages
    const int limit = min(keys, end * S::kKeys), token_stride = int(p.token_stride);
    typename S::Word k_rows[S::kLoads], v_rows[S::kLoads];
    float scale = 0.f;
    Pages<S::kKeys> pages(p, sequence, tile * S::kKeys + staged, limit);
    int64_t at = 0, before = 0;  // where the warp's rows are, of the last tile whose keys were fetched and of the one before
    const auto fetch_keys = [&](int t) {
      const int key = t * S::kKeys + staged;
      before = at;
      at = int64_t(pages.entry) * p.block_stride + int64_t(pages.slot) * p.token_stride + kv_head * p.head_stride;
      fetch<F, D>(k_rows, static_cast<const char*>(p.k) + at, token_stride, key, limit, lane);
      if (kScaled<F>) {
        scale = 0.f;
        if (lane / 2 < S::kWarpKeys && key + lane / 2 < limit)
          scale = __ldg(reinterpret_cast<const float*>(static_cast<const char*>(lane % 2 ? p.v_scale : p.k_scale) + at +
                                                       lane / 2 * token_stride));
      }
      pages.advance(key + S::kKeys, limit);
    };
    const auto fetch_values = [&](int t, int64_t from) {
      fetch<F, D>(v_rows, static_cast<const char*>(p.v) + from, token_stride, t * S::kKeys + staged, limit, lane);
    };
    const auto stage_keys = [&](int t) {
      const int stage_of = t % S::kStages;
      stage<F, D>(shared + stage_of * S::kTileBytes, k_rows, warp, lane);
      if (kScaled<F>)
        stage_scales<F, D>(shared + S::kConstants + stage_of * S::kKeys * 16,
                           shared + S::kOffsets + t % S::kRing * S::kKeys * 2, scale, warp, lane);
    };
    const auto stage_values = [&](int t) {
      stage<F, D>(shared + S::kValues + t % S::kStages * S::kTileBytes, v_rows, warp, lane);
    };
    const auto advance = [&] {  // in the lap of `tile`
      stage_keys(tile + 2);
      stage_values(tile + 1);
      fetch_keys(tile + 3);
      fetch_values(tile + 2, before);
    };
    fetch_keys(tile);
    fetch_values(tile, at);

    Query<F, D> q;
    {
      const int row = row0 + lane / 4;
      const __half* from = row < tokens * group ? static_cast<const __half*>(p.q) + (first + row / group) * p.q_stride +
                                                      (kv_head * group + row % group) * D
                                                : nullptr;
      load_query(q, p, from, lane);
    }
    int visible[2];  // keys that rows 2(l%4)+{0,1} see
#pragma unroll
    for (int i = 0; i < 2; ++i) visible[i] = keys - tokens + 1 + min((row0 + lane % 4 * 2 + i) / group, tokens - 1);

    const int key0 = share * kEights * 8;
    Scores<F, D, kEights> scores;
    uint32_t weights[kEights];
    const auto key_rows = [&](int t) { return shared + t % S::kStages * S::kTileBytes + key0 * S::kPitch; };
    const auto constants = [&](int t) { return shared + S::kConstants + (t % S::kStages * S::kKeys + key0) * 16; };

    // From the scores of tile t to weights; sums and output follow the reference.
    const auto weigh = [&](int t) {
      float(&s)[kEights][2] = scores.s;
      if ((t + 1) * S::kKeys > keys - tokens + 1) {  // a key here is hidden from some row
#pragma unroll
        for (int e = 0; e < kEights; ++e)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            if (t * S::kKeys + key0 + e * 8 + lane / 4 >= visible[i]) s[e][i] = -INFINITY;
      }
      // The reference follows the maximum once it is 2^8 behind: fp16 holds weights up to 2^15.
      float largest[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        largest[i] = s[0][i];
#pragma unroll
        for (int e = 1; e < kEights; ++e) largest[i] = fmaxf(largest[i], s[e][i]);
        largest[i] = lanes_max<4>(largest[i]);
      }
      const bool behind[2] = {largest[0] > reference[0] + 8.f, largest[1] > reference[1] + 8.f};
      if (__any_sync(~0u, behind[0] || behind[1])) {
        float keep[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float to = behind[i] ? largest[i] : reference[i];
          keep[i] = ex2(reference[i] - to);
          reference[i] = to;
          sum[i] *= keep[i];
        }
#pragma unroll
        for (int n = 0; n < S::kTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) o.acc[n][i] *= keep[i % 2];
      }
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const float a = ex2(s[e][0] - reference[0]), b = ex2(s[e][1] - reference[1]);
        const float inverse = !kScaled<F> ? 1.f : __uint_as_float(load_shared(constants(t) + (e * 8 + lane / 4) * 16 + 12));
        sum[0] += a * inverse;
        sum[1] += b * inverse;
        weights[e] = movmatrix_trans(pack_half2(a, b));
      }
    };

    stage_keys(tile);
    stage_values(tile);
    fetch_keys(tile + 1);
    __syncthreads();
    scores.load(key_rows(tile), 0, lane);
#pragma unroll
    for (int step = 0; step < scores.kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores.multiply(q, step, i);
      if (step + 1 < scores.kSteps) scores.load(key_rows(tile), step + 1, lane);
      scores.finish(q, constants(tile), step, lane);
    }
    weigh(tile);
    if (S::kStages == 1) __syncthreads();  // all have read the keys that are to go
    stage_keys(tile + 1);
    fetch_keys(tile + 2);
    fetch_values(tile + 1, before);
    __syncthreads();
    for (; tile < end; ++tile) {
      if (S::kStages == 2) advance();
      const uint32_t values = shared + S::kValues + tile % S::kStages * S::kTileBytes + key0 * S::kPitch;
      const uint32_t offsets = shared + S::kOffsets + (tile % S::kRing * S::kKeys + key0) * 2;
      const uint32_t next_keys = key_rows(tile + 1);
      constexpr int kSteps = scores.kSteps > o.kSteps ? scores.kSteps : o.kSteps;
      o.load(values, 0, lane);
      scores.load(next_keys, 0, lane);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (step < o.kSteps) o.multiply(weights, offsets, step, i, lane);
          if (i == 3 && step + 1 < o.kSteps) o.load(values, step + 1, lane);
          if (step < scores.kSteps) scores.multiply(q, step, i);
        }
        if (step + 1 < scores.kSteps) scores.load(next_keys, step + 1, lane);
        if (step < scores.kSteps) scores.finish(q, constants(tile + 1), step, lane);
      }
      if (tile + 1 < end) weigh(tile + 1);
      __syncthreads();
      if (S::kStages == 1) {
        advance();
        __syncthreads();
      }
    }
  }

  const int rows = gridDim.x / p.segments * Groups * 8, parts = p.segments * kShares;
  const int64_t record = (int64_t(sequence * p.kv_heads + kv_head) * rows + row0) * parts + segment * kShares + share;

  // A lane has column l/4 of each tile's rows, of query rows 2(l%4)+{0,1}.
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float largest = 0.f;
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      if (F == kInt4) o.acc[t][2 + i] *= 1.f / 16;
      largest = fmaxf(largest, fmaxf(fabsf(o.acc[t][i]), fabsf(o.acc[t][2 + i])));
    }
    largest = lanes_max<4>(largest);
    sum[i] = lanes_sum<4>(sum[i]);
    const float inverse = largest > 0.f ? __fdividef(1.f, largest) : 0.f;
    const int64_t at = record + (lane % 4 * 2 + i) * parts;
    if (lane / 4 == 0) statistics[at] = make_float4(reference[i], sum[i], largest, 0.f);
    uint4* to = reinterpret_cast<uint4*>(partial + at * D + lane / 4 * (D / 8));
#pragma unroll
    for (int t = 0; t < S::kTiles; t += 4) {
      uint32_t packed[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) packed[j] = pack_half2(o.acc[t + j][i] * inverse, o.acc[t + j][2 + i] * inverse);
      to[t / 4] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
  }
}

}  // namespace attention
}  // namespace caovan
