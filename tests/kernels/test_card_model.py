"""The model of the 2080 Ti: its counts for small kernels, and its deviation from real cards."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from card_model import card, sm, steps, times
from card_model.__main__ import count
from card_model.kernels import KERNELS, OURS
from card_model.sass import NONE, Instruction, Kernel, parse
from card_model.sm import Path as WarpPath
from card_model.sm import simulate

from tests.kernels.test_library import LIMITS, ROOT, kernel_of, kernels

LISTING = """\
//--------------------- .text._Z5otherv --------------------------
.text._Z5otherv:
        /*0000*/                   EXIT ;              /* 0x000000000000794d */
                                                       /* 0x000fea0003800000 */
//--------------------- .text._Z3sumPf --------------------------
.text._Z3sumPf:
.L_x_1:
        /*0000*/                   LDG.E.128.SYS R4, [R2] ;  /* 0x0000000002047381 */
                                                       /* 0x000ea200001eed00 */
        /*0010*/              @!P0 BRA `(.L_x_1) ;     /* 0xffffffe000008947 */
                                                       /* 0x004fea000383ffff */
"""


def op(
    opcode: str, *, stall: int = 1, sets: int = NONE, waits: Sequence[int] = (), at: int = 0
) -> Instruction:
    mask = sum(1 << board for board in waits)
    return Instruction(at, opcode, False, None, stall, sets, NONE, mask)


def branch(at: int, label: str) -> Instruction:
    return Instruction(at, "BRA", True, label, 1, NONE, NONE, 0)


def lap(*body: Instruction, warps: int = 1, ctas: int = 1, laps: int = 8, sms: int = 1) -> float:
    """Cycles of a main loop of these instructions."""
    placed = [replace(i, address=16 * n) for n, i in enumerate(body)]
    end = 16 * len(body)
    kernel = Kernel((*placed, branch(end, ".L")), {".L": 0})
    cta = [WarpPath(end)] * warps
    return simulate(kernel, [cta] * ctas, laps=laps, active_sms=sms).cycles


def test_a_listing_is_read_with_the_compilers_schedule() -> None:
    kernel = parse(LISTING, "sum")
    load, jump = kernel.instructions
    assert (load.opcode, load.name, load.sets, load.reads, load.waits) == (
        "LDG.E.128.SYS", "LDG", 2, NONE, 0,
    )  # fmt: skip
    assert (jump.predicated, jump.target, jump.waits, jump.stall) == (True, ".L_x_1", 4, 5)
    assert kernel.labels == {".L_x_1": 0}


@pytest.mark.parametrize(
    ("body", "warps", "cycles"),
    [
        ([op("HMMA.1688.F32")] * 8, 1, 8 * 16),
        ([op("HMMA.1688.F16")] * 8, 1, 8 * 8),
        ([op("HMMA.1688.F32")] * 8, 4, 8 * 16),  # four partitions
        ([op("HMMA.1688.F32")] * 8, 8, 2 * 8 * 16),
        ([op("F2F.F16.F32")] * 8, 1, 8 * 8),
        ([op("FFMA"), op("IADD3")] * 20, 1, 2 * 20 + 1),
        ([op("FFMA", stall=4)] * 10, 1, 10 * 4 + 1),
        ([op("LDS.128", sets=0)] * 32 + [op("FADD", waits=[0])], 4, 4 * 32 * 512 / 64 + 21),
        ([op("LDSM.16.M88.4", sets=0)] * 32 + [op("FADD", waits=[0])], 4, 4 * 32 * 512 / 64 + 21),
        ([op("LDG.E.SYS", sets=0), op("FADD", waits=[0])], 1, 372 + 4),
        # loads in flight together cost one latency, those that wait for each other one each
        ([op("LDG.E.SYS", sets=0)] * 4 + [op("FADD", waits=[0])], 1, 372 + 12),
        ([op("LDG.E.SYS", sets=0), op("FADD", waits=[0])] * 4, 1, 4 * (372 + 3)),
    ],
)
def test_a_lap_takes_what_its_slowest_pipe_or_its_chain_takes(
    body: list[Instruction], warps: int, cycles: float
) -> None:
    assert lap(*body, warps=warps) == pytest.approx(cycles, rel=0.05)


def test_a_second_cta_hides_the_latency_of_the_first_but_shares_its_pipes() -> None:
    waits = [op("LDG.E.SYS", sets=0), op("FADD", waits=[0])]
    assert lap(*waits, ctas=2) == pytest.approx(lap(*waits), rel=0.05)
    works = [op("HMMA.1688.F32")] * 8
    assert lap(*works, warps=4, ctas=2) == pytest.approx(2 * lap(*works, warps=4), rel=0.05)


@pytest.mark.parametrize(("kib", "cycles"), [(15, 1), (20, 2)])
def test_a_loop_beyond_the_instruction_cache_is_fetched_at_two_cycles_an_instruction(
    kib: int, cycles: int
) -> None:
    count = kib * 1024 // 16
    assert lap(*[op("NOP")] * count) == pytest.approx(cycles * count, rel=0.05)


def test_a_barrier_waits_for_the_slowest_warp() -> None:
    slow, fast = 0x100, 0x200
    code = (
        *[op("HMMA.1688.F32")] * 10, op("BAR.SYNC"), branch(slow, ".slow"),
        op("IADD3"), op("BAR.SYNC"), branch(fast, ".fast"),
    )  # fmt: skip
    kernel = Kernel(code, {".slow": 0, ".fast": 12})
    both = simulate(kernel, [[WarpPath(slow), WarpPath(fast)]], laps=8, active_sms=1)
    assert both.cycles == pytest.approx(9 * 16 + card.BARRIER_LATENCY, rel=0.05)


def test_memory_gives_each_sm_its_share_of_the_copy_rate() -> None:
    streams = [*[op("LDG.E.128.SYS", sets=0)] * 64, op("FADD", waits=[0])]
    gb = 64 * 512 * 16 / 1e9
    seconds = lap(*streams, warps=16, sms=card.SMS) / card.CLOCK_GHZ / 1e9
    assert gb * card.SMS / seconds == pytest.approx(card.COPY_GB_S, rel=0.05)


def test_a_warp_that_circles_is_an_error_that_names_the_branch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sm, "ENDLESS", 1000)
    code = (op("NOP"), branch(0x20, ".inner"), branch(0x30, ".outer"))
    kernel = Kernel(code, {".inner": 0, ".outer": 0})
    with pytest.raises(RuntimeError, match="cannot end: a warp circles at 0x"):
        simulate(kernel, [[WarpPath(0x30)]])


def test_no_prediction_is_25_percent_off() -> None:
    """From shape and machine code alone: no constant of `card.py` is fitted to these."""
    predicted = times.published()
    assert len(predicted) == 15
    assert all(abs(p.error) < 0.25 for p in predicted), [(p.what, p.error) for p in predicted]


def test_the_notebook_shows_what_the_model_says() -> None:
    notebook = (ROOT / "csrc/NOTEBOOK.md").read_text(encoding="utf-8")
    assert times.table() in notebook
    assert times.our_table() in notebook
    assert times.attention_table() in notebook
    assert times.prefill_attention_table() in notebook
    assert times.extension_table() in notebook
    assert times.lm_head_table() in notebook


def test_the_page_of_steps_is_what_the_model_says() -> None:
    assert (ROOT / "csrc/STEPS.md").read_text(encoding="utf-8") == steps.page()


def test_a_step_reads_what_the_model_of_its_weights_does() -> None:
    target = [tensors for tensors in steps.read() if tensors.passes == 1]
    assert sum(tensors.gb for tensors in target) == pytest.approx(
        times.weights_gb(lm_head_bytes=2), rel=0.003
    )


def test_our_kernels_are_modelled_with_the_registers_and_memory_they_take(build: Path) -> None:
    report = {k["symbol"]: k for k in kernels((build / "resources.txt").read_text())}
    for name in OURS:
        modelled = KERNELS[name]
        built = next(k for symbol, k in report.items() if modelled.symbol in symbol)
        limit = LIMITS[kernel_of(built["symbol"])]
        assert built["registers"] == modelled.registers, name
        assert modelled.threads == limit["threads"], name
        assert modelled.shared <= limit["shared"], name
        if not modelled.alone:
            assert modelled.resident >= limit["blocks"], name


@pytest.mark.long
@pytest.mark.parametrize("name", OURS)
def test_the_cycles_recorded_of_our_kernels_are_those_of_their_code(
    name: str, tmp_path: Path
) -> None:
    nvdisasm = shutil.which("nvdisasm") or pytest.skip("no nvdisasm to read machine code with")
    nvcc = subprocess.run([ROOT / "csrc/find-nvcc"], check=True, capture_output=True, text=True)
    cubin = tmp_path / "kernel.cubin"
    arch = "-gencode=arch=compute_75,code=sm_75"
    subprocess.run(
        [nvcc.stdout.strip(), "-std=c++17", "-O3", "-I", ROOT / "csrc/include", arch, "-cubin",
         "-o", cubin, ROOT / OURS[name]],
        check=True,
    )  # fmt: skip
    listing = subprocess.run(
        [nvdisasm, "-hex", "-c", cubin], check=True, capture_output=True, text=True
    )
    assert count(name, listing.stdout).cycles == pytest.approx(KERNELS[name].cycles, rel=0.001)
