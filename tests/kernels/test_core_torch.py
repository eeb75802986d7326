"""The plugin's torch side on the CPU: operators' schemas and fakes, and one layer's core with
the kernels' place taken by the float64 oracle, batch kinds as vLLM's metadata describes them."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip(
    "torch", reason="this Python has no torch: run these with the engine's Python"
)

from caovan_vllm_sm75_turbo3 import core, launch, ops  # noqa: E402
from caovan_vllm_sm75_turbo3.measure import oracle  # noqa: E402
from stand_ins import (  # noqa: E402
    CHANNELS,
    DIM,
    K_HEADS,
    V_HEADS,
    Batch,
    decode_cpu,
    half,
    ints,
    prefill_cpu,
)
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def oracle_in_place_of_the_kernels():
    ops._library.impl("gdn_prefill_", prefill_cpu, "CPU")
    ops._library.impl("gdn_decode_", decode_cpu, "CPU")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "prepare", lambda device: None)
        yield


GOOD_PREFILL = {
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
            "cannot use q of torch.float32: the kernel expects torch.float16",
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
    launch.prefill_args(launch.PrefillCall(**GOOD_PREFILL))
    with pytest.raises(ValueError, match=words):
        launch.prefill_args(launch.PrefillCall(**GOOD_PREFILL | changed))


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


def changed_layer(name: str, change) -> tuple[SimpleNamespace, torch.Tensor]:
    """A layer that drafts 2 tokens, and its conv state, with one tensor `change`d."""
    batch = Batch(1, 6, 2)
    layer, conv_state = batch.layer, batch.conv_state
    if name == "conv_state":
        conv_state = change(conv_state)
    elif name == "state":
        layer.kv_cache = (None, change(batch.state))
    elif name.startswith("conv1d."):
        setattr(layer.conv1d, name.removeprefix("conv1d."), change(layer.conv1d.weight))
    else:
        setattr(layer, name, change(getattr(layer, name)))
    return layer, conv_state


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("A_log", lambda x: x),
        ("dt_bias", lambda x: x.float()),
        ("conv1d.bias", lambda w: w[:, 0, 0].contiguous()),
        ("conv_state", lambda x: x.contiguous()),  # VLLM_SSM_CONV_STATE_LAYOUT=DS
        ("conv_state", lambda x: torch.cat([x, x], 2)),  # more columns than are needed
    ],
)
def test_layers_as_vllm_makes_them_have_no_problem(name: str, change) -> None:
    layer, conv_state = changed_layer(name, change)
    assert core.layer_refusal(layer, torch.device("cpu"), conv_state) is None


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("A_log", lambda x: x.half(), "a_log of torch.float16: the kernel expects torch.float32"),
        ("A_log", lambda x: x[:3], r"a_log of shape \(3,\)"),
        ("A_log", lambda x: x.repeat_interleave(2)[::2], r"a_log of .* strides \(2,\)"),
        ("dt_bias", lambda x: x.bfloat16(), "dt_bias of torch.bfloat16"),
        ("dt_bias", lambda x: x[:3], r"dt_bias of shape \(3,\)"),
        ("conv1d.weight", lambda w: w.float(), "conv_weight of torch.float32"),
        ("conv1d.weight", lambda w: w[..., :3], r"conv_weight of shape \(512, 3\)"),
        ("conv1d.weight", lambda w: w.mT.contiguous().mT[:, :, ::2], "conv_weight of shape"),
        ("conv1d.weight", lambda w: w.expand(-1, 2, -1), "conv_weight of shape"),
        ("conv1d.bias", lambda w: w[:, 0, 0].float(), "conv_bias of torch.float32"),
        ("conv1d.bias", lambda w: w[:, 0, 0], "conv_bias of shape"),
        ("state", lambda x: x.half(), "state of torch.float16"),
        ("state", lambda x: x.mT, "state of shape"),
        ("state", lambda x: x.view(-1)[1:-16383].view(5, V_HEADS, DIM, DIM), "16-byte boundaries"),
        ("state", lambda x: x[:5], r"takes float16 \[5, 512, columns\]"),
        ("conv_state", lambda x: x.float(), "conv state of torch.float32"),
        ("conv_state", lambda x: x[:, :-1], r"conv state of .*\(6, 511, 5\)"),
        ("conv_state", lambda x: x[:, :, :4], "cannot keep 5 inputs in 4 columns"),
        ("conv_state", lambda x: x.mT.repeat(1, 1, 2)[..., 1:513].mT, "8-byte boundaries"),
    ],
)
def test_a_layer_the_kernels_cannot_read_is_known_before_its_first_batch(
    name: str, change, words: str
) -> None:
    layer, conv_state = changed_layer(name, change)
    with pytest.raises(ValueError, match=words):
        raise ValueError(core.layer_refusal(layer, torch.device("cpu"), conv_state))


def test_parameters_are_looked_at_before_there_are_caches() -> None:
    layer, _ = changed_layer("A_log", lambda x: x.half())
    layer.kv_cache = None
    assert "a_log" in core.layer_refusal(layer, torch.device("cpu"))


def test_kernels_that_do_not_load_are_a_problem_in_words(monkeypatch) -> None:
    def fail(device: torch.device) -> None:
        raise launch.library.KernelError(f"cannot load gdn_decode on {device}")

    monkeypatch.setattr(launch, "prepare", fail)
    layer, conv_state = changed_layer("A_log", lambda x: x)
    said = core.layer_refusal(layer, torch.device("cpu"), conv_state)
    assert said == "cannot load gdn_decode on cpu"


def test_outgrown_counters_stay_for_the_graphs_that_hold_them() -> None:
    device = torch.device("meta")
    first = core.counters(device, 4)
    assert core.counters(device, 3) is first
    assert core.counters(device, 9).numel() == 9
    assert any(kept is first for kept in core._counters[device])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"k": torch.zeros(3, 2, 64).half()},
            r"cannot use k of shape \(3, 2, 64\): 4 rows",
        ),
        ({"out": torch.zeros(2, 4, 64).half()}, r"cannot use out of shape \(2, 4, 64\)"),
        ({"slots": ints()}, r"cannot use slots of shape \(0,\): 1 rows"),
        ({"cu_seqlens": ints(0, 2, 4)}, r"cannot use initial_state of shape \(1, 4, 64, 64\)"),
        ({"has_initial_state": torch.zeros(0, dtype=torch.bool)}, "cannot use has_initial_state"),
    ],
)
def test_a_prefill_that_would_read_past_an_end_is_refused(changed: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        launch.prefill_args(launch.PrefillCall(**GOOD_PREFILL | changed))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"a": half(4, V_HEADS)}, r"cannot use a of shape \(4, 4\): 5 rows"),
        ({"out": half(4, V_HEADS, DIM)}, "cannot use out of shape"),
        ({"slots": ints(1, 2, 3).view(1, 3)}, r"slots of shape \(1, 3\): 2 rows"),
        (
            {"slots": ints(*range(12)).view(2, 6)[:, ::2]},
            "slots of strides .*: rows must be contiguous",
        ),
        ({"slots": ints(1, 2, 3).long().expand(2, 3)}, "cannot use slots of torch.int64"),
        ({"num_accepted": ints(1)}, r"num_accepted of shape \(1,\): 2 rows"),
        ({"num_accepted": ints(1, 1, 1)[::2]}, r"num_accepted of strides \(2,\)"),
        ({"cu_seqlens": ints(0, 3)}, r"cu_seqlens of shape \(2,\): 3 rows"),
        (
            {"cu_seqlens": None, "num_accepted": None, "slots": ints(*range(6)), "sequences": 6},
            "5 tokens into 6 sequences of one token each",
        ),
        ({"conv_state": half(7, 4, CHANNELS).mT}, "cannot keep 5 inputs in 4 columns"),
        ({"counters": ints(0, 0, 0)}, r"counters of shape \(3,\): 8 rows"),
    ],
)
def test_a_decode_that_would_read_past_an_end_is_refused(changed: dict, words: str) -> None:
    good = {
        "qkv": half(5, CHANNELS),
        "a": half(5, V_HEADS),
        "b": half(5, V_HEADS),
        "out": half(5, V_HEADS, DIM),
        "a_log": torch.rand(V_HEADS),
        "dt_bias": half(V_HEADS),
        "conv_weight": half(CHANNELS, 4),
        "conv_bias": None,
        "conv_state": half(7, 5, CHANNELS).mT,
        "state": torch.zeros(7, V_HEADS, DIM, DIM),
        "slots": ints(1, 2, 3, 4, 5, 6).view(2, 3),
        "cu_seqlens": ints(0, 3, 5),
        "num_accepted": ints(1, 1),
        "counters": torch.zeros(2 * 2 * K_HEADS, dtype=torch.int32),
        "scale": 1.0,
        "sequences": 2,
    }
    with pytest.raises(ValueError, match=words):
        launch.decode(launch.DecodeCall(**good | changed))
