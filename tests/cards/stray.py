"""A kernel that writes far beyond its buffer."""

import triton
import triton.language as tl


@triton.jit
def stray(pointer, far):
    tl.store(pointer + far, 1)
