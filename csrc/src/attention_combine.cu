// The reduction of attention, for each format and head size.
#include "attention_combine.cuh"

#include "attention_launch.cuh"

namespace caovan {
namespace attention {

template <Format F, int D>
int combine(const caovan_attention_args* p, const void* workspace, cudaStream_t stream) {
  auto* const kernel = combine_kernel<F, D>;
  if (!p) {
    cudaFuncAttributes attributes;
    return check_cuda(cudaFuncGetAttributes(&attributes, kernel), "load attention_combine");
  }
  const Split split = split_of(p->max_tokens, p->heads, p->kv_heads, p->segments);
  const auto* const statistics = static_cast<const float4*>(workspace);
  kernel<<<dim3(p->max_tokens * (p->heads / p->kv_heads), p->kv_heads, p->sequences), kThreads, 0, stream>>>(
      *p, statistics, reinterpret_cast<const __half*>(statistics + partial_rows(*p)), split.rows(), split.parts);
  return check_cuda(cudaGetLastError(), "launch attention_combine");
}

template <Format F>
int combine_any(const caovan_attention_args* p, const void* workspace, cudaStream_t stream) {
  if (p) return p->head_dim == 128 ? combine<F, 128>(p, workspace, stream) : combine<F, 256>(p, workspace, stream);
  const int status = combine<F, 128>(p, workspace, stream);
  return status ? status : combine<F, 256>(p, workspace, stream);
}

}  // namespace attention

int attention_combine_load() {
  int status = attention::combine_any<attention::kHalf>(nullptr, nullptr, nullptr);
  if (!status) status = attention::combine_any<attention::kInt8>(nullptr, nullptr, nullptr);
  if (!status) status = attention::combine_any<attention::kInt4>(nullptr, nullptr, nullptr);
  return status ? status : attention::combine_any<attention::kFp8>(nullptr, nullptr, nullptr);
}

int attention_combine_launch(const caovan_attention_args& p, const void* workspace, cudaStream_t stream) {
  if (p.format == CAOVAN_KV_HALF) return attention::combine_any<attention::kHalf>(&p, workspace, stream);
  if (p.format == CAOVAN_KV_INT8) return attention::combine_any<attention::kInt8>(&p, workspace, stream);
  if (p.format == CAOVAN_KV_FP8) return attention::combine_any<attention::kFp8>(&p, workspace, stream);
  return attention::combine_any<attention::kInt4>(&p, workspace, stream);
}

}  // namespace caovan
