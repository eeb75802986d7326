"""The plugin in a real vLLM without a GPU: it loads, binds, refuses politely, changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORKS = ROOT / "tests/kernels/forks.py"
ENGINE = ROOT / ".engines/current/bin/python"
MODEL = ROOT / ".caovan/models/hybrid"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not ENGINE.exists(), reason="no CPU engine: `make engine` installs it"),
]

GENERATE = """
import json, os, sys
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
from vllm import LLM, SamplingParams
from vllm.model_executor.custom_op import op_registry_oot
llm = LLM(sys.argv[1], max_model_len=1024, enforce_eager=True, kv_cache_memory_bytes=64 * 2**20,
          additional_config={"caovan": True, "caovan_mode": "auto"})
prompts = [{"prompt_token_ids": list(range(5, 5 + n))} for n in (1, 33, 130)]
params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2)
outputs = [o.outputs[0] for o in llm.generate(prompts, params, use_tqdm=False)]
tokens = [list(o.token_ids) for o in outputs]
logprobs = [[sorted(p.logprob for p in step.values()) for step in o.logprobs] for o in outputs]
replaced = sorted(name for name, c in op_registry_oot.items() if "caovan" in c.__module__)
print("RESULT " + json.dumps({"tokens": tokens, "logprobs": logprobs, "replaced": replaced}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin as installed: the package and its entry point."""
    site = tmp_path_factory.mktemp("site")
    name = "caovan_vllm_sm75_turbo3"
    shutil.copytree(ROOT / "plugin" / name, site / name)
    info = site / f"{name}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: caovan-vllm-sm75-turbo3\nVersion: 0.1.0\n"
    )
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {name}:register\n")
    return site


def run(
    site: Path, *argv: str, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the engine's Python on one core with the plugin installed."""
    core = min(os.sched_getaffinity(0))
    return subprocess.run(
        [str(ENGINE), *argv],
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        env=os.environ
        | {
            "PYTHONPATH": str(site),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CACHE_ROOT": str(site / "cache"),
        }
        | environment,
    )


def generate(site: Path, **environment: str) -> tuple[dict, str]:
    done = run(site, "-c", GENERATE, str(MODEL), **environment)
    result = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(result.removeprefix("RESULT ")), done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.skipif(not MODEL.exists(), reason="no tiny hybrid model: `make test` makes it")
def test_plugin_loads_refuses_politely_and_changes_no_result(site: Path) -> None:
    without, log = generate(site, VLLM_PLUGINS="none")
    assert without["replaced"] == []
    assert "caovan:" not in log
    with_plugin, log = generate(site)
    taken = ["ChunkGatedDeltaRule", "ParallelLMHead", "QwenGatedDeltaNetAttention"]
    assert with_plugin["replaced"] == taken
    said = [line for line in log.splitlines() if "caovan:" in line]
    assert len(said) == 1, said
    assert "Gated DeltaNet stays on vLLM's own kernels: this is vLLM's cpu build" in said[0]
    assert (with_plugin["tokens"], with_plugin["logprobs"]) == (
        without["tokens"],
        without["logprobs"],
    )


@dataclass(frozen=True)
class Ran:
    """What a program printed."""

    stdout: str
    stderr: str

    @property
    def log(self) -> str:
        """All of it."""
        return self.stdout + self.stderr


@pytest.fixture(scope="module")
def ran(site: Path) -> Callable[[str], Ran]:
    """What each of PROGRAMS printed; fails where it failed. They share one import of vLLM."""
    programs = {name: (source, [], environment) for name, (source, environment) in PROGRAMS.items()}
    done = run(site, str(FORKS), IMPORTS, stdin=json.dumps(programs))
    results = json.loads(done.stdout)

    def of(name: str) -> Ran:
        status, stdout, stderr = results[name]
        assert status == 0, stdout + stderr
        return Ran(stdout, stderr)

    return of


IMPORTS = "from caovan_vllm_sm75_turbo3 import hooks; hooks.find()"

PROBE = """
import runpy
runpy.run_module("caovan_vllm_sm75_turbo3.probe", run_name="__main__")
"""


@pytest.mark.long
def test_probe_passes_in_the_engines_environment(ran: Callable[[str], Ran]) -> None:
    said = json.loads(ran("probe").stdout)
    assert said["gdn interface"] == "pass"
    assert said["operators"] == [], "nothing would be replaced without the library"
    assert "CAOVAN_SM75_LIBRARY names it" in said["library"]["error"]
    assert said["flashinfer"] == "this is vLLM's cpu build"
    assert said["attention"] == "fail: this is vLLM's cpu build"
    assert said["lm_head"] == "pass"
    assert said["states"] == "fail: this vLLM keeps the states correct itself"


BIND = """
import dataclasses, types, torch
import caovan_vllm_sm75_turbo3 as plugin
from caovan_vllm_sm75_turbo3 import hooks
from vllm.model_executor.custom_op import PluggableLayer, op_registry_oot

hook, module = hooks.find()
changed = types.ModuleType("changed")
changed.__dict__.update(module.__dict__)
del changed.causal_conv1d_fn
assert "has no causal_conv1d_fn" in hooks.interface_refusal(hook, changed)
class Layer(getattr(module, hook.layer)):
    def _forward_core(self, everything): ...
setattr(changed, hook.layer, Layer)
assert "_forward_core accepts ('self', 'everything')" in hooks.interface_refusal(hook, changed)

fewer = types.ModuleType("fewer")
fewer.__dict__.update(module.__dict__)
fewer.GDNAttentionMetadata = dataclasses.make_dataclass("Fewer", [
    f.name for f in dataclasses.fields(module.GDNAttentionMetadata) if f.name != "num_decodes"])
assert "GDNAttentionMetadata has no num_decodes" in hooks.interface_refusal(hook, fewer)

plugin.register()
bound = dict(op_registry_oot)
assert bound[hook.layer].__mro__[1] is getattr(module, hook.layer)
plugin.register()
hooks.bind(hook, module)
assert op_registry_oot == bound

op_registry_oot.clear()
@PluggableLayer.register_oot(name=hook.layer)
class Other: ...
hooks.bind(hook, module)
assert op_registry_oot == {hook.layer: Other}
assert not torch.cuda.is_initialized()
"""


FALL_BACK = """
import types, torch
from caovan_vllm_sm75_turbo3 import core, hooks, launch, library
from vllm.model_executor.custom_op import op_registry_oot

hook, module = hooks.find()
hooks.bind(hook, module)
calls = []
in_tree = getattr(module, hook.layer)
def in_tree_core(self, mixed_qkv, *a):
    if module.get_forward_context().attn_metadata is None:
        return self._warmup_prefill_kernels(mixed_qkv, 0)
    calls.append("vllm")
in_tree._forward_core = in_tree_core
in_tree._warmup_prefill_kernels = lambda self, *a: calls.append("vllm warm")
core.forward = lambda layer, *a: calls.append("ours")
core.warm_up = lambda *a: calls.append("warm")
launch.prepare = lambda device: None

def layer(kernels="all", kv_cache=None, num_spec=3, a_log=torch.zeros(4)):
    new = object.__new__(op_registry_oot[hook.layer])
    torch.nn.Module.__init__(new)
    new.prefix, new.caovan_kernels = "l", kernels
    new.caovan_sequences, new.caovan_checked = 4, 0
    new.num_k_heads, new.num_v_heads, new.tp_size, new.num_spec = 2, 4, 1, num_spec
    new.head_k_dim, new.head_v_dim, new.conv_kernel_size = 64, 64, 4
    new.A_log, new.dt_bias = a_log, torch.zeros(4).half()
    new.conv1d = types.SimpleNamespace(weight=torch.zeros(512, 1, 4).half(), bias=None)
    new.chunk_gated_delta_rule = types.SimpleNamespace(caovan=True)
    new.kv_cache = kv_cache or (torch.zeros(3, 6, 512).half(), torch.zeros(3, 4, 64, 64))
    return new

def run(layer, **meta):
    calls.clear()
    batch = types.SimpleNamespace(num_decodes=0, num_spec_decodes=0, **meta)
    metadata = {"l": batch} if meta else None
    module.get_forward_context = lambda: types.SimpleNamespace(attn_metadata=metadata)
    layer._forward_core(torch.zeros(5, 512).half(), None, None, None)
    return calls[:], layer.caovan_kernels

# the profile loads the kernels; what fails there is vLLM's from then on
assert run(layer()) == (["warm"], "all")
assert run(layer("prefill")) == (["warm", "vllm warm"], "prefill")
assert run(layer("off")) == (["vllm warm"], "off")
assert run(layer(a_log=torch.zeros(4).half())) == (["vllm warm"], "off")
def fails(*a): raise library.KernelError("cannot load gdn_decode: CUDA says no")
launch.prepare = fails
assert run(layer()) == (["vllm warm"], "off")
# without a profile the first batch does
assert run(layer(), num_prefills=1) == (["vllm"], "off")
launch.prepare = lambda device: None
# batches
assert run(layer(), num_prefills=1) == (["ours"], "all")
assert run(layer("decode"), num_prefills=1) == (["vllm"], "decode")
assert run(layer("off"), num_prefills=1) == (["vllm"], "off")
assert run(layer(), num_prefills=1, flashinfer_checkpoint_plan=object()) == (["vllm"], "all")
assert run(layer(), num_prefills=1, checkpoint=object()) == (["vllm"], "all")
assert run(layer(), num_prefills=1, checkpoint=None) == (["ours"], "all")
# caches the kernels cannot read
half = (torch.zeros(3, 6, 512).half(), torch.zeros(3, 4, 64, 64).half())
assert run(layer(kv_cache=half), num_prefills=1) == (["vllm"], "off")
odd = torch.zeros(3 * 16385).as_strided((3, 4, 64, 64), (16385, 4096, 64, 1))
assert run(layer(kv_cache=(half[0], odd)), num_prefills=1) == (["vllm"], "off")
assert run(layer(num_spec=4), num_prefills=1) == (["vllm"], "off")
moved = layer()  # vLLM measures its graphs with small caches, and makes the real ones later
assert run(moved, num_prefills=1) == (["ours"], "all")
moved.kv_cache = half
assert run(moved, num_prefills=1) == (["vllm"], "off")
"""


@pytest.mark.long
def test_what_fails_later_goes_back_to_vllms_path(ran: Callable[[str], Ran]) -> None:
    log = ran("fall back").log
    back = "goes back to vLLM's own kernels: "
    assert log.count(f"{back}cannot load gdn_decode: CUDA says no") == 1
    assert f"{back}cannot use a_log of torch.float16" in log
    assert f"{back}cannot use state of torch.float16" in log
    assert f"{back}cannot keep 7 inputs in 6 columns of conv state" in log


CARDS = """
import types, torch
from vllm import platforms
from caovan_vllm_sm75_turbo3 import hooks, launch, library, replacements

hook, module = hooks.find()
# a host with an SM90 card first and a Turing card second
class Cuda:
    device_type = "cuda"
    is_cuda = staticmethod(lambda: True)
    get_device_capability = staticmethod(lambda device_id=0: (9, 0))
platforms.current_platform = Cuda
current = 0
def capability(device=None):
    index = current if device is None else device.index
    return [(9, 0), (7, 5)][index]
torch.cuda.get_device_capability = capability
launch.shared_library = lambda: None

device = torch.device
assert replacements.card_facts(device("cuda:1"))["capability"] == (7, 5)
assert replacements.card_facts(device("cuda:0"))["capability"] == (9, 0)
current = 1
assert replacements.card_facts(device("meta"))["capability"] == (7, 5)

# the operator alone: made for the Turing card, taken; for the other one, left to vLLM
in_tree = getattr(module, hook.prefill)
in_tree.__init__ = lambda self: torch.nn.Module.__init__(self)
in_tree.forward_native = lambda self, **tensors: "vllm"
made = replacements.prefill_class(in_tree, module)
module.get_current_vllm_config = lambda: types.SimpleNamespace(additional_config={})
with torch.device("meta"):
    operator, current = made(), 0
    assert operator.caovan and not made().caovan

# what does not load is vLLM's, and is said once
def fails(device): raise library.KernelError("cannot load gdn_chunk_scan")
launch.prepare = fails
q = torch.zeros(1, 8, 2, 64).half()
tensors = dict(q=q, k=q, v=q, g=q[..., 0], beta=q[..., 0], initial_state=torch.zeros(1, 2, 64, 64),
               output_final_state=True, cu_seqlens=torch.tensor([0, 8], dtype=torch.int32))
assert [operator.forward_native(**tensors) for _ in "12"] == ["vllm", "vllm"]
assert not operator.caovan

# tensors that the kernel would misread are vLLM's too
good = {name: x for name, x in tensors.items() if name != "output_final_state"}
assert replacements.takes_tensors(**good)
for changed in (
    {"cu_seqlens": torch.tensor([0, 4, 8], dtype=torch.int32)},  # one state for two sequences
    {"initial_state": None},
    {"initial_state": torch.zeros(1, 2, 64, 32)},
    {"beta": q[0, :, :, 0]},
    {"k": q[:, :4]},
    {"v": torch.zeros(1, 8, 3, 64).half()},
    {"q": torch.zeros(1, 9, 2, 64).half().view(-1)[4 : 4 + 8 * 128].view(1, 8, 2, 64)},
):
    assert not replacements.takes_tensors(**good | changed), changed
"""


@pytest.mark.long
def test_each_card_of_a_mixed_host_is_asked_for_itself(ran: Callable[[str], Ran]) -> None:
    assert ran("cards").log.count("goes back to vLLM's own kernel: cannot load gdn_chunk_scan") == 1


CHANGED = """
import logging, types, torch
logging.basicConfig(level=logging.INFO)
from caovan_vllm_sm75_turbo3 import hooks, replacements

hook, module = hooks.find()
in_tree = getattr(module, hook.layer)
def in_tree_init(self):
    torch.nn.Module.__init__(self)
    self.chunk_gated_delta_rule = types.SimpleNamespace(caovan=True)
in_tree.__init__ = in_tree_init
module.get_current_vllm_config = lambda: types.SimpleNamespace(
    additional_config={}, scheduler_config=types.SimpleNamespace(max_num_seqs=4))
layer = replacements.layer_class(in_tree, module)()  # has no get_state_dtype that would work
assert layer.caovan_kernels == "off" and not layer.chunk_gated_delta_rule.caovan
"""


@pytest.mark.long
def test_a_layer_that_has_changed_is_built_all_the_same(ran: Callable[[str], Ran]) -> None:
    assert "stays on vLLM's own kernels: AttributeError" in ran("changed").log


FLASHINFER = """
import logging, sys, types
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.platforms.interface import DeviceCapability

in_tree = types.ModuleType("vllm.v1.attention.backends.flashinfer")  # its import needs FlashInfer
class FlashInferBackend:
    @classmethod
    def supports_compute_capability(cls, capability):
        return capability >= DeviceCapability(8, 0)
in_tree.FlashInferBackend = FlashInferBackend
sys.modules[in_tree.__name__] = in_tree
from caovan_vllm_sm75_turbo3.flashinfer_sm75 import Sm75FlashInferBackend as ours

CARDS = ((7, 0), (7, 5), (8, 0))
def cards(**additional):
    with set_current_vllm_config(VllmConfig(additional_config=additional)):
        return [ours.supports_compute_capability(DeviceCapability(*card)) for card in CARDS]
assert cards(caovan=False) == [False, False, True]
assert cards(caovan_kernels="off") == [False, False, True]
print("SAID NOTHING YET", flush=True)
assert cards() == cards(caovan=True) == [False, True, True]
assert ours.supports_compute_capability(DeviceCapability(7, 5))
"""


@pytest.mark.long
def test_flashinfer_is_not_offered_where_caovan_is_off(ran: Callable[[str], Ran]) -> None:
    before, after = ran("flashinfer").stdout.split("SAID NOTHING YET")
    said = "caovan: FlashInfer attention is offered on SM75 again"
    assert (before.count(said), after.count(said)) == (0, 1)


@pytest.mark.long
def test_the_wheel_is_of_its_librarys_platform_and_the_engine_takes_it(tmp_path: Path) -> None:
    source = tmp_path / "plugin"
    shutil.copytree(ROOT / "plugin", source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    library = source / "caovan_vllm_sm75_turbo3/lib/libcaovan_sm75.so"
    library.parent.mkdir(exist_ok=True)
    library.write_bytes(b"machine code")
    pip = [str(ENGINE), "-m", "pip", "-q", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-index"]
    built = [*pip, "wheel", *alone, "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run(built, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-manylinux_2_34_x86_64.whl")
    added = [*pip, "install", *alone, "--target", str(tmp_path / "site"), str(wheel)]
    subprocess.run(added, check=True, capture_output=True)
    assert (tmp_path / "site" / library.relative_to(source)).read_bytes() == b"machine code"


def test_binding_is_checked_idempotent_and_yields_to_another_plugin(
    ran: Callable[[str], Ran],
) -> None:
    assert "is already replaced by" in ran("bind").log


MEASURE = """
from caovan_vllm_sm75_turbo3.measure import attention, bench
assert bench.HAS_VLLM and attention.unified_attention
for name in ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule_packed_decode",
             "fused_sigmoid_gating_delta_rule_update"):
    assert callable(getattr(bench.ops, name))
assert bench.index.prepare_chunk_offsets(bench.torch.tensor([0, 65]), 64).tolist() == [0, 2]
"""


@pytest.mark.long
def test_the_table_has_this_vllms_kernels_next_to_ours(ran: Callable[[str], Ran]) -> None:
    assert "no Triton column" not in ran("measure").log


ATTENTION = ROOT / "tests/kernels/attention_in_vllm.py"


@pytest.mark.long
def test_triton_attention_decodes_with_ours_where_they_serve(ran: Callable[[str], Ran]) -> None:
    log = ran("attention").log
    runs = "caovan: attention runs on the SM75 kernels"
    assert f"{runs} (cache int4_per_token_head, read and written; decoding and prompts)" in log
    assert f"{runs} (cache int4_per_token_head, read and written; decoding only)" in log
    assert f"{runs} (cache auto, read; decoding and prompts)" in log
    stays = "caovan: attention stays on vLLM's own kernels: "
    assert f"{stays}the layer has a sliding window, which the kernels do not support" in log
    assert f"{stays}cannot load attention" in log
    assert f"{stays}RuntimeError: out of memory" in log
    assert "goes back to vLLM's own kernels: cannot use a cache of torch.int16" in log
    assert "cannot use caovan_attention = 'some': it must be one of off, decode, read, all" in log


LM_HEAD = ROOT / "tests/kernels/lm_head_in_vllm.py"


@pytest.mark.long
def test_an_lm_head_becomes_int8_where_it_is_wished_and_can(ran: Callable[[str], Ran]) -> None:
    log = ran("lm_head").log
    assert "caovan: the lm_head is int8 on the SM75 kernel (512 x 128)" in log
    assert log.count("the lm_head kernel failed, torch multiplies: cannot launch lm_head") == 1
    assert "caovan: the drafter is int8 on the SM75 kernel (128 x 192)" in log
    assert "caovan: the drafter stays in 16 bits: it has 192 rows of 96" in log
    stays = "caovan: the lm_head stays in 16 bits: "
    assert f"{stays}LoRA adapters can change it (--enable-lora)" in log
    assert f"{stays}cannot quantise row 0 of the lm_head: it is not finite" in log
    assert f"{stays}ZeroDivisionError: division by zero" in log
    assert "cannot use caovan_lm_head = 'int4': it must be one of off, int8" in log


PROGRAMS: dict[str, tuple[str, dict[str, str]]] = {
    "attention": (ATTENTION.read_text(), {}),
    "lm_head": (LM_HEAD.read_text(), {}),
    "probe": (PROBE, {"CAOVAN_SM75_LIBRARY": "/nowhere.so"}),
    "bind": (BIND, {}),
    "fall back": (FALL_BACK, {}),
    "cards": (CARDS, {}),
    "changed": (CHANGED, {}),
    "flashinfer": (FLASHINFER, {}),
    "measure": (MEASURE, {}),
}
"""Each with what it has in its environment."""


THREADS = """
import multiprocessing, sys, torch, vllm
from vllm.plugins import load_general_plugins
load_general_plugins()
from torch._inductor import async_compile, config
print("RESULT", config.compile_threads)
def use():
    sys.exit(async_compile.AsyncCompile.process_pool().submit(len, "pool").result(60) - 4)
if config.compile_threads > 1:
    worker = multiprocessing.get_context("fork").Process(target=use, daemon=True)
    worker.start()
    worker.join(120)
    print("DAEMONIC WORKER", worker.exitcode)
"""


@pytest.mark.long
def test_torch_compile_gets_the_planned_threads_though_vllm_sets_one(site: Path) -> None:
    def said(**environment: str) -> list[str]:
        lines = run(site, "-c", THREADS, **environment).stdout.splitlines()
        return [line for line in lines if line.startswith(("RESULT", "DAEMONIC"))]

    assert said(TORCHINDUCTOR_COMPILE_THREADS="5") == ["RESULT 1"]  # else we need not set it
    assert said(CAOVAN_COMPILE_THREADS="3", CAOVAN_KERNELS="off") == [
        "RESULT 3",
        "DAEMONIC WORKER 0",
    ]
