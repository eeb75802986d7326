"""Advice on the messages of ggml and llama.cpp's loader, for every engine based on them."""

from __future__ import annotations

from collections.abc import Mapping

OTHER_KINDS = (
    "The file is a model for images or video ({image}), which no release of llama.cpp or Ollama "
    "runs as a language model: use stable-diffusion.cpp, ComfyUI with its GGUF nodes, or in "
    "LocalAI the backend stablediffusion-ggml; text models have their own files.",
    "The file names no architecture{nameless}: another program made it, usually of an image model "
    "or its text encoder (load it as such: KoboldCpp --sdmodel, ComfyUI with its GGUF nodes, "
    "stable-diffusion.cpp), or it is a later part of a split file (name the first one), or its "
    "header is damaged.",
    "The file is a model for speech or sound ({speech}), which llama.cpp does not run: use "
    "whisper.cpp, TTS.cpp or the model's own program.",
)
"""What the architectures of other programs' GGUF files mean."""
_NO_KERNEL = (
    "The driver refuses a compiled kernel ({image}): it is older than the CUDA with which this "
    "build was compiled (nvidia-smi shows the newest that the driver supports; CUDA 13 needs 580 "
    "or newer, CUDA 12.8 needs 570), or the libraries of two installations are mixed. Update the "
    "NVIDIA driver first and reboot; else install the program again in an empty folder, or a build "
    "for an older CUDA (Ollama: the release before, llama.cpp and KoboldCpp: their cu11 or cu12 "
    "files).",
    "This build has no kernels for the card ({missing}): install a newer release; for an old card "
    "one made for an older CUDA (CUDA 13 left out Maxwell, Pascal and Volta), an older release, or "
    "the build for Vulkan.",
    "Build, driver and card do not fit together: update the card's driver, install a newer "
    "release, or a build for another backend (CUDA, ROCm, Vulkan, or the CPU).",
)
SPECIAL: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama.cuda.arch", "ollama.cuda.arch"), _NO_KERNEL),
    "ggml.busy": (
        "The card is there, and takes no other program: its compute mode is exclusive (sudo "
        "nvidia-smi -c 0), another process holds it (nvidia-smi), or the driver is in a bad state, "
        "as after an update or suspend (reboot).",
    ),
    "ggml.vulkan.none": (
        "Vulkan finds no card: `vulkaninfo --summary` must list it. Install its Vulkan driver "
        "(AMD and Intel: mesa-vulkan-drivers; NVIDIA: the driver with its GL libraries), add the "
        "user to the groups render and video, and pass /dev/dri to a container (NVIDIA: "
        "NVIDIA_DRIVER_CAPABILITIES=all). WSL has no Vulkan driver for most cards: use CUDA there.",
    ),
    "ggml.split": (
        "--split-mode tensor cannot split this model over this number of cards (its heads and "
        "blocks must divide evenly): set --split-mode layer, or use two or four cards.",
    ),
    "ggml.attention": (
        "ggml has no flash-attention kernel for this model's head sizes, cache type or card: set "
        "--flash-attn off (Ollama: OLLAMA_FLASH_ATTENTION=0) with a cache of f16, and "
        "--split-mode layer where tensors are split.",
    ),
    "ggml.exception": (
        "The program ended by a C++ exception that nothing caught ({exception}): a fault of this "
        "release, or a case that it does not handle. What led to it is not in this line; a line "
        "that begins with what() has its text. Try another release, and see what the lines before "
        "show.",
        "The program ended by a C++ exception that nothing caught ({type}): a fault of this "
        "release, or a case that it does not handle. What led to it is not in this line; a line "
        "that begins with what() has its text. Try another release, and see what the lines before "
        "show.",
        "The program ended itself {nameless} a reason in these lines: see the ones before, and try "
        "another release.",
    ),
    "ggml.aborted": (
        "The program aborted itself. The check or error that made it do so is printed before the "
        "backtrace, and is not in these lines: explain the lines above, too, or try another "
        "release.",
    ),
    "ggml.assertion": (
        "A check in the program's own code failed. That is a fault of this release with this model "
        "or these settings, not of the card: install a newer release (or an older one, if it began "
        "with an update). Until then avoid rarely used features: several slots (-np, --parallel 1 "
        "instead), drafts, quantized caches, --flash-attn, a split over cards.",
    ),
    "ggml.operation": (
        "A backend has no implementation of an operation of this model: install a newer release "
        "or another backend's build, or keep the layers off the card (-ngl 0).",
    ),
    "ggml.backend.none": (
        "The program found no library of a backend, not even the one of the CPU "
        "(libggml-cpu-*.so, ggml-cpu-*.dll): they belong in the folder of the program, or in "
        "GGML_BACKEND_PATH. Install one release's whole package again.",
    ),
    "ggml.template.go": (
        "The chat template is one of Ollama's ({{{{ .System }}}} is Go's language), and llama.cpp "
        "reads Jinja: it uses chatml in its place, which fits few models. Leave the template out "
        "(--chat-template, --chat-template-file, or the program's own setting), so that the one in "
        "the GGUF file counts, or pass the model's Jinja template from the hub "
        "(tokenizer_config.json or chat_template.jinja). RamaLama and others copy it from Ollama's "
        "registry: pull the model from the hub (hf://) instead, or update them.",
    ),
    "ggml.template.items": (
        "The chat template goes through the arguments of a tool call as a mapping, and they arrive "
        "as text: OpenAI's API has them as a string of JSON. Install a newer release of the "
        "engine, which parses them first; until then set a template that takes both "
        "(--chat-template-file), or let the client, or the code that applies the template, pass "
        "the arguments parsed (json.loads).",
    ),
    "ggml.template": (
        "The model's chat template uses what the template engine of this release lacks ({lacks}): "
        "install a newer release of llama.cpp (or of the program that brings it), or set another "
        "template (--chat-template-file).",
    ),
    "ggml.parser": (
        "The server's parser of a streamed answer fell over what the model wrote ({why}), and took "
        "the server down: a fault of this release. Update it; until then start it without --jinja, "
        "or with --reasoning-format none.",
    ),
    "ggml.what": (
        "The program ended by a C++ exception that nothing caught. Its text is: {why}. It is a "
        "fault of this release, or a case that it does not handle: search its issues for the "
        "text, and try another release.",
    ),
    "ggml.backend": (
        "Windows did not load the backend {dll}, usually because libraries that it needs are "
        "missing: for CUDA unpack the archive cudart-llama-bin-win-cuda-* of the same release into "
        "this folder (or install that CUDA), for the card its current driver; and the newest "
        "Visual C++ Redistributable.",
        "A backend's library does not match the program: remove it, and install one release's "
        "files only.",
    ),
    "ggml.rpc": (
        "A node that runs rpc-server does not answer, or crashed: start it again, with the same "
        "release of llama.cpp on all nodes.",
    ),
    "llama.model.split": (
        "The header of {misnamed} says that it is one of several parts, and its name does not end "
        "in -00001-of-0000N.gguf, from which llama.cpp derives the names of the others: it was "
        "renamed, or the parts were concatenated with cat, which makes no whole file. Keep the "
        "parts under their own names in one folder, and pass the first. To have one file: "
        "llama-gguf-split --merge FIRST-PART MERGED.gguf.",
        "The file is not the first of its parts ({later}): pass the one whose name has "
        "-00001-of-, with the others next to it.",
        "Parts of a split GGUF file are missing, or do not belong together ({parts}): download all "
        "of one release, and pass the first part.",
        "The part {path} of a split GGUF file is missing or cannot be read: download all parts of "
        "one release into one folder under their own names, and pass the first.",
    ),
    "llama.model.projector.type": (
        "The program does not know the projector's type, and so is older than the model; the file "
        "(mmproj) is whole, and another copy of it does not help. Install a newer release of "
        "llama.cpp, or of the program that brings it (LM Studio, KoboldCpp, llama-cpp-python).",
    ),
    "llama.model.projector": (
        "The multimodal projector (mmproj) is missing, damaged, or newer than this release: "
        "download it with its model, or install a newer release.",
    ),
    "llama.model.converted": (
        "The file lacks what this release needs of it (a tokenizer, metadata, the form of "
        "attention) or has damaged values: it is only a part (a projector, vocabulary or draft), "
        "or was converted by an older tool. Download a current file, or convert it again.",
    ),
    "llama.model.clip": (
        "The file that is named as the model is its projector: name the model's own file with -m, "
        "and this one with --mmproj.",
    ),
    "llama.model.unpaired": (
        "The projector (mmproj) belongs to another model: use the one published with the model.",
    ),
    "llama.file.magic": (
        "The file is a GGUF file (its magic {gguf} spells GGUF), and the program that reads it is "
        "older than that format (August 2023): update the program, not the file "
        "(llama-cpp-python, LLamaSharp or another binding: its current release; an image: pull the "
        "current one from where its project publishes now; a folder that was built again may still "
        "hold an old `main`: run llama-cli or llama-server).",
        "The file has a format from before GGUF (August 2023; magic {old}), which current programs "
        "do not read, and old ones only in their own variant: use a GGUF file of the model with a "
        "current release of the program.",
        "The file is a pointer of Git LFS (magic {pointer}, a text of some 130 bytes): fetch the "
        "model itself (`git lfs install && git lfs pull`, or `hf download`).",
        "The file is an archive of PyTorch (magic {zip}: .bin, .pt or .pth), not GGUF: convert the "
        "model's folder with convert_hf_to_gguf.py, or download a GGUF file.",
        "The file is a text that a server sent in place of the model (magic {page}: a page, or an "
        "error such as a missing login): see what it says, and download the model again.",
        "The file begins with zeros ({zeros}): its download was not completed. Download it again.",
        "What the path names is no GGUF file (it begins with {magic}): a folder, a pointer of Git "
        "LFS, a web page, another format such as safetensors, or a damaged download. `head -c 4` "
        "must print GGUF: download a GGUF file of the model, or convert it.",
    ),
    "llama.model.version": (
        "The program is older than the file's format (version {newer}): update the program, or the "
        "package or image that brings it.",
        "The file has the first version of the format ({first}), which is no longer read: download "
        "a newer GGUF file.",
        "The file was made for CPUs of the other byte order (its version reads as "
        "{swapped}): download or convert one for this machine.",
        "The file's format is too old, too new, or not GGUF ({other}): download a current GGUF "
        "file.",
    ),
    "llama.model.type": (
        "The file has tensors in a quantization that this release does not support: install a "
        "newer release, or download another quantization.",
    ),
    "llama.model.other": (
        "The loader gave up for this reason: {why}. If that names the file, download it again; if "
        "it names the model's format, use a newer release first.",
    ),
    "llama.draft.vocabulary": (
        "The draft model's vocabulary differs from the model's: use one of the same family, or "
        "remove it.",
    ),
    "llama.model.architecture": (
        *OTHER_KINDS,
        "This release of the engine does not support the architecture {architecture}: install a "
        "newer release, or use another model.",
    ),
    "llama.model.tokenizer": (
        "This release of the engine cannot use the file's tokenizer: install a newer release, or "
        "download a newer file.",
    ),
    "llama.cache.flash": (
        "A quantised cache for values needs flash attention, which is off, or which this model or "
        "card does not support: turn it on (--flash-attn on; Ollama: OLLAMA_FLASH_ATTENTION=1), or "
        "keep the cache in f16 (--cache-type-v f16; Ollama: unset OLLAMA_KV_CACHE_TYPE).",
    ),
    "llama.metal": (
        "Metal cannot compile or start llama.cpp's kernels on this Mac: install the newest release "
        "first, as a new CPU or macOS needs it (as Apple's M5 does; in Ollama a tag with mlx "
        "uses other kernels), then update macOS. A build of your own must embed its kernels "
        "(GGML_METAL_EMBED_LIBRARY). Until then keep the layers off the card (-ngl 0; Ollama: "
        "num_gpu 0), as on Macs without Apple's own CPU.",
    ),
    "llama.model.tensor": (
        "The file has no {weightless}, with which every model begins, so it is none by itself: a "
        "vocabulary for tests (ggml-vocab-*.gguf of llama.cpp's repository), a projector (mmproj), "
        "an adapter, or a later part of a split file. Name the model's own file.",
        "File and program do not agree on the model's tensors: the program may be older than the "
        "file's architecture, or the file older than the program, or damaged. Use a newer release "
        "first (llamafile, LM Studio and others bring their own llama.cpp); then download a newer "
        "file.",
    ),
    "llama.model.shape": (
        "The file has {one_more} tensors, one more than the program makes use of: its llama.cpp is "
        "older than the file, and lacks a tensor that the model's converter writes since (of Llama "
        "3.1 and its kin rope_freqs, read since the end of July 2024). Update the program first; "
        "another file does not help.",
        "The file has {of_file} tensors, and this release of the program makes use of {got}. If "
        "{of_file} is more, the file holds a part that it does not know: in blobs of Ollama the "
        "vision part lies in the same file, others hold layers for drafts. Use a GGUF file that "
        "was made for llama.cpp (with its mmproj apart), or a newer release. If it is less, the "
        "file is damaged or older than the program: download it again.",
        "File and program do not agree on the model's sizes: use a newer release, then a newer "
        "file of the model, or one made by llama.cpp's convert_hf_to_gguf.py (other tools, "
        "Ollama's own import among them, write wrong sizes for some models).",
    ),
    "llama.gpt4all": (
        "GPT4All cannot use {file}, and this text does not show why: this release may be older "
        "than the model's architecture or quantization, the file may be damaged or for embeddings "
        "only, or memory is short. Update GPT4All, compare the file's size or checksum with its "
        "page, and try a model of its own list.",
    ),
    "llama.model.key": (
        "The file lacks {key}: it was made for another release of llama.cpp. Use a newer release, "
        "or download a newer file.",
    ),
}
"""Sentences by signature; one with an unknown {name} is left out."""
