// Decode and verification attention over a paged KV cache: what its kernels share.
//
// The keys of a sequence are split into segments; a CTA takes one segment of one KV head for up to
// 32 query rows (token x query head of the group), and leaves an unnormalised output, a maximum and
// a sum for each row. attention_combine.cu puts segments together.
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
#include "ptx.cuh"

namespace caovan {
namespace attention {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kResident = 3;  // CTAs a multiprocessor
constexpr int kMaxSegments = 256;
constexpr float kNone = -1e30f;  // the reference of a row that has seen no key: finite, so no NaN
constexpr float kLog2E = 1.4426950408889634f;

enum Format { kHalf = CAOVAN_KV_HALF, kInt8 = CAOVAN_KV_INT8, kInt4 = CAOVAN_KV_INT4 };

// The dimension of element `at` of a partial output. A lane stores its D / 8 values in a row.
template <Format F, int D>
__device__ __forceinline__ int dimension(int at) {
  const int lane = at / (D / 8), i = at % (D / 8), high = i % 2, tile = i / 2;
  if (F == kInt4) return tile / 2 * 32 + lane * 4 + tile % 2 * 2 + high;
  if (F == kInt8) return tile * 16 + lane * 2 + high;
  return tile * 16 + high * 8 + lane;
}

__device__ __forceinline__ uint32_t sub2(uint32_t a, uint32_t b) {
  __half2 r = __hsub2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
  return *reinterpret_cast<uint32_t*>(&r);
}

template <Format F>
struct Word {
  using Type = uint32_t;  // a packed row starts on 4 bytes: records are 264 of them, or 136, 520
};
template <>
struct Word<kHalf> {
  using Type = uint4;
};

template <Format F, int D>
struct Shape {
  using Word = typename attention::Word<F>::Type;
  static constexpr int kKeys = F == kInt4 ? 32 : 16;  // a tile
  static constexpr int kStages = F == kHalf && D == 256 ? 1 : 2;
  static constexpr int kRowBytes = F == kInt4 ? D / 2 : F == kInt8 ? D : 2 * D;
  static constexpr int kPitch = kRowBytes + 16;  // eight rows of 16 bytes touch all banks
  static constexpr int kRowWords = kRowBytes / int(sizeof(Word));
  static constexpr int kWarpKeys = kKeys / kWarps;                    // that a warp stages
  static constexpr int kLoads = kWarpKeys * kRowWords / 32;           // of a lane, for K and again for V
  static constexpr int kMatrices = kRowBytes / 16;                    // 8x8 of 16 bits, of 8 keys
  static constexpr int kTiles = D / 16;                               // output tiles of 16 x 8
  static constexpr int kStageBytes = kKeys * (2 * kPitch + (F == kHalf ? 0 : 16 + 2));
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

// The transform of sums over a row that four lanes hold; lane l%4 has dimensions 32c + 8(l%4) + i.
template <int N>
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
  for (int mask = 1; mask < 4; mask *= 2)
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float other = __shfl_xor_sync(~0u, x[i], mask);
      x[i] = lane & mask ? other - x[i] : x[i] + other;
    }
}

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
  if (F == kInt4) hadamard(x, lane);
  float largest = 0.f;
#pragma unroll
  for (int i = 0; i < D / 4; ++i) largest = fmaxf(largest, fabsf(x[i]));
  largest = quad_max(largest);
  constexpr float kLimit = 127 * 256;
  const float inverse = largest > 0.f ? kLimit / largest : 0.f;
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
  const float step = largest / kLimit * p.scale * kLog2E * (F == kInt4 ? 1.f / (16 * D) : 1.f);
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

// What is on its way from the cache to shared memory.
template <Format F, int D>
struct Flight {
  typename Shape<F, D>::Word k[Shape<F, D>::kLoads], v[Shape<F, D>::kLoads];
  float scale;  // lane l: of key l / 2, of K or, with odd l, of V
};

template <Format F, int D>
__device__ __forceinline__ void fetch(Flight<F, D>& flight, const caovan_attention_args& p, int64_t base, int key,
                                      int keys, int lane) {
  using S = Shape<F, D>;
  using Word = typename S::Word;
  if (key >= keys) {  // nothing but padding: of integers any, of fp16 no NaN
    if (F == kHalf)
#pragma unroll
      for (int i = 0; i < S::kLoads; ++i) flight.k[i] = flight.v[i] = Word{};
    flight.scale = 0.f;
    return;
  }
  const char* k = static_cast<const char*>(p.k) + base;
  const char* v = static_cast<const char*>(p.v) + base;
#pragma unroll
  for (int i = 0; i < S::kLoads; ++i) {
    const int at = i * 32 + lane, row = at / S::kRowWords, word = at % S::kRowWords;
    const int offset = row * int(p.token_stride) + word * int(sizeof(Word));
    if (F == kHalf && key + row >= keys) {
      flight.k[i] = flight.v[i] = Word{};
    } else {
      flight.k[i] = __ldg(reinterpret_cast<const Word*>(k + offset));
      flight.v[i] = __ldg(reinterpret_cast<const Word*>(v + offset));
    }
  }
  if (F != kHalf) {
    const int row = lane / 2;
    flight.scale = 0.f;
    if (row < S::kWarpKeys && key + row < keys)
      flight.scale = __ldg(reinterpret_cast<const float*>(
          static_cast<const char*>(lane % 2 ? p.v_scale : p.k_scale) + base + row * int(p.token_stride)));
  }
}

// A stage: K rows, V rows, float4 {K scale, K zero point, log2 V scale, 1 / V scale} and the half
// 1024 + V zero point of each key. Scales of padding are zero, its log -inf: it weighs nothing.
template <Format F, int D>
__device__ __forceinline__ void stage(uint32_t shared, const Flight<F, D>& flight, int warp, int lane) {
  using S = Shape<F, D>;
#pragma unroll
  for (int i = 0; i < S::kLoads; ++i) {
    const int at = i * 32 + lane, row = at / S::kRowWords, word = at % S::kRowWords;
    const uint32_t to = shared + (warp * S::kWarpKeys + row) * S::kPitch + word * int(sizeof(typename S::Word));
    store_shared(to, flight.k[i]);
    store_shared(to + S::kKeys * S::kPitch, flight.v[i]);
  }
  if (F == kHalf || lane >= 2 * S::kWarpKeys) return;
  const uint32_t bits = __float_as_uint(flight.scale);
  const float scale = F == kInt4 ? __uint_as_float(bits & ~15u) : flight.scale;
  const int zero = F == kInt4 ? bits & 15 : 0, key = warp * S::kWarpKeys + lane / 2;
  const uint32_t constants = shared + 2 * S::kKeys * S::kPitch + key * 16;
  const bool value = lane % 2;
  store_shared(constants + (value ? 8 : 0), __float_as_uint(value ? __log2f(scale) : scale));
  store_shared(constants + (value ? 12 : 4), value ? __float_as_uint(scale > 0.f ? __fdividef(1.f, scale) : 0.f) : zero);
  if (value) {
    const __half offset = __int2half_rn(1024 + (F == kInt4 ? zero : 128));
    store_shared(shared + S::kKeys * (2 * S::kPitch + 16) + key * 2, __half_as_ushort(offset));
  }
}

// Scores of eight keys and eight rows as a C fragment (key l/4, rows 2(l%4)+{0,1}), in units of log2.
// int4: odd dimensions stay in the high nibble, 16 times too large, and have sums of their own.
template <Format F, int D>
__device__ __forceinline__ void score(float (&out)[2], float& inverse, const Query<F, D>& q, uint32_t shared,
                                      int key, int lane) {
  using S = Shape<F, D>;
  int high[2][2] = {}, low[2][2] = {};
#pragma unroll
  for (int m = 0; m < S::kMatrices; m += 4) {
    uint32_t k[4];
    ldmatrix_x4(k, shared + (key + lane % 8) * S::kPitch + (m + lane / 8) * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (F == kInt4) {
        const uint32_t even = k[i] & 0x0f0f0f0f, odd = k[i] & 0xf0f0f0f0;
        mma_u8s8(high[0], even, q.high[(m + i) * 2 % (D / 16)]);
        mma_u8s8(low[0], even, q.low[(m + i) * 2 % (D / 16)]);
        mma_u8s8(high[1], odd, q.high[((m + i) * 2 + 1) % (D / 16)]);
        mma_u8s8(low[1], odd, q.low[((m + i) * 2 + 1) % (D / 16)]);
      } else {
        mma_s8s8(high[i % 2], k[i], q.high[(m + i) % (D / 16)]);
        mma_s8s8(low[i % 2], k[i], q.low[(m + i) % (D / 16)]);
      }
  }
  const float4 constants = load_shared4(shared + 2 * S::kKeys * S::kPitch + (key + lane / 4) * 16);
  inverse = constants.w;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int x;
    if (F == kInt4)  // 16 times the score's integer: at most 16 x 15 x 127 x 256 x 256 < 2^31
      x = ((high[0][i] * 16 + high[1][i]) * 256 + (low[0][i] * 16 + low[1][i])) -
          __float_as_int(constants.y) * q.sum[i];
    else
      x = (high[0][i] + high[1][i]) * 256 + (low[0][i] + low[1][i]);
    out[i] = float(x) * (constants.x * q.step[i]) + constants.z;
  }
}

// The same of 16 keys of an fp16 cache (or of 8, both halves of the product alike).
template <int D>
__device__ __forceinline__ void score_half(float (&out)[2][2], const Query<kHalf, D>& q, uint32_t shared, int key,
                                           int second, int lane) {
  using S = Shape<kHalf, D>;
  float c[4] = {};
#pragma unroll
  for (int m = 0; m < S::kMatrices; m += 2) {
    uint32_t k[4];
    ldmatrix_x4(k, shared + ((lane & 8 ? second : key) + lane % 8) * S::kPitch + (m + lane / 16) * 16);
    mma_m16n8k8(c, k[0], k[1], q.half[m]);
    mma_m16n8k8(c, k[2], k[3], q.half[m + 1]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i / 2][i % 2] = c[i] * q.step;
}

// Add eight keys: acc is O^T, tile t of the C fragments as `dimension` numbers them.
template <Format F, int D>
__device__ __forceinline__ void add_values(float (&acc)[D / 16][4], uint32_t weights, uint32_t shared, int key,
                                           int lane) {
  using S = Shape<F, D>;
  uint32_t offset = 0, offset16 = 0;
  if (F != kHalf) offset = load_shared(shared + S::kKeys * (2 * S::kPitch + 16) + (key + lane % 4 * 2) * 2);
  if (F == kInt4) {  // 1024 + 16 zero points, from 1024 + zero points
    const __half2 r = __hfma2(*reinterpret_cast<__half2*>(&offset), __float2half2_rn(16.f),
                              __float2half2_rn(-15360.f));
    offset16 = *reinterpret_cast<const uint32_t*>(&r);
  }
  const uint32_t rows = shared + (S::kKeys + key + lane % 8) * S::kPitch + lane / 8 * 16;
#pragma unroll
  for (int m = 0; m < S::kMatrices; m += 4) {
    uint32_t v[4];
    ldmatrix_x4_trans(v, rows + m * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (F == kInt4) {
        constexpr uint32_t kOne = 0x000f000f, kTwo = 0x00f000f0, k1024 = 0x64006400;
        const uint32_t x = v[i], y = x >> 8;
        mma_m16n8k8(acc[(m + i) * 2 % (D / 16)], sub2(mask_or(x, kOne, k1024), offset),
                    sub2(mask_or(x, kTwo, k1024), offset16), weights);
        mma_m16n8k8(acc[((m + i) * 2 + 1) % (D / 16)], sub2(mask_or(y, kOne, k1024), offset),
                    sub2(mask_or(y, kTwo, k1024), offset16), weights);
      } else if (F == kInt8) {
        const uint32_t x = v[i] ^ 0x80808080u;
        mma_m16n8k8(acc[(m + i) % (D / 16)], sub2(__byte_perm(x, 0x64646464u, 0x4240), offset),
                    sub2(__byte_perm(x, 0x64646464u, 0x4341), offset), weights);
      } else if (i % 2 == 0) {
        mma_m16n8k8(acc[(m + i) / 2 % (D / 16)], v[i], v[i + 1], weights);
      }
  }
}

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
template <Format F, int D, int Groups>
__global__ void __launch_bounds__(kThreads, kResident) attention_kernel(caovan_attention_args p, float4* statistics,
                                                               __half* partial) {
  using S = Shape<F, D>;
  constexpr int kShares = kWarps / Groups;           // of a tile's keys
  constexpr int kEights = S::kKeys / 8 / kShares;    // keys of a warp, in eights
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
  float acc[D / 16][4] = {};
  float reference[2] = {kNone, kNone}, sum[2] = {};
  if (tile < end) {
    const int staged = warp * S::kWarpKeys;  // of a tile, what this warp stages
    const int64_t head = kv_head * p.head_stride;
    Pages<S::kKeys> pages(p, sequence, tile * S::kKeys + staged, keys);
    Flight<F, D> flight;
    const auto next = [&](int t) {
      const int key = t * S::kKeys + staged;
      fetch(flight, p, int64_t(pages.entry) * p.block_stride + int64_t(pages.slot) * p.token_stride + head, key, t < end ? keys : 0, lane);
      pages.advance(key + S::kKeys, t + 1 < end ? keys : 0);
    };
    next(tile);

    Query<F, D> q;
    {
      const int row = row0 + lane / 4;
      const __half* at = row < tokens * group ? static_cast<const __half*>(p.q) + (first + row / group) * p.q_stride +
                                                    (kv_head * group + row % group) * D
                                              : nullptr;
      load_query(q, p, at, lane);
    }
    int visible[2];  // keys that rows 2(l%4)+{0,1} see
#pragma unroll
    for (int i = 0; i < 2; ++i) visible[i] = keys - tokens + 1 + min((row0 + lane % 4 * 2 + i) / group, tokens - 1);

    stage(shared, flight, warp, lane);
    next(tile + 1);
    __syncthreads();
    uint32_t now = shared, then = shared + (S::kStages - 1) * S::kStageBytes;
    for (; tile < end; ++tile) {
      if (S::kStages == 2) {
        stage(then, flight, warp, lane);
        next(tile + 2);
      }
      float s[kEights][2], inverse[kEights];
      const int key0 = share * kEights * 8;
      if constexpr (F == kHalf) {
#pragma unroll
        for (int e = 0; e < kEights; e += 2) {
          float two[2][2];
          score_half(two, q, now, key0 + e * 8, key0 + (e + 1) % kEights * 8, lane);
#pragma unroll
          for (int i = 0; i < 2 && e + i < kEights; ++i) {
            s[e + i][0] = two[i][0];
            s[e + i][1] = two[i][1];
          }
        }
      } else {
#pragma unroll
        for (int e = 0; e < kEights; ++e) score(s[e], inverse[e], q, now, key0 + e * 8, lane);
      }
      if ((tile + 1) * S::kKeys > keys - tokens + 1) {  // a key here is hidden from some row
#pragma unroll
        for (int e = 0; e < kEights; ++e)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            if (tile * S::kKeys + key0 + e * 8 + lane / 4 >= visible[i]) s[e][i] = -INFINITY;
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
        for (int t = 0; t < S::kTiles; ++t)
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[t][i] *= keep[i % 2];
      }
      uint32_t weights[kEights];
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const float a = ex2(s[e][0] - reference[0]), b = ex2(s[e][1] - reference[1]);
        sum[0] += F == kHalf ? a : a * inverse[e];
        sum[1] += F == kHalf ? b : b * inverse[e];
        weights[e] = movmatrix_trans(pack_half2(a, b));
      }
#pragma unroll
      for (int e = 0; e < kEights; ++e) add_values<F, D>(acc, weights[e], now, key0 + e * 8, lane);
      __syncthreads();
      if (S::kStages == 1) {
        stage(now, flight, warp, lane);
        next(tile + 2);
        __syncthreads();
      }
      const uint32_t was = now;
      now = then;
      then = was;
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
      if (F == kInt4) acc[t][2 + i] *= 1.f / 16;
      largest = fmaxf(largest, fmaxf(fabsf(acc[t][i]), fabsf(acc[t][2 + i])));
    }
    largest = lanes_max<4>(largest);
    sum[i] = lanes_sum<4>(sum[i]);
    const float inverse = largest > 0.f ? 1.f / largest : 0.f;
    const int64_t at = record + (lane % 4 * 2 + i) * parts;
    if (lane / 4 == 0) statistics[at] = make_float4(reference[i], sum[i], largest, 0.f);
    uint4* to = reinterpret_cast<uint4*>(partial + at * D + lane / 4 * (D / 8));
#pragma unroll
    for (int t = 0; t < S::kTiles; t += 4) {
      uint32_t packed[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) packed[j] = pack_half2(acc[t + j][i] * inverse, acc[t + j][2 + i] * inverse);
      to[t / 4] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
  }
}

}  // namespace attention
}  // namespace caovan
