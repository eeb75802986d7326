// csrc/src/lm_head.cuh on a CPU, against float64: a line a case, exit 1 on a failure.
#include "lm_head.cuh"

#include <random>
#include <string>

#include "cta.h"

using namespace caovan;
using namespace caovan::lm_head;

namespace caovan {
char shared_memory[65536];
}
static std::mt19937 chance(1);
static float normal() { return std::normal_distribution<float>()(chance); }

// Rows of x and out that are no rows are NaN and 7; so are the gaps between rows.
static bool check(const std::string& name, int rows, int vocabulary, int hidden, float spread = 1) {
  const int x_stride = hidden + 8, weight_stride = hidden + 16, out_stride = vocabulary + 3;
  std::vector<__half> x(size_t(kMaxRows) * x_stride, __half(NAN)), out(size_t(kMaxRows) * out_stride, __half(7));
  std::vector<int8_t> storage(size_t(vocabulary) * weight_stride + 16, 99);
  int8_t* const weight = storage.data() + (16 - reinterpret_cast<uintptr_t>(storage.data()) % 16) % 16;
  std::vector<float> scale(vocabulary);
  for (int n = 0; n < rows; ++n)
    for (int k = 0; k < hidden; ++k) x[n * x_stride + k] = normal() * spread;
  for (int v = 0; v < vocabulary; ++v) {
    scale[v] = 1e-3f * (1 + v % 7);
    for (int k = 0; k < hidden; ++k) weight[v * weight_stride + k] = int8_t(int(chance() % 256) - 128);
  }
  caovan_lm_head_args p{};
  p.rows = rows, p.vocabulary = vocabulary, p.hidden = hidden;
  p.x = x.data(), p.weight = weight, p.scale = scale.data(), p.out = out.data();
  p.x_stride = x_stride, p.weight_stride = weight_stride, p.out_stride = out_stride;
  for (unsigned b = 0; b < unsigned(vocabulary + kRows - 1) / kRows; ++b) {
    blockIdx = {b, 0, 0};
    cta::run([&] { rows <= 8 ? lm_head_kernel<1>(p) : lm_head_kernel<2>(p); });
  }
  double squares = 0, errors = 0, largest = 0;
  bool good = true;
  std::vector<double> want(size_t(rows) * vocabulary);
  for (int n = 0; n < rows; ++n)
    for (int v = 0; v < vocabulary; ++v) {
      double sum = 0;
      for (int k = 0; k < hidden; ++k) sum += double(x[n * x_stride + k]) * weight[v * weight_stride + k];
      squares += (want[n * vocabulary + v] = sum * scale[v]) * sum * scale[v];
    }
  const double rms = std::sqrt(squares / want.size());
  for (int n = 0; n < kMaxRows; ++n)
    for (int v = 0; v < out_stride; ++v) {
      const double is = out[n * out_stride + v];
      if (n >= rows || v >= vocabulary) {
        good &= is == 7;
        continue;
      }
      const double error = is - want[n * vocabulary + v];
      errors += error * error;
      if (!(std::abs(error) / (std::abs(want[n * vocabulary + v]) + rms) <= largest))
        largest = std::abs(error) / (std::abs(want[n * vocabulary + v]) + rms);
    }
  const double relative = std::sqrt(errors / squares);
  good &= relative <= 4e-4 && largest <= 1e-3;
  std::printf("%s %s: %.1e / %.1e\n", good ? "pass" : "FAILED", name.c_str(), relative, largest);
  return good;
}

int main() {
  bool good = true;
  for (int rows : {1, 3, 8, 9, 16}) good &= check(std::to_string(rows) + " rows", rows, 128, 512);
  good &= check("columns that not all warps have", 5, 64, 320);
  good &= check("one step of one warp", 2, 64, 64);
  good &= check("a vocabulary that 64 does not divide", 16, 151, 256);
  good &= check("large sums", 4, 64, 1024, 300);
  return !good;
}
