// Decode and verification attention over a cache of fp8 e4m3: a file of its own, so that formats compile at once.
#include "attention_launch.cuh"

namespace caovan {

int attention_fp8_load() { return attention::load<attention::kFp8>(); }

int attention_fp8_launch(const caovan_attention_args& p, void* workspace, cudaStream_t stream) {
  return attention::launch<attention::kFp8>(p, workspace, stream);
}

}  // namespace caovan
