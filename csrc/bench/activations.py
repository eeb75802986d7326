"""Measure int8 activations in vLLM's Marlin kernels for 4-bit weights. Needs a GPU.

    activations.py [--repeats N]

vLLM multiplies AWQ and GPTQ weights by half-precision activations. With
VLLM_MARLIN_INPUT_DTYPE=int8 it first rounds each token's activations to int8, and the scales of the
weights to multiples of 1/4096 of the largest scale. The benchmark runs both variants in turn over
the layers of a 27B model. It reports errors against float64 products of the dequantised weights,
and the median time of a layer, including the rounding.

Weights: "even" scales, as normally distributed weights have; "wide", where one group in a hundred
is 50 times as large; "negative", where the largest weight of a group is -8, as some GPTQ tools
write them. Activations: "even", and "outliers", where every 500th channel is 50 times as large. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch
from vllm import _custom_ops as ops
from vllm.model_executor.layers.quantization.utils import marlin_utils as marlin
from vllm.scalar_type import scalar_types

GROUP = 128
LAYERS = {"gate and up": (5120, 34816), "down": (17408, 5120), "qkv": (5120, 14336)}
"""Inputs and outputs of the layers that hold most of the weights."""
TOKENS = (1, 4, 16, 64, 512, 2048, 4096)
KINDS = {"awq": scalar_types.uint4, "gptq": scalar_types.uint4b8}


def weights(inputs: int, outputs: int, kind: str, scales: str) -> tuple[torch.Tensor, ...]:
    """Four-bit numbers, scales and zeros as in a checkpoint, and the weights they represent."""
    generator = torch.Generator("cuda").manual_seed(inputs + outputs)
    groups = inputs // GROUP
    full = torch.randn(groups, GROUP, outputs, device="cuda", generator=generator) * inputs**-0.5
    if scales == "wide":
        large = torch.rand(groups, 1, outputs, device="cuda", generator=generator) < 0.01
        full *= torch.where(large, 50.0, 1.0)
    low, high = full.amin(1, keepdim=True), full.amax(1, keepdim=True)
    if kind == "awq":
        scale = ((high - low) / 15).half().float()
        zero = (-low / scale).round().clamp(0, 15)
    elif scales == "negative":
        scale = (torch.where(high > -low, high, low) / -8).half().float()
        zero = torch.full_like(scale, 8)
    else:
        scale = (torch.maximum(high, -low) / 7).half().float()
        zero = torch.full_like(scale, 8)
    numbers = (full / scale + zero).round().clamp(0, 15)
    meant = ((numbers - zero) * scale).reshape(inputs, outputs)
    return numbers.reshape(inputs, outputs).int(), scale.squeeze(1).half(), zero.squeeze(1), meant


class Layer:
    """A layer with 4-bit weights, for half-precision or int8 activations."""

    def __init__(self, kind: str, parts: tuple[torch.Tensor, ...], dtype: torch.dtype | None):
        numbers, scale, zero, _ = parts
        self.kind, self.dtype = kind, dtype
        self.inputs, self.outputs = numbers.shape
        small = dtype is not None
        packed = torch.zeros(self.inputs // 8, self.outputs, dtype=torch.int32, device="cuda")
        for place in range(8):
            packed |= numbers[place::8] << (4 * place)
        self.none = torch.empty(0, dtype=torch.int, device="cuda")
        self.weight = ops.gptq_marlin_repack(
            packed, self.none, self.inputs, self.outputs, 4, is_a_8bit=small
        )
        self.scale = marlin.marlin_permute_scales(
            scale, self.inputs, self.outputs, GROUP, is_a_8bit=small
        )
        self.whole = None
        if small:
            self.scale, self.whole = marlin.marlin_act_int8_process_scales(self.scale)
        self.zero = self.none
        if kind == "awq":
            groups = self.inputs // GROUP
            self.zero = marlin.marlin_zero_points(
                zero.int(), groups, self.outputs, 4, is_a_8bit=small
            )
        self.workspace = marlin.marlin_make_workspace_new(torch.device("cuda"))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        shared = (x, self.weight, self.scale, self.zero, self.none, self.none, self.workspace)
        named = {
            "output_size_per_partition": self.outputs,
            "input_size_per_partition": self.inputs,
            "input_global_scale": self.whole,
            "input_dtype": self.dtype,
        }
        if self.kind == "awq":
            return marlin.apply_awq_marlin_linear(*shared, quant_type=KINDS["awq"], **named)
        return marlin.apply_gptq_marlin_linear(
            *shared, wtype=KINDS["gptq"], is_k_full=True, **named
        )


def error(layer: Layer, x: torch.Tensor, want: torch.Tensor) -> float:
    return ((layer(x).double() - want).norm() / want.norm()).item()


def microseconds(layer: Layer, x: torch.Tensor) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(5):
        layer(x)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 5 * 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    found: dict[str, dict] = {"error": {}, "microseconds": {}}
    print("| layer | weights | scales | activations | error, half | int8 |\n" + "| --- " * 6 + "|")
    for name, (inputs, outputs) in LAYERS.items():
        for kind in KINDS:
            for scales in ("even", "wide", *(["negative"] if kind == "gptq" else [])):
                parts = weights(inputs, outputs, kind, scales)
                half, small = (Layer(kind, parts, dtype) for dtype in (None, torch.int8))
                for how in ("even", "outliers"):
                    x = torch.randn(64, inputs, device="cuda")
                    if how == "outliers":
                        x[:, ::500] *= 50
                    x = x.half()
                    want = x.double() @ parts[3].double()
                    errors = [error(half, x, want), error(small, x, want)]
                    row = f"{name} | {kind} | {scales} | {how}"
                    found["error"][row] = errors
                    print(f"| {row} | {errors[0]:.5f} | {errors[1]:.5f} |", flush=True)
    print("| layer | weights | tokens | half, us | int8, us | gain |\n" + "| --- " * 6 + "|")
    for name, (inputs, outputs) in LAYERS.items():
        for kind in KINDS:
            parts = weights(inputs, outputs, kind, "even")
            half, small = (Layer(kind, parts, dtype) for dtype in (None, torch.int8))
            for tokens in TOKENS:
                x = torch.randn(tokens, inputs, device="cuda").half()
                half(x), small(x)
                times = [(microseconds(half, x), microseconds(small, x)) for _ in range(repeats)]
                a, b = (statistics.median(one) for one in zip(*times, strict=True))
                row = f"{name} | {kind} | {tokens}"
                found["microseconds"][row] = [round(a, 1), round(b, 1)]
                print(f"| {row} | {a:.1f} | {b:.1f} | {a / b:.2f} |", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
