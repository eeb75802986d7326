"""Advice on each failure of vLLM, and on single log messages."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.healing.failure import Failure
from caovand.engines.common.logs.rows.runtime import NO_CODE, OLD_DRIVER
from caovand.engines.common.logs.rows.toolchain import COMPILER_ADVICE
from caovand.engines.vllm.healing import advice_arguments, advice_model, advice_ray

# One row a failure. A sentence with an unknown {name} is left out.
GENERAL: Mapping[Failure, tuple[str, ...]] = {
    "device-oom-load": (
        "The weights do not fit: use a smaller quantization, or more GPUs (tensor_parallel_size).",
        "Check with nvidia-smi whether another process uses the card's memory.",
    ),
    "kv-cache-none": (
        "No memory is left for the KV cache: raise gpu_memory_utilization. If it is at 0.95 or "
        "more, use a smaller quantization or more GPUs (tensor_parallel_size).",
    ),
    "kv-cache-short": (
        "Set max_model_len = {context}: that fits into the available {have} GiB.",
        "The whole context of {len} tokens needs {need} GiB.",
    ),
    "vram-busy": (
        "Another process uses memory: {free} of {total} GiB are free, {wanted} GiB are needed.",
        "End the other process (nvidia-smi names it) and start again. If it must stay, such as a "
        "desktop, lower --gpu-memory-utilization to what it leaves.",
    ),
    "device-oom-capture": (
        "Memory for CUDA graphs and a step's own tensors is outside vLLM's share of the card: see "
        "with nvidia-smi what else uses it; more GPUs or a smaller quantization leave more.",
    ),
    "device-oom-run": ("The peak of a step did not fit next to the KV cache.",),
    "sampler-oom": (
        "Sampling was warmed up with {requests} concurrent requests.",
        "The card has no memory left for sampling, which sorts the logits of all requests of a "
        "step (max_num_seqs times the vocabulary), next to weights and KV cache: lower "
        "gpu_memory_utilization or max_num_seqs.",
    ),
    "collective-timeout": ("One GPU stopped answering the others: start again once.",),
    "host-oom": ("The machine ran out of memory: close other programs, or add swap.",),
    "compile-cache-stale": (
        "The compile cache does not belong to these settings: delete torch_compile_cache once.",
    ),
    "shared-memory-limit": (
        "A kernel needs {required} bytes of shared memory; this card has {limit}.",
        "No memory setting helps.",
    ),
    "jit-toolchain": (
        "A kernel must be built here and the tools are missing: install g++ and gcc, and the CUDA "
        "toolkit that fits the driver, and set CUDA_HOME (`sudo caovanctl engine install` brings "
        "nvcc and ninja).",
    ),
    "backend-unsupported": (
        "This card cannot run these settings; a model in another quantization may run.",
    ),
    "bad-arguments": (
        "vLLM refused a setting, and starting again cannot help: the line names it. It is an "
        "argument, or a value that the checkpoint's own files bring.",
    ),
    "model-missing": (
        "Check the model's path ([model] path): its folder must contain config.json, the tokenizer "
        "and all weights; download missing or broken files again.",
    ),
    "access-denied": (
        "Permission denied: let the engine's user read the model's files, pass the folders above "
        "them, and write its caches (`namei -l` with the path shows the owner of each folder; a "
        "unit of caovan's also needs [engine] writable); for a hub model, set HF_TOKEN and accept "
        "the model's licence.",
    ),
    "port-busy": (
        "Another program listens on port {port}: `ss -ltnp` names it. End it, or change --port "
        "([server] port).",
        "Port {own}, which vLLM's processes use among themselves, is taken: often by an earlier "
        "start whose processes still run, or by a second server on the machine (a different "
        "VLLM_PORT for each avoids that).",
        "A port is taken, the server's or one between its processes: `ss -ltnp` names the program. "
        "End it (an earlier start may still run), or change --port ([server] port), VLLM_PORT, or "
        "for several nodes MASTER_PORT.",
    ),
    "plugin-error": (
        "A plugin failed. Without caovan's plugin vLLM runs on its own kernels, and before 0.32 a"
        " hybrid model that drafts has no prefix cache.",
    ),
    "compile-failed": (
        "torch.compile, or Triton behind it, failed: the reason is in this line or before it. "
        "Triton may not support the card, or not fit PyTorch's release.",
    ),
    "engine-died": (
        "The engine process ended; the line shows how, and a reason of its own stands in the lines "
        "before. If it served, vLLM then exits with status 0, so a supervisor that reads only the "
        "exit status does nothing.",
        "A process of it ended with {fault}: start the same plan again first.",
    ),
    "start-stall": (
        "The start made no progress for {waited_s} s while waiting for another process.",
        "Check the host's free memory and swap, and the disk.",
    ),
    "hang": (
        "A process of the engine stopped answering: end the whole process group and start again.",
    ),
    "draft-collapse": (
        "Drafts are no longer accepted, or hardly ever, so drafting only costs time: start "
        "again.",
    ),
    "answers-changed": (
        "The answer to a fixed prompt differs from that at the plan's first start, so the engine "
        "computes wrongly: start again.",
        "Check the card's memory, overclocking and peer access: `nvidia-smi -q -d ECC`, "
        "`journalctl -k`.",
    ),
    "answers-degenerate": (
        "The answer to a fixed prompt has logits that are not numbers, or repeats one token, so "
        "the engine computes wrongly: start again.",
        "If every start does so, try other kernels, a cache that is not 8-bit, or another data "
        "type: float16 overflows where a model was trained in bfloat16.",
    ),
    "allreduce-wrong": (
        "An all-reduce over the cards gave wrong sums before the engine started, so its answers "
        "would be nonsense: move data through the host.",
        "Check peer access: `nvidia-smi topo -p2p r`, the IOMMU (`iommu=pt`) and ACS of the PCIe "
        "bridges, and any patch of the driver that enables peer-to-peer.",
    ),
    "allreduce-hung": (
        "An all-reduce over the cards hangs, so the engine would, too: move data through the "
        "host.",
        "Check peer access as `nvidia-smi topo -p2p r` shows it, and /dev/shm.",
    ),
    "node-missing": (
        "Another node of the cluster is missing: `caovanctl cluster nodes` shows which. Once it is "
        "back the engine starts.",
    ),
    "node-unfit": (
        "A check keeps another node of the cluster out: `caovanctl cluster check` on the head "
        "names each problem with its fix. After that the engine starts.",
    ),
    "node-lost": (
        "A node of the cluster left while it served: all nodes end their ranks and start again "
        "together. Look at its daemon's log, and at the network between them.",
    ),
}  # fmt: skip

# Signatures with better advice than their failure.
SPECIAL: Mapping[str, tuple[str, ...]] = {
    **advice_arguments.SPECIAL,
    **advice_model.SPECIAL,
    **advice_ray.SPECIAL,
    "oom.unstaged": (
        "The card's memory ran out; these lines do not show at which step. The lines before them "
        'do: "Starting to load model", "Available KV cache memory", "Capturing CUDA graphs", or '
        "load_model, profile_run and capture_model in a worker's own traceback.",
        "Most probable first: another process uses the card (nvidia-smi before the start); the "
        "weights are larger than the cards (a smaller quantization, or more of them: "
        "tensor_parallel_size); the step that vLLM measures is too large (lower max_num_seqs, "
        "max_num_batched_tokens and max_model_len; for images and video --limit-mm-per-prompt); "
        "or CUDA graphs have no room (lower gpu_memory_utilization).",
    ),
    "oom.measured": (
        "The step that vLLM measures before it sizes the cache did not fit next to the weights. "
        "Lower --max-model-len (older releases measure a step as long as the context, as do models "
        "with images), --max-num-batched-tokens and --max-num-seqs; for images and video also "
        "--limit-mm-per-prompt, or make them smaller (max_pixels in --mm-processor-kwargs).",
        "If the weights alone nearly fill the card: a smaller quantization, or more GPUs "
        "(tensor_parallel_size). See with nvidia-smi what else uses it.",
    ),
    "states.short": (
        "Set max_num_seqs = {most}: the states of {most} requests fit.",
        "A hybrid model keeps a state for each request that it decodes, and CUDA graphs are "
        "captured for max_num_seqs of them: fewer requests, or more memory, are needed.",
    ),
    "jit.refused": (
        "The card's assembler (ptxas) refuses a kernel that Triton wrote: {why}. No tool is "
        "missing: the engine chose a kernel that this card cannot run. Install a newer release of "
        "the engine, or let it use other kernels.",
    ),
    "jit.cc": COMPILER_ADVICE,
    "uva.absent": (
        "vLLM's newer model runner needs pinned memory, which is off under WSL2: set "
        "VLLM_WSL2_ENABLE_PIN_MEMORY=1, or install an older release.",
    ),
    "gpu.unlinked": (
        "The driver's library libcuda.so.1 is not there for this process, so that vLLM sees no "
        "card. In a container it comes with the card: Docker: --gpus all, with the NVIDIA "
        "Container Toolkit; Kubernetes: resources.limits nvidia.com/gpu, the device plugin or GPU "
        "Operator, and runtimeClassName: nvidia where the node's default is another. Outside of "
        "one install the NVIDIA driver; a machine without such a card needs another build of vLLM.",
    ),
    "gpu.base": (
        "vLLM detected no platform, and asked its base class ({base}). Without a card this build "
        "is the wrong one, whatever --device says: install the build for the CPU (a wheel with cpu "
        "in its name, the image vllm-openai-cpu, or from source with VLLM_TARGET_DEVICE=cpu).",
        "With a card vLLM does not see it: run nvidia-smi (rocm-smi) where the engine runs, start "
        "a container with its cards (--gpus all), and take the build for that maker's cards.",
    ),
    "gpu.count": (
        "{found} GPUs were found, {wanted} are needed: a card is missing (nvidia-smi), or "
        "tensor_parallel_size is too high.",
    ),
    "ram.kv": (
        "The KV cache needs {wanted} GiB of host memory, {free} are free: lower "
        "kv_cache_memory_bytes, or VLLM_CPU_KVCACHE_SPACE if that is set.",
    ),
    "cuda.arch": (
        OLD_DRIVER,
        NO_CODE,
        "If the list has the card, the driver is older than the engine's CUDA: update it.",
    ),
    "build.killed": (
        "A compiler was killed while building a kernel: the host has too little memory for so "
        "many at once; finished parts are kept.",
        "Or close other programs, or add swap.",
    ),
    "disk.error": (
        "The disk or the network share cannot be read: `journalctl -k` has the details. Check the "
        "drive (smartctl) or remount the share.",
    ),
    "oom.kv.tokens": (
        "Set max_model_len = {context}: that fits.",
        "If that is too short for the requests, the weights leave too little of the card: use a "
        "smaller quantization or more GPUs (tensor_parallel_size).",
    ),
    "engine.package": (
        "The engine lacks the package {module}: install it into the engine's environment, or use "
        "a model that does not need it.",
        "The engine lacks the package {package}: install it into the engine's environment, or use "
        "a model that does not need it.",
    ),
    "engine.broken": (
        "The engine's installation is incomplete: {name} is missing from it, or a folder named "
        "vllm hides it.",
        "vLLM's builds for ROCm, the CPU and XPU have no operator {awq}, and installing them again "
        "brings the same: on ROCm set VLLM_USE_TRITON_AWQ=1, elsewhere use a model in another "
        "quantization. On an NVIDIA card it belongs to the installation, which is incomplete.",
        "The engine's compiled part {unloaded} is there, but was built for another PyTorch, CUDA "
        "or ROCm than is installed: install PyTorch and engine together in a new environment, in "
        "the releases that belong together. The same ones fail again.",
        "The engine's installation is incomplete: its compiled operator {operator} is missing.",
        "The engine's compiled module {part} is missing: Python found vLLM's source tree (a folder "
        "named vllm where it was started, or an editable install that was never built) instead of "
        "an installed package, or the installation is incomplete. Start in another folder, or "
        "build the tree (pip install -e .).",
        "To complete it, install the engine again, in its own environment (where caovan "
        "installed it, `caovanctl engine verify` lists the differences, and `sudo caovanctl "
        "engine install` repairs them).",
    ),
    "engine.unlinked": (
        "Triton's kernels cannot be imported: {reason}. Install the release of Triton that the "
        "engine's package requires.",
        "The engine's compiled part cannot be loaded: {library} belongs to another PyTorch or "
        "CUDA. Reinstall the engine together with its PyTorch.",
    ),
    "model.json": (
        "A JSON file of the model is broken (config.json, the tokenizer's, the index of the "
        "weights): the traceback names it; download it again.",
    ),
    "step.timeout": (
        "A step did not end within VLLM_ENGINE_ITERATION_TIMEOUT_S (60 s unless set), and the "
        "engine gave up; these lines do not show why. A worker may hang or have died, the cards "
        "may have stopped exchanging data (NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce show "
        "whether that is the cause), or the step is that slow: then raise the variable. The lines "
        "of the workers before this one say more.",
    ),
    "engine.lost": (
        "The API server lost the engine core. What ended the core is not in this line: its own "
        "traceback is further up in the log, before the first line that names EngineDeadError.",
        "A process of it ended with {fault}: start the same plan again first.",
    ),
    "backend.attention": (
        "The attention backend that is set or chosen does not take this model, cache or card; the "
        "line has the reason. Leave --attention-backend (VLLM_ATTENTION_BACKEND) out, or name "
        "another one, such as TRITON_ATTN.",
    ),
    "backend.only": (
        "{feature} need {backend}, which is not in use here, or does not run on this card: name "
        "another attention backend that has them (--attention-backend TRITON_ATTN; before 0.11 the "
        "variable VLLM_ATTENTION_BACKEND, for gpt-oss TRITON_ATTN_VLLM_V1), or install a newer "
        "release.",
    ),
    "drafts.uneven": (
        "vLLM's CPU build crashes on a Gated DeltaNet hybrid when requests of one step have "
        "different numbers of drafts, as JSON answers cause. Turn drafting off ([policy] mtp = 0).",
    ),
    "prompt.short": (
        "vLLM's CPU build crashes on a Gated DeltaNet hybrid and a prompt of one token: have "
        "clients send two tokens or more.",
    ),
    "worker.died": (
        "A process of it ended with {fault}: start the same plan again first.",
        "A worker process ended; a reason of its own stands in the lines before. With none, or "
        "exit code -9, it was killed, usually by the kernel for lack of memory (journalctl -k "
        "| grep -i oom): give the machine or container more, or let the engine use less "
        "(without a card VLLM_CPU_KVCACHE_SPACE).",
    ),
    "start.timeout": (
        "The start took longer than the engine waits for its own processes: kernels are still "
        "compiled, or the disk is slow. Start again, which finds them compiled, or set "
        "VLLM_ENGINE_READY_TIMEOUT_S to more seconds.",
    ),
    "watchdog.dump": (
        "vLLM's own watchdog saw a step that never ended, and wrote all stacks to {dump}: end the "
        "whole process group and start again.",
    ),
}
