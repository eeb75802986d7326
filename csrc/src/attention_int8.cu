// Decode and verification attention over a cache of int8: a file of its own, so that formats compile at once.
#include "attention_launch.cuh"

namespace caovan {

int attention_int8_load() { return attention::load<attention::kInt8>(); }

int attention_int8_launch(const caovan_attention_args& p, void* workspace, cudaStream_t stream) {
  return attention::launch<attention::kInt8>(p, workspace, stream);
}

}  // namespace caovan
