// Run a CTA: a fiber a thread, which gives way where threads of its warp or of the CTA must meet.
#pragma once
#include <cuda_fp16.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

dim3 threadIdx, blockIdx, gridDim;

namespace cta {

struct Meeting {
  int arrived = 0;
  long turn = 0;
};
struct Warp : Meeting {
  alignas(16) char slots[2][32 * kSlot];
};
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  unsigned thread;
  bool done;
};

constexpr int kMaxThreads = 256;
inline std::vector<Fiber> fibers(kMaxThreads);
inline std::vector<Warp> warps(kMaxThreads / 32);
inline Meeting all;
inline unsigned threads;
inline ucontext_t scheduler;
inline Fiber* running;
inline std::function<void()> body;

inline void meet(Meeting& meeting, int wanted) {
  const long turn = meeting.turn;
  if (++meeting.arrived == wanted) {
    meeting.arrived = 0;
    ++meeting.turn;
    return;
  }
  while (meeting.turn == turn) swapcontext(&running->context, &scheduler);
}

inline void enter() {
  body();
  running->done = true;
  swapcontext(&running->context, &scheduler);
}

inline void run(const std::function<void()>& what, unsigned count = 128) {
  body = what;
  threads = count;
  for (auto& warp : warps) warp.arrived = 0;
  all.arrived = 0;
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& f = fibers[t];
    f.stack.resize(1 << 18);
    f.thread = t;
    f.done = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = nullptr;
    makecontext(&f.context, enter, 0);
  }
  for (int left = threads; left;) {
    left = 0;
    for (unsigned t = 0; t < threads; ++t) {
      Fiber& f = fibers[t];
      if (f.done) continue;
      running = &f;
      threadIdx = {f.thread, 0, 0};
      swapcontext(&scheduler, &f.context);
      left += !f.done;
    }
  }
}

}  // namespace cta

const void* exchange(const void* mine, int bytes) {
  cta::Warp& warp = cta::warps[threadIdx.x / 32];
  char* slots = warp.slots[warp.turn % 2];
  memcpy(slots + threadIdx.x % 32 * kSlot, mine, bytes);
  cta::meet(warp, 32);
  return slots;
}

void __syncthreads() { cta::meet(cta::all, cta::threads); }
