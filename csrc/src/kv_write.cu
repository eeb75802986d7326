// Write into a paged cache, for each format and head size.
#include "kv_write.cuh"

#include "kernels.h"
#include "status.h"

namespace caovan {
namespace kv_write {

template <int Format, int D>
int visit(const caovan_kv_write_args* p, cudaStream_t stream) {
  auto* const kernel = write_kernel<Format, D>;
  if (!p) {
    cudaFuncAttributes attributes;
    return check_cuda(cudaFuncGetAttributes(&attributes, kernel), "load kv_write");
  }
  const int64_t rows = int64_t(p->tokens) * p->kv_heads * 2;
  kernel<<<unsigned((rows + kWarps - 1) / kWarps), kWarps * 32, 0, stream>>>(*p);
  return check_cuda(cudaGetLastError(), "launch kv_write");
}

template <int Format>
int visit_any(const caovan_kv_write_args* p, cudaStream_t stream) {
  if (p) return p->head_dim == 128 ? visit<Format, 128>(p, stream) : visit<Format, 256>(p, stream);
  const int status = visit<Format, 128>(p, stream);
  return status ? status : visit<Format, 256>(p, stream);
}

}  // namespace kv_write

int kv_write_load() {
  int status = kv_write::visit_any<CAOVAN_KV_HALF>(nullptr, nullptr);
  if (!status) status = kv_write::visit_any<CAOVAN_KV_INT8>(nullptr, nullptr);
  if (!status) status = kv_write::visit_any<CAOVAN_KV_INT4>(nullptr, nullptr);
  return status ? status : kv_write::visit_any<CAOVAN_KV_FP8>(nullptr, nullptr);
}

int kv_write_launch(const caovan_kv_write_args& p, cudaStream_t stream) {
  if (p.format == CAOVAN_KV_HALF) return kv_write::visit_any<CAOVAN_KV_HALF>(&p, stream);
  if (p.format == CAOVAN_KV_INT8) return kv_write::visit_any<CAOVAN_KV_INT8>(&p, stream);
  if (p.format == CAOVAN_KV_FP8) return kv_write::visit_any<CAOVAN_KV_FP8>(&p, stream);
  return kv_write::visit_any<CAOVAN_KV_INT4>(&p, stream);
}

}  // namespace caovan
