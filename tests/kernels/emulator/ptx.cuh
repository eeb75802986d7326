// The wrappers of csrc/src/ptx.cuh, by the definitions of the PTX manual.
#pragma once
#include <cuda_fp16.h>

namespace caovan {

inline int lane_id() { return threadIdx.x % 32; }
inline float half_of(uint32_t pair, int i) {
  __half h[2];
  memcpy(h, &pair, 4);
  return h[i];
}

inline void mma_m16n8k8(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  const uint32_t mine[3] = {a0, a1, b};
  using Slot = uint32_t[3];
  const void* all = exchange(mine, sizeof mine);
  for (int i = 0; i < 4; ++i) {
    const int row = lane_id() / 4, column = lane_id() % 4 * 2 + i % 2;
    double sum = c[i];
    for (int k = 0; k < 8; ++k)
      sum += double(half_of(of_lane<Slot>(all, row * 4 + k / 2)[i / 2], k % 2)) *
             double(half_of(of_lane<Slot>(all, column * 4 + k / 2)[2], k % 2));
    c[i] = float(sum);
  }
}

template <class A>
void mma_integers(int (&c)[2], uint32_t a, uint32_t b) {
  const uint32_t mine[2] = {a, b};
  using Slot = uint32_t[2];
  const void* all = exchange(mine, sizeof mine);
  for (int i = 0; i < 2; ++i) {
    const int row = lane_id() / 4, column = lane_id() % 4 * 2 + i;
    for (int k = 0; k < 16; ++k)
      c[i] += int(A(of_lane<Slot>(all, row * 4 + k / 4)[0] >> k % 4 * 8)) *
              int(int8_t(of_lane<Slot>(all, column * 4 + k / 4)[1] >> k % 4 * 8));
  }
}
inline void mma_u8s8(int (&c)[2], uint32_t a, uint32_t b) { mma_integers<uint8_t>(c, a, b); }
inline void mma_s8s8(int (&c)[2], uint32_t a, uint32_t b) { mma_integers<int8_t>(c, a, b); }

extern char shared_memory[65536];
inline uint32_t dynamic_shared() { return 0; }

inline const char* row_of(const void* all, int matrix, int row) {
  const uint32_t address = of_lane<uint32_t>(all, matrix * 8 + row);
  if (address % 16) __builtin_trap();  // ldmatrix demands it
  return shared_memory + address;
}
inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  const void* all = exchange(&address, 4);
  for (int m = 0; m < 4; ++m) memcpy(&r[m], row_of(all, m, lane_id() / 4) + lane_id() % 4 * 4, 4);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  const void* all = exchange(&address, 4);
  for (int m = 0; m < 4; ++m)
    for (int i = 0; i < 2; ++i)
      memcpy(reinterpret_cast<char*>(&r[m]) + 2 * i, row_of(all, m, lane_id() % 4 * 2 + i) + lane_id() / 4 * 2, 2);
}
inline uint32_t movmatrix_trans(uint32_t a) {
  const void* all = exchange(&a, 4);
  uint32_t out = 0;
  for (int i = 0; i < 2; ++i)
    out |= (of_lane<uint32_t>(all, (lane_id() % 4 * 2 + i) * 4 + lane_id() / 8) >> lane_id() / 4 % 2 * 16 & 0xffff)
           << 16 * i;
  return out;
}

inline uint32_t mask_or(uint32_t x, uint32_t mask, uint32_t bits) { return (x & mask) | bits; }
inline float ex2(float x) { return exp2f(x); }
inline int again(int x) { return x; }
template <class T>
T load_here(const T* p) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) __builtin_trap();
  return *p;
}
template <class T>
void store_shared(uint32_t address, T x) {
  if (address % sizeof x) __builtin_trap();
  memcpy(shared_memory + address, &x, sizeof x);
}
inline uint32_t load_shared(uint32_t address) {
  uint32_t x;
  memcpy(&x, shared_memory + address, 4);
  return x;
}
inline void load_shared(uint32_t (&x)[4], uint32_t address) {
  if (address % 16) __builtin_trap();
  memcpy(x, shared_memory + address, 16);
}
inline float4 load_shared4(uint32_t address) {
  float4 x;
  memcpy(&x, shared_memory + address, 16);
  return x;
}
inline uint32_t pack_half2(float low, float high) {
  const __half h[2] = {__half(low), __half(high)};
  uint32_t bits;
  memcpy(&bits, h, 4);
  return bits;
}

}  // namespace caovan
