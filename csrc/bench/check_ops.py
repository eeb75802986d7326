"""Check the plugin's torch operators with opcheck, torch.compile and CUDA graphs. Needs a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "plugin"), str(Path(__file__).parent)]

from caovan_vllm_sm75_turbo3 import launch, ops  # noqa: E402, F401

DEVICE = torch.device("cuda")
K_HEADS, V_HEADS, DIM, SCALE = 2, 4, 64, 0.125
CHANNELS = (2 * K_HEADS + V_HEADS) * DIM


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).half()


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def prefill_args() -> tuple:
    return (
        half(70, K_HEADS, DIM),
        half(70, K_HEADS, DIM),
        half(70, V_HEADS, DIM),
        -torch.rand(70, V_HEADS, device=DEVICE),
        torch.rand(70, V_HEADS, device=DEVICE),
        torch.randn(2, V_HEADS, DIM, DIM, device=DEVICE),
        ints(0, 33, 70),
        SCALE,
        True,
    )


def prefill_inplace_args() -> tuple:
    workspace = torch.zeros(
        launch.shared_library().prefill_workspace_bytes(70, 2, V_HEADS),
        dtype=torch.uint8,
        device=DEVICE,
    )
    return (
        half(70, K_HEADS, DIM),
        half(70, K_HEADS, DIM),
        half(70, V_HEADS, DIM),
        half(70, V_HEADS),
        half(70, V_HEADS),
        torch.rand(V_HEADS, device=DEVICE),
        half(V_HEADS),
        ints(0, 33, 70),
        ints(2, 1),
        torch.tensor([True, False], device=DEVICE),
        torch.randn(3, V_HEADS, DIM, DIM, device=DEVICE),
        torch.zeros(70, V_HEADS, DIM, device=DEVICE, dtype=torch.float16),
        workspace,
        SCALE,
    )


def decode_args() -> tuple:
    return (
        half(6, CHANNELS),
        half(6, V_HEADS),
        half(6, V_HEADS),
        torch.zeros(6, V_HEADS, DIM, device=DEVICE, dtype=torch.float16),
        torch.rand(V_HEADS, device=DEVICE),
        half(V_HEADS),
        half(CHANNELS, 4),
        None,
        half(7, CHANNELS, 5),
        torch.randn(7, V_HEADS, DIM, DIM, device=DEVICE),
        ints(1, 2, 3, 4, 5, 6).view(2, 3),
        ints(0, 3, 6),
        ints(1, 3),
        torch.zeros(4 * K_HEADS, dtype=torch.int32, device=DEVICE),
        SCALE,
        2,
    )


def clone(args: tuple) -> tuple:
    return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in args)


def equal(name: str, got: tuple, want: tuple) -> None:
    same = all(
        torch.equal(a, b)
        for a, b in zip(got, want, strict=False)
        if isinstance(a, torch.Tensor) and a.dtype is not torch.uint8
    )
    print(f"{name}: {'pass' if same else 'FAILED'}")
    if not same:
        sys.exit(1)


def main() -> None:
    torch.manual_seed(0)
    launch.prepare(torch.device("cuda", torch.cuda.current_device()))
    for name, make in (
        ("gdn_prefill", prefill_args),
        ("gdn_prefill_", prefill_inplace_args),
        ("gdn_decode_", decode_args),
    ):
        op = getattr(torch.ops.caovan, name)
        args = make()
        print(name, torch.library.opcheck(op.default, clone(args)))
        eager, compiled, captured = clone(args), clone(args), clone(args)
        want = op(*eager) or ()

        @torch.compile(fullgraph=True)
        def call(*args, op=op):
            return op(*args)

        equal(f"{name} compiled", (*(call(*compiled) or ()), *compiled), (*want, *eager))
        graph = torch.cuda.CUDAGraph()
        before = clone(captured)
        with torch.cuda.graph(graph):
            result = op(*captured)
        for target, source in zip(captured, before, strict=False):
            if isinstance(target, torch.Tensor):
                target.copy_(source)
        graph.replay()
        torch.cuda.synchronize()
        equal(f"{name} in a CUDA graph", (*(result or ()), *captured), (*want, *eager))
    print("operators: pass")


if __name__ == "__main__":
    main()
