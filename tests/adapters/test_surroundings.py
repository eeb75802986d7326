"""Host, cards and engine, as the adapters see them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from caovand.adapters.engine import probe
from caovand.adapters.engine.probe import EngineMissing, probe_engine
from caovand.adapters.gpu import nvml as nvml_adapter
from caovand.adapters.gpu import nvml_library, tegra
from caovand.adapters.gpu.nvml import read_gpus, visible
from caovand.adapters.system import processes
from caovand.adapters.system.host import read_host
from caovand.core.facts import occupancy
from caovand.engines.vllm.probe import PROBE
from tests.core.machines import turing
from tests.daemon_process import ROOT
from tests.patience import LIMIT_S, eventually


def test_this_machine_has_memory_and_cores() -> None:
    host = read_host(Path("/tmp"))
    assert host.ram_mib >= host.available_mib > 0
    assert host.cpus >= 1
    assert host.cache_free_mib is not None
    assert host.shm_free_mib is not None
    assert host.shm_free_mib <= host.shm_mib


def test_what_a_process_would_give_back_is_seen() -> None:
    code = "held = bytearray(b'x') * (64 << 20); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        held = processes.memory_mib([child.pid, -1])
        child.communicate(b"\n")
    assert 64 <= held < 128


def test_hyper_threads_and_wsl_are_told_apart(tmp_path: Path) -> None:
    processors = "".join(f"processor\t: {n}\nphysical id\t: 0\ncore id\t: 0\n\n" for n in range(64))
    (tmp_path / "cpuinfo").write_text(processors)
    (tmp_path / "version").write_text("Linux version 5.15.90.1-microsoft-standard-WSL2")
    (tmp_path / "meminfo").write_text("MemTotal: 2048 kB\nMemAvailable: 1024 kB\nHugePages: 0\n")
    host = read_host(proc=tmp_path)
    assert (host.cpus, host.wsl, host.ram_mib, host.available_mib) == (1, True, 2, 1)


class FakeNvml(ModuleType):
    """Three cards: two joined by NVLink, one lost; this library is too old to know MIG."""

    class NVMLError(Exception):
        pass

    NVML_NVLINK_MAX_LINKS = 2

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.shut = False
        self.p2p: tuple[int, ...] = (0, 0)
        """What it answers for reading and writing, nothing for no answer."""

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None:
        self.shut = True

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 2:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetMemoryInfo(self, card: int) -> object:
        return SimpleNamespace(total=22527 << 20, free=22000 << 20)

    def nvmlDeviceGetCudaComputeCapability(self, card: int) -> tuple[int, int]:
        return 7, 5

    def nvmlDeviceGetName(self, card: int) -> bytes:
        return b"NVIDIA GeForce RTX 2080 Ti"

    def nvmlDeviceGetUUID(self, card: int) -> str:
        return f"GPU-{card}"

    def nvmlDeviceGetIndex(self, card: int) -> int:
        return card

    def nvmlDeviceGetNvLinkState(self, card: int, link: int) -> int:
        if link:
            raise self.NVMLError("not supported")
        return 1

    def nvmlDeviceGetNvLinkRemotePciInfo(self, card: int, link: int) -> object:
        return SimpleNamespace(busId=1 - card)

    def nvmlDeviceGetHandleByPciBusId(self, bus: int) -> int:
        return bus

    def nvmlDeviceGetP2PStatus(self, card: int, other: int, way: int) -> int:
        if not self.p2p:
            raise self.NVMLError("not supported")
        return self.p2p[way]

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetPersistenceMode(self, card: int) -> int:
        return 0

    def nvmlDeviceGetComputeRunningProcesses(self, card: int) -> list[object]:
        return [SimpleNamespace(pid=1, usedGpuMemory=None)]


def test_cards_are_read_with_their_links_and_a_lost_one_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    first, second = read_gpus({})
    assert (first.nvlink, second.nvlink) == ((1,), (0,))
    assert (first.name, first.compute_capability) == ("NVIDIA GeForce RTX 2080 Ti", (7, 5))
    assert (first.total_mib, first.free_mib) == (22527, 22000)
    assert (first.driver, first.cuda, first.persistence) == ("580.65.06", "13.0", False)
    assert (first.mig, first.pcie) == (False, None)
    assert first.users[0][0::2] == (1, 0)
    assert nvml.shut
    assert [gpu.index for gpu in read_gpus({"CUDA_VISIBLE_DEVICES": "GPU-1"})] == [1]


@pytest.mark.parametrize(("read", "written", "found"), [(0, 0, (1,)), (0, 5, ()), (1, 0, ())])
def test_peers_are_cards_whose_memory_is_read_and_written(
    monkeypatch: pytest.MonkeyPatch, read: int, written: int, found: tuple[int, ...]
) -> None:
    nvml = FakeNvml()
    nvml.p2p = (read, written)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert read_gpus({})[0].p2p == found


def test_peers_are_unknown_where_the_driver_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    nvml.p2p = ()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert read_gpus({})[0].p2p is None


def test_a_link_has_the_generation_it_works_with_though_the_card_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml: Any = FakeNvml()
    nvml.nvmlDeviceGetCurrPcieLinkGeneration = lambda card: 1
    nvml.nvmlDeviceGetMaxPcieLinkGeneration = lambda card: 4
    nvml.nvmlDeviceGetCurrPcieLinkWidth = lambda card: 8
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert [gpu.pcie for gpu in read_gpus({})] == [(4, 8), (4, 8)]


class SwitchedNvml(FakeNvml):
    """Four cards behind NVSwitches, as on an HGX board; the switch is no card of NVML."""

    def __init__(self, apart: frozenset[int] = frozenset(), known: bool = True) -> None:
        super().__init__()
        self.apart, self.known = apart, known
        """Cards that the fabric keeps apart, and whether the driver knows about peers."""

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, card: int, link: int) -> int:
        return 2

    def nvmlDeviceGetHandleByPciBusId(self, bus: int) -> int:
        raise self.NVMLError("Not Found")

    def nvmlDeviceGetP2PStatus(self, card: int, other: int, way: int) -> int:
        if not self.known:
            raise self.NVMLError("not supported")
        return 5 if {card, other} & self.apart else 0


@pytest.mark.parametrize(
    ("nvml", "peers"),
    [
        (SwitchedNvml(), [(1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)]),
        (SwitchedNvml(known=False), [(1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)]),
        (SwitchedNvml(frozenset({3})), [(1, 2), (0, 2), (0, 1), ()]),
    ],
)
def test_an_nvswitch_links_each_card_with_all_others_that_it_reaches(
    monkeypatch: pytest.MonkeyPatch, nvml: SwitchedNvml, peers: list[tuple[int, ...]]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert [gpu.nvlink for gpu in read_gpus({})] == peers


class PartitionedNvml(FakeNvml):
    """A card cut into two parts: handle 10 and 11."""

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetMigMode(self, card: int) -> tuple[int, int]:
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, card: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: int, number: int) -> int:
        if number > 1:
            raise self.NVMLError("Not Found")
        return 10 + number

    def nvmlDeviceGetMemoryInfo(self, card: int) -> object:
        return SimpleNamespace(total=(40192 if card else 81920) << 20, free=40000 << 20)

    def nvmlDeviceGetUUID(self, card: int) -> str:
        return f"MIG-{card}" if card else "GPU-0"


def test_a_partitioned_card_is_read_as_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", PartitionedNvml())
    assert [(g.index, g.uuid, g.total_mib, g.mig) for g in read_gpus({})] == [
        (0, "MIG-10", 40192, True),
        (0, "MIG-11", 40192, True),
    ]
    (one,) = read_gpus({"CUDA_VISIBLE_DEVICES": "MIG-11"})
    assert one.uuid == "MIG-11"
    assert [gpu.uuid for gpu in read_gpus({"CUDA_VISIBLE_DEVICES": "0"})] == ["MIG-10"]


class UnifiedNvml(FakeNvml):
    """A GB10: its memory is the host's, and NVML reports none of its own."""

    class NVMLError_NotSupported(FakeNvml.NVMLError): ...

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetMemoryInfo(self, card: int) -> object:
        raise self.NVMLError_NotSupported("Not Supported")

    def nvmlDeviceGetCudaComputeCapability(self, card: int) -> tuple[int, int]:
        return 12, 1


def test_a_card_without_memory_of_its_own_has_the_hosts_without_a_reserve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", UnifiedNvml())
    monkeypatch.setattr(nvml_adapter.host, "memory_mib", lambda: (124_546, 110_000))
    (card,) = read_gpus({})
    assert (card.total_mib, card.unified) == (124_546, True)
    assert card.free_mib == 110_000 - 124_546 // 8
    assert occupancy.in_use(card) == 14_546


def test_a_card_that_fails_to_answer_is_not_taken_for_one_in_the_hosts_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml: Any = UnifiedNvml()

    def lost(card: int) -> object:
        raise nvml.NVMLError("GPU is lost")

    nvml.nvmlDeviceGetMemoryInfo = lost
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert read_gpus({}) == ()


def test_a_cards_own_clocks_bus_and_cores_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml: Any = PartitionedNvml()
    nvml.nvmlDeviceGetMaxClockInfo = lambda card, kind: {1: 1980, 2: 2619}[kind]
    nvml.nvmlDeviceGetMemoryBusWidth = lambda card: 5120
    nvml.nvmlDeviceGetNumGpuCores = lambda card: 16896
    nvml.nvmlDeviceGetCudaComputeCapability = lambda card: (9, 0)
    nvml.nvmlDeviceGetMigMode = lambda card: (0, 0)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    (card,) = read_gpus({})
    assert (card.memory_gb_s, card.multiprocessors, card.clock_mhz) == (3352.3, 132, 1980)
    nvml.nvmlDeviceGetMigMode = lambda card: (1, 1)
    nvml.nvmlDeviceGetAttributes = lambda part: SimpleNamespace(multiprocessorCount=60)
    part, _ = read_gpus({})
    assert part.memory_gb_s == pytest.approx(3352.3 * 40192 / 81920, abs=0.1)
    assert part.multiprocessors == 60


def test_a_jetson_without_nvml_is_named_by_its_device_tree(tmp_path: Path) -> None:
    assert tegra.read_gpus(1, 1, tmp_path) == ()
    tree = tmp_path / "device-tree"
    tree.mkdir()
    (tree / "compatible").write_text("nvidia,p3737-0000+p3701-0005\0nvidia,tegra234\0")
    (tree / "model").write_text("NVIDIA Jetson AGX Orin Developer Kit\0")
    (card,) = tegra.read_gpus(61440, 51200, tmp_path)
    assert (card.name, card.compute_capability) == ("NVIDIA Jetson AGX Orin Developer Kit", (8, 7))
    assert (card.total_mib, card.free_mib, card.unified) == (61440, 51200 - 7680, True)
    (tree / "compatible").write_text("raspberrypi,5-model-b\0brcm,bcm2712\0")
    assert tegra.read_gpus(1, 1, tmp_path) == ()


def test_the_instruction_set_is_what_every_core_has(tmp_path: Path) -> None:
    core = "processor\t: {}\nflags\t\t: fpu sse4_2 avx2 {}\n\n"
    (tmp_path / "cpuinfo").write_text(core.format(0, "avx512f") + core.format(1, ""))
    assert read_host(proc=tmp_path).instructions == ("sse4_2", "avx2")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd i8mm sve\n")
    host = read_host(proc=tmp_path)
    assert host.instructions == ("asimd", "i8mm", "sve")
    assert host.architecture == os.uname().machine
    for name in ("node0", "node1", "possible"):
        (tmp_path / name).touch()
    counted = [read_host(nodes=nodes).numa_nodes for nodes in (tmp_path, tmp_path / "none")]
    assert counted == [2, 1]


def test_no_library_or_no_driver_is_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_gpus({}) == ()


def test_the_real_library_has_what_is_asked_of_it() -> None:
    pynvml = pytest.importorskip("pynvml")
    source = Path(nvml_adapter.__file__).read_text() + Path(nvml_library.__file__).read_text()
    for name in set(re.findall(r'"(nvml\w+)"', source)):
        assert hasattr(pynvml, name), name


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [(None, [0, 1, 2]), ("", []), ("2,0", [2, 0]), ("1,7,0", [1]), ("-1", []), ("0,0", [0])],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(wanted: str | None, seen: list[int]) -> None:
    assert [gpu.index for gpu in visible(turing(3), wanted)] == seen


def script(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_an_engine_that_is_not_there_says_how_to_get_one(tmp_path: Path) -> None:
    fact = r": /does/not/exist does not exist; .*caovanctl engine install"
    with pytest.raises(EngineMissing, match=fact):
        probe_engine(PROBE, "/does/not/exist", tmp_path)


def test_a_python_without_vllm_is_no_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match="vLLM is not installed"):
        probe_engine(PROBE, sys.executable, tmp_path)


def test_an_engine_that_says_nothing_in_time_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.1)
    with pytest.raises(EngineMissing, match=r"no answer in 0\.1 s"):
        probe_engine(PROBE, script(tmp_path, "#!/bin/sh\nexec sleep 30\n"), None)


def test_an_engine_that_breaks_says_its_last_words(tmp_path: Path) -> None:
    broken = script(tmp_path, "#!/bin/sh\necho 'ImportError: libcudart' >&2\nexit 1\n")
    with pytest.raises(EngineMissing, match="ImportError: libcudart"):
        probe_engine(PROBE, broken, None)


def test_the_engine_s_python_is_asked_without_what_is_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    python = script(tmp_path, '#!/bin/sh\necho "path: $PYTHONPATH" >&2\nexit 1\n')
    with pytest.raises(EngineMissing, match=r"path: (?!/ours)"):
        probe_engine(PROBE, python, None)


def test_a_question_does_not_outlive_who_asked(tmp_path: Path) -> None:
    """It may take a minute, and a daemon that was killed meanwhile is started again."""
    asked = tmp_path / "pid"
    python = script(tmp_path, f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    slow = f"import os, time; open({str(asked)!r}, 'w').write(str(os.getpid())); time.sleep(300)"
    code = (
        "from dataclasses import replace; from caovand.adapters.engine import probe;"
        "from caovand.engines.vllm.probe import PROBE;"
        f"PROBE = replace(PROBE, versions={slow!r})"
    )
    asker = subprocess.Popen(
        [sys.executable, "-c", f"{code}; probe.probe_engine(PROBE, {python!r}, None)"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    eventually(lambda: asked.exists() and asked.read_text())
    asker.kill()
    asker.wait()
    pid = int(asked.read_text())
    eventually(lambda: (found := processes.read(pid)) is None or found.zombie)


BLIND = """
from vllm.platforms import current_platform
from argparse import ArgumentParser as FlexibleArgumentParser
if not current_platform.device_type:
    raise RuntimeError("Failed to infer device type")
def make_arg_parser(parser):
    parser.add_argument("--port")
    return parser
"""


def cuda_engine(tmp_path: Path, **more: str) -> str:
    """The Python of an engine of packages that hardly do anything; `more` are further files."""
    files = more | {
        "vllm/platforms.py": "class Unknown:\n    device_type = ''\ncurrent_platform = Unknown()\n",
        "vllm/entrypoints/cli/serve.py": BLIND,
        "vllm-0.21.0.dist-info/METADATA": "Name: vllm\nVersion: 0.21.0\n",
        "torch-2.11.0.dist-info/METADATA": "Name: torch\nVersion: 2.11.0\n",
    }
    for folder in ("vllm", "vllm/entrypoints", "vllm/entrypoints/cli"):
        files[f"{folder}/__init__.py"] = ""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return script(tmp_path, f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')


def test_a_cuda_engine_is_known_where_no_gpu_is_visible(tmp_path: Path) -> None:
    """vLLM 0.21 refuses to name its flags there; that the GPU is gone is to be told instead."""
    engine = probe_engine(PROBE, cuda_engine(tmp_path), None)
    assert (engine.version, "--port" in engine.flags) == ("0.21.0", True)
    assert "--help" in engine.switches  # argparse's own, which takes no value
    assert "--port" not in engine.switches


@pytest.mark.parametrize(
    ("cuda", "nccl"), [("'13.0'", "2.30.7"), ("'12.9'", "2.27.5"), ("None", None)]
)
def test_the_nccl_of_an_engine_is_that_of_its_cuda(
    tmp_path: Path, cuda: str, nccl: str | None
) -> None:
    files = {"torch/__init__.py": "", "torch/version.py": f"cuda: Optional[str] = {cuda}\n"}
    for package, release in (("nvidia-nccl-cu13", "2.30.7"), ("nvidia-nccl-cu12", "2.27.5")):
        place = f"{package.replace('-', '_')}-{release}.dist-info/METADATA"
        files[place] = f"Name: {package}\nVersion: {release}\n"
    assert probe_engine(PROBE, cuda_engine(tmp_path, **files), None).nccl == nccl


PLUGIN = """
def describe_interface():
    return "pass", ["Layer"]
def describe_library():
    return {}
"""


@pytest.mark.parametrize(
    ("more", "states"),
    [
        ("", ""),  # a plugin of before
        ("def describe_states():\n    return 'fail: changed'\n", "fail: changed"),
        ("def describe_states():\n    return 'pass'\n", "pass"),
    ],
)
def test_what_the_plugin_says_is_known(tmp_path: Path, more: str, states: str) -> None:
    folder = "caovan_vllm_sm75_turbo3"
    files = {f"{folder}/__init__.py": "", f"{folder}/probe.py": PLUGIN + more}
    engine = probe_engine(PROBE, cuda_engine(tmp_path, **files), None)
    assert (engine.gdn_interface, engine.operators) == ("pass", ("Layer",))
    assert engine.states == states


ANSWERS = """#!/bin/sh
case "$2" in
*make_arg_parser*) echo x >> "$0.slow"
  echo 'caovan-probe:{"flags":["--port"],"deprecated":[],"choices":{"--dtype":["half"]},
  "tool_parsers":["hermes"],"reasoning_parsers":[]}' | tr -d '\\n'; echo ;;
*) echo noise; echo 'caovan-probe:{"vllm":"0.32.0+cpu","torch":"2.13.0+cpu","cuda":null,
  "flashinfer":null,"plugin":null,"python_version":"3.11.7","nvcc":null,"compiler":"gcc",
  "stamp":["s"]}' | tr -d '\\n'; echo ;;
esac
"""


def test_the_slow_answer_is_asked_for_once(tmp_path: Path) -> None:
    python = script(tmp_path, ANSWERS)
    for _ in range(2):
        engine = probe_engine(PROBE, python, tmp_path / "cache")
        assert (engine.build, engine.release) == ("cpu", (0, 32, 0))
        assert engine.flags == {"--port"}
        assert engine.tool_parsers == {"hermes"}
    assert (tmp_path / "python.slow").read_text() == "x\n"


SLOW = ANSWERS.replace('echo x >> "$0.slow"', 'read go < "$0.go"')
BROKEN = ANSWERS.replace('echo x >> "$0.slow"', "echo 'ImportError: libcudart' >&2; exit 1")


def test_who_cannot_wait_finds_the_slow_answer_the_next_time(tmp_path: Path) -> None:
    python, cache = script(tmp_path, SLOW), tmp_path / "cache"
    os.mkfifo(tmp_path / "python.go")

    def flags(patience_s: float) -> frozenset[str]:
        return probe_engine(PROBE, python, cache, patience_s=patience_s).flags

    assert flags(0.1) == frozenset()
    eventually(lambda: [lock for lock in cache.glob("*.lock") if lock.read_text()])
    assert flags(LIMIT_S) == frozenset()  # one asks already, so this one does not wait
    (tmp_path / "python.go").write_text("go\n")
    eventually(lambda: flags(LIMIT_S) == {"--port"})


def test_an_answer_in_time_is_the_answer(tmp_path: Path) -> None:
    python = script(tmp_path, ANSWERS)
    (tmp_path / "file").write_text("")
    for cache in (tmp_path / "cache", tmp_path / "file" / "cache"):
        assert probe_engine(PROBE, python, cache, patience_s=LIMIT_S).flags == {"--port"}


def test_an_answer_that_is_cut_off_is_none(tmp_path: Path) -> None:
    cut = script(tmp_path, "#!/bin/sh\necho 'caovan-probe:{'; echo Killed >&2; exit 137\n")
    with pytest.raises(EngineMissing, match=r"Killed \(exit status 137\)"):
        probe_engine(PROBE, cut, None)


def test_an_engine_that_breaks_in_time_says_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match="ImportError: libcudart"):
        probe_engine(PROBE, script(tmp_path, BROKEN), tmp_path / "cache", patience_s=LIMIT_S)


@pytest.mark.parametrize("kept", ["{}", "[]", "x", '{"flags": ["--port"]}'])
def test_a_kept_answer_that_is_half_is_asked_for_again(tmp_path: Path, kept: str) -> None:
    python = script(tmp_path, ANSWERS)
    probe_engine(PROBE, python, tmp_path)
    next(tmp_path.glob("engine-flags-*.json")).write_text(kept)
    assert probe_engine(PROBE, python, tmp_path).tool_parsers == {"hermes"}


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    python = script(tmp_path, ANSWERS)
    (tmp_path / "file").write_text("")
    assert probe_engine(PROBE, python, tmp_path / "file" / "cache").flags == {"--port"}
