"""Prefill attention over a paged cache: every case against float64, then the table. Needs a GPU.

    python -m caovan_vllm_sm75_turbo3.measure.prefill_attention [check | time | bits | once]

Cases, bounds and poison: measure/attention.py. Extensions are timed with the kernel that splits
their keys, too. Table: ms a call, medians of CUDA-graph replays, and the products' FLOP/s, of the
keys that each token sees, as a share of torch's largest fp16 product in the same run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.attention.bias import causal_lower_right

from caovan_vllm_sm75_turbo3 import launch
from caovan_vllm_sm75_turbo3.measure import attention, paged
from caovan_vllm_sm75_turbo3.measure.attention import (
    MANY,
    Call,
    Pool,
    check,
    check_bits,
    failures,
    kinds,
    make_case,
    scales_of,
    vllm_us,
)
from caovan_vllm_sm75_turbo3.measure.timing import (
    DEVICE,
    measure,
    median_us,
    product_rate,
)


class Prefill(Call):
    """A launch of the prefill kernel, which needs neither segments nor a workspace."""

    def __post_init__(self) -> None:
        self.workspace = torch.empty(0, device=DEVICE)
        self.scale = self.q.shape[2] ** -0.5
        self.scales = scales_of(self.kind)
        self.args = launch.attention_args(
            self.q,
            self.out,
            self.cache,
            self.table,
            self.cu,
            self.lengths,
            self.signs,
            max_tokens=self.max_tokens,
            scale=self.scale,
            scales=self.scales,
        )

    def run(self) -> None:
        launch.attention_prefill(self.args, DEVICE)


def case(name: str, kind: str, tokens: list[int], lengths: list[int], **options) -> None:
    repetitions = options.pop("repetitions", 5)
    check(name, make_case(kind, tokens, lengths, into=Prefill, **options), repetitions)


def check_all() -> None:
    print("relative and largest error; bounds", *attention.BOUNDS)
    for kind in kinds():
        for dim in (256, 128):
            what = f"{kind} {dim}"
            case(f"{what}, one token alone", kind, [1], [1], dim=dim)
            case(f"{what}, 45 tokens behind 100", kind, [45], [145], dim=dim)
            case(f"{what}, 300 tokens, blocks of 48", kind, [300], [300], dim=dim, block_size=48)
            case(f"{what}, 128 tokens behind 3969", kind, [128], [4097], dim=dim, block_size=1040)
            case(
                f"{what}, ragged, an idle sequence", kind,
                [200, 0, 17, 1, 333], [200, 40, 1017, 65, 2049], dim=dim, block_size=272, hnd=True,
            )  # fmt: skip
            case(f"{what}, a head a group", kind, [140], [150], dim=dim, heads=3, kv_heads=3)
            case(f"{what}, 8 heads a group", kind, [99], [500], dim=dim, heads=16, kv_heads=2)
            case(f"{what}, sharp scores", kind, [70], [700], dim=dim, spread=4, value=100)
            case(f"{what}, small values", kind, [70], [700], dim=dim, value=1e-3)
        case(f"{kind}, 500 times", kind, [260, 40], [2049, 40], repetitions=500)


def sdpa_us(heads: int, kv_heads: int, dim: int, tokens: int, length: int) -> float | None:
    """Time of PyTorch's attention on contiguous fp16 keys and values, causal after the prefix."""
    q = torch.randn(1, heads, tokens, dim, device=DEVICE).half()
    k, v = (torch.randn(1, kv_heads, length, dim, device=DEVICE).half() for _ in range(2))
    attend = torch.nn.functional.scaled_dot_product_attention
    bias = causal_lower_right(tokens, length)
    k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    call: Callable[[], object] = lambda: attend(q, k, v, attn_mask=bias)  # noqa: E731
    try:
        return median_us([call], repeats=3, graph=False)
    except RuntimeError as error:
        print(f"no SDPA of this kind: {error}")
        return None


def time_all() -> None:
    ceiling = product_rate()
    name = torch.cuda.get_device_name()
    print(f"\n{name}, torch {torch.__version__}, fp16 product {ceiling / 1e12:.0f} TFLOP/s")
    print("| cache, head size, heads / KV heads | tokens + prefix | ms | TFLOP/s | of product "
          "| SDPA fp16, ms | ratio | vLLM Triton, ms | ratio |")  # fmt: skip
    print("| --- " * 9 + "|")
    extends: list[str] = []
    for kind, heads, kv_heads, dim in (
        ("fp16", 24, 4, 256),
        ("int4", 24, 4, 256),
        ("int8", 24, 4, 256),
        ("fp8", 24, 4, 256),
        ("fp16", 32, 8, 128),
        ("int4", 32, 8, 128),
    ):
        if kind not in kinds():
            continue
        record = paged.content(kind, dim) * paged.DTYPES[kind].itemsize
        pool = Pool(kind, heads, kv_heads, dim, int(1.1 * 2**17 * kv_heads * record))
        for tokens, prefix in (
            (512, 0),
            (2048, 0),
            (2048, 30_720),
            (2048, 120_832),
            (256, 120_832),
        ):
            call = pool.calls(1, tokens, tokens + prefix, into=Prefill)[0]
            us = median_us([call.run], repeats=3)
            rate = 4 * dim * heads * tokens * (prefix + (tokens + 1) / 2) / us * 1e6
            line = (
                f"| {kind}, {dim}, {heads} / {kv_heads} | {tokens} + {prefix:,} | {us / 1e3:.3f} "
            )
            line += f"| {rate / 1e12:.1f} | {rate / ceiling:.0%} |"
            theirs = sdpa_us(heads, kv_heads, dim, tokens, tokens + prefix)
            triton = vllm_us(call, tokens, tokens + prefix)
            for other in (theirs, triton):
                line += f" {other / 1e3:.3f} | {other / us:.2f} |" if other else " | |"
            print(line, flush=True)
        for tokens in (16, 32, 64, 256):
            whole, divided = (
                median_us([pool.calls(1, tokens, 2**17, into=way)[0].run], repeats=3)
                for way in (Prefill, Call)
            )
            extends.append(f"| {kind}, {dim} | {tokens} | {whole:.0f} | {divided:.0f} |")
        del pool, call
        torch.cuda.empty_cache()
    print("\n| extension to 131,072 keys | tokens | prefill, us | split, us |")
    print("\n".join(["| --- " * 4 + "|", *extends]))


def bits_all() -> None:
    for kind in kinds():
        name = f"{kind}, 260 + 40 tokens, {MANY} times"
        check_bits(name, make_case(kind, [260, 40], [700, 40], into=Prefill), MANY)
        print(name, flush=True)


def once_all() -> None:
    for kind in kinds():
        for dim in (256, 128):
            make_case(kind, [70, 0, 33], [100, 9, 33], dim=dim, block_size=48, into=Prefill).run()
            torch.cuda.synchronize()
            print(f"{kind} {dim}", flush=True)


if __name__ == "__main__":
    measure(check_all, time_all, failures, bits=bits_all, once=once_all)
