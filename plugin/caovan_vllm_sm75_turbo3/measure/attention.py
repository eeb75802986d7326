"""Decode and verification attention: every case against float64, then the table. Needs a GPU.

python -m caovan_vllm_sm75_turbo3.measure.attention [check | time | bits | once] [KIND]...

KIND: int4, int8, fp8 or fp16; all of them if none is named. "bits" runs a few calls of each kernel
20,000 times and compares bits; "once" runs small calls a single time, for compute-sanitizer.

Bounds are as in measure/check.py: relative error, and an element's maximum error over |value| +
rms. Workspace, padding, unused blocks and unread table entries are poisoned. The table shows
microseconds per call, as medians of CUDA-graph replays over calls that read different blocks, and
the cache's bytes per second relative to the copy rate of the same run (read + write).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from caovan_vllm_sm75_turbo3 import launch
from caovan_vllm_sm75_turbo3.measure import paged
from caovan_vllm_sm75_turbo3.measure.timing import DEVICE, copy_rate, measure, median_us

try:
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    from vllm.v1.kv_cache_interface import KVQuantMode
except ImportError as error:
    unified_attention = None
    print(f"no Triton column: {error}")

BOUNDS = (1e-3, 1e-2)
REPETITIONS, MANY = 2000, 20_000
KINDS = ("int4", "int8", "fp8", "fp16")
failures: list[str] = []


@dataclass
class Call:
    """A launch with its inputs and outputs."""

    kind: str
    q: torch.Tensor
    out: torch.Tensor
    cache: torch.Tensor
    table: torch.Tensor
    cu: torch.Tensor
    lengths: torch.Tensor
    signs: torch.Tensor
    max_tokens: int
    segments: int = 0

    def __post_init__(self) -> None:
        sequences, heads, kv_heads = self.lengths.shape[0], self.q.shape[1], self.cache.shape[1]
        self.scales = scales_of(self.kind)
        library = launch.shared_library()
        if not self.segments:
            self.segments = library.attention_segments(
                launch.cache_layout(self.cache, self.q.shape[2], self.signs, self.scales).format,
                sequences,
                self.max_tokens,
                heads,
                kv_heads,
                self.q.shape[2],
            )
        size = library.attention_workspace_bytes(
            sequences, self.max_tokens, heads, kv_heads, self.q.shape[2], self.segments
        )
        self.workspace = torch.empty(size, dtype=torch.uint8, device=DEVICE)
        self.scale = self.q.shape[2] ** -0.5
        self.args = launch.attention_args(
            self.q,
            self.out,
            self.cache,
            self.table,
            self.cu,
            self.lengths,
            self.signs,
            max_tokens=self.max_tokens,
            segments=self.segments,
            scale=self.scale,
            scales=self.scales,
        )

    def run(self) -> None:
        launch.attention_decode(self.args, self.workspace)


def kinds() -> list[str]:
    """The types of cache that the command line names, or all."""
    asked = sys.argv[2:]
    unknown = [kind for kind in asked if kind not in KINDS]
    if unknown:
        sys.exit(f"cannot measure a cache of {unknown[0]!r}: it must be one of {', '.join(KINDS)}")
    return asked or list(KINDS)


def scales_of(kind: str) -> launch.Scales | None:
    """The scales of an fp8 cache, as `paged.write` has them."""
    one = torch.full((), paged.FP8_SCALE, device=DEVICE)
    return launch.Scales(one, one.clone()) if kind == "fp8" else None


def ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def signs_of(dim: int) -> torch.Tensor:
    return torch.randint(0, 2, (dim,), device=DEVICE).float() * 2 - 1


def empty_cache(kind: str, blocks: int, kv_heads: int, block_size: int, dim: int, *, hnd: bool):
    """A cache filled with 0xff, which is NaN in fp16 and in scales; heads before or after tokens,
    with padded pages."""
    size = paged.content(kind, dim)
    page = block_size * kv_heads * size + 64
    raw = torch.empty(blocks, page, dtype=paged.DTYPES[kind], device=DEVICE)
    raw.view(torch.uint8).fill_(0xFF)
    raw = raw[:, : block_size * kv_heads * size]
    if hnd:
        return raw.unflatten(1, (kv_heads, block_size, size))
    return raw.unflatten(1, (block_size, kv_heads, size)).transpose(1, 2)


def make_case(
    kind: str,
    tokens: list[int],
    lengths: list[int],
    *,
    heads: int = 24,
    kv_heads: int = 4,
    dim: int = 256,
    block_size: int = 16,
    segments: int = 0,
    hnd: bool = False,
    spread: float = 1.0,
    value: float = 1.0,
    into: type[Call] = Call,
) -> Call:
    cu = [0]
    for count in tokens:
        cu.append(cu[-1] + count)
    used = [-(-length // block_size) for length in lengths]
    cache = empty_cache(kind, sum(used) + 1, kv_heads, block_size, dim, hnd=hnd)
    signs, poisoned = signs_of(dim), sum(used)  # the last block belongs to no sequence
    order = torch.randperm(sum(used), device=DEVICE)
    table = torch.full((len(tokens), max(used) + 2), poisoned, dtype=torch.int32, device=DEVICE)
    at = 0
    for n, (pages, length) in enumerate(zip(used, lengths, strict=True)):
        mine = order[at : at + pages]
        at += pages
        table[n, :pages] = mine.int()
        halves = [
            paged.write(kind, torch.randn(length, kv_heads, dim, device=DEVICE) * scale, signs)
            for scale in (1.0, value)
        ]
        keys = torch.arange(length, device=DEVICE)
        there = mine[keys // block_size], slice(None), keys % block_size
        cache.view(torch.uint8)[there] = torch.cat(halves, -1)
    rows = cu[-1] + 3
    q = torch.full((rows, heads * dim + 8), torch.nan, device=DEVICE, dtype=torch.float16)
    out = torch.full((rows, heads * dim + 16), torch.nan, device=DEVICE, dtype=torch.float16)
    q, out = (x[:, : heads * dim].unflatten(1, (heads, dim)) for x in (q, out))
    q[: cu[-1]] = torch.randn(cu[-1], heads, dim, device=DEVICE).half() * spread
    return into(
        kind, q, out, cache, table, ints(cu), ints(lengths), signs, max(*tokens, 1), segments
    )


def poison(call: Call) -> None:
    call.workspace.fill_(0xFF)
    call.out.fill_(torch.nan)


def explain(call: Call, want: torch.Tensor, got: torch.Tensor) -> None:
    """Print where the errors are: the position of the largest one, and the affected rows, heads,
    dimensions."""
    error = (got - want).abs() / (want.abs() + want.square().mean().sqrt())
    bad = ~(error <= BOUNDS[1])
    at = int(error.nan_to_num(nan=torch.inf).argmax())
    token, head, d = at // want[0].numel(), at // want.shape[2] % want.shape[1], at % want.shape[2]
    print(
        f"  largest at token {token}, head {head}, dimension {d}: {got[token, head, d].item():.5g} "
        f"for {want[token, head, d].item():.5g}; {bad.sum().item()} of {bad.numel()} wrong, "
        f"{got.isnan().sum().item()} NaN; query tokens begin at {call.cu.tolist()}"
    )
    for what, axes in (("tokens", (1, 2)), ("heads", (0, 2)), ("dimensions", (0, 1))):
        counts = bad.sum(axes)
        places = counts.nonzero().flatten().tolist()
        print(f"  {len(places)} of {len(counts)} {what} with errors: {places[:40]}")


def demand(name: str, what: str, holds: bool) -> None:
    if not holds:
        failures.append(f"{name}: {what}")
        print(f"FAILED {name}: {what}")


def check(name: str, call: Call, repetitions: int = 5) -> None:
    """Check against float64, and for identical bits: eagerly, and from a graph whose inputs
    changed."""
    cu, lengths = call.cu.tolist(), call.lengths.tolist()
    poison(call)
    call.run()
    first = call.out.clone()
    want = paged.attention(
        call.kind, call.q, call.cache, call.table, cu, lengths, call.signs, call.scale
    )
    error = (first - want)[: cu[-1]].double()
    rms = want[: cu[-1]].square().mean().sqrt()
    relative = (error.square().mean().sqrt() / rms).item()
    largest = (error.abs() / (want[: cu[-1]].abs() + rms)).max().item()
    right = relative <= BOUNDS[0] and largest <= BOUNDS[1]
    demand(name, f"error {relative:.2e} / {largest:.2e}", right)
    if not right:
        explain(call, want[: cu[-1]], first[: cu[-1]].double())
    demand(name, "wrote rows outside every sequence", bool(first[cu[-1] :].isnan().all()))

    check_bits(name, call, repetitions)
    bits = first.contiguous().view(torch.int16)
    graph = torch.cuda.CUDAGraph()
    kept = call.q.clone(), call.lengths.clone()
    call.q.zero_()
    call.lengths.copy_(ints([1] * len(lengths)).maximum(call.cu[1:] - call.cu[:-1]))
    with torch.cuda.graph(graph):
        call.run()
    call.q.copy_(kept[0])
    call.lengths.copy_(kept[1])
    poison(call)
    graph.replay()
    demand(
        name, "a graph that saw other inputs gives other bits",
        torch.equal(call.out.contiguous().view(torch.int16), bits),
    )  # fmt: skip
    print(f"{name}: {relative:.1e} / {largest:.1e}")


def check_bits(name: str, call: Call, repetitions: int) -> None:
    """Check for identical bits over many repetitions, with workspace and output poisoned before
    each."""
    poison(call)
    call.run()
    bits = call.out.clone().view(torch.int16)
    other = torch.zeros((), dtype=torch.bool, device=DEVICE)
    for _ in range(repetitions):
        poison(call)
        call.run()
        other |= (call.out.view(torch.int16) != bits).any()
    demand(name, f"other bits in {repetitions} repetitions", not other.item())


def check_write(kind: str, dim: int) -> None:
    """Compare what `kv_write` stores in a cache with `paged.write`, which is float64 up to the
    rounding."""
    name, tokens, heads, block_size = f"{kind} {dim}, write", 300, 4, 48
    cache = empty_cache(kind, 9, heads, block_size, dim, hnd=False)
    signs = signs_of(dim)
    k, v = torch.randn(2, tokens, heads, dim, device=DEVICE).half().mul_(3).unbind()
    slots = torch.randperm(9 * block_size, device=DEVICE)[:tokens]
    slots[::7] = -1
    want = cache.contiguous().view(torch.uint8)
    written = slots >= 0
    rows = torch.cat([paged.write(kind, x, signs) for x in (k, v)], -1)
    at = slots[written]
    want[at // block_size, :, at % block_size] = rows[written]
    launch.kv_write(k, v, cache, slots, signs, scales_of(kind))
    other = (cache.contiguous().view(torch.uint8) != want).sum().item()
    # fp32 may round a tie, or the lowest bit of a scale, the other way
    limit = 0 if kind in ("fp16", "fp8") else int(2 * tokens * heads * 0.1)
    demand(name, f"{other} bytes differ", other <= limit)
    print(f"{name}: {other} of {want.numel()} bytes differ")


def check_all() -> None:
    print("relative and largest error; bounds", *BOUNDS)
    for kind in kinds():
        for dim in (256, 128):
            check_write(kind, dim)
            what = f"{kind} {dim}"
            check(f"{what}, verify 5 x 2049", make_case(kind, [5], [2049], dim=dim))
            check(f"{what}, decode 1 x 4097", make_case(kind, [1], [4097], dim=dim, block_size=48))
        check(
            f"{kind}, ragged, an idle sequence",
            make_case(
                kind,
                [5, 1, 0, 8, 3],
                [8197, 17, 40, 2049, 3],
                block_size=272,
                segments=17,
                hnd=True,
            ),
        )
        check(
            f"{kind}, 8 heads a group, 8 tokens",
            make_case(kind, [8, 8], [129, 300], heads=16, kv_heads=2, dim=128, segments=5),
        )
        check(
            f"{kind}, 4 heads a group",
            make_case(kind, [4, 2], [1000, 31], heads=16, kv_heads=4, block_size=32, segments=256),
        )
        check(f"{kind}, one segment", make_case(kind, [5], [4097], segments=1))
        check(f"{kind}, sharp scores", make_case(kind, [5], [2049], spread=8, value=100))
        check(f"{kind}, small values", make_case(kind, [5], [2049], value=1e-3))
        for segments in (2, 64, 65, 66, 129):  # some segments hold rows without any visible key
            check(
                f"{kind}, 5 x 2052 in {segments} segments",
                make_case(kind, [5], [2052], segments=segments),
            )
        for tokens in (17, 65, 512):
            check(
                f"{kind}, extension of {tokens} to 2052",
                make_case(kind, [tokens], [2052], block_size=48),
            )
        check(
            f"{kind}, extensions, one of new keys alone",
            make_case(kind, [40, 1, 21], [1075, 9, 21], heads=16, dim=128),
        )
        check(f"{kind}, {REPETITIONS} times", make_case(kind, [5], [8197]), REPETITIONS)


class Pool:
    """Blocks of random content, and calls that read different ones."""

    def __init__(self, kind: str, heads: int, kv_heads: int, dim: int, size: int) -> None:
        self.kind, self.heads, self.kv_heads, self.dim = kind, heads, kv_heads, dim
        self.block_size = {"int4": 1040, "int8": 528, "fp8": 528, "fp16": 272}[kind]
        content = paged.content(kind, dim)
        itemsize = paged.DTYPES[kind].itemsize
        self.record = content * itemsize
        self.blocks = size // (self.block_size * kv_heads * self.record)
        shape = (self.blocks, self.block_size, kv_heads, content)
        self.scales = scales_of(kind)
        if kind in ("fp16", "fp8"):
            raw = torch.empty(shape, dtype=torch.float16, device=DEVICE).normal_()
            raw = raw.to(paged.DTYPES[kind])
        else:
            raw = torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE)
            scales = raw.view(torch.float32)
            for at in (content // 8 - 1, content // 4 - 1):
                scales[..., at] = 0.02
            raw = raw.view(paged.DTYPES[kind])
        self.cache = raw.transpose(1, 2)
        self.signs = signs_of(dim)

    def calls(
        self, sequences: int, tokens: int, length: int, into: type[Call] = Call
    ) -> list[Call]:
        pages = -(-length // self.block_size)
        wanted = -(-(600 << 20) // (sequences * length * self.kv_heads * self.record))
        count = max(1, min(wanted, 64, self.blocks // (pages * sequences)))
        order = torch.randperm(self.blocks, device=DEVICE).int()
        tables = order[: count * sequences * pages].view(count, sequences, pages)
        rows = sequences * tokens
        q = torch.randn(rows, self.heads, self.dim, device=DEVICE).half()
        cu = ints([n * tokens for n in range(sequences + 1)])
        return [
            into(self.kind, q, torch.empty_like(q), self.cache, table.contiguous(), cu,
                 ints([length] * sequences), self.signs, tokens)
            for table in tables
        ]  # fmt: skip

    def write_us(self, tokens: int) -> str:
        """Time to write the keys and values of some tokens."""
        k, v = torch.randn(2, tokens, self.kv_heads, self.dim, device=DEVICE).half().unbind()
        slots = torch.randperm(self.blocks * self.block_size, device=DEVICE)
        rows = slots[: 16 * tokens].view(16, tokens)
        calls = [
            lambda s=s: launch.kv_write(k, v, self.cache, s, self.signs, self.scales) for s in rows
        ]
        return f"{tokens} tokens {median_us(calls):.1f}"


def sdpa_us(heads: int, kv_heads: int, dim: int, sequences: int, tokens: int, length: int) -> float:
    """Time of PyTorch's attention on a contiguous fp16 cache without mask: the faster of two call
    variants."""
    k, v = (
        torch.randn(sequences, kv_heads, length, dim, device=DEVICE, dtype=torch.float16)
        for _ in range(2)
    )
    attend = torch.nn.functional.scaled_dot_product_attention
    grouped = torch.randn(
        sequences, kv_heads, tokens * heads // kv_heads, dim, device=DEVICE
    ).half()
    plain = torch.randn(sequences, heads, tokens, dim, device=DEVICE).half()
    ways: list[Callable[[], object]] = [
        lambda: attend(grouped, k, v),
        lambda: attend(plain, k, v, enable_gqa=True),
    ]
    best = float("inf")
    for way in ways:
        try:
            best = min(best, median_us([way], repeats=3, graph=False))
        except RuntimeError as error:
            print(f"no SDPA of this kind: {error}")
    return best


def vllm_us(call: Call, tokens: int, length: int) -> float | None:
    """Time of vLLM's Triton attention (0.32 and later) on the same cache."""
    if unified_attention is None:
        return None
    modes = {
        "fp16": "NONE",
        "fp8": "FP8_PER_TENSOR",
        "int8": "INT8_PER_TOKEN_HEAD",
        "int4": "INT4_PER_TOKEN_HEAD",
    }
    heads, dim = call.q.shape[1:]
    k, v = call.cache.transpose(1, 2).chunk(2, dim=-1)
    scales: dict[str, torch.Tensor] = {}
    descales: dict[str, torch.Tensor | None] = {"k_descale": None, "v_descale": None}
    if call.scales:
        shape = call.lengths.shape[0], call.cache.shape[1]
        descales = {
            "k_descale": call.scales.k.expand(shape),
            "v_descale": call.scales.v.expand(shape),
        }
    elif call.kind != "fp16":
        words = call.cache.transpose(1, 2).view(torch.float32)
        middle = words.shape[-1] // 2
        scales = {"k_scale_cache": words[..., middle - 1], "v_scale_cache": words[..., -1]}
        k, v = k[..., :-4], v[..., :-4]
    threshold = 128 // call.cache.shape[1]
    segments = [torch.empty(threshold, heads, 16, *x, device=DEVICE) for x in ((dim,), (), ())]

    def run() -> None:
        unified_attention(
            q=call.q, k=k, v=v, out=call.out, cu_seqlens_q=call.cu, max_seqlen_q=tokens,
            seqused_k=call.lengths, max_seqlen_k=length, softmax_scale=call.scale, causal=True,
            window_size=(-1, -1), block_table=call.table, softcap=0, q_descale=None,
            seq_threshold_3D=threshold,
            num_par_softmax_segments=16, softmax_segm_output=segments[0],
            softmax_segm_max=segments[1], softmax_segm_expsum=segments[2],
            kv_quant_mode=KVQuantMode[modes[call.kind]], **descales, **scales,
        )  # fmt: skip

    return median_us([run], repeats=3, graph=False)


def time_all() -> None:
    copy = copy_rate()
    print(
        f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {copy / 1e9:.0f} GB/s"
    )
    print("| cache, head size, heads / KV heads | sequences x tokens | keys | us | GB/s | of copy "
          "| SDPA fp16, us | ratio | vLLM Triton, us | ratio |")  # fmt: skip
    print("| --- " * 10 + "|")
    writes: list[str] = []
    memory = torch.cuda.get_device_properties(DEVICE).total_memory
    for kind, heads, kv_heads, dim, tokens in (
        ("int4", 24, 4, 256, (5, 1)),
        ("int8", 24, 4, 256, (5, 1)),
        ("fp8", 24, 4, 256, (5, 1)),
        ("fp16", 24, 4, 256, (5, 1)),
        ("int4", 32, 8, 128, (5, 1)),
    ):
        if kind not in kinds():
            continue
        record = paged.content(kind, dim) * paged.DTYPES[kind].itemsize
        size = int(4.1 * 2**18 * kv_heads * record)
        pool = Pool(kind, heads, kv_heads, dim, min(size, memory // 4))
        writes.append(f"{kind}, {dim}: " + ", ".join(pool.write_us(n) for n in (5, 2048)))
        for count in tokens:
            for sequences in (1, 4):
                for length in (4096, 16384, 65536, 131072, 262144):
                    calls = pool.calls(sequences, count, length)
                    us = median_us([call.run for call in calls])
                    rate = sequences * length * kv_heads * record / us * 1e6
                    line = f"| {kind}, {dim}, {heads} / {kv_heads} | {sequences} x {count} "
                    line += f"| {length:,} | {us:.1f} | {rate / 1e9:.0f} | {rate / copy:.0%} |"
                    if kind == "fp16":
                        try:
                            other = sdpa_us(heads, kv_heads, dim, sequences, count, length)
                            line += f" {other:.1f} | {other / us:.2f} |"
                        except torch.OutOfMemoryError:
                            line += " no memory | |"
                    else:
                        line += " | |"
                    triton = vllm_us(calls[0], count, length)
                    line += f" {triton:.1f} | {triton / us:.2f} |" if triton else " | |"
                    print(line, flush=True)
        del pool, calls
        torch.cuda.empty_cache()
    print("\nwriting a cache, us a layer\n" + "\n".join(writes))


def bits_all() -> None:
    """Run decoding, verification and an extension as often as a service does in some hours."""
    for kind in kinds():
        for tokens in (1, 5, 64):
            name = f"{kind}, {tokens} tokens, {MANY} times"
            check_bits(name, make_case(kind, [tokens], [2052]), MANY)
            print(name, flush=True)


def once_all() -> None:
    """Run each kernel once on small ragged inputs, for checking by another program."""
    for kind in kinds():
        for dim in (256, 128):
            check_write(kind, dim)
            for tokens in ([1, 0, 1], [5, 3, 8], [17, 1, 40]):
                make_case(kind, tokens, [65, 9, 130], dim=dim, block_size=48).run()
            torch.cuda.synchronize()
            print(f"{kind} {dim}", flush=True)


if __name__ == "__main__":
    measure(check_all, time_all, failures, bits=bits_all, once=once_all)
