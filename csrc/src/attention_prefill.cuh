// Prefill attention over a paged KV cache: many query rows, causal, behind any prefix.
//
// A CTA takes 128 query rows of a KV head (256 at head size 128), rows being token x query head of the
// group, and walks the keys they see, 16 at a time. A warp has rows of its own: queries, scores and output
// stay in its registers, a score tile packed to halves is the operand of the product of values, and warps
// meet once a tile. The next tile travels through a few registers, keys while scores are computed, values
// while the output is; what is packed becomes halves on its way to shared memory.
//
// Packed keys and values are staged as the exact integers they are, less their zero point. A key's
// scale joins its score, a value's scale the weight, in its exponent as in attention.cuh. An int4 cache is
// rotated: so are the queries at the start, and the output at the end.
#pragma once
#include "attention.cuh"

namespace caovan {
namespace prefill {

using attention::Format, attention::kFp8, attention::kHalf, attention::kInt4, attention::kInt8;
using attention::kLog2E, attention::kNone, attention::quad_max, attention::kScaled;

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kKeys = 16;                        // a tile
constexpr int kRowThreads = kThreads / kKeys;    // that stage a key

template <Format F, int D>
struct Shape {
  using Word = typename attention::Word<F != kHalf>::Type;
  static constexpr int kTiles = 256 / D, kWarpRows = kTiles * 16, kRows = kWarps * kWarpRows;
  static constexpr int kRowBytes = F == kInt4 ? D / 2 : F == kHalf ? 2 * D : D;
  static constexpr int kLoads = kRowBytes / int(sizeof(Word)) / kRowThreads;
  static constexpr int kStagedBytes = F == kInt8 || F == kFp8 ? 8 : 16;  // a word as halves
  static constexpr int kPitch = 2 * D + 16;  // eight rows of 16 bytes touch all banks
  // Shared memory: two stages of K, two of V, two of constants.
  static constexpr int kTileBytes = kKeys * kPitch, kValues = 2 * kTileBytes, kConstants = 4 * kTileBytes;
  // and queries: registers do not suffice for the last steps of a score.
  static constexpr int kQueries = kConstants + (kScaled<F> ? 2 * kKeys * 16 : 0);
  static constexpr int kSharedSteps = D == 256 ? 2 : 4, kSteps = D / 16 - kSharedSteps;
  static constexpr int kShared = kQueries + kThreads * kSharedSteps * kTiles * 16;
};

// What a thread stages of a tile, of K or V: words i x 16 + thread % 16 of key thread / 16.
template <Format F, int D>
struct Staged {
  using S = Shape<F, D>;
  typename S::Word words[S::kLoads];
  float scale;

  __device__ __forceinline__ void fetch(const char* row, const char* scale_at, bool is_key) {
#pragma unroll
    for (int i = 0; i < S::kLoads; ++i)
      words[i] = is_key ? load_here(reinterpret_cast<const typename S::Word*>(row) + i * kRowThreads) : typename S::Word{};
    if (kScaled<F>) scale = is_key ? __uint_as_float(load_here(reinterpret_cast<const uint32_t*>(scale_at))) : 0.f;
  }

  __device__ __forceinline__ void store(uint32_t to) const {
    if constexpr (F == kHalf) {
#pragma unroll
      for (int i = 0; i < S::kLoads; ++i) store_shared(to + i * kRowThreads * 16, words[i]);
    } else if constexpr (F == kFp8) {
#pragma unroll
      for (int i = 0; i < S::kLoads; ++i) {
        const uint32_t at = to + i * kRowThreads * S::kStagedBytes;
        store_shared(at, high_fp8(__byte_perm(words[i], 0, 0x1404)));
        store_shared(at + 4, high_fp8(__byte_perm(words[i], 0, 0x3424)));
      }
    } else {
      const uint32_t zero = F == kInt4 ? __float_as_uint(scale) & 15u : 128u;
      const uint32_t offset = 0x64006400u + zero * 0x00010001u;  // 1024 + zero point, twice
#pragma unroll
      for (int i = 0; i < S::kLoads; ++i) {
        const uint32_t at = to + i * kRowThreads * S::kStagedBytes;
        if (F == kInt4) {
          uint32_t h[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const uint32_t x = words[i] >> (8 * j);
            h[j] = sub2(mask_or(x, 0x0000000fu, mask_or(x << 12, 0x000f0000u, 0x64006400u)), offset);
          }
          store_shared(at, make_uint4(h[0], h[1], h[2], h[3]));
        } else {
          const uint32_t y = words[i] ^ 0x80808080u;
          store_shared(at, sub2(__byte_perm(y, 0x64646464u, 0x4140), offset));
          store_shared(at + 4, sub2(__byte_perm(y, 0x64646464u, 0x4342), offset));
        }
      }
    }
  }

  // Its constants: of each key the floats {K scale, log2 V scale, 1 / V scale}.
  __device__ __forceinline__ void store_scale(uint32_t constants, bool value) const {
    if (!kScaled<F> || again(threadIdx.x) % kRowThreads) return;
    const float x = F == kInt4 ? __uint_as_float(__float_as_uint(scale) & ~15u) : scale;
    if (!value) {
      store_shared(constants, __float_as_uint(x));
    } else {
      store_shared(constants + 4, __float_as_uint(__log2f(x)));
      store_shared(constants + 8, __float_as_uint(x > 0.f ? __fdividef(1.f, x) : 0.f));
    }
  }
};

// A lane has dimensions 8(n/2) + 2(l%4) + n%2 of a row, as its n-th numbers. Their signs, a bit each:
// two registers, where 64 loaded signs would not fit.
template <int D>
struct Signs {
  uint32_t bits[D / 128];

  __device__ __forceinline__ void load(const float* signs, int lane) {
#pragma unroll
    for (int c = 0; c < D / 128; ++c) {
      bits[c] = 0;
#pragma unroll 4
      for (int n = 0; n < 32; ++n)
        bits[c] |= uint32_t(load_here(reinterpret_cast<const uint32_t*>(signs) + c * 128 + n / 2 * 8 + lane % 4 * 2 + n % 2) >> 31) << n;
    }
  }
  __device__ __forceinline__ float of(float x, int n) const {
    return __uint_as_float(__float_as_uint(x) ^ ((bits[n / 32] << (31 - n % 32)) & 0x80000000u));
  }
};

// Rotate a row that came from or goes to fp16.
template <int D>
__device__ __forceinline__ void rotate(uint32_t (&row)[D / 8], const Signs<D>& signs, int lane) {
  float x[D / 4];
#pragma unroll
  for (int n = 0; n < D / 4; ++n) {
    const __half2 pair = *reinterpret_cast<const __half2*>(&row[n / 2]);
    x[n] = signs.of(n % 2 ? __high2float(pair) : __low2float(pair), n);
  }
  hadamard<4>(x, lane);
  // A 16th keeps halves of a sum in the range of what was summed; the rest is in the score's factor.
#pragma unroll
  for (int i = 0; i < D / 8; ++i) row[i] = pack_half2(x[2 * i] * (1.f / 16), x[2 * i + 1] * (1.f / 16));
}

// The rows of a thread's CTA and of the thread. Found three times, as there are no registers to keep them in.
template <class S>
struct Rows {
  int first, tokens, keys, count;  // of the sequence: first token, tokens, keys, rows
  int block, mine;                 // the first row of the CTA and of this thread

  __device__ __forceinline__ Rows(const caovan_attention_args& p, int group) {
    const int sequence = again(blockIdx.z), thread = again(threadIdx.x);
    first = load_here(p.cu_seqlens + sequence);
    tokens = load_here(p.cu_seqlens + sequence + 1) - first;
    keys = load_here(p.kv_lengths + sequence);
    count = tokens * group;
    // The rows that see most keys begin first.
    block = (int(gridDim.x) - 1 - again(blockIdx.x)) * S::kRows;
    mine = block + thread / 32 * S::kWarpRows + thread % 32 / 4;
  }
  __device__ __forceinline__ int token(int row, int group) const { return min(row, count - 1) / group; }
  // Keys that a token sees.
  __device__ __forceinline__ int seen(int token) const { return keys - tokens + 1 + token; }
};

template <Format F, int D>
__global__ void __launch_bounds__(kThreads, 1) prefill_kernel(caovan_attention_args p, int group) {
  using S = Shape<F, D>;
  const uint32_t shared = dynamic_shared();
  const int thread = threadIdx.x, lane = thread % 32, quad = lane % 4;
  const int kv_head = blockIdx.y, sequence = blockIdx.z;
  const uint32_t queries = shared + S::kQueries + thread * 16;
  int keys, certain, end;  // of the sequence; that all rows of the CTA see, that any sees
  uint32_t q[S::kTiles][2][2 * S::kSteps];
  {
    const Rows<S> rows(p, group);
    if (rows.block >= rows.count) return;
    Signs<D> signs;
    if (F == kInt4) signs.load(p.signs, lane);
    keys = rows.keys;
    certain = rows.seen(rows.block / group);
    end = rows.seen(rows.token(rows.block + S::kRows - 1, group));
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m) {
      uint32_t loaded[2][D / 8];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = rows.mine + m * 16 + i * 8, token = row / group;
        const __half* from = static_cast<const __half*>(p.q) + (rows.first + token) * p.q_stride +
                             (kv_head * group + row - token * group) * D + quad * 2;
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
          loaded[i][n] = row < rows.count ? __ldg(reinterpret_cast<const uint32_t*>(from + n * 8)) : 0;
        if constexpr (F == kInt4) rotate<D>(loaded[i], signs, lane);
#pragma unroll
        for (int n = 0; n < 2 * S::kSteps; ++n) q[m][i][n] = loaded[i][n];
      }
#pragma unroll
      for (int n = 0; n < S::kSharedSteps; ++n) {
        const int at = 2 * (S::kSteps + n);
        store_shared(queries + (n * S::kTiles + m) * kThreads * 16,
                     make_uint4(loaded[0][at], loaded[1][at], loaded[0][at + 1], loaded[1][at + 1]));
      }
    }
  }

  float acc[S::kTiles][D / 8][4] = {}, reference[S::kTiles][2], sum[S::kTiles][2] = {};
#pragma unroll
  for (int m = 0; m < S::kTiles; ++m) reference[m][0] = reference[m][1] = kNone;
  const float factor = p.scale * kLog2E *
                       (F == kInt4  ? 16.f / D
                        : F == kFp8 ? kFp8Unit * *static_cast<const float*>(p.k_scale)
                                    : 1.f);

  // Where this thread's words of a tile are: a tile never crosses a block's border.
  int key = 0, slot = 0, block = 0;
  const int word = thread % kRowThreads * int(sizeof(typename S::Word)), bound = keys - thread / kRowThreads;
  const uint32_t to = shared + thread / kRowThreads * S::kPitch + thread % kRowThreads * S::kStagedBytes;
  int64_t at = p.block_table[sequence * p.block_table_stride] * p.block_stride +
               thread / kRowThreads * p.token_stride + kv_head * p.head_stride + word;
  Staged<F, D> staged;
  const auto advance = [&](int next) {
    slot += kKeys;
    at += kKeys * p.token_stride;
    if (slot < p.block_size || next >= keys) return;
    const int32_t* const entry = p.block_table + again(blockIdx.z) * p.block_table_stride + block;
    at += (entry[1] - int64_t(entry[0])) * p.block_stride - slot * p.token_stride;
    ++block;
    slot = 0;
  };
  const auto fetch = [&](int first, bool value) {
    const char* const rows_at = static_cast<const char*>(value ? p.v : p.k) + at;
    const char* const scale_at =
        !kScaled<F> ? nullptr
                   : static_cast<const char*>(value ? p.v_scale : p.k_scale) + at -
                         again(threadIdx.x) % kRowThreads * int(sizeof(typename S::Word));
    staged.fetch(rows_at, scale_at, first < bound);
  };
  const auto store = [&](int first, bool value) {
    const int stage = first / kKeys % 2;
    staged.store(to + (value ? S::kValues : 0) + stage * S::kTileBytes);
    staged.store_scale(shared + S::kConstants + stage * kKeys * 16 + again(threadIdx.x) / kRowThreads * 16, value);
  };

  fetch(0, false);
  store(0, false);
  fetch(0, true);
  advance(kKeys);
  store(0, true);
  __syncthreads();
  for (; key < end; key += kKeys) {
    const uint32_t stage_at = shared + key / kKeys % 2 * S::kTileBytes;
    const uint32_t keys_at = stage_at + (lane / 16 * 8 + lane % 8) * S::kPitch + lane / 8 % 2 * 16;
    const uint32_t values_at = stage_at + S::kValues + lane % 8 * S::kPitch + lane / 8 * 16;
    fetch(key + kKeys, false);

    float s[S::kTiles][2][4] = {};
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      uint32_t k[4];  // of eight keys two matrices, of the other eight two
      ldmatrix_x4(k, keys_at + i * 32);
#pragma unroll
      for (int m = 0; m < S::kTiles; ++m) {
        uint32_t a[4];
        if (i < S::kSteps) {
#pragma unroll
          for (int j = 0; j < 4; ++j) a[j] = q[m][j % 2][i % S::kSteps * 2 + j / 2];
        } else {
          load_shared(a, queries + ((i - S::kSteps) * S::kTiles + m) * kThreads * 16);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int e = 0; e < 2; ++e) mma_m16n8k8(s[m][e], a[2 * half], a[2 * half + 1], k[e * 2 + half]);
      }
    }
    store(key + kKeys, false);
    fetch(key + kKeys, true);
    advance(key + 2 * kKeys);

    uint32_t weights[S::kTiles][2][2];
    float inverse[2][2];
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (!kScaled<F>) {
#pragma unroll
          for (int m = 0; m < S::kTiles; ++m) s[m][e][j] *= factor, s[m][e][2 + j] *= factor;
        } else {
          const float4 c = load_shared4(shared + S::kConstants + (key / kKeys % 2 * kKeys + e * 8 + quad * 2 + j) * 16);
          inverse[e][j] = c.z;
#pragma unroll
          for (int m = 0; m < S::kTiles; ++m) {
            s[m][e][j] = s[m][e][j] * (c.x * factor) + c.y;
            s[m][e][2 + j] = s[m][e][2 + j] * (c.x * factor) + c.y;
          }
        }
      }
    if (key + kKeys > certain) {  // a key here is hidden from some row
      const Rows<S> rows(p, group);
#pragma unroll
      for (int m = 0; m < S::kTiles; ++m)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int hidden = rows.seen(rows.token(rows.mine + m * 16 + i * 8, group)) - key - quad * 2;
#pragma unroll
          for (int e = 0; e < 2; ++e)
#pragma unroll
            for (int j = 0; j < 2; ++j)
              if (e * 8 + j >= hidden) s[m][e][2 * i + j] = -INFINITY;
        }
    }
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m) {
      // The reference follows the maximum once it is 2^8 behind: fp16 holds weights up to 2^15.
      float largest[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        largest[i] = quad_max(fmaxf(fmaxf(s[m][0][2 * i], s[m][0][2 * i + 1]), fmaxf(s[m][1][2 * i], s[m][1][2 * i + 1])));
      const bool behind[2] = {largest[0] > reference[m][0] + 8.f, largest[1] > reference[m][1] + 8.f};
      if (__any_sync(~0u, behind[0] || behind[1])) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float next = behind[i] ? largest[i] : reference[m][i], keep = ex2(reference[m][i] - next);
          reference[m][i] = next;
          sum[m][i] *= keep;
#pragma unroll
          for (int n = 0; n < D / 8; ++n) acc[m][n][2 * i] *= keep, acc[m][n][2 * i + 1] *= keep;
        }
      }
#pragma unroll
      for (int e = 0; e < 2; ++e)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float a = ex2(s[m][e][2 * i] - reference[m][i]), b = ex2(s[m][e][2 * i + 1] - reference[m][i]);
          sum[m][i] += !kScaled<F> ? a + b : a * inverse[e][0] + b * inverse[e][1];
          weights[m][e][i] = pack_half2(a, b);
        }
    }

#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int n = 0; n < D / 8; n += 4) {
        uint32_t v[4];  // of eight keys; both eights at once would stay in registers, as only one's weights are there
        ldmatrix_x4_trans(v, values_at + e * 8 * S::kPitch + n * 16);
#pragma unroll
        for (int m = 0; m < S::kTiles; ++m)
#pragma unroll
          for (int i = 0; i < 4; ++i) mma_m16n8k8(acc[m][n + i], weights[m][e][0], weights[m][e][1], v[i]);
      }
    store(key + kKeys, true);
    __syncthreads();
  }

  const Rows<S> rows(p, group);
  Signs<D> signs;
  if (F == kInt4) signs.load(p.signs, lane);
  const float unit = F == kInt4 ? 1.f / D : F == kFp8 ? kFp8Unit * *static_cast<const float*>(p.v_scale) : 1.f;
#pragma unroll
  for (int m = 0; m < S::kTiles; ++m)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = rows.mine + m * 16 + i * 8, token = row / group;
      float total = sum[m][i], x[D / 4];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const float factor = __fdividef(unit, total);
#pragma unroll
      for (int n = 0; n < D / 4; ++n) x[n] = acc[m][n / 2][2 * i + n % 2] * factor;
      if (F == kInt4) hadamard<4>(x, lane);
      if (row >= rows.count) continue;
      __half* const out = static_cast<__half*>(p.out) + (rows.first + token) * p.out_stride +
                          (again(blockIdx.y) * group + row - token * group) * D + quad * 2;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        float low = x[2 * n], high = x[2 * n + 1];
        if (F == kInt4) low = signs.of(low, 2 * n), high = signs.of(high, 2 * n + 1);
        *reinterpret_cast<uint32_t*>(out + n * 8) = pack_half2(low, high);
      }
    }
}

}  // namespace prefill
}  // namespace caovan
