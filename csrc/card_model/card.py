"""The RTX 2080 Ti, as its makers and public microbenchmarks describe it. Nothing here is fitted.

Whitepaper: NVIDIA Turing GPU architecture, 2018. GA102: NVIDIA Ampere GA102, on what Turing had.
Guide: CUDA C++ programming guide, throughput of instructions at compute capability 7.5.
Jia: "Dissecting the NVidia Turing T4 GPU via Microbenchmarking", 2019.
sjfeng: sjfeng1999/gpu-arch-microbenchmark on an RTX 2070, whose clock is nearer than a T4's.
"""

CLOCK_GHZ = 1.545  # Whitepaper: boost clock of the reference card
SMS = 68
PARTITIONS = 4  # per SM; each issues one instruction per cycle; warp n runs on n % 4 (Jia)
COPY_GB_S = 602  # measured on such cards; 616 nominal

REGISTERS, SHARED, THREADS, CTAS = 65536, 65536, 1024, 16  # Guide: shared by the CTAs of an SM

HMMA_F32, HMMA_F16 = 16, 8  # cycles per 16 x 8 x 8 product: 53.8 and 107.6 TFLOP/s (Whitepaper)
IMMA_INT8 = 4  # cycles per 8 x 8 x 16 product: 215.2 TOP/s (Whitepaper)
MATH = 2  # cycles per warp on 16 lanes: fp32, integers, half2 (Whitepaper)
SPECIAL = 8  # cycles per warp on 4 lanes: MUFU and conversions (Guide: 16 per SM and cycle)
SHARED_BYTES = 64  # per cycle, from shared memory and L1: 16 load units (GA102; Jia measured 58.8)

SPECIAL_LATENCY = 21  # a chain of square roots on a 2080 Ti: 21.3 (a public in-core benchmark)
SHARED_LATENCY = 23  # sjfeng; Jia: 19
L2_LATENCY = 236  # sjfeng; Jia: 188
DRAM_LATENCY = 372  # Jia: 296 where the TLB hits, by sjfeng's clock: 296 x 236 / 188
BARRIER_LATENCY = 20  # assumed

LINE = 128  # bytes of code
L0_LINES = 128  # per partition: 16 KiB (Jia)
LINE_FETCH = 16  # cycles, from the SM's cache: 2 per instruction of 16 bytes (Jia, figure 3.7)


def resident(threads: int, registers: int, shared: int) -> int:
    """The number of CTAs that fit an SM."""
    allocated = -(-registers // 8) * 8 * threads
    return min(CTAS, REGISTERS // allocated, THREADS // threads, SHARED // max(shared, 1))


def dram_cycles_a_byte(active_sms: int) -> float:
    """Cycles per byte of DRAM on one SM, when the active SMs share the copy rate."""
    return CLOCK_GHZ / COPY_GB_S * active_sms
