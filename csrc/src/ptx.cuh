// One wrapper a PTX instruction; everything here exists on SM75.
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>
#include <vector_types.h>

namespace caovan {

// Fragment layouts of m16n8k8, lane l: A a0 = (row l/4, k 2(l%4)+{0,1}), a1 = row + 8;
// B b = (k 2(l%4)+{0,1}, column l/4); C c0,c1 = (row l/4, columns 2(l%4)+{0,1}), c2,c3 = row + 8.
// So a C tile, packed to half2, is an A tile: the transposed register chain rests on that.
__device__ __forceinline__ void mma_m16n8k8(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}

// Integer fragments of m8n8k16, lane l: A = (row l/4, k 4(l%4)+{0..3}), B = (k 4(l%4)+{0..3},
// column l/4), C = (row l/4, columns 2(l%4)+{0,1}). An 8x8 half matrix that ldmatrix loads is an A.
__device__ __forceinline__ void mma_u8s8(int (&c)[2], uint32_t a, uint32_t b) {
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+r"(c[0]), "+r"(c[1])
               : "r"(a), "r"(b));
}

__device__ __forceinline__ void mma_s8s8(int (&c)[2], uint32_t a, uint32_t b) {
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+r"(c[0]), "+r"(c[1])
               : "r"(a), "r"(b));
}

// Four 8x8 half matrices; lane l gives the address of row l%8 of matrix l/8.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Transpose one 8x8 half matrix held as a fragment.
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t a) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

// (x & mask) | bits in one instruction; in C++ the compiler makes it two.
__device__ __forceinline__ uint32_t mask_or(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(x), "r"(mask), "r"(bits));
  return d;
}

// 2^x, relative error 2^-22; x = -inf gives 0.
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Barrier 1 of the block, which warps with different roles reach at different instructions. PTX
// counts warps, not addresses; compute-sanitizer's synccheck expects one address and reports it.
__device__ __forceinline__ void barrier_sync(int threads) {
  asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
}

// Loads that stay where they are written: the compiler moves others up, and their results take registers.
__device__ __forceinline__ int32_t load_here(const int32_t* p) {
  int32_t x;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(x) : "l"(p));
  return x;
}

__device__ __forceinline__ uint32_t load_here(const uint32_t* p) {
  uint32_t x;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(x) : "l"(p));
  return x;
}

__device__ __forceinline__ uint4 load_here(const uint4* p) {
  uint4 x;
  asm volatile("ld.global.nc.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p));
  return x;
}

// x, computed again here rather than kept in a register.
__device__ __forceinline__ int again(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// The shared memory that the launch asks for; of any kernel, so aligned for all.
__device__ __forceinline__ uint32_t dynamic_shared() {
  extern __shared__ uint4 words[];
  return shared_address(words);
}

__device__ __forceinline__ void store_shared(uint32_t address, uint16_t x) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(x) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}

__device__ __forceinline__ uint32_t load_shared(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

__device__ __forceinline__ void load_shared(uint32_t (&x)[4], uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ float4 load_shared4(uint32_t address) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

__device__ __forceinline__ uint32_t pack_half2(float low, float high) {
  __half2 h = __floats2half2_rn(low, high);
  return *reinterpret_cast<uint32_t*>(&h);
}

}  // namespace caovan
