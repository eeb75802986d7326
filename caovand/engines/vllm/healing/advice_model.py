"""Advice on vLLM's messages about the model: its code, its files, an adapter, its drafts."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.engines.common.logs.rows import checkpoint, python_advice
from caovand.engines.common.logs.rows.model_types import NEWER_ENGINE

_IMAGES = (
    "{images} makes images, video or sound: its files are laid out for Diffusers "
    "(model_index.json), and vLLM alone does not serve them. Install vllm-omni, in the release "
    "that belongs to the installed vLLM (an older vLLM ignores it), and serve the model with "
    "--omni, or use Diffusers or another server for such models."
)
SPECIAL: Mapping[str, tuple[str, ...]] = {
    "args.template": (
        "{coded} has no chat template: it formats chats by code, which vLLM brings as a tokenizer "
        "mode. Start it with --tokenizer-mode {mode}, in a release that knows that mode (a newer "
        "one chooses it by itself), or pass a template with --chat-template.",
        *python_advice.ADVICE["args.template"],
    ),
    "transformers.model": NEWER_ENGINE,
    "model.uninspected": (
        "{hears} hears, and vLLM's code for it needs packages for audio, which a plain "
        'installation or image lacks: pip install "vllm[audio]" (for Mistral\'s models also '
        '"mistral-common[audio]"), in an image by a Dockerfile of two lines.',
        "{speaks} is served by vllm-omni: start it with --omni, in the release of vllm-omni that "
        "belongs to the installed vLLM; an older one does not know it.",
        'vLLM could not import its own code for {architecture}: the lines before "Error in '
        'inspecting model architecture" say why, usually that a package of its environment is '
        "missing or does not fit. Explain the whole log; without them, install the engine again, "
        "in its own environment.",
        "vLLM could not import its own code for this model, whose architecture it may support: "
        "the error output below this line shows the reason, usually that a package of its "
        "environment is missing.",
    ),
    "model.architecture": (
        "This release of vLLM does not support the architecture {architecture}: install a newer "
        "release (its list of supported models names the architecture), or use another model.",
        "This release of vLLM has no code for {unlisted}, and Transformers and the model's own "
        "files have none either: install a newer release, whose list of supported models has it, "
        "or use another model.",
        "This release of vLLM has no code for {absent}, and cannot run that of Transformers "
        "instead: install a newer release, whose list of supported models has it, or use another "
        "model. No variable changes that.",
        "{body} is a model without the head that generates. If the model embeds, install a "
        "newer release and serve it with --runner pooling (before 0.10 --task embed). If it "
        "generates, the tool that saved it wrote the wrong class: put the one that the base "
        "model's config.json has into architectures (as ...ForConditionalGeneration or "
        "...ForCausalLM).",
        "Transformers' code for {unfit} cannot run in vLLM: remove --model-impl transformers, "
        "install newer releases of vLLM and Transformers, or use another model.",
    ),
    "model.missing": (_IMAGES, *checkpoint.ADVICE["model.missing"]),
    "model.untyped": (
        "vllm-omni found neither config.json nor model_index.json for {untyped}, so that it does "
        "not know what that is: the download is incomplete or was refused (HF_TOKEN for a gated "
        "model), the repository is laid out for another program (compare with its page), or this "
        "release of vllm-omni does not know it yet.",
    ),
    "model.config": (
        _IMAGES,
        "vLLM found neither config.json nor params.json under the model's name or path. Compare "
        "with the files that the model's page lists.",
        "If the page has config.json: the path is not the folder that holds it (in the hub's cache "
        "that is snapshots/COMMIT), is not mounted in the container, or its download is "
        "incomplete; or the hub was not reached or refused (HF_TOKEN, HF_HUB_OFFLINE).",
        "If it has none: an adapter (LoRA) needs its base model (--enable-lora --lora-modules), "
        "GGUF files need the name of one of them with --tokenizer, and what has model_index.json "
        "makes images or video, which vllm-omni serves, not vLLM.",
    ),
    "drafts.vocabulary": (
        "The model has {target} tokens in its vocabulary (vocab_size in config.json), the draft "
        "model {drafts}.",
        "Model and draft model differ in the size of the vocabulary (vocab_size in config.json), "
        "which this release refuses. Name a draft model of the same family and vocab_size in "
        "--speculative-config (sizes of one family may be padded differently, as Qwen's of 7B and "
        "more are), draft without a model (method ngram, or the model's own MTP or EAGLE), or "
        "remove --speculative-config. Newer releases take use_heterogeneous_vocab there.",
    ),
    "adapter.missing": (
        "The adapter (LoRA) {folder} is not a folder with adapter_config.json on this machine: "
        "download it (`hf download`), and pass the folder (--lora-modules NAME=FOLDER); older "
        "releases take no name of a repository there.",
        "The adapter (LoRA) {place} has no adapter_config.json: correct its path, or download it "
        "again.",
        "{nowhere} is no adapter (LoRA) on this machine: correct --lora-modules (NAME=FOLDER, the "
        "folder that has adapter_config.json, mounted in the container), or download it.",
    ),
    "args.tokenizer": (
        "This release of vLLM has no tokenizer mode {mode}: install a newer release, which the "
        "model's page names. Without the mode chats fail if the model has no template.",
    ),
}
"""Sentences by signature; one with an unknown {name} is left out."""
