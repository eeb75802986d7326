// The gates of Gated DeltaNet, fp32, as vLLM computes them.
#pragma once
#include <cuda_fp16.h>

namespace caovan {

// log decay: -exp(a_log) softplus(a + dt_bias); softplus is the identity above 20
__device__ __forceinline__ float gate_log_decay(float a, float a_log, float dt_bias) {
  const float x = a + dt_bias;
  const float softplus = x > 20.f ? x : (x > 0.f ? x + log1pf(expf(-x)) : log1pf(expf(x)));
  return -expf(a_log) * softplus;
}

__device__ __forceinline__ float gate_beta(float b) { return 1.f / (1.f + expf(-b)); }

__device__ __forceinline__ float load_dt_bias(const void* dt_bias, bool half, int head) {
  return half ? __half2float(static_cast<const __half*>(dt_bias)[head])
              : static_cast<const float*>(dt_bias)[head];
}

constexpr float kL2NormEps = 1e-6f;

}  // namespace caovan
