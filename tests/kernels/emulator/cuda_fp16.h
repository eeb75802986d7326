// What the kernels use of CUDA's language, for a CPU: enough to run one CTA as fibers.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct dim3 {
  unsigned x, y, z;
};
extern dim3 threadIdx, blockIdx, gridDim;

struct float4 {
  float x, y, z, w;
};
struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

using __half = _Float16;
struct __half2 {
  __half x, y;
};
inline float __half2float(__half x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline __half __int2half_rn(int x) { return x; }
inline float __low2float(__half2 x) { return x.x; }
inline float __high2float(__half2 x) { return x.y; }
inline __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
inline __half2 __hsub2(__half2 a, __half2 b) { return {__half(a.x - b.x), __half(a.y - b.y)}; }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return {__half(double(a.x) * double(b.x) + double(c.x)), __half(double(a.y) * double(b.y) + double(c.y))};
}
inline uint16_t __half_as_ushort(__half x) {
  uint16_t bits;
  memcpy(&bits, &x, 2);
  return bits;
}
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
inline int __float_as_int(float x) { return int(__float_as_uint(x)); }
inline float __uint_as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
inline int __float2int_rn(float x) { return int(nearbyintf(x)); }
inline float __log2f(float x) { return log2f(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= uint32_t(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return out;
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
using std::max;
using std::min;

// Give what this lane has to the warp and return what each lane gave.
const void* exchange(const void* mine, int bytes);
constexpr int kSlot = 16;  // bytes a lane
template <class T>
const T& of_lane(const void* all, int lane) {
  return *reinterpret_cast<const T*>(static_cast<const char*>(all) + lane * kSlot);
}
void __syncthreads();

template <class T>
T __shfl_sync(unsigned, T x, int lane) {
  return of_lane<T>(exchange(&x, sizeof x), lane & 31);
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  return of_lane<T>(exchange(&x, sizeof x), (threadIdx.x & 31) ^ mask);
}
inline bool __any_sync(unsigned, bool x) {
  const void* all = exchange(&x, sizeof x);
  for (int lane = 0; lane < 32; ++lane)
    if (of_lane<bool>(all, lane)) return true;
  return false;
}
