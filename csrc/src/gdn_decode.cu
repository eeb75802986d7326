// gdn_decode: conv update, SiLU, l2norm, gates and recurrence for 1..8 tokens a sequence, one launch.
//
// Grid (value heads of a key head x D / rows, key heads, sequences). A warp keeps 4 or 8 rows of one
// head's state in registers: 8 lanes a row, lane e of them the columns 4 e + 32 j + {0..3}. Even
// warps prepare q and odd ones k (conv, SiLU, norm; tokens in turn), the last threads a v of a token
// each, one lane a token's gates. What they need is loaded before the state: behind it, it would
// come last, and every block would wait for its convolution after its state. (The state first, and
// a, b after the convolution, took 38.4 us instead of 32.8 at 32 sequences.)
//
// Per token S k and S q are reduced together over 8 lanes, and
//     u = beta (v - e^g S k)      out = e^g S q + u (k.q)      S <- e^g S + u k^T
// so the reductions of a token do not wait for its update. State moves with streaming hints: no
// layer's state is used again before all others were.
//
// The conv state is updated in place, but q and k channels are read by all blocks of a key head:
// each warp counts itself (q and k apart) once its reads have returned, and the last one writes,
// from its block's copy in shared memory, and clears the counter. The v channels belong to one block.
//
// Numerics, as vLLM's Triton kernels: conv products and outputs rounded to fp16, sums, norms,
// gates and state fp32. (The packed one-token Triton kernel also rounds beta to fp16; not done.)
// Shared memory 1.6 KiB a token and 1 KiB (D = 128). Slots as vLLM has them: the state after token i goes
// to slots[n, i]; reading starts from slots[n, num_accepted - 1].
//
// RTX 2080 Ti, 24 value heads of 128 (TP 2), a layer: 1.57 MB of state read once, written once a token,
// at 602 GB/s: T = 1 5.2 us, T = 4 13.1 us a sequence at least; modelled (card_model), a block by itself
// takes 3.1 and 7.1 us. Against 3 launches (conv, split, recurrence) it saves two.
#include <type_traits>

#include "gates.cuh"
#include "kernels.h"
#include "status.h"

namespace caovan {
namespace decode {  // named, not anonymous: anonymous names hold a hash of the build folder

constexpr int kWidth = 4;  // taps of the causal convolution

template <int D, int Rows>
struct SharedToken {  // what a block needs of one token
  float q[D], k[D], v[Rows], decay, beta, unused[2];
  __half input[2][D];  // q and k before the convolution
};
// what resources.toml says of dynamic shared memory, which ptxas does not report
static_assert(sizeof(SharedToken<128, 32>) == 1680 && sizeof(SharedToken<128, 16>) == 1616);

template <int N>
struct alignas(N * sizeof(__half)) Channels {
  __half x[N];
};

// N channels as one word
template <int N>
using Packed = std::conditional_t<N == 4, uint2, std::conditional_t<N == 2, uint32_t, uint16_t>>;

template <int N>
__device__ __forceinline__ Channels<N> load_packed(const __half* p) {
  Channels<N> c;
  *reinterpret_cast<Packed<N>*>(c.x) = *reinterpret_cast<const Packed<N>*>(p);
  return c;
}

template <int N>
__device__ __forceinline__ void store_packed(__half* p, const Channels<N>& c) {
  *reinterpret_cast<Packed<N>*>(p) = *reinterpret_cast<const Packed<N>*>(c.x);
}

template <int N>
__device__ __forceinline__ Channels<N> load_strided(const __half* p, int64_t stride) {
  Channels<N> c;
#pragma unroll
  for (int i = 0; i < N; ++i) c.x[i] = p[i * stride];
  return c;
}

// N channels of one sequence's convolution. Its inputs are numbered: 0, 1, 2 come from the conv
// state, 3 + t is new token t; token t sees inputs t .. t + 3.
template <int N>
struct Conv {
  const __half *old, *fresh;
  int64_t column_stride, channel_stride, token_stride;

  __device__ __forceinline__ Conv(const caovan_gdn_decode_args& p, int conv_slot, int accepted, int token0,
                                  int channel)
      : old(static_cast<const __half*>(p.conv_state) + conv_slot * p.conv_slot_stride +
            accepted * p.conv_column_stride + channel * p.conv_channel_stride),
        fresh(static_cast<const __half*>(p.qkv) + token0 * p.qkv_stride + channel),
        column_stride(p.conv_column_stride),
        channel_stride(p.conv_channel_stride),
        token_stride(p.qkv_stride) {}

  // those of token t's inputs that are new; they need no slot
  __device__ __forceinline__ void load_new(Channels<N> (&window)[kWidth], int t) const {
#pragma unroll
    for (int w = 0; w < kWidth; ++w)
      if (t + w >= kWidth - 1) window[w] = load_packed<N>(fresh + (t + w - kWidth + 1) * token_stride);
  }
  __device__ __forceinline__ void load_old(Channels<N> (&window)[kWidth], int t) const {
    const __half* p = old + t * column_stride;
    if (N > 1 && channel_stride == 1) {
#pragma unroll
      for (int w = 0; w < kWidth - 1; ++w, p += column_stride)
        if (t + w < kWidth - 1) window[w] = load_packed<N>(p);
    } else {
#pragma unroll
      for (int w = 0; w < kWidth - 1; ++w, p += column_stride)
        if (t + w < kWidth - 1) window[w] = load_strided<N>(p, channel_stride);
    }
  }
};

template <int N>
struct Filter {
  alignas(8) __half weight[N][kWidth];
  float bias[N];

  __device__ __forceinline__ Filter(const caovan_gdn_decode_args& p, int channel) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      *reinterpret_cast<uint2*>(weight[i]) =
          reinterpret_cast<const uint2*>(static_cast<const __half*>(p.conv_weight))[channel + i];
      bias[i] = p.conv_bias ? __half2float(static_cast<const __half*>(p.conv_bias)[channel + i]) : 0.f;
    }
  }

  // SiLU(conv) of channel i, rounded to fp16
  __device__ __forceinline__ float output(const Channels<N> (&window)[kWidth], int i) const {
    float sum = bias[i];
#pragma unroll
    for (int w = 0; w < kWidth; ++w) sum += __half2float(__hmul(window[w].x[i], weight[i][w]));
    return __half2float(__float2half_rn(__fdividef(sum, 1.f + __expf(-sum))));
  }
};

// vLLM's rolling, token t's part of it: the oldest input leaves, the new ones follow the two that stay
template <int N>
__device__ __forceinline__ void roll_conv_state(const caovan_gdn_decode_args& p, const Channels<N> (&window)[kWidth],
                                                int t, int conv_slot, int channel) {
  __half* to = static_cast<__half*>(p.conv_state) + conv_slot * p.conv_slot_stride + t * p.conv_column_stride +
               channel * p.conv_channel_stride;
#pragma unroll
  for (int w = 1; w < kWidth; ++w, to += p.conv_column_stride)
    if (w == kWidth - 1 || t == 0) {
      if (N > 1 && p.conv_channel_stride == 1) {
        store_packed(to, window[w]);
      } else {
#pragma unroll
        for (int i = 0; i < N; ++i) to[i * p.conv_channel_stride] = window[w].x[i];
      }
    }
}

template <int Width>
__device__ __forceinline__ float sum_over(float x) {
#pragma unroll
  for (int offset = Width / 2; offset; offset >>= 1) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

__device__ __forceinline__ float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

template <int D, int Warps, int LaneRows, int MaxT, int MinBlocks>
__global__ void __launch_bounds__(Warps * 32, MinBlocks) decode_kernel(caovan_gdn_decode_args p) {
  constexpr int kThreads = Warps * 32, kRows = Warps * 4 * LaneRows;
  constexpr int kVectors = D / 32;       // float4 of each state row a lane holds a part of
  constexpr int kLaneChannels = D / 32;  // q or k channels a lane prepares
  static_assert(MaxT * kRows <= kThreads, "a thread for each v of each token");
  extern __shared__ __align__(16) float shared[];
  using Token = SharedToken<D, kRows>;
  Token* const token_shared = reinterpret_cast<Token*>(shared);
  using Input = __half[2][D];  // q, k
  Input* const before_shared = reinterpret_cast<Input*>(token_shared + p.max_tokens);  // 1 and 2 of Conv's inputs

  constexpr int kTiles = D / kRows;  // blocks of a value head
  const int k_head = blockIdx.y, seq = blockIdx.z;
  const int head = k_head * (gridDim.x / kTiles) + blockIdx.x / kTiles, row0 = blockIdx.x % kTiles * kRows;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // everything that addresses the rest, in one round of loads
  int my_slot = 0;
  if (MaxT == 1 || lane < p.max_tokens) my_slot = p.slots[seq * p.slots_stride + (MaxT == 1 ? 0 : lane)];
  const int accepted =
      MaxT > 1 && p.num_accepted ? min(max(p.num_accepted[seq] - 1, 0), p.max_tokens - 1) : 0;
  const int token0 = p.cu_seqlens ? p.cu_seqlens[seq] : seq;
  const int count = p.cu_seqlens ? min(p.cu_seqlens[seq + 1] - token0, p.max_tokens) : 1;
  if (my_slot >= p.num_slots) my_slot = 0;
  const int conv_slot = MaxT == 1 ? my_slot : __shfl_sync(~0u, my_slot, 0);
  const int slot = MaxT == 1 ? my_slot : __shfl_sync(~0u, my_slot, accepted);
  if (count <= 0) return;
  const int tokens = MaxT == 1 ? 1 : count;

  // who prepares what; t of one token is known to the compiler
  constexpr int kTurns = (2 * MaxT + Warps - 1) / Warps;
  const auto qk_token = [&](int turn) { return MaxT == 1 ? 0 : turn * (Warps / 2) + warp / 2; };
  const bool prepares_qk = warp / 2 < tokens;
  const int qk_channel = (warp % 2 * p.k_heads + k_head) * D + lane * kLaneChannels;
  const int v_thread = kThreads - 1 - threadIdx.x, v_row = v_thread % kRows;
  const int v_token = MaxT == 1 ? 0 : v_thread / kRows;
  const bool prepares_v = v_thread < tokens * kRows;
  const int v_channel = 2 * p.k_heads * D + head * D + row0 + v_row;
  const int gate_token = MaxT == 1 ? 0 : warp;
  const bool prepares_gates = lane == 0 && (MaxT == 1 ? warp == Warps / 2 : warp < tokens);

  Channels<kLaneChannels> window[kTurns][kWidth];
  Channels<1> v_window[kWidth];
  const Conv<kLaneChannels> qk_conv(p, conv_slot, accepted, token0, qk_channel);
  const Conv<1> v_conv(p, conv_slot, accepted, token0, v_channel);
  if (prepares_qk)
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn)
      if (qk_token(turn) < tokens) qk_conv.load_new(window[turn], qk_token(turn));
  if (prepares_v) v_conv.load_new(v_window, v_token);

  __half* const out = static_cast<__half*>(p.out) + token0 * p.out_stride + head * D + row0;
  if (slot <= 0 || conv_slot <= 0) {
    for (int i = threadIdx.x; i < tokens * kRows; i += kThreads)
      out[i / kRows * p.out_stride + i % kRows] = __float2half_rn(0.f);
    return;
  }

  if (prepares_qk)
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn)
      if (qk_token(turn) < tokens) qk_conv.load_old(window[turn], qk_token(turn));
  if (prepares_v) v_conv.load_old(v_window, v_token);
  __half a, b;
  if (prepares_gates) {
    a = static_cast<const __half*>(p.a)[(token0 + gate_token) * p.a_stride + head];
    b = static_cast<const __half*>(p.b)[(token0 + gate_token) * p.b_stride + head];
  }

  const int my_row = warp * 4 * LaneRows + lane / 8;  // and every fourth after it
  const int my_state = (head * D + row0 + my_row) * D + lane % 8 * 4;
  float4 s[LaneRows][kVectors];
#pragma unroll
  for (int r = 0; r < LaneRows; ++r)
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
      s[r][j] = __ldcs(reinterpret_cast<const float4*>(p.state + slot * p.state_stride + my_state + r * 4 * D + j * 32));

  const Filter<kLaneChannels> qk_filter(p, qk_channel);  // after the state: all sequences share it, it is near
  const Filter<1> v_filter(p, v_channel);
  if (prepares_gates) {
    const float dt_bias = load_dt_bias(p.dt_bias, p.flags & CAOVAN_GDN_DT_BIAS_HALF, head);
    token_shared[gate_token].decay = expf(gate_log_decay(__half2float(a), p.a_log[head], dt_bias));
    token_shared[gate_token].beta = gate_beta(__half2float(b));
  }
  if (prepares_v) token_shared[v_token].v[v_row] = v_filter.output(v_window, 0);
  int arrived = -1;
  if (prepares_qk) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int t = qk_token(turn);
      if (t >= tokens) break;
      float y[kLaneChannels], sum = 0.f;
#pragma unroll
      for (int i = 0; i < kLaneChannels; ++i) {
        y[i] = qk_filter.output(window[turn], i);
        sum += y[i] * y[i];
      }
      const float scale = rsqrtf(sum_over<32>(sum) + kL2NormEps) * (warp % 2 ? 1.f : p.scale);
      store_packed(&token_shared[t].input[warp % 2][lane * kLaneChannels], window[turn][kWidth - 1]);
      if (t == 0) {
        store_packed(&before_shared[0][warp % 2][lane * kLaneChannels], window[turn][1]);
        store_packed(&before_shared[1][warp % 2][lane * kLaneChannels], window[turn][2]);
      }
      float* row = (warp % 2 ? token_shared[t].k : token_shared[t].q) + lane * kLaneChannels;
#pragma unroll
      for (int i = 0; i < kLaneChannels; ++i) row[i] = y[i] * scale;
    }
    // this warp's reads of the conv state have returned; the answer is used after the recurrence
    __syncwarp();
    if (lane == 0) arrived = atomicAdd(p.counters + (seq * p.k_heads + k_head) * 2 + warp % 2, 1);
  }
  __syncthreads();
  if (prepares_v) roll_conv_state(p, v_window, v_token, conv_slot, v_channel);

#pragma unroll
  for (int t = 0; t < MaxT; ++t) {
    if (t >= tokens) break;
    const Token& token = token_shared[t];
    const float decay = token.decay, beta = token.beta;
    float4 k[kVectors];
    float kq = 0.f, sk[LaneRows] = {}, sq[LaneRows] = {};
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      k[j] = *reinterpret_cast<const float4*>(&token.k[j * 32 + lane % 8 * 4]);
      const float4 q = *reinterpret_cast<const float4*>(&token.q[j * 32 + lane % 8 * 4]);
      kq += dot(k[j], q);
#pragma unroll
      for (int r = 0; r < LaneRows; ++r) {
        sk[r] += dot(s[r][j], k[j]);
        sq[r] += dot(s[r][j], q);
      }
    }
    kq = sum_over<8>(kq);
    const int to_slot = MaxT == 1 ? my_slot : __shfl_sync(~0u, my_slot, t);
#pragma unroll
    for (int r = 0; r < LaneRows; ++r) {
      const int row = my_row + 4 * r;
      const float u = beta * (token.v[row] - decay * sum_over<8>(sk[r]));
      const float o = decay * sum_over<8>(sq[r]) + u * kq;
      if (lane % 8 == 0) out[t * p.out_stride + row] = __float2half_rn(o);
      float* const to = p.state + to_slot * p.state_stride + my_state + r * 4 * D;
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        s[r][j].x = decay * s[r][j].x + u * k[j].x;
        s[r][j].y = decay * s[r][j].y + u * k[j].y;
        s[r][j].z = decay * s[r][j].z + u * k[j].z;
        s[r][j].w = decay * s[r][j].w + u * k[j].w;
        if (to_slot > 0) __stcs(reinterpret_cast<float4*>(to + j * 32), s[r][j]);
      }
    }
  }

  const int readers = int(gridDim.x) * min(Warps / 2, tokens);
  if (__shfl_sync(~0u, arrived, 0) != readers - 1) return;
  for (int t = 0; t < tokens; ++t) {
    Channels<kLaneChannels> inputs[kWidth];
    inputs[1] = load_packed<kLaneChannels>(&before_shared[0][warp % 2][lane * kLaneChannels]);
    inputs[2] = load_packed<kLaneChannels>(&before_shared[1][warp % 2][lane * kLaneChannels]);
    inputs[3] = load_packed<kLaneChannels>(&token_shared[t].input[warp % 2][lane * kLaneChannels]);
    roll_conv_state(p, inputs, t, conv_slot, qk_channel);
  }
  if (lane == 0) p.counters[(seq * p.k_heads + k_head) * 2 + warp % 2] = 0;
}

template <int D, int Warps, int LaneRows, int MaxT, int MinBlocks>
int visit(const caovan_gdn_decode_args* p, cudaStream_t stream) {
  constexpr int kRows = Warps * 4 * LaneRows;
  auto* const kernel = decode_kernel<D, Warps, LaneRows, MaxT, MinBlocks>;
  if (!p) {
    cudaFuncAttributes attributes;
    return check_cuda(cudaFuncGetAttributes(&attributes, kernel), "load gdn_decode");
  }
  const dim3 grid(p->v_heads / p->k_heads * (D / kRows), p->k_heads, p->sequences);
  const size_t shared = p->max_tokens * sizeof(SharedToken<D, kRows>) + 2 * sizeof(__half[2][D]);
  kernel<<<grid, Warps * 32, shared, stream>>>(*p);
  return check_cuda(cudaGetLastError(), "launch gdn_decode");
}

// One token: a few sequences get small blocks, so that more multiprocessors pull; many get more
// bytes in flight a warp. More tokens: eight warps, which share the conv work of the tokens.
constexpr int kManyRows = 4096;  // state rows

template <int D>
int launch(const caovan_gdn_decode_args& p, cudaStream_t stream) {
  if (p.max_tokens > 4) return visit<D, 8, 1, 8, 3>(&p, stream);
  if (p.max_tokens > 1) return visit<D, 8, 1, 4, 3>(&p, stream);
  if (int64_t(p.sequences) * p.v_heads * D > kManyRows) return visit<D, 4, 2, 1, 6>(&p, stream);
  return visit<D, 4, 1, 1, 1>(&p, stream);
}

template <int D>
int load() {
  int status = visit<D, 8, 1, 8, 3>(nullptr, nullptr);
  if (!status) status = visit<D, 8, 1, 4, 3>(nullptr, nullptr);
  if (!status) status = visit<D, 4, 2, 1, 6>(nullptr, nullptr);
  return status ? status : visit<D, 4, 1, 1, 1>(nullptr, nullptr);
}

}  // namespace decode

int decode_load() {
  const int status = decode::load<64>();
  return status ? status : decode::load<128>();
}

int decode_launch(const caovan_gdn_decode_args& p, cudaStream_t stream) {
  return p.head_dim == 64 ? decode::launch<64>(p, stream) : decode::launch<128>(p, stream);
}

}  // namespace caovan
