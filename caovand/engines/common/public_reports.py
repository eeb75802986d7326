"""Public reports by failure, signature and engine; `tests/public_reports.py --cite` fills it."""

from __future__ import annotations

from collections.abc import Mapping

_LINES = """
access-denied hub.denied any vllm-project/vllm#9255
access-denied hub.denied any kyegomez/NeoSapiens#3
access-denied sandbox.families vllm vllm-project/vllm#12474
backend-unsupported backend.attention vllm vllm-project/vllm#32732
backend-unsupported backend.attention vllm vllm-project/vllm#30919
backend-unsupported backend.dtype vllm substratusai/vllm-docker#37
backend-unsupported backend.dtype vllm zai-org/GLM-4#510
backend-unsupported cache.fp8 sglang kvcache-ai/ktransformers#1978
backend-unsupported cache.fp8 vllm vllm-project/vllm#26431
backend-unsupported cache.fp8 vllm 1CatAI/1Cat-vLLM#27
backend-unsupported cuda.arch any vllm-project/vllm#18995
backend-unsupported cuda.arch vllm vllm-project/vllm#14452
backend-unsupported cuda.arch vllm vllm-project/vllm#18916
backend-unsupported driver.old llamacpp canonical/inference-snaps#255
backend-unsupported ggml.attention llamacpp ggml-org/llama.cpp#24324
backend-unsupported ggml.split llamacpp ggml-org/llama.cpp#24015
backend-unsupported jit.refused vllm vllm-project/vllm#27542
bad-arguments args.length vllm vllm-project/vllm#3676
bad-arguments args.raise vllm modelscope/ms-swift#4221
bad-arguments args.raise vllm hiyouga/LlamaFactory#9512
bad-arguments args.refused vllm vllm-project/vllm#26161
bad-arguments args.split vllm vllm-project/vllm#11671
bad-arguments args.split vllm vllm-project/vllm#2652
bad-arguments engine.broken vllm vllm-project/vllm#36099
bad-arguments engine.broken vllm Tencent-Hunyuan/HunyuanImage-3.0#56
bad-arguments engine.transformers vllm verl-project/verl#4337
bad-arguments engine.transformers vllm PaddlePaddle/PaddleOCR#17587
bad-arguments engine.unlinked vllm vllm-project/vllm#5501
bad-arguments llama.args llamacpp ggml-org/llama.cpp#13465
bad-arguments llama.args.value llamacpp oobabooga/textgen#7237
bad-arguments model.architecture vllm vllm-project/vllm#9624
bad-arguments model.architecture vllm vllm-project/vllm#9515
bad-arguments model.code vllm vllm-project/vllm#20654
bad-arguments ollama.model.architecture ollama ollama/ollama#3904
bad-arguments ollama.model.architecture ollama ollama/ollama#14631
collective-timeout nccl.failed vllm vllm-project/vllm#5828
collective-timeout nccl.failed vllm vllm-project/vllm#6732
compile-failed sglang.compile sglang sgl-project/sglang#6342
device-oom-capture llama.cuda.compute llamacpp ggml-org/llama.cpp#15009
device-oom-capture ollama.cuda.compute ollama ollama/ollama#8471
device-oom-capture sglang.graphs.oom sglang sgl-project/sglang#5285
device-oom-load llama.cuda.oom llamacpp ikawrakow/ik_llama.cpp#1289
device-oom-load llama.cuda.oom llamacpp ggml-org/llama.cpp#12817
device-oom-load llama.cuda.weights llamacpp ggml-org/llama.cpp#20431
device-oom-load llama.cuda.weights llamacpp ggml-org/llama.cpp#7366
device-oom-load ollama.cuda.oom ollama ollama/ollama#9782
device-oom-load ollama.cuda.oom ollama ollama/ollama#3765
device-oom-load ollama.cuda.weights ollama ollama/ollama#8447
device-oom-load oom.cuda vllm vllm-project/vllm#40291
device-oom-load oom.cuda vllm vllm-project/vllm#5847
device-oom-load sglang.oom.plain sglang sgl-project/sglang#4547
engine-died engine.dead vllm vllm-project/vllm#17276
engine-died engine.exited vllm vllm-project/vllm#12233
engine-died engine.exited vllm modelscope/ms-swift#7933
engine-died llama.assert llamacpp ggml-org/llama.cpp#13359
engine-died llama.assert llamacpp ggml-org/llama.cpp#17071
engine-died llama.terminate llamacpp ggml-org/llama.cpp#13248
engine-died ollama.runner ollama ollama/ollama#11447
engine-died ollama.runner ollama ollama/ollama#4912
engine-died sglang.sigquit sglang sgl-project/sglang#3685
gpu-absent gpu.absent vllm xorbitsai/inference#2756
gpu-absent gpu.absent vllm haotian-liu/LLaVA#683
gpu-absent llama.cuda.absent llamacpp abetlen/llama-cpp-python#1890
gpu-absent llama.cuda.absent llamacpp ggml-org/llama.cpp#7218
gpu-absent nvrm.init host NVIDIA/open-gpu-kernel-modules#789
gpu-absent nvrm.init host ValveSoftware/SteamOS#209
gpu-absent ollama.discovery ollama ollama/ollama#13308
gpu-absent ollama.driver ollama ollama/ollama#8638
gpu-lost gpu.lost host NVIDIA/NVSentinel#155
gpu-lost gpu.lost host Bumblebee-Project/Bumblebee#554
gpu-lost xid.lost host NVIDIA/open-gpu-kernel-modules#507
gpu-lost xid.lost host leptonai/gpud#46
hang rpc.timeout vllm vllm-project/vllm#19668
host-oom host.killed host oobabooga/textgen#440
host-oom ollama.ram ollama ollama/ollama#13556
host-oom ollama.ram ollama ollama/ollama#15049
illegal-access cuda.illegal vllm zai-org/GLM-V#172
illegal-access llama.cuda.illegal llamacpp turbo-tan/llama.cpp-tq3#11
illegal-access llama.cuda.illegal llamacpp ggml-org/llama.cpp#27749
illegal-access ollama.cuda.illegal ollama ollama/ollama#17740
illegal-access xid.app host NVIDIA/open-gpu-kernel-modules#1030
jit-toolchain jit.cc vllm vllm-project/vllm#30441
jit-toolchain jit.nvcc vllm SystemPanic/flashinfer-windows#6
jit-toolchain jit.toolkit vllm flashinfer-ai/flashinfer#3675
kv-cache-none sglang.cache sglang sgl-project/sglang#4330
kv-cache-short oom.kv.tokens vllm gpustack/gpustack#1800
kv-cache-short states.short vllm xorbitsai/inference#4745
kv-cache-short states.short vllm vllm-project/recipes#551
launch-failure cuda.launch vllm vllm-project/vllm#52816
launch-failure cuda.launch vllm vllm-project/vllm#18045
launch-failure llama.cuda.launch llamacpp NVIDIA/open-gpu-kernel-modules#1247
launch-failure sglang.graphs sglang sgl-project/sglang#11218
model-missing llama.file.cut llamacpp moly-ai/moly-local#13
model-missing llama.file.magic llamacpp PromtEngineer/localGPT#438
model-missing llama.file.missing llamacpp ggml-org/llama.cpp#15919
model-missing llama.model.shape llamacpp xorbitsai/inference#971
model-missing llama.model.shape llamacpp ggml-org/llama.cpp#5367
model-missing llama.model.tensor llamacpp ggml-org/llama.cpp#6665
model-missing llama.model.tensor llamacpp netdur/llama_cpp_dart#40
model-missing model.broken vllm verl-project/verl#834
model-missing model.missing vllm vllm-project/vllm-omni#2170
port-busy llama.port llamacpp PiDanShouRouZhouXD/Sakura_Launcher_GUI#71
sampler-oom oom.sampler vllm vllm-project/vllm#27508
sampler-oom oom.sampler vllm vllm-project/vllm#17939
shared-memory-limit sglang.smem sglang sgl-project/sglang#6001
shm-full shm.full vllm MiniMax-AI/MiniMax-01#42
start-stall start.timeout vllm vllm-project/vllm#32116
vram-busy vram.busy vllm vllm-project/vllm#20305
vram-busy vram.busy vllm vllm-project/vllm#25837
"""

REPORTS: dict[tuple[str, str], Mapping[str, tuple[str, ...]]] = {}
for _line in _LINES.split("\n")[1:-1]:
    _failure, _signature, _engine, _source = _line.split(" ")
    _cell = REPORTS.get((_failure, _signature), {})
    _more = {_engine: (*_cell.get(_engine, ()), _source)}
    REPORTS[_failure, _signature] = {**_cell, **_more}
