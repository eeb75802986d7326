"""Cards sampled through a fake NVML: healthy, slow, lost, and with varying driver support."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.gpu import figures, nvml_library
from caovand.adapters.gpu.samples import GpuSampler
from caovand.core.health.observation import GpuSample
from caovand.engines.common.logs.rows.kernel import find_in_kernel
from tests.fake_nvml import (
    FakeNvml,
    NVMLError,
    NVMLError_GpuIsLost,
    NVMLError_NotSupported,
    NVMLError_Unknown,
)
from tests.patience import eventually

Start = Callable[[Any], "Heard"]


class Heard:
    """What a sampler told."""

    def __init__(self, nvml: Any) -> None:
        self.samples: list[GpuSample] = []
        self.xids: list[tuple[int, str]] = []
        self.sampler = GpuSampler(
            0.01, self.take, lambda i, line: self.xids.append((i, line)), nvml
        )

    def take(self, samples: Sequence[GpuSample]) -> None:
        self.samples += samples

    def until(self, holds: Callable[[GpuSample], object]) -> None:
        """Wait for a sample like this."""
        eventually(lambda: any(holds(sample) for sample in list(self.samples)))


@pytest.fixture
def start() -> Iterator[Start]:
    """Makes samplers that end with the test."""
    made: list[Heard] = []

    def make(nvml: Any) -> Heard:
        made.append(Heard(nvml))
        return made[-1]

    yield make
    for heard in made:
        heard.sampler.stop()
        assert heard.sampler.join(10)


@pytest.mark.parametrize("old", [False, True])
def test_a_card_tells_memory_work_and_heat_and_leaves_out_what_it_does_not_know(
    start: Start, old: bool
) -> None:
    nvml = FakeNvml(2, old=old)
    nvml.users = {1: [(7, 512)]}
    heard = start(nvml)
    heard.until(lambda s: s.index == 1)
    first, second = heard.samples[:2]
    assert (first.used_mib, first.total_mib, first.utilization) == (100, 22_527, 42)
    assert (first.temperature, first.power_w, first.fault) == (71, None, "")
    assert second.users == ((7, 512),)


def test_a_card_in_the_hosts_memory_is_sampled_by_the_hosts(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unified(FakeNvml):
        def nvmlDeviceGetMemoryInfo(self, card: int) -> Any:
            raise NVMLError_NotSupported("Not Supported")

    monkeypatch.setattr(figures.host, "memory_mib", lambda: (124_546, 110_000))
    heard = start(Unified())
    heard.until(lambda s: (s.used_mib, s.total_mib, s.temperature) == (14_546, 124_546, 71))


def test_a_card_tells_its_clocks_its_energy_and_what_moves_over_its_links(start: Start) -> None:
    heard = start(FakeNvml())
    heard.until(lambda s: s.nvlink_sent_bytes_per_s)
    first, second = heard.samples[:2]
    assert (first.sm_clock_mhz, first.memory_clock_mhz) == (1350, 7000)
    assert (first.power_limit_w, first.energy_j) == (250.0, 7.5)
    assert (first.pcie_sent_bytes_per_s, first.pcie_received_bytes_per_s) == (100_000, 2_000_000)
    assert (first.nvlink_sent_bytes, first.nvlink_received_bytes) == (1064 << 10, 2128 << 10)
    assert first.nvlink_sent_bytes_per_s is None
    assert second.nvlink_sent_bytes_per_s == round((64 << 10) / (second.at - first.at))


def test_a_card_without_nvlink_has_no_such_traffic(start: Start) -> None:
    nvml = FakeNvml()
    nvml.nvlink_return = 3  # NVML_ERROR_NOT_SUPPORTED
    heard = start(nvml)
    heard.until(lambda s: s.fault == "")
    assert heard.samples[0].nvlink_sent_bytes is None


def test_bindings_that_take_other_arguments_are_no_fault(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml()
    monkeypatch.setattr(nvml, "nvmlDeviceGetFieldValues", lambda card: ())
    heard = start(nvml)
    heard.until(lambda s: s.sm_clock_mhz == 1350 and s.nvlink_sent_bytes is None)


@pytest.mark.parametrize("old", [False, True])
def test_heat_is_told_once_it_lasts_and_an_idle_clock_is_no_fault(start: Start, old: bool) -> None:
    nvml = FakeNvml(old=old)
    nvml.bits[0] = 0x20 | 0x01
    heard = start(nvml)
    heard.until(lambda s: s.throttled)
    assert [s.throttled for s in heard.samples[:3]] == ["", "", "heat"]
    nvml.bits[0] = 0x01
    eventually(lambda: heard.samples[-1].throttled == "")


def test_a_lost_card_is_told_at_once_and_its_neighbour_goes_on(start: Start) -> None:
    nvml = FakeNvml(2)
    heard = start(nvml)
    heard.until(lambda s: s.index == 0)
    nvml.broken[0] = NVMLError_GpuIsLost("GPU is lost")
    heard.until(lambda s: s.index == 0 and s.fault == "GPU is lost")
    count = len(heard.samples)
    eventually(lambda: any(s.index == 1 and not s.fault for s in heard.samples[count:]))


def test_an_unknown_error_counts_only_if_it_stays(start: Start) -> None:
    nvml = FakeNvml(2)
    nvml.broken[0] = NVMLError_Unknown("Unknown Error")
    heard = start(nvml)
    heard.until(lambda s: s.fault == "Unknown Error")
    assert heard.samples[0].index == 1, "the first look at the broken card told nothing"


def test_a_driver_that_comes_back_is_asked_again(start: Start) -> None:
    nvml = FakeNvml()
    nvml.broken[0] = NVMLError_GpuIsLost("GPU is lost")
    heard = start(nvml)
    heard.until(lambda s: s.fault)
    del nvml.broken[0]
    heard.until(lambda s: not s.fault)
    assert nvml.inits > 1


def test_an_xid_comes_as_a_line_that_the_signatures_know(start: Start) -> None:
    nvml = FakeNvml()
    heard = start(nvml)
    nvml.events.put((0, 79))
    eventually(lambda: heard.xids)
    index, line = heard.xids[0]
    finding = find_in_kernel([line], ())
    assert index == 0
    assert finding is not None
    assert finding.failure == "gpu-lost"
    nvml.events.put((0, 31))  # a program's fault, and the driver does not say whose
    eventually(lambda: len(heard.xids) == 2)
    assert find_in_kernel([heard.xids[1][1]], {7}) is None


def test_a_driver_that_comes_after_the_daemon_is_found(start: Start) -> None:
    class LateDriver(FakeNvml):
        def nvmlInit(self) -> None:
            super().nvmlInit()
            if self.inits < 3:
                raise NVMLError("NVML Shared Library Not Found")

    start(LateDriver()).until(lambda s: s.index == 0)


def test_without_the_library_the_sampler_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    heard = Heard(None)
    assert heard.sampler.join(10)
    assert heard.samples == []


def test_the_library_of_the_package_is_found_by_whoever_asks_first(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sampler begins before the inventory is read."""
    (tmp_path / "pynvml.py").write_text(
        "import sys\nfrom tests.fake_nvml import FakeNvml\nsys.modules[__name__] = FakeNvml()\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    del sys.modules["pynvml"]  # and what comes instead is taken back
    monkeypatch.setattr(nvml_library, "VENDORED", str(tmp_path))
    start(None).until(lambda s: s.index == 0)
