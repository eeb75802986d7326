"""What a checkpoint holds and lacks, by the names of its tensors and its quantization: rows for
engines in Python.

An engine that misses tensors has read all files: only their names show whether one of them is
absent, or the engine reads another architecture than the one that was saved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from caovand.core.healing.failure import Finding
from caovand.engines.common.logs.signature import signature

_PART = r"(?:\w{1,60}\.){0,6}"
_OTHERS = r"(?:'[\w.]{1,200}', ){0,12}?"
_LACKS = r"(?:not|n't) initialized from (?:the )?checkpoints?: \{"
_QUANTIZED = (
    r"(?:weight_packed|(?:weight_|input_)?(?:scale|absmax|zero|g_idx|qweight|qzeros)\w{0,20})"
)
ROWS = (
    # Transformers' own quantizers, which engines do not use
    signature("model.quantizer", "cause", "backend-unsupported",
         r"^ValueError: Unknown quantization type, got (?P<quantizer>[\w.-]{1,40})"),
    signature("model.head", "cause", "bad-arguments",
         _LACKS + r"[^}]{0,200}'(?:\w{1,40}\.){0,4}"
         r"(?P<head>(?:score|classifier|classification_head|dense)(?:\.\w{1,20}){0,2}\.(?:weight"
         r"|bias))'"
         r"|no module or parameter named '(?P<scores>score|classifier|classification_head)' in "
         r"(?P<generates>\w{1,80})"),
    signature("model.lacking", "cause", "model-missing",
         _LACKS + rf"(?:'(?P<output>{_PART}lm_head\.(?:weight|bias))'\}}"
         rf"|{_OTHERS}'(?P<scale>(?:\w{{1,60}}\.){{0,12}}\w{{0,20}}(?:scale|absmax|qweight|qzeros|g_idx)\w{{0,20}})'"
         rf"|{_OTHERS}'(?P<sense>{_PART}(?:visual|vision|audio|multi_modal|mm_)\w{{0,40}}"
         r"\.[\w.]{1,200})'"
         rf"|{_OTHERS}'(?P<draft>{_PART}(?:mtp|eagle|medusa|draft)\w{{0,40}}\.[\w.]{{1,200}})'"
         r"|'(?P<lacking>[\w.]{1,200})')"),
    # What prepares images and sound is a class of Transformers, which the model's files name
    signature("model.processor", "cause", "bad-arguments",
         r"Unrecognized (?P<kind>(?:image|video|audio) processor|processing class"
         r"|feature extractor) in \S{1,300}\. (?:Should have|Can't instantiate)"
         r"|Could not find (?P<name>\w{1,80}) neither in <module 'transformers"
         r"|(?P<none>(?:[Ii]mage |[Vv]ideo )?[Pp]rocessor was not found), please check and update"),
    # vLLM before 0.5.5, and Transformers alone, read a GGUF file as if it were config.json
    signature("model.gguf.config", "cause", "bad-arguments",
         r"config file at '(?P<file>[^']{1,400}\.gguf)' is not a valid JSON"
         r"|Unknown gguf model_type: (?P<type>\S{1,60})"),
    signature("model.mistral", "cause", "bad-arguments",
         r"Failed to load mistral 'params\.json' config for model (?P<model>\S{1,300}[^\s.])"
         # releases before 0.8.5
         r"|: (?P<unread>assert isinstance\(config_dict, dict\))$"),
    signature("model.method", "cause", "bad-arguments",
         r"(?:Unknown|Invalid) quantization method: ?(?:(?P<method>[\w-]{1,60})|(?P<none>)\.)"),
    signature("model.methods", "cause", "bad-arguments",
         r"Quantization method specified in the model config \((?P<saved>[\w-]{1,60})\) does not "
         r"match the quantization method specified in the `?quantization`? argument "
         r"\((?P<passed>[\w-]{1,60})\)"),
    signature("model.tied", "cause", "model-missing",
         r"^KeyError: ['\"](?P<tensor>(?:\w{1,60}\.){0,6}lm_head\.weight)['\"]$"
         r"|no module or parameter named '?"
         r"(?P<parameter>(?:\w{1,60}\.){0,6}lm_head(?:\.weight)?)(?![.\w])"),
    # The checkpoint is whole, but the engine's class for it has no such tensor
    signature("model.tensor", "cause", "model-missing",
         r"^KeyError: ['\"]"
         r"(?=(?P<own>(?:layers\.\d{1,4}\.)(?:attention\.w[qkvo]|feed_forward\.w\d)\.weight)?)"
         r"(?=(?P<packed_by>[\w.]{0,200}\.weight\.(?:absmax|quant_map|nested_\w{1,20}|quant_state))?)"
         r"(?=(?P<plain>[\w.]{0,200}\.\w{1,12}_proj\.weight(?=['\"]))?)"
         r"(?=(?P<merged>[\w.]{0,200}(?:gate_gate_up|qkqkv|qkv_qkv)_proj)?)"
         r"(?:(?P<cache>[\w.]{0,300}\.(?:q|k|v|kv)_scale)"
         r"|(?P<scale>[\w.]{0,300}\.(?:w\d{1,2}_)?(?:weight_|input_)?"
         r"(?:scale|absmax|zero|g_idx|qweight"
         r"|perm)\w{0,20})|(?P<tensor>(?:\w{1,60}\.){1,12}\w{0,60}(?:weight|scale|bias"
         r"|absmax"
         r"|zeros?|g_idx|inv_freq|embed\w{0,20}|perm|(?<=\.)[AB])\w{0,20}"
         r"|(?:\w{1,40}\.){0,4}(?:layers|blocks|experts|h)\.\d{1,4}\.[\w.]{1,200}))['\"]$"
         r"|There is no module or parameter named '?(?:"
         r"(?=[\w.]{0,80}(?:projector|vision|visual|audio|multi_modal|lm_head|router|\.gate\.|embed))"
         rf"(?P<packed>[\w.]{{0,200}})\.{_QUANTIZED}|(?P<scales>[\w.]{{0,200}}\.{_QUANTIZED})"
         r"|(?P<peft>base_model(?:\.model)?|[\w.]{0,120}lora_[AB]\w{0,20}|[\w.]{0,120}base_layer)(?=['.])"
         r"|(?P<native>mm_(?:whisper|streams)_embeddings|tok_embeddings|patch_merger"
         r"|vision_language_adapter|pre_mm_projector_norm)(?=['.])"
         r"|(?P<fallback>[\w.]{1,200})(?=' in Transformers\w{0,40}For)"
         r"|(?P<parameter>[\w.]{1,200}))"
         r"|Unexpected key\(s\) in state_dict|Error\(s\) in loading state_dict for"
         r"|size mismatch for [\w.]{1,200}: copying a param"),
)  # fmt: skip
_MISSING = (
    "config.json names no architecture that this release of Transformers knows ({unrecognized}): "
    "what lies there is an adapter, a GGUF file, or a part of a model, config.json is incomplete, "
    "or the installed release is older than the model.",
    "There is no folder {no_folder} where this process runs, and no repository has such a name: "
    "correct the path, which counts inside a container (is it mounted there?) and on each node, or "
    "write OWNER/NAME as the hub has it.",
    "Neither a repository of the hub nor a folder with config.json or params.json is there by that "
    "name ({bare}). Correct the path, which counts inside a container (is it mounted there?), and "
    "see whether the folder has config.json: in the hub's cache that is snapshots/COMMIT; an "
    "adapter, GGUF files and models for images have none. Or write OWNER/NAME as the hub has it; a "
    "private or gated repository needs HF_TOKEN.",
    "Neither a folder of this machine nor a repository of the hub has that name ({unnamed}): "
    "correct the path, which counts inside a container (is it mounted there?), or write OWNER/NAME "
    "as the hub has it; a private or gated repository needs HF_TOKEN.",
    "The hub may not be asked ({offline}), and the cache lacks the model or a file of it: download "
    "it as this user (`hf download`; HF_HOME names the cache), or unset HF_HUB_OFFLINE and "
    "TRANSFORMERS_OFFLINE.",
    "Check the model's path ([model] path): its folder must contain config.json, the tokenizer and "
    "all weights; download missing or broken files again.",
)
_MISFIT = (
    "A tensor of the checkpoint has another shape than this release's code expects ({misfit}). "
    "The file can be read, so that fetching it again does not help.",
    "A tensor of the checkpoint has another shape than this release's code expects ({size} ...). "
    "The file can be read, so that fetching it again does not help.",
)
_CAUSES = (
    "Most probable first: config.json and weights are not of one model (a changed vocabulary, an "
    "adapter that is not merged); the weights are quantized in a way that this release does not "
    "support for this architecture, or that --quantization contradicts; the split over cards cuts "
    "a quantized group; or the release is too old."
)
_BROKEN = (
    "A file of weights is cut off or damaged ({cut}): compare its size with the hub's, check the "
    "free disk space (df -h), and download it again. A file of some hundred bytes is a pointer of "
    "Git LFS.",
    *(f"{text} {_CAUSES}" for text in _MISFIT),
)
ADVICE: Mapping[str, tuple[str, ...]] = {
    "model.code.again": (
        "vLLM had read the model's configuration with its own code before, so --trust-remote-code "
        "is not what is missing: a part of vLLM, usually the quantization's, reads the "
        "configuration again without that permission. That is a fault of this release: install a "
        "newer one.",
        "Until then use a local copy of the model without auto_map in its config.json, if the "
        "installed Transformers or vLLM knows the model's type without that code.",
    ),
    "model.quantizer": (
        "Transformers reads this checkpoint here, not the engine, and its installed release does "
        "not know the quantization {quantizer}: install a newer Transformers, or load the model "
        "with an engine's own code (vLLM, SGLang). To train, take the unquantized weights.",
    ),
    "model.missing": _MISSING,
    "sglang.model.missing": _MISSING,
    "model.broken": (
        *_BROKEN,
        "Check that the folder has config.json, the tokenizer and all weights of one revision.",
    ),
    "sglang.model.broken": _BROKEN,
    "model.head": (
        "The checkpoint has {scores}, the head of a model that classifies or scores, and was "
        "loaded as {generates}, which generates: let architectures in its config.json (or "
        "--hf-overrides) name the ...ForSequenceClassification that it was trained as, and pass "
        "--runner pooling (before 0.10 --task classify or score). If this release has no such "
        "class for the model, score with Transformers.",
        "The checkpoint has no {head}, which a model that classifies or scores needs: it is a "
        "generative one. For rerankers made of one (Qwen3-Reranker) pass --hf-overrides with the "
        "architecture ...ForSequenceClassification, classifier_from_token and "
        "is_original_qwen3_reranker, as the model's page says; otherwise remove --convert and "
        "--runner pooling.",
    ),
    "model.lacking": (
        "The checkpoint lacks only {output}, the output layer of a model that generates, so its "
        "files are complete. If the model embeds or reranks, serve it so: --runner pooling (before "
        "0.10 --task embed; SGLang: --is-embedding).",
        "The checkpoint lacks values of a quantization ({scale}): it was quantized otherwise than "
        "its config.json says, or this release does not read its scheme. Install a newer release, "
        "or use another quantization of the model.",
        "The checkpoint lacks the part that reads images or sound ({sense}): it is the text model "
        "of a multimodal architecture. Use the whole checkpoint, or name the text architecture "
        "(architectures in config.json, --hf-overrides).",
        "The checkpoint lacks the tensors of a draft model ({draft}): name a checkpoint that has "
        "them (vLLM's --speculative-config, SGLang's --speculative-draft-model-path), or do "
        "without drafts.",
        "The checkpoint has no {lacking}, which this release's code for the model requires. "
        "Compare its folder with model.safetensors.index.json: many tensors of neighbouring layers "
        "mean that a file is absent or cut off; download it.",
        "Otherwise the release reads another architecture or layout than the one that was saved: "
        "install a newer release, and see what the model's page requires (release, "
        "tie_word_embeddings or architectures in config.json).",
    ),
    "model.processor": (
        "The installed Transformers has no {kind} for this model: it is older than the model. "
        "Upgrade it (pip install --upgrade transformers) as far as the engine's release allows, or "
        "install a newer release of the engine. Otherwise preprocessor_config.json is missing or "
        "of another release: download it again.",
        "The installed Transformers has no {name}, which the model's preprocessor_config.json "
        "names: upgrade Transformers (pip install --upgrade transformers) as far as the engine's "
        "release allows; if it is newer than the model, it may have renamed the class: update the "
        "model's files, or install the Transformers that the model's page names.",
        "The installed Transformers cannot build what prepares the model's images ({none}): "
        "install the release that the model's page names (a newer one for a newer model), and "
        "check that preprocessor_config.json and the tokenizer's files are in the folder.",
    ),
    "model.gguf.config": (
        "{file} is a GGUF file, and was read as config.json: this release does not read GGUF files "
        "(vLLM from 0.5.5 on), or not in this way. Install a newer release, pass the file's path "
        "or REPOSITORY:QUANTIZATION, and --tokenizer with the base model; or serve it with "
        "llama.cpp.",
        "This release cannot load GGUF files of the model type {type}: use the model's own "
        "checkpoint (safetensors) or another quantization of it (AWQ, GPTQ, FP8), a newer release, "
        "or llama.cpp.",
    ),
    "model.mistral": (
        "No params.json could be read ({unread}): --config-format mistral, or the name of a "
        "Mistral model, lets vLLM look for Mistral's own format. For a repository with config.json "
        "alone, as quantizations by others are, pass --config-format hf (--config_format in old "
        "releases) and leave --load-format mistral and --tokenizer-mode mistral out.",
        "{model} has no params.json, so it is not in Mistral's own format: remove --config-format "
        "mistral, --load-format mistral and --tokenizer-mode mistral, which are for repositories "
        "with params.json and consolidated.safetensors; quantizations by others usually have the "
        "format of Transformers.",
    ),
    "model.method": (
        "This release does not know the quantization {method}, which it takes from "
        "quantization_config in the checkpoint's config.json (or hf_quant_config.json) unless "
        "--quantization names it: install a newer release, or a plugin or package that has it, or "
        "use another quantization of the model.",
        "The checkpoint's quantization_config names no method (quant_method in config.json is "
        "empty{none}): pass --quantization with the one that the model's page names (NVIDIA's "
        "ModelOpt: modelopt, for FP4 modelopt_fp4), write it into config.json, or install a newer "
        "release, which may recognise it.",
    ),
    "model.methods": (
        "The checkpoint is quantized with {saved}, and --quantization says {passed}: remove "
        "--quantization, since the engine reads the method from config.json.",
    ),
    "model.tied": (
        "The checkpoint has its own output layer (lm_head), and this release's code for the "
        "model has none, because config.json ties it to the embeddings (tie_word_embeddings): "
        "install a newer release, which skips it, or save the checkpoint again without it.",
    ),
    "model.tensor": (
        "{own} is a name of Mistral's own format: the folder has consolidated.safetensors besides "
        "or instead of the files of Transformers, and both or the wrong one were read. Leave it "
        "out of the download and the folder, or read that format (--tokenizer-mode mistral "
        "--config-format mistral --load-format mistral).",
        "{merged} is not a name of the checkpoint: it has the projections merged (gate_up_proj, "
        "qkv_proj), and this release's code for the model merges them itself. Install a newer "
        "release, or use a checkpoint, or a quantization of it, with separate projections.",
        "{bnb} is quantized by bitsandbytes already, and was loaded as if it were not: pass "
        "--quantization bitsandbytes --load-format bitsandbytes (in Python quantization= and "
        "load_format=) with the package bitsandbytes, or install a newer release of the engine, "
        "which reads that from config.json.",
        "{packed_by} is written by bitsandbytes: the checkpoint is quantized already. Install a "
        "newer release of the engine, which reads it for more models; older releases need "
        "--quantization bitsandbytes --load-format bitsandbytes, and no split over cards.",
        "{plain} is the plain weight of a layer that the engine set up as a quantized one: what "
        "config.json or --quantization says of the quantization does not fit the files (layers "
        "that it left out, such as modules_to_not_convert or ignore), or this release cannot "
        "quantize this model so. Remove --quantization if the checkpoint is not quantized, install "
        "a newer release, or use another quantization of the model.",
        "The checkpoint has the tensor {tensor}, which this release's code for the model does not "
        "have: the release is too old for it, or config.json belongs to another checkpoint.",
        "{scale} belongs to a quantized layer, and the engine set that layer up without "
        "quantization or by another scheme. Remove --quantization, if it is passed, so that the "
        "checkpoint's own config.json decides; otherwise this release does not support that scheme "
        "for this architecture: install a newer one, or use another quantization of the model.",
        "{cache} is a scale of a quantized KV cache, which this release does not read for this "
        "model: install a newer release, or use a checkpoint without such scales.",
        "{packed} is quantized in the checkpoint, and this release's code for the model keeps that "
        "layer in full precision (as it usually does with projectors, encoders of images or sound, "
        "output layers and routers). Quantize the model again with that layer among those to "
        "ignore (llm-compressor: ignore, as re:.*multi_modal_projector.*), or use another "
        "quantization of it, or the checkpoint without one; a newer release may read this one.",
        "{scales} is part of a quantization, which this release may not support for this "
        "architecture: try a newer release, another quantization of the model, or the checkpoint "
        "without one.",
        "{peft} is a name that PEFT gives to the tensors of a model with an adapter (LoRA): it was "
        "saved without being merged. Merge it (merge_and_unload(), then save_pretrained(); "
        "llamafactory-cli export, swift export --merge_lora true) and serve the result, or serve "
        "the base model with the adapter (--enable-lora --lora-modules NAME=FOLDER). A trainer "
        "that sends weights must send merged ones.",
        "{native} is a name of Mistral's own format, read here as if it were that of Transformers: "
        "pass --tokenizer-mode mistral --config-format mistral --load-format mistral, as the "
        "model's page says, or leave consolidated.safetensors out where the folder has both.",
        "This release has no code of its own for the model's architecture and runs it by that of "
        "Transformers, which has no {fallback}: install a newer release, or the one that the "
        "model's page names (some models bring a plugin, or code for --trust-remote-code).",
        "The checkpoint has {parameter}, which this release's code for the model does not have: "
        "config.json belongs to another checkpoint, an adapter is not merged, or the release is "
        "too old.",
        "The files are readable, so fetching them again does not help: check that config.json and "
        "the weights are of one model, and try a newer release.",
    ),
}
"""Sentences by row; one with an unknown {name} is left out."""
_BITSANDBYTES = re.compile(r"(?P<bnb>\b(?:[\w.-]{1,60}/)?[\w.-]{1,80}-bnb-4bit)\b")
_MAX_NAME = 400
_PLAIN = frozenset({"plain", "tensor"})
"""Captures of a plain weight, whose sentences take the checkpoint for one without quantization."""


def of_bitsandbytes(finding: Finding, lines: Sequence[str]) -> Finding:
    """The finding of a tensor that does not fit, with the checkpoint's name (`bnb`) if the log
    shows one that bitsandbytes wrote."""
    if finding.signature != "model.tensor" or not _PLAIN & finding.captures.keys():
        return finding
    short = (line[:_MAX_NAME] for line in lines if "-bnb-4bit" in line[:_MAX_NAME])
    named = next(filter(None, map(_BITSANDBYTES.search, short)), None)
    if named is None:
        return finding
    left = {name: value for name, value in finding.captures.items() if name not in _PLAIN}
    return replace(finding, captures={**left, **named.groupdict()})
