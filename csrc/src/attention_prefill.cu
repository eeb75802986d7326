// Prefill attention, for each format and head size.
#include "attention_prefill.cuh"

#include "kernels.h"
#include "status.h"

namespace caovan {
namespace prefill {

template <Format F, int D>
int visit(const caovan_attention_args* p, cudaStream_t stream) {
  using S = Shape<F, D>;
  auto* const kernel = prefill_kernel<F, D>;
  if (!p)
    return check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared),
                      "load attention_prefill");
  const int group = p->heads / p->kv_heads;
  const int64_t rows = int64_t(p->max_tokens) * group;
  kernel<<<dim3(unsigned((rows + S::kRows - 1) / S::kRows), p->kv_heads, p->sequences), kThreads, S::kShared, stream>>>(
      *p, group);
  return check_cuda(cudaGetLastError(), "launch attention_prefill");
}

template <Format F>
int visit_any(const caovan_attention_args* p, cudaStream_t stream) {
  if (p) return p->head_dim == 128 ? visit<F, 128>(p, stream) : visit<F, 256>(p, stream);
  const int status = visit<F, 128>(p, stream);
  return status ? status : visit<F, 256>(p, stream);
}

}  // namespace prefill

int attention_prefill_load() {
  int status = prefill::visit_any<prefill::kHalf>(nullptr, nullptr);
  if (!status) status = prefill::visit_any<prefill::kInt8>(nullptr, nullptr);
  if (!status) status = prefill::visit_any<prefill::kInt4>(nullptr, nullptr);
  return status ? status : prefill::visit_any<prefill::kFp8>(nullptr, nullptr);
}

int attention_prefill_launch(const caovan_attention_args& p, cudaStream_t stream) {
  if (p.format == CAOVAN_KV_HALF) return prefill::visit_any<prefill::kHalf>(&p, stream);
  if (p.format == CAOVAN_KV_INT8) return prefill::visit_any<prefill::kInt8>(&p, stream);
  if (p.format == CAOVAN_KV_FP8) return prefill::visit_any<prefill::kFp8>(&p, stream);
  return prefill::visit_any<prefill::kInt4>(&p, stream);
}

}  // namespace caovan
