// Decode and verification attention over a cache of fp16: a file of its own, so that formats compile at once.
#include "attention_launch.cuh"

namespace caovan {

int attention_half_load() { return attention::load<attention::kHalf>(); }

int attention_half_launch(const caovan_attention_args& p, void* workspace, cudaStream_t stream) {
  return attention::launch<attention::kHalf>(p, workspace, stream);
}

}  // namespace caovan
