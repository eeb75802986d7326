"""Texts of one family mean one failure, whichever backend, program or part of a machine says it.

The lines are from the programs' sources and documents where no published report has them.
"""

from __future__ import annotations

import pytest

from caovand.core.healing.ladder import REACTIONS
from caovand.engines.common.logs.rows.kernel import find_in_kernel, find_in_machine
from caovand.engines.explaining.answer import answer_of
from caovand.engines.llamacpp.engine import ENGINE as LLAMACPP
from caovand.engines.llamacpp.log.explain import explain as explain_llamacpp
from caovand.engines.ollama.engine import ENGINE as OLLAMA
from caovand.engines.writer import explain_log

GGML = [
    ("CUDA error: the resource allocation failed", "device-oom-load", "cuda.oom"),
    ("ROCm error: out of memory", "device-oom-load", "cuda.oom"),
    ("Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
     "device-oom-load", "cuda.oom"),
    ("error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
     "device-oom-load", "metal.oom"),
    ("CUDA error: system not yet initialized", "gpu-absent", "fabric"),
    ("ggml_cuda_init: failed to initialize ROCm: no ROCm-capable device is detected",
     "gpu-absent", "absent"),
    ("CUDA error: device kernel image is invalid", "backend-unsupported", "cuda.arch"),
    ("rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: Illegal seek "
     "for GPU arch : gfx1032", "backend-unsupported", "kernel"),
    ("Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x2. Reason: Unknown.",
     "illegal-access", "cuda.illegal"),
    ("HW Exception by GPU node-1 (Agent handle: 0x1) reason :GPU Hang",
     "launch-failure", "cuda.launch"),
    ("SYCL error: CHECK_TRY_ERROR(x): Meet error in this line code!",
     "launch-failure", "cuda.other"),
]  # fmt: skip
SHARED = [
    ("llama_model_load: error loading model: illegal split file idx: 1 (file: a-2.gguf), model must"
     " be loaded with the first split", "model-missing", "llama.model.split"),
    ("gguf_init_from_file_impl: tensor 'a' has invalid ggml type 45. should be in [0, 42)",
     "model-missing", "llama.model.type"),
    ("llama_model_load: error loading model: invalid model: tensor 'a' is duplicated",
     "model-missing", "llama.model.shape"),
    ("gguf_init_from_file_impl: GGUFv1 is no longer supported. please use a more up-to-date "
     "version", "model-missing", "llama.model.version"),
    ("mtmd_init_from_file: error: mismatch between text model (n_embd = 4096) and mmproj (n_embd ="
     " 2048)", "bad-arguments", "llama.model.unpaired"),
    ("llama_model_load: error loading model: something new", "model-missing", "llama.model.other"),
    ("ggml.c:1: pre-allocated tensor (cache_k_l0) in a buffer (Vulkan0) that cannot run the "
     "operation (CPY)", "backend-unsupported", "ggml.operation"),
    ("/a/ggml-rpc.cpp:615: Remote RPC server crashed or returned malformed response",
     "node-lost", "ggml.rpc"),
]  # fmt: skip
OF_LLAMACPP = [
    ("error: unknown value for --flash-attn: 'maybe'", "bad-arguments", "llama.args.other"),
    ("error: --model is required", "bad-arguments", "llama.args.other"),
    ("common_download_file_single: error: download failed after 3 attempts",
     "network", "net.failed"),
    ("ggml_aligned_malloc: x failed to allocate CUDA_Host buffer of size 7",
     "host-oom", "llama.ram.buffer"),
    ("common_speculative_are_compatible: draft model vocab type must match target model to use "
     "speculation", "bad-arguments", "llama.draft.vocabulary"),
]  # fmt: skip
_LOG = "time=2025-07-14T19:16:12Z level={} source=server.go:1 msg="
OF_OLLAMA = [
    ('Error: pull model manifest: Get "https://registry.ollama.ai/v2/": tls: failed to verify '
     "certificate: x509: certificate signed by unknown authority", "network", "net.certificate"),
    ("Error: pull model manifest: 503: unavailable", "network", "ollama.hub.failed"),
    ("Error: digest mismatch, file must be downloaded again: want sha256:1, got sha256:2",
     "model-missing", "ollama.model.damaged"),
    ("Error: model 'a:7b' not found", "model-missing", "ollama.model.unknown"),
    ('Error: "a" does not support chat', "bad-arguments", "ollama.capability"),
    ("Error: could not connect to ollama app, is it running?", "engine-died", "ollama.client"),
    ("Error: llama runner process has terminated: exit status 0xc0000135",
     "engine-died", "ollama.library"),
    ("Error: llama runner process has terminated: signal: illegal instruction (core dumped)",
     "backend-unsupported", "ollama.instruction"),
    (_LOG.format("ERROR") + '"x" error="fork/exec /tmp/ollama1/runners/cpu/ollama_llama_server: '
     'permission denied"', "access-denied", "ollama.access"),
    (_LOG.format("ERROR") + '"x" error="fork/exec /tmp/ollama1/runners/cpu/ollama_llama_server: '
     'no such file or directory"', "engine-unusable", "ollama.runner.missing"),
    (_LOG.format("WARN") + '"NVIDIA driver too old"', "gpu-absent", "ollama.card.refused"),
    (_LOG.format("ERROR") + '"post predict" error="Post \\"http://127.0.0.1:4/completion\\": EOF"',
     "engine-died", "ollama.runner"),
]  # fmt: skip
MACHINE = [
    ("pcieport 0000:00:01.0: AER: Uncorrectable (Fatal) error message received", "gpu-lost",
     "pcie.link"),
    ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 32", "gpu-lost",
     "nvswitch.fatal"),
    ("NVRM: GPU 0000:01:00.0 is already bound to nouveau.", "gpu-absent", "driver.nouveau"),
    ("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", "gpu-absent",
     "driver.unsigned"),
    ("modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.8.0", "gpu-absent",
     "driver.module"),
    ("nvidia: probe of 0000:01:00.0 failed with error -1", "gpu-absent", "driver.module"),
    ("python3 invoked oom-killer: gfp_mask=0x140cca, order=0", "host-oom", "host.oom"),
    ("Out of memory: Kill process 7 (ollama) score 9 or sacrifice child", "host-oom",
     "host.killed"),
    ("traps: ollama[7] trap invalid opcode ip:1 sp:2 error:0", "backend-unsupported",
     "host.instruction"),
    ("llama-server[7]: segfault at 0 ip 1 sp 2 error 4 in libggml.so", "engine-died",
     "host.segfault"),
    ("mce: [Hardware Error]: Machine check events logged", "engine-died", "host.machine"),
    ("EXT4-fs error (device sda1): ext4_find_entry", "unknown", "host.disk"),
    ("i915 0000:00:02.0: [drm] GPU HANG: ecode 12", "launch-failure", "intel.reset"),
]  # fmt: skip
XIDS = {
    "gpu-lost": (46, 48, 54, 62, 64, 74, 79, 94, 95, 109, 110, 119, 120, 136, 140, 143, 149, 158),
    "illegal-access": (13, 31),
    "launch-failure": (8, 11, 25, 32, 39, 43, 45, 69, 80, 38, 56),
    "": (63, 92, 106, 121, 157, 162),
}
"""NVIDIA's table: what needs a reset, an illegal access, other ends of a program, mere events."""


@pytest.mark.parametrize("engine", [LLAMACPP, OLLAMA], ids=["llamacpp", "ollama"])
@pytest.mark.parametrize(("line", "failure", "signature"), [*GGML, *SHARED])
def test_both_engines_read_ggml_alike(
    line: str, failure: str, signature: str, engine: object
) -> None:
    finding = (LLAMACPP if engine is LLAMACPP else OLLAMA).log.find_cause([line], "load")
    assert finding is not None
    assert (finding.failure, finding.signature.split(".", 1)[-1]) == (
        failure, signature.removeprefix("llama.").removeprefix("ggml."),
    )  # fmt: skip


@pytest.mark.parametrize(("line", "failure", "signature"), OF_LLAMACPP)
def test_what_llama_server_alone_prints_is_known(line: str, failure: str, signature: str) -> None:
    finding = LLAMACPP.log.find_cause([line], "load")
    assert finding is not None
    assert (finding.failure, finding.signature) == (failure, signature)


@pytest.mark.parametrize(("line", "failure", "signature"), OF_OLLAMA)
def test_what_ollama_alone_prints_is_known(line: str, failure: str, signature: str) -> None:
    finding = OLLAMA.log.find_cause([line], "load")
    assert finding is not None
    assert (finding.failure, finding.signature) == (failure, signature)


@pytest.mark.parametrize(("line", "failure", "signature"), MACHINE)
def test_a_machine_s_log_is_known_by_its_words(line: str, failure: str, signature: str) -> None:
    found = explain_log(f"[    7.000000] {line}\n")
    assert found is not None
    assert found[0].name == "host"
    assert found[1].finding is not None
    assert (found[1].finding.failure, found[1].finding.signature) == (failure, signature)
    assert found[1].advice


@pytest.mark.parametrize(("failure", "xid"), [(f, x) for f, xids in XIDS.items() for x in xids])
def test_every_xid_of_nvidia_s_table_has_its_meaning(failure: str, xid: int) -> None:
    found = find_in_machine([f"NVRM: Xid (PCI:0000:01:00): {xid}, pid=7, name=x"])
    assert (found.failure if found else "") == failure


def test_a_fault_that_an_earlier_one_caused_means_what_that_one_does() -> None:
    line = "NVRM: Xid (PCI:0000:dc:00): 45, pid=7, name=x, Ch 1 caused by previous Xid {}"
    found = [find_in_machine([line.format(xid)]) for xid in (149, 31)]
    assert [one and one.failure for one in found] == ["gpu-lost", "launch-failure"]


def test_buffers_that_are_allocated_again_smaller_are_no_failure() -> None:
    lines = [
        "0.01.000.000 E graph_reserve: failed to allocate compute buffers",
        "0.01.000.001 W sched_reserve: compute buffer allocation failed, retrying without it",
    ]
    failed = "0.01.000.000 E x: failed to allocate CUDA1 buffer of size 54262464512"
    assert LLAMACPP.log.find_cause([failed, lines[0]], "kv") is not None
    assert LLAMACPP.log.find_cause([failed, *lines], "kv") is None


def test_the_daemon_ends_no_engine_for_what_only_a_past_log_tells() -> None:
    """An event, a program's fault on the card that is not ours, a link of some other device."""
    lines = [line for line, _, signature in MACHINE if signature not in ("host.killed",)]
    lines += [f"NVRM: Xid (PCI:0000:01:00): {xid}, pid=7" for xid in (63, 92, 121, 56)]
    assert find_in_kernel(lines, {8}) is None


def test_a_loopback_s_end_is_no_fault_of_the_network() -> None:
    line = _LOG.format("ERROR") + '"x" error="dial tcp 127.0.0.1:36541: connection reset by peer"'
    finding = OLLAMA.log.find_cause([line], "load")
    assert finding is None or finding.failure != "network"


def test_a_cache_too_small_for_the_requests_is_told_of_a_server_that_goes_on() -> None:
    full = "decode: failed to find a memory slot for batch of size 1024"
    found = explain_llamacpp(f"main: build: 1\n{full}\n")
    assert found.finding is not None
    assert (found.finding.failure, found.finding.line) == ("kv-cache-short", 2)
    assert "--ctx-size" in " ".join(found.advice)
    assert LLAMACPP.log.find_cause([full], "serving") is None, "the engine lives"


@pytest.mark.parametrize(
    ("line", "engine"),
    [(line, OLLAMA) for line, failure, _ in OF_OLLAMA if REACTIONS[failure].kind == "fatal"]  # type: ignore[index]
    + [(line, LLAMACPP) for line, failure, _ in OF_LLAMACPP if REACTIONS[failure].kind == "fatal"],  # type: ignore[index]
)
def test_what_only_a_person_can_change_is_answered_with_no(line: str, engine: object) -> None:
    one = LLAMACPP if engine is LLAMACPP else OLLAMA
    finding = one.log.find_cause([line], "load")
    assert finding is not None
    assert answer_of(one, finding).heals == "no"


_READY = _LOG.format("INFO") + '"llama runner started in 2.00 seconds"'
_PULL = _LOG.format("ERROR") + (
    '"pull" error="Get \\"https://registry.ollama.ai/v2/\\": dial tcp: i/o timeout"'
)
_RETRIED = _LOG.format("INFO") + '"part 12 stalled; retrying"'
_NO_MEMORY = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 10.00 MiB on device 0: cudaMalloc "
    "failed: out of memory"
)


@pytest.mark.parametrize(
    ("lines", "phase", "failure"),
    [
        ([_PULL], "load", "network"),
        ([_PULL], "serving", None),
        ([_READY, _PULL], "load", None),
        ([_RETRIED], "load", None),
        ([_PULL, _NO_MEMORY], "load", "device-oom-load"),
        ([_PULL, "SIGSEGV: segmentation violation"], "load", "engine-died"),
        ([_RETRIED, "SIGSEGV: segmentation violation"], "load", "engine-died"),
        ([_READY, _PULL, "SIGSEGV: segmentation violation"], "load", "engine-died"),
    ],
)
def test_a_client_s_pull_explains_no_death_of_ollama(
    lines: list[str], phase: str, failure: str | None
) -> None:
    finding = OLLAMA.log.find_cause(lines, phase)
    assert (finding and finding.failure) == failure


def test_a_download_that_failed_is_no_cause_with_another_in_llama_server() -> None:
    failed = "0.01.000.000 E common_download: Connection reset by peer"
    finding = LLAMACPP.log.find_cause([failed], "load")
    assert finding is not None
    assert finding.failure == "network"
    finding = LLAMACPP.log.find_cause([failed, f"0.02.000.000 E {_NO_MEMORY}"], "load")
    assert finding is not None
    assert finding.failure == "device-oom-load"
