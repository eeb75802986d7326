"""Stand-ins for the CPU: the kernels' operators by the float64 oracle, a layer as vLLM makes it,
its caches, and a batch of fresh tokens."""

from types import SimpleNamespace

import torch
from caovan_vllm_sm75_turbo3 import core
from caovan_vllm_sm75_turbo3.measure import oracle

K_HEADS, V_HEADS, DIM = 2, 4, 64
CHANNELS = (2 * K_HEADS + V_HEADS) * DIM
SPLIT = [K_HEADS * DIM, K_HEADS * DIM, V_HEADS * DIM]


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).half()


def heads(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(part.unflatten(1, (-1, DIM)) for part in x.split(SPLIT, 1))


def step(x, a, b, layer, state, history):
    """Conv and recurrence of one sequence by the oracle: out, states after each token."""
    y = oracle.conv(history, x, layer.conv1d.weight[:, 0], None)
    q, k, v = heads(y)
    g, beta = oracle.gates(a, b, layer.A_log, layer.dt_bias)
    return oracle.recurrence(
        oracle.l2norm(q), oracle.l2norm(k), v, g, beta, state, DIM**-0.5, keep=x.shape[0]
    )


def prefill_cpu(
    q, k, v, a, b, a_log, dt_bias, cu, slots, has_initial, state, out, workspace, scale
):
    g, beta = oracle.gates(a, b, a_log, dt_bias)
    initial = [
        state[s] if h else torch.zeros_like(state[s])
        for s, h in zip(slots.tolist(), has_initial.tolist(), strict=False)
    ]
    want, final = oracle.prefill(
        oracle.l2norm(q), oracle.l2norm(k), v, g, beta, cu.tolist(), initial, scale
    )
    out.copy_(want)
    for s, f in zip(slots.tolist(), final, strict=False):
        state[s] = f.float()


def decode_cpu(
    qkv,
    a,
    b,
    out,
    a_log,
    dt_bias,
    weight,
    bias,
    conv_state,
    state,
    slots,
    cu,
    accepted,
    counters,
    scale,
    n,
):
    assert counters.numel() >= 2 * n * K_HEADS
    assert not counters.any()
    layer = SimpleNamespace(
        conv1d=SimpleNamespace(weight=weight[:, None]), A_log=a_log, dt_bias=dt_bias
    )
    slots = slots.view(slots.shape[0], -1)
    for i in range(n):
        rows = slice(cu[i], cu[i + 1]) if cu is not None else slice(i, i + 1)
        back = accepted[i].item() - 1 if accepted is not None else 0
        history = conv_state[slots[i, 0], :, back : back + 3].clone()
        out[rows], states = step(qkv[rows], a[rows], b[rows], layer, state[slots[i, back]], history)
        conv_state[slots[i, 0], :, : 2 + len(states)] = torch.cat([history[:, 1:], qkv[rows].T], 1)
        for s, after in zip(slots[i], states, strict=False):
            state[s] = after.float()


class Batch:
    """A layer, its caches and a batch of fresh tokens."""

    def __init__(self, tokens: int, slots: int, spec: int) -> None:
        torch.manual_seed(tokens)
        self.layer = SimpleNamespace(
            prefix="layer",
            num_k_heads=K_HEADS,
            num_v_heads=V_HEADS,
            tp_size=1,
            head_k_dim=DIM,
            key_dim=K_HEADS * DIM,
            value_dim=V_HEADS * DIM,
            activation="silu",
            conv_kernel_size=4,
            num_spec=spec,
            conv1d=SimpleNamespace(weight=half(CHANNELS, 1, 4), bias=None),
            A_log=torch.rand(V_HEADS),
            dt_bias=half(V_HEADS),
        )
        self.conv_state = half(slots, 3 + spec, CHANNELS).mT
        self.state = torch.randn(slots, V_HEADS, DIM, DIM)
        self.layer.kv_cache = (None, self.state)
        self.qkv, self.a, self.b = (
            half(tokens, CHANNELS),
            half(tokens, V_HEADS),
            half(tokens, V_HEADS),
        )
        self.out = torch.full((tokens + 2, V_HEADS, DIM), 7.0).half()
        self.state_before, self.conv_before = self.state.clone(), self.conv_state.clone()

    def conv_fn(
        self,
        x,
        weight,
        bias,
        activation,
        conv_states,
        has_initial_state,
        cache_indices,
        query_start_loc,
        metadata,
    ):
        assert activation == "silu"
        assert conv_states is self.conv_state
        parts, cu = [], query_start_loc.tolist()
        for n, (slot, has) in enumerate(
            zip(cache_indices.tolist(), has_initial_state.tolist(), strict=False)
        ):
            history = conv_states[slot, :, :3] if has else torch.zeros(CHANNELS, 3).half()
            parts.append(oracle.conv(history, x.T[cu[n] : cu[n + 1]], weight, bias))
        return torch.cat(parts).T

    def run(self, **meta) -> torch.Tensor:
        kinds = {
            "spec_sequence_masks": None,
            "num_prefills": 0,
            "num_decodes": 0,
            "num_spec_decodes": 0,
        }
        core.forward(
            self.layer,
            self.qkv,
            self.b,
            self.a,
            self.out,
            SimpleNamespace(num_actual_tokens=self.qkv.shape[0], **kinds | meta),
            self.conv_state,
            self.conv_fn,
        )
        assert (self.out[self.qkv.shape[0] :] == 7).all(), "padding rows are left alone"
        return self.out[: self.qkv.shape[0]]

    def want(
        self, rows, slot: int, back: int = 0, history_slot: int | None = None, fresh: bool = False
    ):
        state, conv_slot = self.state_before[slot], slot if history_slot is None else history_slot
        history = self.conv_before[conv_slot, :, back : back + 3]
        if fresh:
            state, history = torch.zeros_like(state), torch.zeros_like(history)
        return step(self.qkv[rows], self.a[rows], self.b[rows], self.layer, state, history)[
            0
        ].half()


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)
