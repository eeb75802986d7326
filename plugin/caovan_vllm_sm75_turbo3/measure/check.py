"""Check every kernel against the float64 oracle. Needs a GPU; prints one line per case and exits
with 1 on failure.

python -m caovan_vllm_sm75_turbo3.measure.check [decode | prefill]

Bounds: relative error ||got - want|| / ||want||, and the largest |got - want| / (|want| + rms) of
an element, rms being the root mean square of the wanted values (fp16 rounds an output by up to 5e-4
of itself). Outputs, scratch memory, unused slots and padding are poisoned with NaN beforehand. The
same input must give the same bits every time.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence

import torch

from caovan_vllm_sm75_turbo3 import launch
from caovan_vllm_sm75_turbo3.measure import oracle

DEVICE = torch.device("cuda")
CHUNKED = (1e-3, 1e-2)  # relative and per element: fp16 operands
RECURRENT = (4e-4, 1e-3)  # only the output is rounded to fp16
failures: list[str] = []


def seed(name: str, round_: int) -> None:
    torch.manual_seed(zlib.crc32(f"{name} {round_}".encode()))


def compare(
    name: str, what: str, got: torch.Tensor, want: torch.Tensor, bounds: tuple[float, float]
) -> str:
    """Format one comparison; a violated bound, a NaN or a missing element is a failure."""
    error = got.double() - want.double()
    rms = want.double().square().mean().sqrt()
    relative, largest = (
        (error.square().mean().sqrt() / rms).item(),
        (error.abs() / (want.double().abs() + rms)).max().item(),
    )
    if rms == 0:
        relative = largest = error.abs().max().item()
    good = relative <= bounds[0] and largest <= bounds[1]  # NaN compares false
    if not good:
        failures.append(f"{name}: {what}")
    return f"{what} {relative:.1e} / {largest:.1e}{'' if good else ' FAILED'}"


def demand(name: str, what: str, holds: bool) -> None:
    if not holds:
        failures.append(f"{name}: {what}")
        print(f"FAILED {name}: {what}")


def run_repeatedly(
    name: str, run: Callable[[], None], written: Sequence[torch.Tensor], times: int
) -> None:
    """Run once and `times` more from the current contents of `written`; the bits must not
    change."""
    before = [x.clone() for x in written]
    run()
    first = [x.nan_to_num(7e4) for x in written]
    for _ in range(times):
        for x, was in zip(written, before, strict=True):
            x.copy_(was)
        run()
        same = [torch.equal(x.nan_to_num(7e4), f) for x, f in zip(written, first, strict=True)]
        if not all(same):
            demand(name, "other bits from the same input", False)
            return


def make_gates(kind: str, tokens: int, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = -torch.rand(tokens, heads, device=DEVICE) * 0.3
    beta = torch.rand(tokens, heads, device=DEVICE)
    if kind == "strong":
        g = -torch.rand(tokens, heads, device=DEVICE) * 20
    elif kind == "weak":
        g = -torch.rand(tokens, heads, device=DEVICE) * 1e-4
    elif kind == "beta 0":
        beta.zero_()
    elif kind == "beta 1":
        beta.fill_(1)
    return g, beta


def make_qkv(tokens, heads, k_dim, dim, *, raw, collinear, extreme, strided):
    """q, k: [tokens, Hk, k_dim], v: [tokens, Hv, dim]; rows of q and k have norm 1 unless `raw`."""
    k_heads, v_heads = heads
    q = torch.randn(tokens, k_heads, k_dim, device=DEVICE)
    k = torch.randn(tokens, k_heads, k_dim, device=DEVICE)
    if collinear:
        k = k[:1] + 0.01 * k
    v = torch.randn(tokens, v_heads, dim, device=DEVICE).half()
    if extreme:  # norms from zero to fp16's maximum, large values
        k *= 10 ** (torch.rand(tokens, k_heads, 1, device=DEVICE) * 7 - 4)
        k[::7] = 0
        q[::5] *= 1e-4
        v *= 100
    if not raw:
        q, k = oracle.l2norm(q), oracle.l2norm(k)
    q, k = q.half(), k.half()
    if strided:  # packed as in vLLM's convolution output
        packed = torch.cat([x.flatten(1) for x in (q, k, v)], 1)
        q, k, v = (
            x.unflatten(1, (-1, d))
            for x, d in zip(
                packed.split([k_heads * k_dim, k_heads * k_dim, v_heads * dim], 1),
                (k_dim, k_dim, dim),
                strict=False,
            )
        )
    return q, k, v


def prefill_case(
    name,
    lengths,
    heads=(8, 24),
    dim=128,
    gates="usual",
    kernel="prefill",
    fused=False,
    collinear=False,
    slots="permuted",
    offset=0,
    strided=False,
    head_k_dim=None,
    extreme=False,
    times=10,
    round_=0,
):
    """Packed `lengths` after `offset` unused rows, followed by 3 poisoned rows.

    times: how often the result must be bit-identical.
    """
    seed(name, round_)
    v_heads, n, k_dim = heads[1], len(lengths), head_k_dim or dim
    cu = [offset]
    for length in lengths:
        cu.append(cu[-1] + length)
    tokens = cu[-1] + 3
    q, k, v = make_qkv(
        tokens, heads, k_dim, dim, raw=fused, collinear=collinear, extreme=extreme, strided=strided
    )
    options = {}
    if fused:
        g, beta = (torch.randn(tokens, v_heads, device=DEVICE).half() for _ in "ab")
        options = {
            "a_log": torch.rand(v_heads, device=DEVICE) * 3 - 1,
            "dt_bias": torch.randn(v_heads, device=DEVICE).half(),
        }
        g64, beta64 = oracle.gates(g, beta, **options)
        q64, k64 = oracle.l2norm(q), oracle.l2norm(k)
    else:
        g, beta = make_gates(gates, tokens, v_heads)
        g64, beta64, q64, k64 = g, beta, q, k
    outside = [r for r in range(tokens) if not cu[0] <= r < cu[-1]]
    for x in (q, k, v, g, beta):
        x[outside] = torch.nan
    used = torch.randperm(n, device=DEVICE).int() + 1
    if slots == "null":
        used[::2] = 0
    has_initial = torch.rand(n, device=DEVICE) < 0.7
    state = torch.full((n + 2, v_heads, dim, k_dim), torch.nan, device=DEVICE)
    for s, h in zip(used.tolist(), has_initial.tolist(), strict=False):
        if h and s:
            state[s] = torch.randn(v_heads, dim, k_dim, device=DEVICE)
    initial = [
        state[s].clone() if h and s else torch.zeros(v_heads, dim, k_dim, device=DEVICE)
        for s, h in zip(used.tolist(), has_initial.tolist(), strict=False)
    ]
    before = state.clone()
    out = torch.full((tokens, v_heads, dim), torch.nan, device=DEVICE, dtype=torch.float16)
    scale = k_dim**-0.5
    cu_seqlens = torch.tensor(cu, device=DEVICE, dtype=torch.int32)
    if kernel == "prefill":
        size = launch.shared_library().prefill_workspace_bytes(tokens, n, v_heads)
        options["workspace"] = torch.empty(size, dtype=torch.uint8, device=DEVICE)

    def run():
        if kernel == "prefill":
            options["workspace"].fill_(0xFF)
        getattr(launch, kernel)(
            q,
            k,
            v,
            g,
            beta,
            out,
            cu_seqlens,
            state,
            state,
            used,
            has_initial,
            scale=scale,
            l2norm=fused,
            null_slot=0,
            **options,
        )

    run_repeatedly(name, run, (out, state), times)
    want, final = oracle.prefill(q64, k64, v, g64, beta64, cu, initial, scale)
    bounds = CHUNKED if kernel == "prefill" else RECURRENT
    inside = slice(cu[0], cu[-1])
    line = [compare(name, "out", out[inside], want[inside], bounds)] if cu[-1] > cu[0] else []
    written = [
        (s, f) for s, f, length in zip(used.tolist(), final, lengths, strict=False) if s and length
    ]
    if written:
        line.append(
            compare(
                name,
                "state",
                torch.stack([state[s] for s, _ in written]),
                torch.stack([f for _, f in written]),
                bounds,
            )
        )
    demand(name, "wrote rows outside every sequence", bool(out[outside].isnan().all()))
    others = [s for s in range(n + 2) if s not in {s for s, _ in written}]
    demand(
        name,
        "changed a slot it does not own",
        torch.equal(state[others].nan_to_num(7e7), before[others].nan_to_num(7e7)),
    )
    print(f"{kernel:9} {name}: {'; '.join(line)}")


def carried_case(steps=50, length=37):
    """One sequence in 50 calls, with the state carried in its slot, against one uninterrupted
    oracle."""
    name = f"state carried over {steps} calls of {length}"
    seed(name, 0)
    total, heads, dim = steps * length, 6, 128
    q, k = (oracle.l2norm(torch.randn(total, 2, dim, device=DEVICE)).half() for _ in "qk")
    v = torch.randn(total, heads, dim, device=DEVICE).half()
    g, beta = make_gates("weak", total, heads)
    state = torch.full((3, heads, dim, dim), torch.nan, device=DEVICE)
    out = torch.full_like(v, torch.nan)
    cu = torch.tensor([0, length], device=DEVICE, dtype=torch.int32)
    slot = torch.tensor([2], device=DEVICE, dtype=torch.int32)
    for i in range(steps):
        rows = slice(i * length, (i + 1) * length)
        launch.prefill(
            launch.PrefillCall(
                q[rows],
                k[rows],
                v[rows],
                g[rows],
                beta[rows],
                out[rows],
                cu,
                state,
                state,
                slot,
                torch.tensor([i > 0], device=DEVICE),
                scale=dim**-0.5,
                l2norm=False,
                null_slot=0,
            )
        )
    want, final = oracle.prefill(
        q, k, v, g, beta, [0, total], [torch.zeros(heads, dim, dim, device=DEVICE)], dim**-0.5
    )
    print(
        f"prefill   {name}: {compare(name, 'out', out, want, CHUNKED)}; "
        f"{compare(name, 'state', state[2], final[0], CHUNKED)}"
    )


def make_slots(n, width, total, nulls):
    """Slots [n, width] with strided rows, and each sequence's number of accepted drafts plus
    one."""
    slots = torch.full((n, width + 2), -7, device=DEVICE, dtype=torch.int32)[:, :width]
    slots.copy_((torch.randperm(total - 1, device=DEVICE)[: n * width] + 1).view(n, width))
    accepted = torch.randint(1, width + 1, (n,), device=DEVICE, dtype=torch.int32)
    if nulls:
        slots[0] = 0
    if nulls == "last":
        slots[-1, -1], accepted[-1] = 0, 1
    elif nulls == "accepted":
        slots[-1, -1], accepted[-1] = 0, width
    elif nulls == "outside":
        slots[1], slots[2] = -1, total
    return slots, accepted


# shared by all decode cases
_counters = torch.zeros(2 * 256 * 16, device=DEVICE, dtype=torch.int32)


def decode_case(
    name,
    lengths,
    spec=0,
    heads=(8, 24),
    dim=128,
    layout="SD",
    nulls="",
    bias=False,
    half_bias=True,
    offsets=None,
    accepts=True,
    times=10,
    round_=0,
):
    """`lengths` new tokens of each sequence; a length of 0 is a padded sequence.

    nulls: "last" for no slot for the last token's state, "accepted" for no slot where reading
    starts, "outside" for slots beyond the cache; each with a padded first sequence. offsets: pass
    cu_seqlens (always with drafts). accepts: pass the number of accepted drafts. times: as above.
    """
    seed(name, round_)
    (k_heads, v_heads), n, width = heads, len(lengths), spec + 1
    channels, tokens = 2 * k_heads * dim + v_heads * dim, sum(lengths)
    offsets = bool(spec) if offsets is None else offsets
    cu = [0]
    for length in lengths:
        cu.append(cu[-1] + length)
    mixed = torch.randn(tokens, channels + 64, device=DEVICE).half()
    qkv = mixed[:, :channels]  # strided rows, as in a and b
    a, b = torch.randn(tokens, 2 * v_heads + 8, device=DEVICE).half().split(v_heads, 1)[:2]
    a_log, dt_bias = (
        torch.rand(v_heads, device=DEVICE) * 3 - 1,
        torch.randn(v_heads, device=DEVICE),
    )
    dt_bias = dt_bias.half() if half_bias else dt_bias
    weight = (torch.randn(channels, 4, device=DEVICE) * 0.5).half()
    conv_bias = torch.randn(channels, device=DEVICE).half() if bias else None
    total_slots, columns = n * width + 3, 3 + spec
    conv_state = torch.randn(total_slots, channels, columns, device=DEVICE).half()
    if layout == "SD":
        conv_state = conv_state.mT.contiguous().mT
    state = torch.randn(total_slots, v_heads, dim, dim, device=DEVICE)
    slots, accepted = make_slots(n, width, total_slots, nulls)
    out = torch.full((tokens, v_heads, dim), torch.nan, device=DEVICE, dtype=torch.float16)
    state_before, conv_before = state.clone(), conv_state.clone()
    cu_seqlens = torch.tensor(cu, device=DEVICE, dtype=torch.int32)

    def run():
        launch.decode(
            launch.DecodeCall(
                qkv,
                a,
                b,
                out,
                a_log,
                dt_bias,
                weight,
                conv_bias,
                conv_state,
                state,
                slots if spec else slots[:, 0],
                cu_seqlens if offsets else None,
                accepted if spec and accepts else None,
                _counters,
                dim**-0.5,
                n,
            )
        )

    run_repeatedly(name, run, (out, state, conv_state), times)
    g, beta = oracle.gates(a, b, a_log, dt_bias)
    want, want_state, want_conv = (
        torch.full_like(out, torch.nan).double(),
        state_before.double(),
        conv_before.clone(),
    )
    for i, row in enumerate(slots.tolist()):
        rows = slice(cu[i], cu[i + 1])
        back = accepted[i].item() - 1 if spec and accepts else 0
        if not (0 < row[0] < total_slots and 0 < row[back] < total_slots):
            want[rows] = 0
            continue
        if not lengths[i]:
            continue
        history = conv_before[row[0], :, back : back + 3]
        y = oracle.conv(history, qkv[rows], weight, conv_bias)
        q, k, v = (
            x.unflatten(1, (-1, dim))
            for x in y.split([k_heads * dim, k_heads * dim, v_heads * dim], 1)
        )
        want[rows], states = oracle.recurrence(
            oracle.l2norm(q),
            oracle.l2norm(k),
            v,
            g[rows],
            beta[rows],
            state_before[row[back]],
            dim**-0.5,
            keep=width,
        )
        for slot, after in zip(row, states, strict=False):
            if slot:
                want_state[slot] = after
        want_conv[row[0], :, : 2 + lengths[i]] = torch.cat([history[:, 1:], qkv[rows].T], 1)
    bounds = (4e-4, 5e-3)  # a different fp16 rounding in the convolution is acceptable
    print(
        f"decode    {name}: {compare(name, 'out', out, want, bounds)}; "
        f"{compare(name, 'state', state, want_state, (1e-5, 1e-3))}"
    )
    demand(name, "the conv state is not vLLM's", torch.equal(conv_state, want_conv))
    demand(name, "the counters are not zero again", not _counters.any())


def refusals() -> None:
    """Unsupported calls are rejected with a message, and nothing is launched."""
    x = torch.zeros(4, 2, 96, device=DEVICE, dtype=torch.float16)
    g = torch.zeros(4, 2, device=DEVICE)
    cu = torch.tensor([0, 4], device=DEVICE, dtype=torch.int32)
    try:
        launch.prefill(
            launch.PrefillCall(
                x,
                x,
                x,
                g,
                g,
                x.clone(),
                cu,
                None,
                None,
                None,
                None,
                scale=1.0,
                l2norm=False,
                null_slot=-1,
            )
        )
        demand("head size 96", "was not refused", False)
    except launch.library.KernelError as error:
        demand("head size 96", f"says {error}", "use caovan_gdn_recurrent" in str(error))


def prefill_cases() -> None:
    for length in (1, 2, 31, 32, 33, 63, 64, 65, 1000, 4096):
        prefill_case(f"{length} tokens", [length])
    prefill_case("recurrent 1000", [1000], kernel="recurrent")
    prefill_case("recurrent pack", [1, 0, 33, 100], kernel="recurrent", fused=True)
    prefill_case(
        "recurrent, heads of 96 and 80", [50, 3], kernel="recurrent", dim=80, head_k_dim=96
    )
    for heads, dim in (
        ((8, 24), 128),
        ((16, 48), 128),
        ((4, 12), 128),
        ((2, 2), 128),
        ((2, 16), 64),
        ((3, 3), 64),
    ):
        prefill_case(f"pack, heads {heads} of {dim}", [1, 0, 33, 64, 0, 100, 31, 0], heads, dim)
    prefill_case("mixed pack", [100, 3000, 17, 979])
    prefill_case("many short", [1 + i % 40 for i in range(200)], (4, 12))
    prefill_case("nothing but empty", [0, 0], (4, 12))
    prefill_case("null slots", [40, 70, 3, 65], slots="null")
    prefill_case("rows before the first sequence", [45, 64], offset=5)
    prefill_case("strided and fused", [45, 130, 1], strided=True, fused=True)
    prefill_case("fused, extreme norms", [45, 130, 1], fused=True, extreme=True)
    prefill_case("fused, heads of 64", [45, 130, 1], (2, 16), 64, strided=True, fused=True)
    for gates in ("strong", "weak", "beta 0", "beta 1"):
        prefill_case(f"gates {gates}", [500, 77], gates=gates)
    prefill_case("collinear keys, beta 1", [500], gates="beta 1", collinear=True)
    carried_case()
    prefill_case("mixed pack, 500 times", [3200, 1000, 33, 517], (16, 48), fused=True, times=500)
    for round_ in range(5):
        prefill_case(
            f"fresh {round_}", torch.randint(0, 300, (6,)).tolist(), (4, 12), round_=round_
        )


def decode_cases() -> None:
    for n in (1, 3, 8, 40, 200):
        decode_case(f"{n} sequences, a token each", [1] * n)
    for spec in range(1, 8):
        decode_case(f"verify, {spec} drafts", [spec + 1] * 3, spec)
    decode_case("verify, uneven and padded", [4, 1, 0, 3, 2], 3)
    for nulls in ("last", "accepted", "outside"):
        decode_case(f"null slots: {nulls}", [4, 4, 4, 4], 3, nulls=nulls)
    decode_case("null slots, a token each", [1] * 5, nulls="outside")
    decode_case("a token or none each", [1, 0, 1, 1, 0], offsets=True)
    decode_case("verify, no acceptance counts", [3, 3], 2, accepts=False)
    decode_case("conv state DS, bias", [4, 2, 1], 3, layout="DS", bias=True, half_bias=False)
    decode_case("conv state DS, 7 drafts", [8, 3], 7, layout="DS")
    decode_case("a token each, DS, bias", [1, 1], layout="DS", bias=True, half_bias=False)
    decode_case("one token, DS, bias", [1], layout="DS", bias=True)
    decode_case("one token, heads of 64, DS", [1], 0, (2, 16), 64, layout="DS")
    for heads, dim in (((16, 48), 128), ((4, 12), 128), ((2, 16), 64), ((4, 4), 64)):
        decode_case(f"verify, heads {heads} of {dim}", [4] * 5, 3, heads, dim)
        decode_case(f"a token each, heads {heads} of {dim}", [1] * 5, 0, heads, dim)
        decode_case(f"verify, 7 drafts, heads {heads} of {dim}", [8, 1, 5, 0], 7, heads, dim)
    decode_case("verify, 20,000 times", [4] * 4, 3, (16, 48), times=20_000)
    decode_case("a token each, 20,000 times", [1] * 8, 0, (16, 48), times=20_000)
    for round_ in range(10):
        decode_case(f"fresh {round_}", torch.randint(0, 6, (16,)).tolist(), 5, round_=round_)


def main() -> int:
    launch.prepare(torch.device("cuda", torch.cuda.current_device()))
    if "decode" not in sys.argv:
        prefill_cases()
    if "prefill" not in sys.argv:
        decode_cases()
    refusals()

    for failure in failures:
        print(f"FAILED {failure}")
    print("correctness: " + (f"{len(failures)} failures" if failures else "pass"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
