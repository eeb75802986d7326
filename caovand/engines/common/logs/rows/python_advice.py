"""Advice on the messages of PyTorch, Transformers and the model hub, by row."""

from __future__ import annotations

from collections.abc import Mapping

CHOICE = (
    "This release of the engine does not know {choice} for {chosen}: take a value that it accepts, "
    "or install a newer release, which may know it. A model's page often names what only the "
    "newest release has."
)
ADVICE: Mapping[str, tuple[str, ...]] = {
    "engine.transformers": (
        "The installed Transformers was upgraded for the model type {model_type}, and this release "
        "of the engine does not fit it: install a newer release of the engine, which supports that "
        "model and brings the Transformers that it needs.",
        "Transformers 5 has no {removed} any more, and this release of the engine uses it: install "
        "Transformers 4 (pip install 'transformers<5'), even if pip finds 5 within what the engine "
        "requires, or a newer release of the engine, which supports 5.",
        "{taken} is registered twice: by this release of the engine, and by the installed "
        "Transformers, which is newer than the engine expects. Install a newer release of the "
        "engine, or, if the model does not need that Transformers, an older one, which this "
        "release requires (`pip check`).",
        "{object} has no {member}: the installed Transformers does not fit this release of the "
        "engine, or an object was passed where the engine takes a name or a path.",
        "The configuration has no {attribute}, which this release of the engine needs: the release "
        "does not support this model yet, and a newer one may, or the installed Transformers reads "
        "the configuration differently.",
        "The configuration has no {rope}: this release of Transformers names it differently than "
        "the engine's code expects (5 moved what 4 called rope_scaling and layer types).",
        "The installed Transformers does not fit this release of the engine: install the version "
        "that the engine's package requires, or a newer release of the engine.",
    ),
    "model.code": (
        "The model has its own code, which is not allowed, or which some processes cannot "
        "import: pass --trust-remote-code if you trust it, keep dots out of the folder's name, and "
        "let all nodes share HF_MODULES_CACHE.",
    ),
    "python.conflicts": (
        "pip left several packages in releases that do not fit {user}: {pins} are required, and "
        "what uses those may fail to import.",
        "Make a new environment of a Python that the engine supports, install the engine there "
        "alone and by one command, so that pip finds releases for all, and put what needs other "
        "releases into another environment. To repair this one, pass all of {pins} to one pip "
        "install.",
    ),
    "cuda.assertion": (
        "A kernel found an index outside its table ({assertion}): a position, a token or a cache "
        "slot is out of range. Keep max_model_len within the model's own limit (as rope_scaling in "
        "hf_overrides changes it), and check that the tokenizer has no more tokens than the model; "
        "otherwise it is a bug of the release.",
    ),
    "cuda.forked": (
        "CUDA was used before the worker processes were forked: set "
        "VLLM_WORKER_MULTIPROC_METHOD=spawn, or do not touch CUDA before the engine starts.",
    ),
    "hub.denied": (
        "The hub refuses the model: accept its licence on its page there, and give the engine's "
        "process the account's token in HF_TOKEN (docker run -e HF_TOKEN, environment: of "
        "Compose, a secret in Kubernetes; a variable of your shell does not reach a container or a "
        "unit). A model already downloaded needs HF_HUB_OFFLINE=1 or its local path.",
    ),
    "args.parser": (
        "The reasoning or tool parser does not fit the model's tokenizer: remove "
        "--reasoning-parser and --tool-call-parser, or choose those that the model's page names; "
        "another release of the engine may support this model.",
    ),
    "args.token": (
        "The tokenizer lacks the token in the line. If a parser looks it up (the frames above show "
        "it), it does not fit this model: remove --reasoning-parser and --tool-call-parser, or "
        "choose those that the model's page names.",
    ),
    "tokenizer.absent": (
        "Transformers found no tokenizer for this model's type: usually the folder lacks "
        "tokenizer_config.json or tokenizer.json, which name it. Download the whole repository "
        "again (`hf download`), or copy the tokenizer's files of the base model into the folder. "
        "If they are there, the installed Transformers is older than the model.",
    ),
    "model.tokenizer": (
        "These files have no {mistral}, though Mistral's format was asked for: remove the options "
        "--tokenizer-mode, --config-format and --load-format mistral (a GGUF file has none), or "
        "add the original repository's tekken.json (--tokenizer with its name).",
        "The folder has no tokenizer that can be read so. A repository of Mistral's with "
        "tekken.json needs --tokenizer-mode mistral (--config-format and --load-format, too); "
        "one without is read as Transformers does (auto, hf, auto). Otherwise download "
        "tokenizer.json and tokenizer_config.json, set another tokenizer with --tokenizer, and "
        "install sentencepiece and tiktoken.",
    ),
    "model.type": (
        "{type} is not the type of a model, but of its part ({part}): config.json comes from a "
        "fine-tune that was saved without the rest. If the base model can be served here, "
        "upgrading does not help: save the fine-tune with its whole configuration, its weights "
        "named accordingly, or ask who published it for such a one.",
        "The installed Transformers does not support the model type {type}: install the release "
        "that the model's page requires, with a matching release of the engine.",
    ),
    "config.none": (
        "A value that the engine needs is missing (None): config.json or the tokenizer's files "
        "lack it, or the installed Transformers reads them differently than this release of the "
        "engine expects. Check that all files of the model are there, and install the release of "
        "Transformers that the engine requires.",
    ),
    "model.quantization": (
        "The engine has no kernels for this checkpoint's quantization: choose another quantization "
        "of the model, a newer release, or another engine.",
    ),
    "model.gguf": (
        "The engine cannot read GGUF files of the architecture {architecture}: use the model's own "
        "checkpoint (safetensors), a newer release, or llama.cpp.",
        "The installed Transformers cannot read GGUF files of the architecture {unread}: use the "
        "model's own checkpoint (safetensors), a newer release, or llama.cpp.",
    ),
    "args.template": (
        "The engine found no chat template: it is a base model, chat_template.jinja and "
        "tokenizer_config.json are not complete, or the model formats chats by code of its own, "
        "which the engine must know (its page names the release and the option). Pass a template "
        "with --chat-template, use the instruct variant, or have clients use /v1/completions.",
    ),
    "hub.vocabulary": (
        "gpt-oss needs the vocabulary files o200k_base.tiktoken and cl100k_base.tiktoken, which "
        "are not part of the model and could not be loaded: let the machine reach "
        "openaipublic.blob.core.windows.net, or put both files in a folder and set "
        "TIKTOKEN_ENCODINGS_BASE to it.",
    ),
    "transfer.nixl": (
        "NIXL, which moves KV caches between engines, could not set up or make a transfer: check "
        "that both sides have the same NIXL and UCX, reach each other's address, and that UCX_TLS "
        "and UCX_NET_DEVICES name devices that exist.",
    ),
    "adapter.failed": (
        "The adapter {adapter} could not be loaded. The exception above this line says why.",
    ),
    "args.connector": (
        "The connector in --kv-transfer-config is not one of the engine that runs, V0 or V1 (its "
        "base is not {base}): the names of V1's end in V1, as LMCacheConnectorV1 does. Let the V1 "
        "engine run (VLLM_USE_V1=1 in releases before 0.11, without options that only V0 has), or "
        "name the other connector.",
        "This release, or its V0 or V1 engine, has no KV connector {connector}: those of the V1 "
        "engine end in V1 (LMCacheConnectorV1, not LMCacheConnector), and the V0 engine has none "
        "of them. Use one that the release has in --kv-transfer-config, or change the release "
        "(VLLM_USE_V1=1 where it chose V0).",
    ),
    "args.device": (
        "The trainer (TRL) wants to give vLLM a card of its own, {device}, and there is none left. "
        'On one card let vLLM share it: vllm_device="cuda:0" with a vllm_gpu_memory_utilization of '
        '0.3 or so, in TRL from 0.17 on vllm_mode="colocate". On several cards start one process '
        "less than there are cards (--num_processes).",
    ),
    "args.adapter": (
        "The adapter (LoRA) does not fit: it has weights for parts of the model for which the "
        "engine accepts none (the line names them). Merge it into its base model, or train it "
        "without those modules; check that adapter_config.json names this base model.",
    ),
    "args.placeholders": (
        "The prompt has a different number of image, video or audio placeholders than the media "
        "that came with it: let the model's own chat template insert them, and put none into the "
        "text. If every request fails, Transformers and the engine do not fit together; while the "
        "engine starts, it is the sample by which it measures memory: raise --max-model-len above "
        "the tokens of one image, or make images smaller (max_pixels in --mm-processor-kwargs).",
    ),
    "model.adapter": (
        "If {gated} is a repository of the hub, the hub gave no config.json of it, and the release "
        "does not say why: usually the model is gated (accept its licence on its page, and give "
        "the process HF_TOKEN: docker run -e HF_TOKEN, a secret in Kubernetes), or the hub was not "
        "reached; a repository with GGUF files alone has none.",
        "{folder} has no config.json that the engine reads. If it is an adapter (LoRA): serve its "
        "base model, and pass the adapter with --enable-lora and --lora-modules. Otherwise "
        "download the model again, with config.json or params.json.",
    ),
    "backend.capability": (
        "The kernels of this quantization need compute capability {needs}, without the point, and "
        "the card has {has}: no option changes that.",
        "The card does not support the quantization {method} in this release: the line names the "
        "compute capability that it needs, without the point.",
        "Use the model in another quantization, unquantized in float16, or on another card. From "
        "6.0 on vLLM runs GPTQ with its older kernels (--quantization gptq) and GGUF, from 7.0 on "
        "bitsandbytes, from 7.5 on AWQ, from 8.0 on (newer releases 7.5) Marlin's kernels, FP8 "
        "through them, and compressed-tensors.",
        "On a card of 8.0 or newer a newer release may support it: FP8 needed 8.9 or 9.0 at first.",
    ),
    "backend.quantization": (
        "The quantization {scheme} does not compute in {dtype}, the data type that --dtype or "
        "config.json names: set --dtype to one that the line lists, usually float16.",
        "The quantization {other} does not work together with what the line names: change that, or "
        "use another quantization.",
        "No kernel for {kernel} takes these layers on this card: the line names what each of them "
        "lacks. Use another quantization or group size, fewer cards in tensor_parallel_size, or a "
        "newer release.",
        "The attention in use does not take this type of cache ({cache}): leave --kv-cache-dtype "
        "out, or choose another --attention-backend.",
        "Marlin's kernels do not take {input} input: leave that argument out, or use another "
        "quantization.",
    ),
    "backend.dtype": (
        "The card's compute capability is below {needs}, which bfloat16 needs: set --dtype float16 "
        "(half).",
    ),
    "gpu.old": (
        "This card is too old for the engine, which supports compute capability {oldest} and "
        "newer: run the model with llama.cpp or Ollama (a GGUF file), whose builds for CUDA 12 "
        "support older cards, with an older release of the engine, or use a newer card.",
    ),
    "feature.model": (
        "This release's code for {model} has no {attribute}: a setting or a request requires "
        "something that it does not support (the task, an adapter, drafts, a split, a "
        "quantization), or the release is too old. Remove it, or install a newer release.",
    ),
    "kernel.named": (
        "The kernel {kernel} does not support this model's sizes and types on this card. Quantized "
        "layers are split by tensor_parallel_size: their groups must stay whole, so use fewer "
        "cards for it (or expert parallel for experts); otherwise another quantization, another "
        "backend for the part that the line names, or a newer release.",
    ),
    "traceback.cut": (
        "The log ends within a traceback: the line that names the exception comes after it, and is "
        "missing here. Explain the whole log, or at least the lines that follow.",
    ),
    "engine.dtype": (
        "A kernel wants {wanted} and got {found}: remove --dtype, so that the engine uses the "
        "model's own type, or choose another one. Otherwise the engine has no kernel for this "
        "model, card and quantization together.",
        "A kernel does not support this data type: remove --dtype, or choose another one "
        "(bfloat16, half). Otherwise the engine has no kernel for this model, card and "
        "quantization together.",
    ),
    "engine.mismatch": (
        "{caller} passes {argument}, which the installed release of the engine does not have: the "
        "two are of different releases. Install the release of the engine that {caller} requires "
        "(its page names it; many packages install it as pip install '{caller}[vllm]'), or another "
        "release of {caller}.",
        "{later} came with a later release of the engine than the installed one: install a newer "
        "one (pip install -U vllm), which what passes it was written for.",
        "The engine dropped {gone}, which older releases had: {instead}. If it is not your own "
        "code that passes it, update the package that does, or install the older release that it "
        "requires.",
        "{callee} is of {owner}, and {renamed} is not among its arguments in the installed "
        "release: it is renamed or dropped there. See the documentation of {owner} for what that "
        "release calls it, or update {owner}; the engine has no part in it.",
        "{script} passes {argument}, which the installed release of the engine does not have: "
        "remove it there, or install the release of the engine that it was written for.",
        "{callee} does not accept the argument {argument}: it is not a setting of this release, or "
        "two packages of the installation do not fit together. Remove it, or install the engine "
        "again in its own environment.",
        "{callee} is called without {lacks}: what calls it (the last frame above shows it) was "
        "written for another release of the package that defines it. Install the release that the "
        "caller requires, or a newer release of the caller.",
        "{asks} uses {attribute} of {module}, which the installed release of {lib} lacks: it "
        "is usually older than {asks} needs, sometimes newer. Install the release of {lib} that "
        "{asks} requires (its page or `pip check` names it), or another release of {asks}.",
        "{module} has no {attribute}: two packages of the installation do not fit together. "
        "Install the engine again, in its own environment.",
        "{holder} has no {asked}: what asks for it was written for another release of the engine. "
        "Install the release that it requires, or a newer release of the caller; if the engine's "
        "own code asks, its files are of two releases, or it is a fault of this one.",
        "The called program does not accept {unknown}: the caller was written for another release. "
        "Install the release of the engine that the caller requires.",
        "Two packages of the installation do not fit together, or a setting and this release: "
        "starting again cannot help.",
    ),
    "args.named": (
        "The engine rejects a setting: {setting}. The line has the engine's reason. If no argument "
        "sets it, the value is from the model's own config.json.",
        "The settings do not go together: change {advised}, or leave out what the line names with "
        "it. The line has the engine's reason.",
    ),
    "npu.group": (
        "The NPUs cannot form their group (HCCL): check that each rank has its own device, the "
        "addresses of the devices (`hccn_tool -i 0 -ip -g`), HCCL_IF_IP and HCCL_SOCKET_IFNAME, "
        "and that all nodes have the same CANN and firmware.",
    ),
    "npu.kernels": (
        "CANN's kernels for this NPU are missing, or its environment is not set: install the "
        "kernels package (Ascend-cann-kernels) of this chip and CANN release, and source "
        "set_env.sh; older chips (310P, 910A) have no release of vLLM Ascend that supports them.",
    ),
    "npu.absent": (
        "The NPU or its driver did not answer: run `npu-smi info`, pass the devices and the driver "
        "to the container (/dev/davinci*, /usr/local/Ascend/driver), and check "
        "ASCEND_RT_VISIBLE_DEVICES.",
    ),
    "npu.failed": (
        "A kernel failed on the NPU: the lines with EZ or EE codes name the reason. Check that "
        "CANN, torch_npu and vLLM Ascend are of matching releases.",
    ),
    "gpu.uuid": (
        "This release reads CUDA_VISIBLE_DEVICES as numbers, and it names {device}: set the card's "
        "index there, give a container only the MIG slice (docker --gpus 'device=0:0'), or "
        "install a newer release.",
    ),
    "sampling.nan": (
        "The model computed no numbers (NaN or infinity): compute in bfloat16 where it runs in "
        "float16 (--dtype bfloat16), leave an 8-bit cache and a new quantization out, try another "
        "attention backend and do without CUDA graphs; dummy prompts of a benchmark do it, too. If "
        "it comes on one card alone, check its memory (nvidia-smi -q -d ECC).",
    ),
    "kernel.other-card": (
        "A kernel of this build is made for {only} alone, and the card is another one (a GB10 is "
        "sm_121, an RTX 50 sm_120).",
        "A kernel of this build uses an {conditional}, for which it was not compiled on this card "
        "(sm_120a instead of sm_120, for example).",
        "The error after it only follows. Use a newer release, or an image built for this card; "
        "until then another backend for that part (for FP8 and FP4 layers another "
        "--linear-backend or --moe-backend, or VLLM_DISABLED_KERNELS), or another quantization.",
    ),
    "kernel.deepgemm": (
        "DeepGEMM's kernels do not take this card or these sizes: do without them "
        "(VLLM_USE_DEEP_GEMM=0, SGLANG_ENABLE_JIT_DEEPGEMM=0), or install a newer release.",
    ),
    "kernel.aiter": (
        "AMD's kernels of aiter do not support the card {cards}: disable them "
        "(VLLM_ROCM_USE_AITER=0, SGLANG_USE_AITER=0), or use a build of aiter for it.",
    ),
    "torch.operator": (
        "The installed package has no {operator} for {backend}: install its build for this card "
        "and for the installed PyTorch.",
    ),
    "engine.import": (
        "The package {uninstalled} is not in the environment of the Python that ran this. If it is "
        "a package of the index, install it there (pip install {uninstalled}; it may have another "
        "name there, as partial_json_parser has), or install the program that imports it again "
        "with all its packages (extras such as 'sglang[all]' bring more).",
        "The package {distribution} is not installed in the environment of the Python that ran "
        "this, or under another name (flashinfer is flashinfer-python by now): install it there, "
        "in the release that the line or the program's own requirements name, or install the "
        "program again in its own environment.",
        "Python found a folder {namespace} without a package in it ({hidden}...): a folder named "
        "like it in the working folder or on PYTHONPATH hides the installed one, or the package is "
        "not installed, and its source tree is not where the installation expects it (an editable "
        "install whose folder a mount covers). Start in another folder, and install it again.",
        "The engine's environment does not fit it: {missing}. Install the engine again, in its own "
        "environment.",
        "The engine needs a newer {package}: install the release that its package requires.",
        "The library {library} of the engine is missing, or needs another one: install the engine "
        "again, and the CUDA libraries that it was built for.",
    ),
    "engine.absent": (
        "The engine's environment lacks something: {missing}. Install it into that environment.",
    ),
    "feature.card": (
        "The engine has no kernels for that on this card, or this build has not: a newer release "
        "may (for a new card), or another quantization, cache type or backend for the part that "
        "the line names.",
    ),
    "feature.combination": (
        "The engine does not support what the line names: a setting, a combination of settings, a "
        "part of the model, or what a request has. Remove that, or install a release that supports "
        "it.",
    ),
}
