"""The class of an exception without a row, by the code that raised it.

A traceback shows that code even if its text is new. The nearest frame that a family knows decides.
This is a class of failure, not a cause: the line itself has the program's reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caovand.core.healing.failure import Failure
from caovand.engines.common.logs.callers import ENTRY, package_of
from caovand.engines.common.logs.rows.python import REFUSES, UNSURE
from caovand.engines.common.logs.signature import SERVED, Signature, signature

MAX_DEPTH = 12
"""Maximum frames from the exception outwards: those farther out only wait for it."""
_ANY = r"(?:\w{1,60}\.){0,6}\w{0,60}(?:Error|Exception)\b"
_REFUSED = r"(?:Value|Type|Key|Attribute|Assertion|NotImplemented|Index|Runtime)Error\b"
_MISFIT = (
    r"(?:Key|Assertion|Value|Index)Error\b"
    r"|RuntimeError: (?:The size of tensor|start \(\d+\) \+|shape |.{0,80}\bsize mismatch)"
)
_CONFIGURED = r"(?:\w{1,60}\.){0,4}(?:\w{1,60}(?:Validation|Import)|Recursion)Error\b|Exception\b"
_LOADING: Mapping[str, Failure] = {
    **SERVED,
    **dict.fromkeys(("profile", "compile", "kv", "capture", "warmup"), "unknown"),
}


@dataclass(frozen=True)
class Family:
    """Exceptions of one kind of code: `row` matches their text, `frames` a frame `file:function`.

    `nearest` families count only for the frame that raised it.
    """

    row: Signature
    frames: re.Pattern[str]
    advice: str
    nearest: bool = False


def _family(
    id: str,
    failure: Failure,
    frames: str,
    text: str,
    advice: str,
    by_phase: Mapping[str, Failure] = SERVED,
    nearest: bool = False,
) -> Family:
    row = signature(f"raised.{id}", "generic", failure, text, by_phase)
    return Family(row, re.compile(frames), advice, nearest)


FAMILIES: tuple[Family, ...] = (
    _family(
        "import", "bad-arguments",
        r"/(?:site|dist)-packages/[^:]{1,200}:<module>$",
        _ANY,
        "A package of the engine's environment cannot be imported: its packages do not fit "
        "together. Install the engine again, in its own environment.",
        nearest=True,
    ),
    _family(
        "packages", "bad-arguments",
        r"(?:^|/)(?:transformers|kernels|tokenizers|accelerate|diffusers|peft|huggingface_hub"
        r"|torchvision|torchaudio|torchao|triton|xformers|flash_attn|bitsandbytes"
        r"|compressed_tensors"
        r"|gradio|numba|scipy|sklearn|pandas)/[^:]{0,200}:<module>$",
        _ANY,
        "The package {importing} cannot be imported: the installed {raising} refuses its request. "
        "Their releases do not fit together: install the release of {raising} that {importing} was "
        "made for, or the engine again with all its packages in its own environment.",
    ),
    _family(
        "toolchain", "jit-toolchain",
        r"/(?:flashinfer/jit/|flashinfer_jit|deep_gemm/jit|tilelang/(?:jit|contrib|cache)/"
        r"|tvm_ffi/cpp"
        r"|triton/runtime/build\.py|torch/utils/cpp_extension\.py|sglang/jit_kernel/utils)",
        _ANY,
        "A kernel could not be built on this machine: the lines before have the compiler's "
        "message. Check gcc, ninja and a CUDA toolkit (nvcc) that fits the driver and PyTorch.",
    ),
    _family(
        "driver", "gpu-absent",
        r"/(?:torch/cuda/__init__\.py:(?:_lazy_init|init|set_device|get_device_\w{1,30}"
        r"|device_count"
        r"|current_device|_get_nvml\w{0,30})|pynvml\.py:|amdsmi/)",
        _ANY,
        "The driver or a card did not answer as expected: run nvidia-smi, compare the driver's "
        "CUDA release with that of PyTorch, and check CUDA_VISIBLE_DEVICES.",
        {},
    ),
    _family(
        "group", "bad-arguments",
        r"/(?:vllm/distributed/(?:parallel_state|utils)\.py"
        r"|sglang/srt/distributed/parallel_state\.py"
        r"|torch/distributed/(?:rendezvous|distributed_c10d)\.py)",
        r"(?:Value|Assertion|Key|Type)Error\b",
        "The ranks cannot be grouped as requested: check the parallel sizes against the cards and "
        "nodes, and the address and ranks of each.",
    ),
    _family(
        "collective", "collective-timeout",
        r"/(?:torch/distributed/|vllm/distributed/|sglang/srt/distributed/)",
        r"(?:\w{1,40}\.){0,5}(?:Runtime|Timeout|Connection|Dist\w{1,20}|OS)Error\b",
        "The ranks could not connect or exchange data: NCCL_DEBUG=INFO names the reason. Check "
        "the interface (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), /dev/shm, and peer access "
        "(NCCL_P2P_DISABLE=1).",
    ),
    _family(
        "ray", "node-lost",
        r"/ray/(?:_private|util|client|_raylet|air)",
        r"(?:Runtime|Timeout|Connection|Value|OS|System)Error\b|Exception\b",
        "Ray could not be started or reached: check `ray status`, that every node has the same "
        "release of Ray and Python, and RAY_ADDRESS.",
    ),
    _family(
        "hub", "network",
        r"/(?:huggingface_hub|hf_transfer|hf_xet|modelscope/hub|requests|urllib3|httpx|httpcore"
        r"|aiohttp)/",
        r"(?:\w{1,40}\.){0,5}(?!(?:Value|Type|Key|Attribute|Assertion|Index|File\w{1,20})Error)"
        r"\w{0,60}(?:Error|Exception|Timeout)\b",
        "The model hub was not reached, or refused: check the network, the proxy, HF_TOKEN and "
        "HF_ENDPOINT; a model that is downloaded needs HF_HUB_OFFLINE=1 or its local path.",
    ),
    _family(
        "weights", "model-missing",
        r"/(?:vllm/(?:model_executor|models)|sglang/srt)/[^:]{1,120}:\w{0,40}"
        r"(?:load_weights|weight_loader|load_\w{0,40}weight|weights_iterator)",
        _MISFIT,
        "The checkpoint's tensors do not match this release's reading of config.json: check that "
        "both are of one model and revision, then try a newer release, or another quantization.",
        _LOADING,
    ),
    _family(
        "aiter", "backend-unsupported",
        r"(?:^|/)aiter/",
        r"(?:Runtime|Value|Assertion|Type|NotImplemented|Index)Error\b",
        "AMD's kernels of aiter do not support this card or these sizes: disable them "
        "(VLLM_ROCM_USE_AITER=0, SGLANG_USE_AITER=0; single ones have variables such as "
        "VLLM_ROCM_USE_AITER_MOE), or use the release of aiter that the engine requires.",
    ),
    _family(
        "kernel", "backend-unsupported",
        r"/(?:vllm/_custom_ops\.py|torch/_ops\.py|flashinfer/|flash_attn|vllm_flash_attn|flash_mla"
        r"|triton/(?:compiler|runtime|language|backends)/|triton_kernels/|xformers/ops|deep_gemm/"
        r"|sgl_kernel/|bitsandbytes/|mamba_ssm/|causal_conv1d"
        r"|vllm/(?:v1/)?attention/(?:backends|ops|layer|selector)"
        r"|vllm/model_executor/(?:layers/(?:fused_moe|quantization|fla|mamba)|kernels)/"
        r"|vllm/models/[^:]{1,60}/(?:ops|kernels)/"
        r"|sglang/srt/layers/(?:attention|moe|quantization)/)"
        r"|:process_weights_after_loading$",
        _REFUSED,
        "A kernel does not support this model's sizes and types on this card: choose another "
        "backend for the part that the line names, remove quantized caches and dtypes, or "
        "install a newer release.",
    ),
    _family(
        "stream", "bad-arguments",
        r"/(?:vllm/(?:entrypoints/openai/)?tool_parsers|sglang/srt/function_call)/[^:]{1,80}:"
        r"(?:extract|parse|detect|_?handle)\w{0,60}$"
        r"|:chat_completion_(?:stream|full)_generator$",
        r"(?:Index|Key|Value|Type|Attribute|Assertion)Error\b|json\.decoder\.JSONDecodeError\b",
        "What the model wrote could not be read as a tool call or as reasoning: pass the "
        "--tool-call-parser and --reasoning-parser that the model's page names. If they are, it is "
        "a fault of this release's parser: install a newer one, or let the client not stream. The "
        "server goes on.",
    ),
    _family(
        "request", "bad-arguments",
        r"/vllm/(?:multimodal/|inputs/|renderers/|v1/(?:structured_output/"
        r"|engine/(?:input_)?processor\.py)|(?:model_executor/)?models/[^:]{1,80}:"
        r"(?:_parse_and_validate\w{1,40}|get_placeholder_str|_?(?:apply|call)_hf_processor\w{0,20}"
        r"|get_replacement\w{0,20}|get_generation_prompt)"
        r"|entrypoints/(?:llm\.py:(?!__init__|from_)|chat_utils|openai/serving))"
        r"|/sglang/srt/(?:multimodal/|managers/(?:tokenizer_manager|mm_utils)\.py)",
        _ANY,
        "A request was refused, or the sample with which the engine measures its memory: the "
        "line says why. Check the prompt's placeholders, images and length against the model, "
        "and that Transformers is the release that the engine requires.",
    ),
    _family(
        "model", "bad-arguments",
        r"/(?:vllm/(?:model_executor/(?:models|layers)|models)|sglang/srt/(?:models"
        r"|layers))/[^:]{1,120}:"
        r"(?:__init__|_init\w{0,40}|create_weights|get_quant_method|make_layers|from_config"
        r"|\w{0,40}<lambda>)",
        _REFUSED,
        "This release's code for the model cannot be built with its config.json and these "
        "settings: check that the checkpoint is complete and of this architecture, remove "
        "quantization, LoRA and drafts, or install a newer release.",
    ),
    _family(
        "adapter", "bad-arguments",
        r"/(?:vllm|sglang/srt)/lora/(?!ops/)|:_?load_adapter$",
        _REFUSED,
        "The adapter (LoRA) does not fit the model or the settings: the line says how. Compare "
        "adapter_config.json (base model, rank, target modules) with the model and "
        "--max-lora-rank, or merge the adapter into its base model.",
    ),
    _family(
        "drafter", "bad-arguments",
        r"/(?:vllm/v1/(?:spec_decode|worker/gpu/spec_decode)|sglang/srt/speculative)/[^:]{1,80}:"
        r"(?:__init__|load_\w{0,20}model|create_\w{1,40}|_maybe_share_\w{1,40}|validate_\w{1,60}"
        r"|_?init_\w{1,40})$",
        _REFUSED,
        "The draft model or the method of speculation does not fit this model and release: remove "
        "--speculative-config, or use the drafts that the model's page names.",
    ),
    _family(
        "connector", "bad-arguments",
        r"/vllm/distributed/(?:kv_transfer|ec_transfer|kv_events|weight_transfer)[/.][^:]{0,120}:"
        r"(?:__init__|create_connector\w{0,20}|get_connector\w{0,40}|register_\w{1,40}"
        r"|_?init_?\w{0,40}|_?validate_\w{1,40})$",
        _REFUSED,
        "The transfer of KV caches cannot be set up as configured: check --kv-transfer-config "
        "(connector, role, ports, its extra settings) and that the connector's package fits.",
    ),
    _family(
        "compiling", "compile-failed",
        r"/(?:vllm/compilation/|torch/_(?:dynamo|inductor|functorch)/)",
        _REFUSED,
        "Compiling the model failed: the line says where. --enforce-eager avoids it; "
        "clearing the compile cache (~/.cache/vllm) helps after an update.",
    ),
    _family(
        "configuration", "bad-arguments",
        r"/(?:vllm/(?:engine/arg_utils\.py|config[./]|transformers_utils/|tokenizers?/"
        r"|envs\.py|platforms/|utils/(?:argparse|numa|network|torch)_utils\.py"
        r"|model_executor/model_loader/[^:]{1,60}:(?:__init__|get_\w{1,40}|validate_\w{1,40}"
        r"|_prepare_weights|_render\w{1,40})$|v1/(?:executor/(?:ray|abstract)|core/kv_cache_utils"
        r"|kv_cache_interface|sample/logits_processor/|worker/(?:utils\.py|block_table))"
        r"|entrypoints/(?:cli/|openai/cli_args|utils)|reasoning/|tool_parsers/|plugins/)"
        r"|sglang/srt/(?:server_args\.py|configs/|(?:utils/)?hf_transformers|parser/)"
        r"|transformers/(?:models/auto/|(?:\w{1,60}_)?\w{1,60}_utils\w{0,20}\.py"
        r"|(?:models/\w{1,60}/)?(?:configuration|tokenization|processing|image_processing"
        r"|video_processing|feature_extraction)_)|transformers_modules/[^:]{1,200}config"
        r"|mistral_common/|tokenizers/|tiktoken/|sentencepiece/|pydantic/)"
        r"|:create_engine_config$",
        rf"{REFUSES.pattern}|{_CONFIGURED}",
        "Code that reads the engine's arguments and environment, or the model's configuration and "
        "tokenizer, failed: the line has its reason, and another start ends the same way. Only the "
        "line shows whether one of them or a package's release is at fault.",
    ),
    _family(
        "template", "bad-arguments",
        r"/(?:jinja2/|sglang/srt/managers/template_manager\.py"
        r"|sglang/srt/(?:parser/)?(?:conversation"
        r"|jinja_template_utils)\.py)",
        _ANY,
        "The chat template cannot be used: pass your own with --chat-template, or correct "
        "chat_template in the model's tokenizer_config.json (one template as text, not several).",
    ),
)  # fmt: skip
REFUSED_VALUE = signature(
    "raised.value", "generic", "bad-arguments",
    r"ValueError: (?!.{0,200}\b(?:leak|corrupt|bug|unexpected|internal))(?:\S{1,100} ){2}", UNSURE,
)  # fmt: skip
"""A message about a value, without a frame that shows which code printed it."""
_PACKAGES = next(family for family in FAMILIES if family.row.id == "raised.packages")
ROWS: tuple[Signature, ...] = (*(family.row for family in FAMILIES), REFUSED_VALUE)
ADVICE: Mapping[str, tuple[str, ...]] = {
    **{family.row.id: (family.advice,) for family in FAMILIES},
    "raised.packages": (
        _PACKAGES.advice,
        "Install all packages of the engine's environment in the releases that it requires.",
    ),
    "raised.value": (
        "A value was refused: the line has the reason. Without the lines before it it is unclear "
        "whether it is a setting, a file of the model, a request, or a package that does not fit.",
    ),
}
BUILDING = frozenset({"raised.model", "raised.configuration", "raised.weights", "raised.template"})
"""Families of code that reads and builds: it fails the same way at every start."""


def packages(frames: Sequence[str]) -> Mapping[str, str]:
    """The package whose import failed, and the one that refused it, by the frames."""
    imports = [frame for frame in frames[-MAX_DEPTH:] if _PACKAGES.frames.search(frame)]
    if not imports:
        return {}
    importing, raising = package_of(imports[-1]), package_of(frames[-1])
    known = importing and raising and importing != raising
    return {"importing": importing, "raising": raising} if known else {}


def family_of(frames: Sequence[str], text: str) -> Signature | None:
    """The row of the family to which an exception belongs, by its frames; the last one raised
    it."""
    for place, frame in enumerate(reversed(frames[-MAX_DEPTH:])):
        for family in FAMILIES:
            if place and family.nearest:
                continue
            if family.frames.search(frame) and family.row.pattern.match(text):
                return family.row
    unseen = not frames or "/" not in frames[-1] or ENTRY.search(frames[-1])
    return REFUSED_VALUE if unseen and REFUSED_VALUE.pattern.match(text) else None
