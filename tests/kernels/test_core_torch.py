"""The plugin's torch side on the CPU: operators' schemas and fakes, and one layer's core with
the kernels' place taken by the float64 oracle, batch kinds as vLLM's metadata describes them."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip(
    "torch", reason="this Python has no torch: run these with the engine's Python"
)

import oracle  # noqa: E402
from caovan_vllm_sm75_turbo3 import core, launch, ops  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

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
    a_log,
    dt_bias,
    weight,
    bias,
    slots,
    cu,
    accepted,
    conv_state,
    state,
    out,
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


@pytest.fixture(autouse=True, scope="module")
def oracle_in_place_of_the_kernels():
    ops._library.impl("gdn_prefill_", prefill_cpu, "CPU")
    ops._library.impl("gdn_decode_", decode_cpu, "CPU")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "prepare", lambda device: None)
        yield


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


def test_decodes_of_one_token_go_to_the_decode_kernel() -> None:
    batch = Batch(3, 6, 0)
    out = batch.run(num_decodes=3, non_spec_state_indices_tensor=ints(2, 5, 1))
    for i, slot in enumerate((2, 5, 1)):
        torch.testing.assert_close(out[i : i + 1], batch.want(slice(i, i + 1), slot))


def test_prefill_reads_and_writes_the_slots_it_is_given() -> None:
    batch = Batch(70, 6, 0)
    out = batch.run(
        num_prefills=2,
        non_spec_state_indices_tensor=ints(4, 2),
        non_spec_query_start_loc=ints(0, 33, 70),
        has_initial_state=torch.tensor([False, True]),
    )
    torch.testing.assert_close(
        out[:33], batch.want(slice(0, 33), 4, fresh=True), atol=2e-3, rtol=1e-2
    )
    torch.testing.assert_close(out[33:], batch.want(slice(33, 70), 2), atol=2e-3, rtol=1e-2)
    assert not torch.equal(batch.state[4], batch.state_before[4])
    assert torch.equal(batch.state[[0, 1, 3, 5]], batch.state_before[[0, 1, 3, 5]])


def verify_meta(**more):
    return {
        "spec_sequence_masks": torch.tensor([True]),
        "spec_state_indices_tensor": ints(1, 2, 3, 4, 5, 6).view(2, 3),
        "spec_query_start_loc": ints(0, 3, 5),
        "num_accepted_tokens": ints(2, 1),
        "num_spec_decodes": 2,
    } | more


def test_drafts_start_from_the_slot_of_the_last_accepted_token() -> None:
    batch = Batch(5, 8, 2)
    out = batch.run(**verify_meta())
    torch.testing.assert_close(out[:3], batch.want(slice(0, 3), 2, back=1, history_slot=1))
    torch.testing.assert_close(out[3:], batch.want(slice(3, 5), 4))


def test_mixed_batches_keep_each_token_with_its_own_gates() -> None:
    """Drafts behind a prefill: vLLM 0.21 itself would take the gates of the first tokens."""
    batch = Batch(25, 8, 2)
    out = batch.run(
        **verify_meta(
            num_prefills=1,
            non_spec_token_indx=torch.arange(20),
            spec_token_indx=torch.arange(20, 25),
            non_spec_state_indices_tensor=ints(7),
            non_spec_query_start_loc=ints(0, 20),
            has_initial_state=torch.tensor([True]),
        )
    )
    torch.testing.assert_close(out[:20], batch.want(slice(0, 20), 7), atol=2e-3, rtol=1e-2)
    torch.testing.assert_close(out[20:23], batch.want(slice(20, 23), 2, back=1, history_slot=1))
    torch.testing.assert_close(out[23:25], batch.want(slice(23, 25), 4))


def test_calls_are_counted_by_layer_and_kernel() -> None:
    core.counts.clear()
    Batch(3, 6, 0).run(num_decodes=3, non_spec_state_indices_tensor=ints(2, 5, 1))
    Batch(5, 8, 2).run(**verify_meta())
    assert core.counts == {("layer", "decode"): 1, ("layer", "verify"): 1}


def test_operators_have_fakes_of_the_right_shapes() -> None:
    with FakeTensorMode():
        v = torch.empty(9, V_HEADS, DIM, dtype=torch.float16, device="cuda")
        q = torch.empty(9, K_HEADS, DIM, dtype=torch.float16, device="cuda")
        g, state = (torch.empty(*s, device="cuda") for s in ((9, V_HEADS), (1, V_HEADS, DIM, DIM)))
        cu = torch.empty(2, dtype=torch.int32, device="cuda")
        out, final = torch.ops.caovan.gdn_prefill(q, q, v, g, g, state, cu, 1.0, False)
    assert (out.shape, out.dtype, final.shape, final.dtype) == (
        v.shape,
        v.dtype,
        state.shape,
        state.dtype,
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"q": torch.zeros(4, 2, 64)},
            "cannot use q of torch.float32: the kernel takes torch.float16",
        ),
        ({"k": torch.zeros(4, 64, 2).half().mT}, "its last dimensions must be"),
        ({"g": torch.zeros(4, 4).half()}, "cannot use g of torch.float16"),
        ({"cu_seqlens": torch.zeros(2, dtype=torch.int64)}, "cannot use cu_seqlens of torch.int64"),
        ({"slots": torch.zeros(1, dtype=torch.int64)}, "cannot use slots of torch.int64"),
        ({"final_state": torch.zeros(1, 4, 64, 64)[:, :, :32]}, "cannot use state of shape"),
        ({"final_state": torch.zeros(3, 4, 64, 64)}, "different layouts"),
    ],
)
def test_tensors_the_kernel_cannot_read_are_refused_before_a_launch(
    changed: dict, words: str
) -> None:
    good = {
        "q": half(4, 2, 64),
        "k": half(4, 2, 64),
        "v": half(4, 4, 64),
        "g": torch.zeros(4, 4),
        "beta": torch.zeros(4, 4),
        "out": half(4, 4, 64),
        "cu_seqlens": ints(0, 4),
        "initial_state": torch.zeros(1, 4, 64, 64),
        "final_state": None,
        "slots": None,
        "has_initial_state": None,
        "scale": 1.0,
        "l2norm": False,
        "null_slot": -1,
    }
    launch.prefill_args(**good)
    with pytest.raises(ValueError, match=words):
        launch.prefill_args(**good | changed)


def test_the_oracle_is_the_closed_form_for_one_chunk() -> None:
    """Two roads to the same numbers: the recurrence, and (I + A)^-1 of the chunked form."""
    torch.manual_seed(0)
    t = 12
    q, k = (oracle.l2norm(torch.randn(t, 1, 8)) for _ in "qk")
    v, g, beta = (
        torch.randn(t, 1, 8).double(),
        -torch.rand(t, 1).double(),
        torch.rand(t, 1).double(),
    )
    state = torch.randn(1, 8, 8).double()
    out, states = oracle.recurrence(q, k, v, g, beta, state, 0.5)
    gc, k, v, s, q = g[:, 0].cumsum(0), k[:, 0], v[:, 0], state[0], q[:, 0]
    decay = (gc[:, None] - gc[None]).tril().exp()
    inverse = torch.linalg.inv(torch.eye(t) + (beta * decay * (k @ k.T)).tril(-1))
    u = inverse @ (beta * (v - gc.exp()[:, None] * (k @ s.T)))
    torch.testing.assert_close(
        out[:, 0], 0.5 * (gc.exp()[:, None] * (q @ s.T) + (decay * (q @ k.T)).tril() @ u)
    )
    torch.testing.assert_close(
        states[-1][0], gc[-1].exp() * s + u.T @ ((gc[-1] - gc).exp()[:, None] * k)
    )
