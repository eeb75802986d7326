"""Time the kernels: medians of CUDA-graph replays over rotating inputs, one run, one table.

For comparison, the naive recurrent kernel and, if vLLM is importable, its Triton FLA path run on
the same inputs. Prints time, ratio, bytes/s and FLOP/s relative to the ceilings measured in this
run.

python -m caovan_vllm_sm75_turbo3.measure.bench [decode | prefill]
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial

import torch

from caovan_vllm_sm75_turbo3 import launch
from caovan_vllm_sm75_turbo3.measure import timing

DEVICE, REPEATS = timing.DEVICE, 9
K_HEADS, V_HEADS, DIM = 8, 24, 128  # one of two tensor-parallel ranks of the 27B model
SCALE = DIM**-0.5

try:
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update

    try:
        ops = importlib.import_module("vllm.third_party.flash_linear_attention.ops")
    except ModuleNotFoundError:  # vLLM 0.21
        ops = importlib.import_module("vllm.model_executor.layers.fla.ops")
    index = importlib.import_module(f"{ops.__name__}.index")
    HAS_VLLM = True
except ImportError as error:
    HAS_VLLM = False
    print(f"no Triton column: {error}")


median_us = partial(timing.median_us, repeats=REPEATS)


class Prefill:
    """One layer's inputs for packed sequences."""

    def __init__(self, lengths: list[int]) -> None:
        tokens, n = sum(lengths), len(lengths)

        def unit(*shape):
            return torch.nn.functional.normalize(torch.randn(*shape, device=DEVICE), dim=-1).half()

        self.q, self.k = unit(tokens, K_HEADS, DIM), unit(tokens, K_HEADS, DIM)
        self.v = torch.randn(tokens, V_HEADS, DIM, device=DEVICE).half()
        self.g = -torch.rand(tokens, V_HEADS, device=DEVICE) * 0.3
        self.beta = torch.rand(tokens, V_HEADS, device=DEVICE)
        self.out = torch.empty_like(self.v)
        self.cu = torch.tensor(
            [0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=DEVICE
        )
        self.state = torch.randn(n, V_HEADS, DIM, DIM, device=DEVICE) * 0.1
        if HAS_VLLM:
            self.indices = index.prepare_chunk_indices(self.cu.cpu(), 64).to(DEVICE)
            self.offsets = index.prepare_chunk_offsets(self.cu.cpu(), 64).to(DEVICE)

    def run(self, kernel: Callable[..., None], **options) -> None:
        kernel(
            launch.PrefillCall(
                self.q,
                self.k,
                self.v,
                self.g,
                self.beta,
                self.out,
                self.cu,
                self.state,
                self.state,
                None,
                None,
                scale=SCALE,
                l2norm=False,
                null_slot=-1,
            ),
            **options,
        )

    def triton(self) -> None:
        ops.chunk_gated_delta_rule(
            q=self.q[None],
            k=self.k[None],
            v=self.v[None],
            g=self.g[None],
            beta=self.beta[None],
            initial_state=self.state,
            output_final_state=True,
            cu_seqlens=self.cu,
            chunk_indices=self.indices,
            chunk_offsets=self.offsets,
            use_qk_l2norm_in_kernel=False,
        )


def prefill_table(copy: float, product: float) -> None:
    print("\nprefill, one layer, Hk 8, Hv 24, D 128, inside a CUDA graph (us)")
    print(
        "| sequences x tokens | chunked | recurrent | ratio | Triton FLA | ours / Triton "
        "| FLOP/s | of ceiling | GB/s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    workspace = torch.empty(64 * 2**20, dtype=torch.uint8, device=DEVICE)
    for lengths in (
        [512],
        [2048],
        [4096],
        [8192],
        [16384],
        [1024] * 4,
        [512] * 8,
        [100, 3000, 17, 979],
        [1] * 64,
    ):
        tokens = sum(lengths)
        inputs = [Prefill(lengths) for _ in range(3 if tokens <= 8192 else 2)]
        ours = median_us([lambda x=x: x.run(launch.prefill, workspace=workspace) for x in inputs])
        naive = median_us([lambda x=x: x.run(launch.recurrent) for x in inputs[:1]], repeats=3)
        triton = median_us([x.triton for x in inputs]) if HAS_VLLM else float("nan")
        flop = (
            tokens * V_HEADS * 212 * 8 * 2048 / 32
        )  # 212 mma of 2,048 per warp and chunk, 8 warps per head
        bytes_ = tokens * (2 * K_HEADS + 2 * V_HEADS) * DIM * 2 + 2 * inputs[0].state.nbytes
        label = (
            " + ".join(map(str, lengths))
            if len(set(lengths)) > 1
            else f"{len(lengths)} x {lengths[0]}"
        )
        print(
            f"| {label} | {ours:.1f} | {naive:.0f} | {naive / ours:.1f} "
            f"| {triton:.1f} | {ours / triton:.2f} | {flop / ours / 1e6:.1f} T "
            f"| {flop / ours * 1e6 / product:.1%} | {bytes_ / ours / 1e3:.0f} |",
            flush=True,
        )


class Decode:
    """One layer's inputs for `n` sequences of `t` new tokens."""

    def __init__(self, n: int, t: int) -> None:
        self.n, self.t = n, t
        channels = (2 * K_HEADS + V_HEADS) * DIM
        half = lambda *shape: torch.randn(*shape, device=DEVICE).half()  # noqa: E731
        self.qkv, self.a, self.b = half(n * t, channels), half(n * t, V_HEADS), half(n * t, V_HEADS)
        self.q, self.k, self.v = (
            x.unflatten(1, (-1, DIM)).contiguous()[None]
            for x in self.qkv.split([K_HEADS * DIM, K_HEADS * DIM, V_HEADS * DIM], 1)
        )
        self.out = torch.empty(n * t, V_HEADS, DIM, device=DEVICE, dtype=torch.float16)
        self.a_log, self.dt_bias = torch.rand(V_HEADS, device=DEVICE), half(V_HEADS)
        self.weight = half(channels, 4)
        self.state = torch.randn(n * t + 1, V_HEADS, DIM, DIM, device=DEVICE) * 0.1
        self.conv = half(n * t + 1, 2 + t, channels).mT
        self.slots = torch.arange(1, n * t + 1, dtype=torch.int32, device=DEVICE).view(n, t)
        self.cu = torch.arange(0, n * t + 1, t, dtype=torch.int32, device=DEVICE)
        self.accepted = torch.ones(n, dtype=torch.int32, device=DEVICE) if t > 1 else None
        self.counters = torch.zeros(2 * n * K_HEADS, dtype=torch.int32, device=DEVICE)

    def ours(self) -> None:
        launch.decode(
            launch.DecodeCall(
                self.qkv,
                self.a,
                self.b,
                self.out,
                self.a_log,
                self.dt_bias,
                self.weight,
                None,
                self.conv,
                self.state,
                self.slots if self.t > 1 else self.slots[:, 0],
                self.cu if self.t > 1 else None,
                self.accepted,
                self.counters,
                SCALE,
                self.n,
            )
        )

    def triton_recurrence(self) -> None:
        """The recurrence alone, with q, k, v already convolved and split."""
        if self.t == 1:
            ops.fused_recurrent_gated_delta_rule_packed_decode(
                self.qkv,
                self.a,
                self.b,
                self.a_log,
                self.dt_bias,
                SCALE,
                self.state,
                self.out[:, None],
                self.slots[:, 0],
                True,
            )
            return
        ops.fused_sigmoid_gating_delta_rule_update(
            self.a_log,
            self.a,
            self.b,
            self.dt_bias,
            self.q,
            self.k,
            self.v,
            initial_state=self.state,
            inplace_final_state=True,
            cu_seqlens=self.cu,
            ssm_state_indices=self.slots,
            num_accepted_tokens=self.accepted,
            use_qk_l2norm_in_kernel=True,
        )

    def triton(self) -> None:
        """vLLM's path for float16: convolution update, split, recurrence."""
        options = (
            {}
            if self.t == 1
            else {
                "num_accepted_tokens": self.accepted,
                "query_start_loc": self.cu,
                "max_query_len": self.t,
            }
        )
        mixed = causal_conv1d_update(
            self.qkv,
            self.conv,
            self.weight,
            None,
            "silu",
            conv_state_indices=self.slots[:, 0],
            **options,
        )
        if self.t > 1:
            parts = mixed.split([K_HEADS * DIM, K_HEADS * DIM, V_HEADS * DIM], 1)
            torch.cat([x.reshape(-1) for x in parts])
        self.triton_recurrence()


def decode_table(copy: float) -> None:
    print("\ndecode and verify, same shape, inside a CUDA graph (us); ours includes the conv")
    print(
        "| sequences x tokens | ours | Triton recurrence | ratio "
        "| Triton conv + split + recurrence | ratio | state GB/s | of copy |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for n, t in (
        (1, 1),
        (1, 2),
        (1, 4),
        (1, 5),
        (1, 8),
        (2, 4),
        (4, 1),
        (4, 4),
        (8, 1),
        (8, 4),
        (8, 5),
        (32, 1),
        (64, 1),
        (32, 4),
    ):
        inputs = [Decode(n, t) for _ in range(max(2, min(48, 640 // (n * t))))]
        ours = median_us([x.ours for x in inputs])
        alone = median_us([x.triton_recurrence for x in inputs]) if HAS_VLLM else float("nan")
        whole = median_us([x.triton for x in inputs]) if HAS_VLLM else float("nan")
        bytes_ = n * (t + 1) * inputs[0].state[0].nbytes
        print(
            f"| {n} x {t} | {ours:.2f} | {alone:.2f} | {alone / ours:.2f} "
            f"| {whole:.2f} | {whole / ours:.2f} "
            f"| {bytes_ / ours / 1e3:.0f} | {bytes_ / ours * 1e6 / copy:.0%} |",
            flush=True,
        )


def main() -> None:
    torch.manual_seed(0)
    launch.prepare(torch.device("cuda", torch.cuda.current_device()))
    copy, product = timing.copy_rate(REPEATS), timing.product_rate(REPEATS)
    print(
        f"{torch.cuda.get_device_name()}: copy {copy / 1e9:.0f} GB/s, "
        f"fp16 product {product / 1e12:.0f} TFLOP/s"
    )
    if "prefill" not in sys.argv:
        decode_table(copy)
    if "decode" not in sys.argv:
        prefill_table(copy, product)


if __name__ == "__main__":
    main()
