/* libcaovan_sm75: Gated DeltaNet, attention and logits for Turing (SM75), plain C.
 *
 * Raw device pointers, sizes and a stream; no Torch, no Python, static CUDA runtime. No call
 * synchronises with the host, allocates device memory or reads device data on the host, so every
 * call may be captured in a CUDA graph (after caovan_sm75_prepare has run once on the device).
 *
 * A call returns CAOVAN_OK or an error code; caovan_sm75_last_error() then says in words what
 * cannot be done, why, and what to use instead. Strides are in elements of the array they belong
 * to; the innermost dimension is always contiguous. "slots" are rows of a state cache.
 *
 * Any number of sequences of a call may name the null slot. Two that name the same other slot race,
 * as they do in vLLM's kernels: each reads and writes it when its blocks run, so their outputs and
 * what stays in that slot are undefined (no other slot is touched). vLLM gives every sequence slots
 * of its own; to check it here the host would have to wait for the device.
 *
 * The recurrence, for each value head h (key head h / (v_heads / k_heads)) and each token t:
 *     S  <- exp(g_t) S                       S: [head_v_dim, head_k_dim], fp32
 *     u  =  beta_t (v_t - S k_t)
 *     S  <- S + u k_t^T
 *     out_t = scale * S q_t
 */
#ifndef CAOVAN_SM75_H
#define CAOVAN_SM75_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define CAOVAN_SM75_ABI 1
#define CAOVAN_SM75_VERSION "0.1.0"

enum caovan_status {
  CAOVAN_OK = 0,
  CAOVAN_REFUSED = 1, /* this library cannot do what was asked; nothing was launched */
  CAOVAN_CUDA = 2     /* the CUDA runtime failed; the text holds its message */
};

enum caovan_gdn_flags {
  CAOVAN_GDN_L2NORM = 1,      /* q and k are raw: divide each row by sqrt(sum of squares + 1e-6) */
  CAOVAN_GDN_GATES = 2,       /* g, beta hold raw fp16 a, b: g = -exp(a_log) softplus(a + dt_bias),
                                 beta = sigmoid(b); without it they are fp32 log decay and beta */
  CAOVAN_GDN_DT_BIAS_HALF = 4 /* dt_bias is fp16, not fp32 */
};

typedef struct caovan_gdn_prefill_args {
  uint32_t struct_size; /* sizeof(caovan_gdn_prefill_args) */
  uint32_t flags;       /* caovan_gdn_flags */
  int32_t tokens;       /* rows of q, k, v, g, beta, out */
  int32_t sequences;
  int32_t k_heads;
  int32_t v_heads;
  int32_t head_k_dim;
  int32_t head_v_dim;
  int32_t num_slots; /* rows of the state arrays */
  int32_t null_slot; /* slots <= null_slot hold no state: start at zero, write nothing (-1: none) */
  float scale;
  int32_t reserved;
  const void* q; /* fp16 [tokens, k_heads, head_k_dim] */
  const void* k; /* fp16 [tokens, k_heads, head_k_dim] */
  const void* v; /* fp16 [tokens, v_heads, head_v_dim] */
  const void* g; /* [tokens, v_heads], see CAOVAN_GDN_GATES */
  const void* beta;
  void* out; /* fp16 [tokens, v_heads, head_v_dim]; rows outside every sequence are not written */
  int64_t q_stride, k_stride, v_stride, g_stride, beta_stride, out_stride; /* a token */
  const float* a_log;        /* fp32 [v_heads], with CAOVAN_GDN_GATES */
  const void* dt_bias;       /* [v_heads], with CAOVAN_GDN_GATES */
  const int32_t* cu_seqlens; /* [sequences + 1], ascending, on the device */
  const float* initial_state; /* fp32 [num_slots, v_heads, head_v_dim, head_k_dim]; NULL: zeros */
  float* final_state;         /* the same layout, may be the same array; NULL: not wanted */
  int64_t state_stride;       /* a slot, both arrays */
  const int32_t* slots;       /* [sequences]; NULL: sequence n uses slot n */
  int64_t slots_stride;
  const uint8_t* has_initial_state; /* [sequences]; NULL: all true */
} caovan_gdn_prefill_args;

typedef struct caovan_gdn_decode_args {
  uint32_t struct_size;
  uint32_t flags; /* CAOVAN_GDN_DT_BIAS_HALF; l2norm and gates are always fused here */
  int32_t sequences;
  int32_t max_tokens; /* no sequence has more new tokens than this; 1..8 */
  int32_t k_heads;
  int32_t v_heads;
  int32_t head_dim;
  int32_t num_slots;
  float scale;
  int32_t conv_width;  /* 4 */
  const void* qkv;     /* fp16 [tokens, 2 k_heads head_dim + v_heads head_dim], before the conv;
                          rows of a sequence with a null slot are read, and not used */
  const void* a;       /* fp16 [tokens, v_heads] */
  const void* b;
  void* out; /* fp16 [tokens, v_heads, head_dim]; zeros for a sequence whose slot is <= 0 */
  int64_t qkv_stride, a_stride, b_stride, out_stride; /* a token */
  const float* a_log;
  const void* dt_bias;
  const void* conv_weight; /* fp16 [channels, 4] */
  const void* conv_bias;   /* fp16 [channels] or NULL */
  void* conv_state;        /* fp16, channel c, column w of slot s at s*slot + w*column + c*channel */
  int64_t conv_slot_stride, conv_column_stride, conv_channel_stride;
  const int32_t* cu_seqlens; /* [sequences + 1]; NULL: sequence n is token n */
  float* state;              /* fp32 [num_slots, v_heads, head_dim, head_dim], updated in place */
  int64_t state_stride;
  const int32_t* slots; /* [sequences, max_tokens]: where the state after each token goes */
  int64_t slots_stride;
  const int32_t* num_accepted; /* [sequences]; NULL: the state is read from column 0 */
  int32_t* counters; /* [sequences, k_heads, 2], zero before the first call and again after each;
                        calls that may overlap in time need their own */
} caovan_gdn_decode_args;

/* How a paged KV cache holds keys and values, per token and KV head; as vLLM 0.32's Triton kernels
 * write them. */
enum caovan_kv_format {
  CAOVAN_KV_HALF = 0, /* fp16 [head_dim] */
  CAOVAN_KV_INT8 = 1, /* int8 [head_dim]; value = scale * byte */
  CAOVAN_KV_INT4 = 2, /* uint8 [head_dim / 2], the even dimension in the low nibble; rotated (see
                         `signs`); the scale's lowest four bits hold a zero point: value =
                         (scale with those bits zero) * (nibble - zero point) */
  CAOVAN_KV_FP8 = 3   /* fp8 e4m3 [head_dim]; value = scale * byte, with one scale for all keys and one
                         for all values. A NaN is read as 480 with its sign; none is written */
};

typedef struct caovan_attention_args {
  uint32_t struct_size;
  uint32_t format; /* caovan_kv_format */
  int32_t sequences;
  int32_t max_tokens; /* no sequence has more query tokens than this; decode: 1..512 */
  int32_t heads;
  int32_t kv_heads;   /* query head h reads KV head h / (heads / kv_heads) */
  int32_t head_dim;   /* 128 or 256 */
  int32_t block_size; /* tokens a block, a multiple of 16 */
  int32_t segments;   /* decode: into how many parts of the keys each sequence is split; 1..256 */
  float scale;        /* of q k, before the softmax */
  const void* q;      /* fp16 [tokens, heads, head_dim] */
  void* out;          /* fp16 [tokens, heads, head_dim]; rows outside every sequence are not written */
  int64_t q_stride, out_stride; /* a token */
  const void* k; /* of token t of block b and KV head h: at b*block + t*token + h*head bytes */
  const void* v;
  const void* k_scale; /* fp32, the same strides; with CAOVAN_KV_FP8 one for all, on the device; not
                          read with CAOVAN_KV_HALF */
  const void* v_scale;
  int64_t block_stride, token_stride, head_stride; /* bytes, of all four */
  const int32_t* block_table; /* [sequences, ...]: the blocks of a sequence in order */
  int64_t block_table_stride; /* 0: all share one */
  const int32_t* cu_seqlens; /* [sequences + 1]: query tokens; a sequence without any is skipped */
  const int32_t* kv_lengths; /* [sequences]: keys, those of the query tokens included; query token i
                                of n sees the first kv_length - n + 1 + i */
  const float* signs; /* fp32 [head_dim] of 1 and -1, with CAOVAN_KV_INT4: cached rows are H(signs x)
                         with H the Hadamard transform of sums (no factor) */
} caovan_attention_args;

typedef struct caovan_kv_write_args {
  uint32_t struct_size;
  uint32_t format; /* caovan_kv_format */
  int32_t tokens;
  int32_t kv_heads;
  int32_t head_dim;   /* 128 or 256 */
  int32_t block_size; /* tokens a block */
  const void* k;      /* fp16 [tokens, kv_heads, head_dim], after the rotary embedding */
  const void* v;
  int64_t k_stride, v_stride; /* a token */
  void* k_cache;              /* as k, v, k_scale, v_scale of caovan_attention_args */
  void* v_cache;
  void* k_scale;
  void* v_scale;
  int64_t block_stride, token_stride, head_stride; /* bytes, of all four */
  const int64_t* slots; /* [tokens]: block x block_size + place in it; negative: not written */
  const float* signs;   /* as of caovan_attention_args */
} caovan_kv_write_args;

typedef struct caovan_lm_head_args {
  uint32_t struct_size;
  int32_t rows;         /* of x, 1..16 */
  int32_t vocabulary;   /* rows of weight, at least 64 */
  int32_t hidden;       /* a multiple of 64 */
  const void* x;        /* fp16 [rows, hidden] */
  const void* weight;   /* int8 [vocabulary, hidden] */
  const float* scale;   /* fp32 [vocabulary] */
  void* out;            /* fp16 [rows, vocabulary]: x (scale weight)^T */
  int64_t x_stride, weight_stride, out_stride; /* a row */
} caovan_lm_head_args;

const char* caovan_sm75_version(void);
int caovan_sm75_abi(void);
const char* caovan_sm75_last_error(void); /* of this thread's last failed call */

/* Load every kernel on the current device and raise its shared-memory limit. Call once a device,
 * outside graph capture. Refused on devices older than SM75. */
int caovan_sm75_prepare(void);

/* Bytes of device workspace that caovan_gdn_prefill needs (16-byte aligned, contents free). */
int64_t caovan_gdn_prefill_workspace_bytes(int32_t tokens, int32_t sequences, int32_t v_heads);

/* Chunked prefill on tensor cores: head sizes 64 and 128, head_k_dim == head_v_dim. */
int caovan_gdn_prefill(const caovan_gdn_prefill_args* args, void* workspace,
                       int64_t workspace_bytes, void* stream);

/* The same function, a token at a time in fp32: any head size up to 256. Slow; for comparison. */
int caovan_gdn_recurrent(const caovan_gdn_prefill_args* args, void* stream);

/* Decode and verification of 1..8 tokens a sequence in one launch: causal conv update, SiLU,
 * l2norm, gates, recurrence; the state after token i goes to slots[n, i] (slots <= 0: nowhere).
 * The initial state is slots[n, num_accepted[n] - 1]; the conv state is slot slots[n, 0], read
 * from column num_accepted[n] - 1 and shifted as vLLM's causal_conv1d_update does. */
int caovan_gdn_decode(const caovan_gdn_decode_args* args, void* stream);

/* Into how many segments to split so that a full device is busy, for `sequences` at once. */
int32_t caovan_attention_segments(uint32_t format, int32_t sequences, int32_t max_tokens,
                                  int32_t heads, int32_t kv_heads, int32_t head_dim);

/* Bytes of device workspace that caovan_attention_decode needs (16-byte aligned, contents free). */
int64_t caovan_attention_workspace_bytes(int32_t sequences, int32_t max_tokens, int32_t heads,
                                         int32_t kv_heads, int32_t head_dim, int32_t segments);

/* Causal attention of 1..512 new tokens a sequence to a paged cache that holds their keys already. The
 * keys are split over the device: for decoding, verification, and short extensions of long sequences. */
int caovan_attention_decode(const caovan_attention_args* args, void* workspace,
                            int64_t workspace_bytes, void* stream);

/* The same for any number of new tokens a sequence, without a workspace; for prefill. */
int caovan_attention_prefill(const caovan_attention_args* args, void* stream);

/* Write keys and values of new tokens into a paged cache, as vLLM 0.32's Triton kernels do: rotation,
 * scale, zero point and packing in one launch, in fp32 up to the rounding. */
int caovan_kv_write(const caovan_kv_write_args* args, void* stream);

/* Logits of a few rows from int8 weights, each row of the vocabulary with its scale; sums in fp32. */
int caovan_lm_head(const caovan_lm_head_args* args, void* stream);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
