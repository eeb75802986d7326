// Decode and verification attention over a cache of int4: a file of its own, so that formats compile at once.
#include "attention_launch.cuh"

namespace caovan {

int attention_int4_load() { return attention::load<attention::kInt4>(); }

int attention_int4_launch(const caovan_attention_args& p, void* workspace, cudaStream_t stream) {
  return attention::launch<attention::kInt4>(p, workspace, stream);
}

}  // namespace caovan
