// How attention's kernels are cut to a launch; see attention.cuh.
#pragma once
#include "attention.cuh"
#include "kernels.h"
#include "status.h"

namespace caovan {
namespace attention {

// Rows a CTA takes, in eights: with 2, the other two warps take the other half of a tile's keys.
inline int row_groups(int rows) { return rows <= 16 ? 2 : 4; }

struct Split {
  int groups, blocks, parts;  // row groups of a CTA, CTAs for all rows, partial results a row
  int rows() const { return groups * 8 * blocks; }
};

inline Split split_of(int max_tokens, int heads, int kv_heads, int segments) {
  const int rows = max_tokens * (heads / kv_heads), groups = row_groups(rows);
  return {groups, (rows + groups * 8 - 1) / (groups * 8), segments * (kWarps / groups)};
}

constexpr int kOneWaveTokens = 8;  // decode and verification: more waves would be longer at short contexts

// Segments of an extension, whose CTAs do not divide the card well: those of up to four waves that
// leave the least of them idle.
inline int32_t extension_segments(int64_t ctas, int64_t room) {
  int32_t best = 1;
  int64_t waves = (ctas + room - 1) / room;
  for (int32_t n = 2; n <= kMaxSegments && n * ctas <= 4 * room; ++n) {
    const int64_t more = (n * ctas + room - 1) / room;
    if (more * best < waves * n) best = n, waves = more;
  }
  return best;
}

// Partial results: [sequences, kv_heads, rows, parts] of float4 {reference, sum, largest, 0}, then
// as many times head_dim halves: the output over its largest element, in the order of fragments.
inline int64_t partial_rows(int sequences, int max_tokens, int heads, int kv_heads, int segments) {
  const Split s = split_of(max_tokens, heads, kv_heads, segments);
  return int64_t(sequences) * kv_heads * s.rows() * s.parts;
}

inline int64_t partial_rows(const caovan_attention_args& p) {
  return partial_rows(p.sequences, p.max_tokens, p.heads, p.kv_heads, p.segments);
}

template <Format F, int D, int Groups>
int visit(const caovan_attention_args* p, void* workspace, cudaStream_t stream) {
  using S = Shape<F, D>;
    auto* const kernel = attention_kernel<F, D, Groups>;
  if (!p) {
    cudaFuncAttributes attributes;
    return check_cuda(cudaFuncGetAttributes(&attributes, kernel), "load attention");
  }
  const Split split = split_of(p->max_tokens, p->heads, p->kv_heads, p->segments);
  auto* const statistics = static_cast<float4*>(workspace);
  kernel<<<dim3(p->segments * split.blocks, p->kv_heads, p->sequences), kThreads, S::kShared, stream>>>(
      *p, statistics, reinterpret_cast<__half*>(statistics + partial_rows(*p)));
  return check_cuda(cudaGetLastError(), "launch attention");
}

template <Format F>
int load() {
  int status = visit<F, 128, 2>(nullptr, nullptr, nullptr);
  if (!status) status = visit<F, 128, 4>(nullptr, nullptr, nullptr);
  if (!status) status = visit<F, 256, 2>(nullptr, nullptr, nullptr);
  return status ? status : visit<F, 256, 4>(nullptr, nullptr, nullptr);
}

template <Format F>
int launch(const caovan_attention_args& p, void* workspace, cudaStream_t stream) {
  const bool narrow = row_groups(p.max_tokens * (p.heads / p.kv_heads)) == 2;
  if (p.head_dim == 128)
    return narrow ? visit<F, 128, 2>(&p, workspace, stream) : visit<F, 128, 4>(&p, workspace, stream);
  return narrow ? visit<F, 256, 2>(&p, workspace, stream) : visit<F, 256, 4>(&p, workspace, stream);
}

}  // namespace attention
}  // namespace caovan
