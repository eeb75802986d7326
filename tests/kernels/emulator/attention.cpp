// csrc/src/attention.cuh, attention_combine.cuh and kv_write.cuh on a CPU, against float64: a line a
// case, exit 1 on a failure. Caches as vLLM lays them out: K, its scale, V, its scale of each token and head.
#include "attention.cuh"
#include "attention_combine.cuh"
#include "attention_prefill.cuh"
#include "cta.h"
#include "kv_write.cuh"

#include <random>
#include <string>

using namespace caovan;
using namespace caovan::attention;

namespace caovan {
char shared_memory[65536];
}
static std::mt19937 chance(1);
static float normal() { return std::normal_distribution<float>()(chance); }

struct Case {
  std::string name;
  int format, dim, group, kv_heads, block_size, segments;  // no segments: prefill
  std::vector<int> tokens, keys;
  float spread = 1, value = 1;  // of scores, of values
};

static void hadamard_of(std::vector<double>& x) {
  for (size_t h = 1; h < x.size(); h *= 2)
    for (size_t i = 0; i < x.size(); ++i)
      if (!(i & h)) {
        const double a = x[i], b = x[i + h];
        x[i] = a + b, x[i + h] = a - b;
      }
}

// The fp8 e4m3 of a byte, by its definition.
static double fp8(uint8_t byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  const double size = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
  return byte & 128 ? -size : size;
}

// The byte of the nearest fp8 e4m3 number, the even one of two.
static uint8_t nearest_fp8(double x) {
  int best = 0;
  for (int byte = 1; byte < 127; ++byte) {
    const double gain = std::abs(std::abs(x) - fp8(best)) - std::abs(std::abs(x) - fp8(byte));
    if (gain > 0 || (gain == 0 && byte % 2 == 0)) best = byte;
  }
  return uint8_t(best | (std::signbit(x) ? 128 : 0));
}

// Write a row as vLLM 0.32 does; return what it stands for. `signs` are of int4, `scale_to` holds fp8's scale.
static std::vector<double> write(const std::vector<double>& row, const Case& c, const float* signs, char* to, char* scale_to) {
  const int dim = int(row.size());
  std::vector<double> x = row;
  float low = INFINITY, high = -INFINITY;
  if (c.format == kHalf) {
    for (int d = 0; d < dim; ++d) {
      const __half h = x[d];
      memcpy(to + 2 * d, &h, 2);
      x[d] = h;
    }
    return x;
  }
  if (c.format == kFp8) {
    float scale;
    memcpy(&scale, scale_to, 4);
    for (int d = 0; d < dim; ++d) {
      to[d] = char(nearest_fp8(float(__half(x[d])) / scale));
      x[d] = scale * fp8(uint8_t(to[d]));
    }
    return x;
  }
  if (c.format == kInt4) {
    for (int d = 0; d < dim; ++d) x[d] *= signs[d];
    hadamard_of(x);
    memset(to, 0, dim / 2);
  }
  for (double v : x) low = std::min(low, float(v)), high = std::max(high, float(v));
  const bool packed = c.format == kInt4;
  float scale = std::max(packed ? (high - low) / 15 : std::max(high, -low) / 127, 1e-6f);
  const int zero = packed ? std::min(15, std::max(0, int(std::lround(-low / scale)))) : 0;
  for (int d = 0; d < dim; ++d) {
    const int q = int(std::lround(x[d] / scale)) + zero;
    if (packed)
      to[d / 2] |= char(std::min(15, std::max(0, q)) << d % 2 * 4);
    else
      to[d] = char(std::min(127, std::max(-128, q)));
  }
  uint32_t bits = __float_as_uint(scale);
  if (packed) bits = (bits & ~15u) | uint32_t(zero);
  memcpy(scale_to, &bits, 4);
  if (packed) scale = __uint_as_float(bits & ~15u);
  for (int d = 0; d < dim; ++d)
    x[d] = double(scale) * (packed ? (uint8_t(to[d / 2]) >> d % 2 * 4 & 15) - zero : int8_t(to[d]));
  if (packed) {
    hadamard_of(x);
    for (int d = 0; d < dim; ++d) x[d] *= double(signs[d]) / dim;
  }
  return x;
}

template <Format F, int D, int Groups>
static void launch(const caovan_attention_args& p, std::vector<float4>& statistics, std::vector<__half>& partial) {
  const int rows = p.max_tokens * (p.heads / p.kv_heads), blocks = (rows + Groups * 8 - 1) / (Groups * 8);
  const int parts = p.segments * (4 / Groups);
  const size_t records = size_t(p.sequences) * p.kv_heads * blocks * Groups * 8 * parts;
  statistics.assign(records, float4{NAN, NAN, NAN, NAN});
  partial.assign(records * D, __half(NAN));
  gridDim = {unsigned(p.segments * blocks), unsigned(p.kv_heads), unsigned(p.sequences)};
  for (unsigned z = 0; z < gridDim.z; ++z)
    for (unsigned y = 0; y < gridDim.y; ++y)
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = {x, y, z};
        memset(shared_memory, 0xff, sizeof shared_memory);  // NaN
        cta::run([&] { attention_kernel<F, D, Groups>(p, statistics.data(), partial.data()); });
      }
  gridDim = {unsigned(rows), unsigned(p.kv_heads), unsigned(p.sequences)};
  for (unsigned z = 0; z < gridDim.z; ++z)
    for (unsigned y = 0; y < gridDim.y; ++y)
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = {x, y, z};
        cta::run([&] {
          combine_kernel<F, D>(p, statistics.data(), partial.data(), blocks * Groups * 8, parts);
        });
      }
}

template <Format F, int D>
static void launch(const caovan_attention_args& p, std::vector<float4>& s, std::vector<__half>& partial) {
  if (p.max_tokens * (p.heads / p.kv_heads) <= 16)
    launch<F, D, 2>(p, s, partial);
  else
    launch<F, D, 4>(p, s, partial);
}

template <Format F, int D>
static void launch_prefill(const caovan_attention_args& p) {
  using S = prefill::Shape<F, D>;
  const int group = p.heads / p.kv_heads;
  gridDim = {unsigned((p.max_tokens * group + S::kRows - 1) / S::kRows), unsigned(p.kv_heads), unsigned(p.sequences)};
  for (unsigned z = 0; z < gridDim.z; ++z)
    for (unsigned y = 0; y < gridDim.y; ++y)
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = {x, y, z};
        memset(shared_memory, 0xff, sizeof shared_memory);  // NaN
        cta::run([&] { prefill::prefill_kernel<F, D>(p, group); }, prefill::kThreads);
      }
}

template <Format F>
static void launch(const Case& c, const caovan_attention_args& p) {
  std::vector<float4> statistics;
  std::vector<__half> partial;
  if (!c.segments)
    c.dim == 256 ? launch_prefill<F, 256>(p) : launch_prefill<F, 128>(p);
  else
    c.dim == 256 ? launch<F, 256>(p, statistics, partial) : launch<F, 128>(p, statistics, partial);
}

static bool check(const Case& c) {
  const int n = int(c.tokens.size()), heads = c.group * c.kv_heads, dim = c.dim;
  const int row_bytes = c.format == kInt4 ? dim / 2 : c.format == kHalf ? 2 * dim : dim;
  const int half = row_bytes + (c.format == kInt4 || c.format == kInt8 ? 4 : 0), record = 2 * half;
  float scales[2] = {0.03f, 0.05f * c.value};  // of an fp8 cache
  int blocks = 2, most = 0;
  for (int k : c.keys) blocks += (k + c.block_size - 1) / c.block_size, most = std::max(most, k);
  const int pages = most / c.block_size + 2;
  std::vector<float> signs(dim);
  for (float& s : signs) s = chance() & 1 ? 1.f : -1.f;
  std::vector<char> cache(size_t(blocks) * c.block_size * c.kv_heads * record, char(0xff));  // NaN
  std::vector<int32_t> table(n * pages, 1 << 28), cu{0};
  std::vector<int> order(blocks);
  for (int i = 0; i < blocks; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), chance);
  for (int s = 0, at = 0; s < n; ++s) {
    cu.push_back(cu[s] + c.tokens[s]);
    for (int b = 0; b * c.block_size < c.keys[s]; ++b) table[s * pages + b] = order[at++];
  }
  const int q_stride = heads * dim + 8, out_stride = heads * dim + 16;
  std::vector<__half> q((cu[n] + 3) * q_stride, __half(NAN)), out((cu[n] + 3) * out_stride, __half(7));
  for (int t = 0; t < cu[n]; ++t)
    for (int i = 0; i < heads * dim; ++i) q[t * q_stride + i] = normal() * c.spread;
  const int64_t token_stride = int64_t(c.kv_heads) * record, block_stride = token_stride * c.block_size;

  caovan_attention_args p{};
  p.format = c.format, p.sequences = n, p.heads = heads, p.kv_heads = c.kv_heads, p.head_dim = dim;
  p.max_tokens = *std::max_element(c.tokens.begin(), c.tokens.end());
  p.block_size = c.block_size, p.segments = c.segments, p.scale = 1 / std::sqrt(float(dim));
  p.q = q.data(), p.out = out.data(), p.q_stride = q_stride, p.out_stride = out_stride;
  p.k = cache.data(), p.k_scale = cache.data() + row_bytes, p.v = cache.data() + half;
  p.v_scale = cache.data() + half + row_bytes;
  if (c.format == kFp8) p.k_scale = &scales[0], p.v_scale = &scales[1];
  p.block_stride = block_stride, p.token_stride = token_stride, p.head_stride = record;
  p.block_table = table.data(), p.block_table_stride = pages, p.cu_seqlens = cu.data();
  p.kv_lengths = c.keys.data(), p.signs = signs.data();

  std::vector<double> want(out.size(), NAN);
  for (int s = 0; s < n; ++s)
    for (int h = 0; h < c.kv_heads; ++h) {
      std::vector<std::vector<double>> k, v;
      for (int t = 0; t < c.keys[s]; ++t) {
        char* at = cache.data() + table[s * pages + t / c.block_size] * block_stride +
                   t % c.block_size * token_stride + h * record;
        std::vector<double> x(dim), y(dim);
        for (int d = 0; d < dim; ++d) x[d] = normal(), y[d] = normal() * c.value;
        char* const one[2] = {reinterpret_cast<char*>(&scales[0]), reinterpret_cast<char*>(&scales[1])};
        const bool fp8 = c.format == kFp8;
        k.push_back(write(x, c, signs.data(), at, fp8 ? one[0] : at + row_bytes));
        v.push_back(write(y, c, signs.data(), at + half, fp8 ? one[1] : at + half + row_bytes));
      }
      for (int i = 0; i < c.tokens[s]; ++i)
        for (int g = 0; g < c.group; ++g) {
          const int row = cu[s] + i, head = h * c.group + g, sees = c.keys[s] - c.tokens[s] + 1 + i;
          std::vector<double> w(sees), o(dim);
          double top = -INFINITY, sum = 0;
          for (int t = 0; t < sees; ++t) {
            for (int d = 0; d < dim; ++d) w[t] += double(q[row * q_stride + head * dim + d]) * k[t][d];
            top = std::max(top, w[t] *= p.scale);
          }
          for (int t = 0; t < sees; ++t) {
            sum += w[t] = std::exp(w[t] - top);
            for (int d = 0; d < dim; ++d) o[d] += w[t] * v[t][d];
          }
          for (int d = 0; d < dim; ++d) want[row * out_stride + head * dim + d] = o[d] / sum;
        }
    }

  if (c.format == kInt4)
    launch<kInt4>(c, p);
  else if (c.format == kInt8)
    launch<kInt8>(c, p);
  else if (c.format == kFp8)
    launch<kFp8>(c, p);
  else
    launch<kHalf>(c, p);

  double squares = 0, errors = 0, largest = 0;
  size_t count = 0;
  bool good = true;
  for (double x : want)
    if (x == x) squares += x * x, ++count;
  const double rms = std::sqrt(squares / count);
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] != want[i]) {
      good &= out[i] == __half(7);  // a row or gap that belongs to nobody
      continue;
    }
    const double error = double(out[i]) - want[i];
    errors += error * error;
    if (!(std::abs(error) / (std::abs(want[i]) + rms) <= largest)) largest = std::abs(error) / (std::abs(want[i]) + rms);
  }
  const double relative = std::sqrt(errors / squares);
  good &= relative <= 1e-3 && largest <= 1e-2;
  std::printf("%s %s: %.1e / %.1e\n", good ? "pass" : "FAILED", c.name.c_str(), relative, largest);
  return good;
}

template <int Format, int D>
static bool check_write(const std::string& name) {
  Case c{};
  c.format = Format;
  constexpr int kTokens = 7, kHeads = 3, kBlock = 16, kRow = Format == kInt4 ? D / 2 : Format == kHalf ? 2 * D : D;
  constexpr int kSide = kRow + (Format == kInt4 || Format == kInt8 ? 4 : 0), kRecord = 2 * kSide;
  float scales[2] = {0.02f, 0.5f};  // of an fp8 cache: saturated keys, subnormal values
  std::vector<float> signs(D);
  for (float& s : signs) s = chance() & 1 ? 1.f : -1.f;
  std::vector<__half> rows(2 * kTokens * kHeads * D);
  for (__half& x : rows) x = normal() * 3;
  const std::vector<int64_t> slots{40, 3, -1, 17, 16, 0, 31};
  std::vector<char> cache(3 * kBlock * kHeads * kRecord, 0x55), want = cache;
  caovan_kv_write_args p{};
  p.format = Format, p.tokens = kTokens, p.kv_heads = kHeads, p.head_dim = D, p.block_size = kBlock;
  p.k = rows.data(), p.v = rows.data() + kTokens * kHeads * D, p.k_stride = p.v_stride = kHeads * D;
  p.k_cache = cache.data(), p.k_scale = cache.data() + kRow, p.v_cache = cache.data() + kSide;
  p.v_scale = cache.data() + kSide + kRow;
  if (Format == kFp8) p.k_scale = &scales[0], p.v_scale = &scales[1];
  p.token_stride = kHeads * kRecord, p.head_stride = kRecord, p.block_stride = kBlock * kHeads * kRecord;
  p.slots = slots.data(), p.signs = signs.data();
  for (unsigned x = 0; x < (kTokens * kHeads * 2 + 3) / 4; ++x) {
    blockIdx = {x, 0, 0};
    cta::run([&] { kv_write::write_kernel<Format, D>(p); });
  }
  for (int t = 0; t < kTokens; ++t)
    for (int h = 0; h < kHeads; ++h)
      for (int v = 0; v < 2; ++v) {
        if (slots[t] < 0) continue;
        const __half* from = rows.data() + ((v * kTokens + t) * kHeads + h) * D;
        char* to = want.data() + (slots[t] * kHeads + h) * kRecord + v * kSide;
        char* const one = reinterpret_cast<char*>(&scales[v]);
        write(std::vector<double>(from, from + D), c, signs.data(), to, Format == kFp8 ? one : to + kRow);
      }
  int other = 0;  // fp32 may round a tie, or a scale, the other way
  for (size_t i = 0; i < cache.size(); ++i) other += cache[i] != want[i];
  const bool good = other <= (Format == kInt4 || Format == kInt8 ? kTokens * kHeads : 0);
  std::printf("%s %s: %d bytes differ\n", good ? "pass" : "FAILED", name.c_str(), other);
  return good;
}

int main() {
  std::vector<Case> cases;
  const char* names[] = {"fp16", "int8", "int4", "fp8"};
  for (int format : {kInt4, kInt8, kHalf, kFp8})
    for (int dim : {256, 128}) {
      const std::string what = std::string(names[format]) + " " + std::to_string(dim);
      cases.push_back({what + ", 5 tokens of 6 heads, 3 segments", format, dim, 6, 2, 16, 3, {5}, {131}});
      cases.push_back({what + ", 1 token, blocks of 48, an empty segment", format, dim, 6, 1, 48, 4, {1}, {65}});
    }
  cases.push_back({"int4, ragged, lengths of one tile and a key", kInt4, 128, 4, 1, 32, 2, {5, 1, 3, 0, 4}, {33, 65, 3, 9, 4}});
  cases.push_back({"int4, 8 tokens of 8 heads", kInt4, 128, 8, 1, 16, 2, {8}, {70}});
  cases.push_back({"int8, 8 tokens of 5 heads", kInt8, 128, 5, 1, 16, 1, {8}, {50}});
  cases.push_back({"fp16, a segment whose keys some rows cannot see", kHalf, 128, 4, 1, 16, 3, {5}, {49}});
  cases.push_back({"int4, the last tile hidden from all rows but the last", kInt4, 256, 6, 1, 32, 3, {5}, {65}});
  cases.push_back({"int4, sharp scores, large values", kInt4, 128, 4, 1, 16, 2, {2}, {100}, 8, 3000});
  cases.push_back({"int4, values next to nothing", kInt4, 128, 4, 1, 16, 2, {2}, {100}, 1, 1e-3f});
  cases.push_back({"int4 256, extension of 17 tokens of 6 heads, 5 segments", kInt4, 256, 6, 1, 48, 5, {17}, {130}});
  cases.push_back({"int8 128, extensions, one whose keys are all new", kInt8, 128, 4, 1, 16, 3, {40, 1, 21}, {75, 9, 21}});
  cases.push_back({"fp16 256, extension over more tiles than it has tokens in one", kHalf, 256, 6, 1, 16, 4, {33}, {66}});
  cases.push_back({"fp8, sharp scores, large values", kFp8, 128, 4, 1, 16, 2, {2}, {100}, 8, 3000});
  cases.push_back({"fp8, ragged, an idle sequence", kFp8, 256, 6, 1, 48, 3, {5, 1, 0, 3}, {49, 17, 9, 3}});
  cases.push_back({"fp8 128, extension of 33 tokens", kFp8, 128, 4, 1, 16, 4, {33}, {66}});
  for (int format : {kInt4, kInt8, kHalf, kFp8})
    for (int dim : {256, 128}) {
      const std::string what = std::string("prefill ") + names[format] + " " + std::to_string(dim);
      cases.push_back({what + ", 45 tokens of 6 heads behind 100", format, dim, 6, 1, 16, 0, {45}, {145}});
      cases.push_back({what + ", ragged, blocks of 48", format, dim, 4, 2, 48, 0, {9, 0, 33, 1}, {9, 7, 50, 97}});
    }
  cases.push_back({"prefill fp16 256, one head a group", kHalf, 256, 1, 2, 16, 0, {130}, {131}});
  cases.push_back({"prefill int4 256, sharp scores, large values", kInt4, 256, 6, 1, 32, 0, {22}, {100}, 8, 3000});
  cases.push_back({"prefill fp16 128, sharp scores", kHalf, 128, 6, 1, 32, 0, {22}, {100}, 8, 100});
  cases.push_back({"prefill int8 128, small values", kInt8, 128, 6, 1, 32, 0, {22}, {100}, 1, 1e-3f});
  bool good = true;
  for (const Case& c : cases) good &= check(c);
  good &= check_write<kHalf, 256>("write fp16 256") & check_write<kInt8, 256>("write int8 256");
  good &= check_write<kInt4, 256>("write int4 256") & check_write<kInt4, 128>("write int4 128");
  good &= check_write<kInt8, 128>("write int8 128") & check_write<kHalf, 128>("write fp16 128");
  good &= check_write<kFp8, 128>("write fp8 128") & check_write<kFp8, 256>("write fp8 256");
  return !good;
}
