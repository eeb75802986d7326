// Logits from int8 weights, for up to 8 and up to 16 rows.
#include "lm_head.cuh"

#include "kernels.h"
#include "status.h"

namespace caovan {

int lm_head_load() {
  cudaFuncAttributes attributes;
  const int status = check_cuda(cudaFuncGetAttributes(&attributes, lm_head::lm_head_kernel<1>), "load lm_head");
  return status ? status : check_cuda(cudaFuncGetAttributes(&attributes, lm_head::lm_head_kernel<2>), "load lm_head");
}

int lm_head_launch(const caovan_lm_head_args& p, cudaStream_t stream) {
  auto* const kernel = p.rows <= 8 ? lm_head::lm_head_kernel<1> : lm_head::lm_head_kernel<2>;
  kernel<<<unsigned((p.vocabulary + lm_head::kRows - 1) / lm_head::kRows), lm_head::kThreads, 0, stream>>>(p);
  return check_cuda(cudaGetLastError(), "launch lm_head");
}

}  // namespace caovan
