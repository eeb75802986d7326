// The C interface: says in words what it cannot do, launches what it can.
#include <algorithm>

#include "attention_launch.cuh"
#include "gdn_chunk.cuh"
#include "kernels.h"
#include "lm_head.cuh"
#include "status.h"

using caovan::refuse;

static bool misaligned(const void* p, int bytes) { return reinterpret_cast<uintptr_t>(p) % bytes; }

// Refuse a structure of a caller who was compiled with another header.
template <class Args>
static int refuse_other_size(const Args* p) {
  if (p && p->struct_size == sizeof *p) return CAOVAN_OK;
  return refuse("cannot read the arguments: struct_size is %u, this library's is %zu; use the header of the same version",
                p ? p->struct_size : 0, sizeof *p);
}

static int check_shape(int sequences, int k_heads, int v_heads, int num_slots) {
  if (sequences < 1 || sequences > 65535)
    return refuse("cannot take %d sequences: 1 to 65535 fit a launch; split the batch", sequences);
  if (k_heads < 1 || v_heads < 1 || v_heads % k_heads || v_heads > 65535)
    return refuse("cannot map %d value heads to %d key heads: the first must be a multiple of the second", v_heads,
                  k_heads);
  if (num_slots < 1) return refuse("cannot use a state cache of %d slots: pass at least one", num_slots);
  return CAOVAN_OK;
}

static int check_prefill(const caovan_gdn_prefill_args* p) {
  if (const int status = refuse_other_size(p)) return status;
  if (p->flags & ~7u) return refuse("cannot honour flags 0x%x: bits 0 to 2 are known", p->flags);
  if (const int status = check_shape(p->sequences, p->k_heads, p->v_heads, p->num_slots)) return status;
  if (p->tokens < 1) return refuse("cannot prefill %d tokens: pass at least one", p->tokens);
  if (!p->q || !p->k || !p->v || !p->g || !p->beta || !p->out || !p->cu_seqlens)
    return refuse("cannot prefill: one of q, k, v, g, beta, out, cu_seqlens is NULL");
  if ((p->flags & CAOVAN_GDN_GATES) && (!p->a_log || !p->dt_bias))
    return refuse("cannot compute the gates: a_log or dt_bias is NULL");
  return CAOVAN_OK;
}

extern "C" int64_t caovan_gdn_prefill_workspace_bytes(int32_t tokens, int32_t sequences, int32_t v_heads) {
  if (tokens < 1 || sequences < 1 || v_heads < 1) return 0;
  return int64_t(caovan::chunk_slots(tokens, sequences)) * v_heads * caovan::kRecordBytes;
}

extern "C" int caovan_sm75_prepare(void) {
  int device = 0, major = 0, minor = 0;
  if (const int status = caovan::check_cuda(cudaGetDevice(&device), "find the current CUDA device")) return status;
  if (const int status = caovan::check_cuda(
          cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "read the compute capability"))
    return status;
  if (const int status = caovan::check_cuda(
          cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "read the compute capability"))
    return status;
  if (major * 10 + minor < 75)
    return refuse("cannot run on device %d: it is SM%d%d, these kernels need SM75 or newer", device, major, minor);
  if (const int status = caovan::recurrent_load()) return status;
  if (const int status = caovan::chunk_prepare_load()) return status;
  if (const int status = caovan::chunk_scan_load()) return status;
  if (const int status = caovan::decode_load()) return status;
  if (const int status = caovan::attention_half_load()) return status;
  if (const int status = caovan::attention_int8_load()) return status;
  if (const int status = caovan::attention_int4_load()) return status;
  if (const int status = caovan::attention_fp8_load()) return status;
  if (const int status = caovan::attention_combine_load()) return status;
  if (const int status = caovan::attention_prefill_load()) return status;
  if (const int status = caovan::kv_write_load()) return status;
  return caovan::lm_head_load();
}

extern "C" int caovan_gdn_prefill(const caovan_gdn_prefill_args* p, void* workspace, int64_t workspace_bytes,
                                  void* stream) {
  if (const int status = check_prefill(p)) return status;
  if (p->head_k_dim != p->head_v_dim || (p->head_k_dim != 64 && p->head_k_dim != 128))
    return refuse("cannot prefill head sizes %d (key) and %d (value): the chunked kernel has 64 and 128, both equal; "
                  "use caovan_gdn_recurrent", p->head_k_dim, p->head_v_dim);
  const int64_t needed = caovan_gdn_prefill_workspace_bytes(p->tokens, p->sequences, p->v_heads);
  if (!workspace || workspace_bytes < needed || misaligned(workspace, 16))
    return refuse("cannot prefill %d tokens in a workspace of %lld bytes: %lld are needed, 16-byte aligned", p->tokens,
                  static_cast<long long>(workspace_bytes), static_cast<long long>(needed));
  if (misaligned(p->q, 16) || misaligned(p->k, 16) || misaligned(p->v, 16) || misaligned(p->out, 4) ||
      p->q_stride % 8 || p->k_stride % 8 || p->v_stride % 8 || p->out_stride % 2)
    return refuse("cannot read q, k, v: rows must start on 16-byte boundaries (strides %lld, %lld, %lld)",
                  static_cast<long long>(p->q_stride), static_cast<long long>(p->k_stride),
                  static_cast<long long>(p->v_stride));
  if (misaligned(p->initial_state, 8) || misaligned(p->final_state, 8) || p->state_stride % 2)
    return refuse("cannot use the state cache: slots must start on 8-byte boundaries (stride %lld)",
                  static_cast<long long>(p->state_stride));
  const auto s = static_cast<cudaStream_t>(stream);
  if (const int status = caovan::chunk_prepare_launch(*p, workspace, s)) return status;
  return caovan::chunk_scan_launch(*p, workspace, s);
}

extern "C" int caovan_gdn_recurrent(const caovan_gdn_prefill_args* p, void* stream) {
  if (const int status = check_prefill(p)) return status;
  if (p->head_k_dim < 1 || p->head_k_dim > 256 || p->head_v_dim < 1 || p->head_v_dim > 256)
    return refuse("cannot use head sizes %d (key) and %d (value): 1 to 256 fit the registers", p->head_k_dim,
                  p->head_v_dim);
  return caovan::recurrent_launch(*p, static_cast<cudaStream_t>(stream));
}

extern "C" int caovan_gdn_decode(const caovan_gdn_decode_args* p, void* stream) {
  if (const int status = refuse_other_size(p)) return status;
  if (p->flags & ~uint32_t(CAOVAN_GDN_DT_BIAS_HALF)) return refuse("cannot honour flags 0x%x: bit 2 is known", p->flags);
  if (const int status = check_shape(p->sequences, p->k_heads, p->v_heads, p->num_slots)) return status;
  if (p->head_dim != 64 && p->head_dim != 128)
    return refuse("cannot decode head size %d: the kernel has 64 and 128", p->head_dim);
  if (p->max_tokens < 1 || p->max_tokens > 8)
    return refuse("cannot decode %d tokens a sequence: 1 to 8 fit the kernel; prefill more", p->max_tokens);
  if (p->max_tokens > 1 && !p->cu_seqlens)
    return refuse("cannot decode up to %d tokens a sequence without cu_seqlens", p->max_tokens);
  if (p->conv_width != 4) return refuse("cannot use a convolution of width %d: the kernel has 4", p->conv_width);
  if (!p->qkv || !p->a || !p->b || !p->out || !p->a_log || !p->dt_bias || !p->conv_weight || !p->conv_state ||
      !p->state || !p->slots || !p->counters)
    return refuse("cannot decode: a required array is NULL");
  if (misaligned(p->qkv, 8) || p->qkv_stride % 4 || misaligned(p->conv_weight, 8) || misaligned(p->conv_state, 8) ||
      (p->conv_channel_stride == 1 && (p->conv_slot_stride % 4 || p->conv_column_stride % 4)))
    return refuse("cannot read qkv or the conv state: rows must start on 8-byte boundaries");
  if (misaligned(p->state, 16) || p->state_stride % 4)
    return refuse("cannot use the state cache: slots must start on 16-byte boundaries (stride %lld)",
                  static_cast<long long>(p->state_stride));
  return caovan::decode_launch(*p, static_cast<cudaStream_t>(stream));
}

static int check_attention(const caovan_attention_args* p) {
  if (const int status = refuse_other_size(p)) return status;
  if (p->format > CAOVAN_KV_FP8) return refuse("cannot read a cache of format %u: 0 to 3 are known", p->format);
  if (p->sequences < 1 || p->sequences > 65535)
    return refuse("cannot take %d sequences: 1 to 65535 fit a launch; split the batch", p->sequences);
  if (p->kv_heads < 1 || p->heads < 1 || p->heads % p->kv_heads || p->heads > 65535)
    return refuse("cannot map %d query heads to %d KV heads: the first must be a multiple of the second", p->heads,
                  p->kv_heads);
  if (p->head_dim != 128 && p->head_dim != 256)
    return refuse("cannot attend with head size %d: the kernel has 128 and 256", p->head_dim);
  if (p->block_size < 16 || p->block_size % 16)
    return refuse("cannot read blocks of %d tokens: a multiple of 16 is needed", p->block_size);
  const bool has_scales = p->format != CAOVAN_KV_HALF;
  if (!p->q || !p->out || !p->k || !p->v || !p->block_table || !p->cu_seqlens || !p->kv_lengths ||
      (has_scales && (!p->k_scale || !p->v_scale)) || (p->format == CAOVAN_KV_INT4 && !p->signs))
    return refuse("cannot attend: a required array is NULL");
  const int bytes = p->format == CAOVAN_KV_INT8 || p->format == CAOVAN_KV_INT4 ? 4 : 16;
  if (misaligned(p->k, bytes) || misaligned(p->v, bytes) || misaligned(p->k_scale, 4) || misaligned(p->v_scale, 4) ||
      p->block_stride % bytes || p->token_stride % bytes || p->head_stride % bytes)
    return refuse("cannot read the cache: its rows must start on %d-byte boundaries (strides %lld, %lld, %lld)", bytes,
                  static_cast<long long>(p->block_stride), static_cast<long long>(p->token_stride),
                  static_cast<long long>(p->head_stride));
  if (p->token_stride < 0 || p->token_stride >= 1 << 24)
    return refuse("cannot read the cache: tokens are %lld bytes apart, fewer than 16 MiB fit",
                  static_cast<long long>(p->token_stride));
  if (misaligned(p->q, 4) || p->q_stride % 2)
    return refuse("cannot read q: rows must start on 4-byte boundaries (stride %lld)",
                  static_cast<long long>(p->q_stride));
  if (p->format == CAOVAN_KV_FP8 && (misaligned(p->q, 8) || p->q_stride % 4))
    return refuse("cannot read q for an fp8 cache: rows must start on 8-byte boundaries (stride %lld)",
                  static_cast<long long>(p->q_stride));
  return CAOVAN_OK;
}

extern "C" int32_t caovan_attention_segments(uint32_t format, int32_t sequences, int32_t max_tokens, int32_t heads,
                                             int32_t kv_heads, int32_t head_dim) {
  int device = 0, processors = 0;
  if (sequences < 1 || max_tokens < 1 || kv_heads < 1 || heads < kv_heads || cudaGetDevice(&device) ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device))
    return 1;
  const caovan::attention::Split split = caovan::attention::split_of(max_tokens, heads, kv_heads, 1);
  const auto known = static_cast<caovan::attention::Format>(format);
  const int64_t ctas = int64_t(split.blocks) * kv_heads * sequences;
  const int64_t room = processors * caovan::attention::resident(known, head_dim, split.groups);
  if (max_tokens <= caovan::attention::kOneWaveTokens)
    return int32_t(std::max<int64_t>(1, std::min<int64_t>(caovan::attention::kMaxSegments, room / ctas)));
  return caovan::attention::extension_segments(ctas, room);
}

extern "C" int64_t caovan_attention_workspace_bytes(int32_t sequences, int32_t max_tokens, int32_t heads,
                                                    int32_t kv_heads, int32_t head_dim, int32_t segments) {
  if (sequences < 1 || max_tokens < 1 || kv_heads < 1 || heads < kv_heads || segments < 1) return 0;
  return caovan::attention::partial_rows(sequences, max_tokens, heads, kv_heads, segments) *
         int64_t(sizeof(float4) + head_dim * sizeof(__half));
}

extern "C" int caovan_attention_decode(const caovan_attention_args* p, void* workspace, int64_t workspace_bytes,
                                       void* stream) {
  if (const int status = check_attention(p)) return status;
  if (p->max_tokens < 1 || p->max_tokens > caovan::attention::kMaxTokens)
    return refuse("cannot attend with %d tokens a sequence: 1 to %d fit the kernel; prefill more", p->max_tokens,
                  caovan::attention::kMaxTokens);
  if (p->segments < 1 || p->segments > caovan::attention::kMaxSegments)
    return refuse("cannot split a sequence into %d segments: 1 to %d fit the kernel; ask caovan_attention_segments",
                  p->segments, caovan::attention::kMaxSegments);
  const int64_t needed = caovan_attention_workspace_bytes(p->sequences, p->max_tokens, p->heads, p->kv_heads,
                                                          p->head_dim, p->segments);
  if (!workspace || workspace_bytes < needed || misaligned(workspace, 16))
    return refuse("cannot attend in a workspace of %lld bytes: %lld are needed, 16-byte aligned",
                  static_cast<long long>(workspace_bytes), static_cast<long long>(needed));
  const auto s = static_cast<cudaStream_t>(stream);
  constexpr decltype(&caovan::attention_half_launch) kLaunches[] = {
      caovan::attention_half_launch, caovan::attention_int8_launch, caovan::attention_int4_launch,
      caovan::attention_fp8_launch};  // by caovan_kv_format
  const auto launch = kLaunches[p->format];
  if (const int status = launch(*p, workspace, s)) return status;
  return caovan::attention_combine_launch(*p, workspace, s);
}

extern "C" int caovan_attention_prefill(const caovan_attention_args* p, void* stream) {
  if (const int status = check_attention(p)) return status;
  if (p->max_tokens < 1 || int64_t(p->max_tokens) * p->heads >= 1 << 30)
    return refuse("cannot attend with %d tokens a sequence of %d heads: 1 to 2^30 rows fit a launch; split them",
                  p->max_tokens, p->heads);
  if (misaligned(p->out, 4) || p->out_stride % 2)
    return refuse("cannot write out: rows must start on 4-byte boundaries (stride %lld)",
                  static_cast<long long>(p->out_stride));
  return caovan::attention_prefill_launch(*p, static_cast<cudaStream_t>(stream));
}

extern "C" int caovan_kv_write(const caovan_kv_write_args* p, void* stream) {
  if (const int status = refuse_other_size(p)) return status;
  if (p->format > CAOVAN_KV_FP8) return refuse("cannot write a cache of format %u: 0 to 3 are known", p->format);
  if (p->head_dim != 128 && p->head_dim != 256)
    return refuse("cannot write head size %d: the kernel has 128 and 256", p->head_dim);
  if (p->tokens < 1 || p->kv_heads < 1 || int64_t(p->tokens) * p->kv_heads >= 1 << 30)
    return refuse("cannot write %d tokens of %d KV heads: 1 to 2^30 rows fit a launch", p->tokens, p->kv_heads);
  if (p->block_size < 1) return refuse("cannot write blocks of %d tokens: pass at least one", p->block_size);
  const bool has_scales = p->format != CAOVAN_KV_HALF;
  if (!p->k || !p->v || !p->k_cache || !p->v_cache || !p->slots || (has_scales && (!p->k_scale || !p->v_scale)) ||
      (p->format == CAOVAN_KV_INT4 && !p->signs))
    return refuse("cannot write: a required array is NULL");
  if (misaligned(p->k, 4) || misaligned(p->v, 4) || p->k_stride % 2 || p->v_stride % 2 || misaligned(p->k_cache, 4) ||
      misaligned(p->v_cache, 4) || misaligned(p->k_scale, 4) || misaligned(p->v_scale, 4) || p->block_stride % 4 ||
      p->token_stride % 4 || p->head_stride % 4)
    return refuse("cannot write: rows of k, v and the cache must start on 4-byte boundaries");
  return caovan::kv_write_launch(*p, static_cast<cudaStream_t>(stream));
}

extern "C" int caovan_lm_head(const caovan_lm_head_args* p, void* stream) {
  if (const int status = refuse_other_size(p)) return status;
  if (p->rows < 1 || p->rows > caovan::lm_head::kMaxRows)
    return refuse("cannot compute logits of %d rows: 1 to %d fit the kernel; split them", p->rows,
                  caovan::lm_head::kMaxRows);
  if (p->vocabulary < caovan::lm_head::kRows)
    return refuse("cannot use a vocabulary of %d: at least %d are needed", p->vocabulary, caovan::lm_head::kRows);
  if (p->hidden < caovan::lm_head::kColumns || p->hidden % caovan::lm_head::kColumns)
    return refuse("cannot use a hidden size of %d: a multiple of %d is needed", p->hidden, caovan::lm_head::kColumns);
  if (!p->x || !p->weight || !p->scale || !p->out)
    return refuse("cannot compute logits: one of x, weight, scale, out is NULL");
  if (misaligned(p->x, 16) || p->x_stride % 8 || misaligned(p->weight, 16) || p->weight_stride % 16)
    return refuse("cannot read x or weight: rows must start on 16-byte boundaries (strides %lld, %lld)",
                  static_cast<long long>(p->x_stride), static_cast<long long>(p->weight_stride));
  return caovan::lm_head_launch(*p, static_cast<cudaStream_t>(stream));
}
