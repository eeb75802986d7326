"""A kernel that writes far outside of what it is passed."""

import triton
import triton.language as tl


@triton.jit
def stray(pointer, far):
    tl.store(pointer + far, 1)
