"""Advice on the packages, scripts and programs around llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping

PYTHON: Mapping[str, tuple[str, ...]] = {
    "llama.python.load": (
        "llama-cpp-python could not load the file, and hid llama.cpp's reason: pass verbose=True "
        "to see it. The path may be wrong, the file damaged, or in a format or architecture that "
        "only another release of the package supports; or memory is short.",
    ),
    "llama.python.unread": (
        "llama-cpp-python could not load the file, and does not say why. The most common reason: "
        "a file from before August 2023 (ggml in its name, or .bin at its end), which releases "
        "since 0.1.79 do not read: download the model as GGUF, and update the package. Or the "
        "package is older than a GGUF file's architecture, the download is damaged, or memory is "
        "short; verbose=True shows llama.cpp's own reason.",
    ),
    "llama.python.cards": (
        "The installed package has no support for cards: install it again for CUDA, ROCm or Metal "
        "(CMAKE_ARGS=-DGGML_CUDA=on, or a prebuilt wheel).",
    ),
    "llama.convert.tokenizer": (
        "The conversion finds no tokenizer in the model's folder that it can use: copy "
        "tokenizer.json, tokenizer_config.json and, where the base model has one, tokenizer.model "
        "from the base model into it, and use convert_hf_to_gguf.py of the newest llama.cpp.",
    ),
    "llama.convert.quantized": (
        "The model is quantized already ({quantized}; GPTQ, AWQ, bitsandbytes or the like), which "
        "the script does not convert: convert the original with full weights (merge an adapter "
        "into that), then quantize the result with llama-quantize.",
    ),
    "llama.convert": (
        "This release of the conversion script does not support the model: use "
        "convert_hf_to_gguf.py of the newest llama.cpp with its own gguf package, and all files of "
        "the model; if that does not support it either, search for a GGUF file that others made.",
    ),
    "llama.backend.missing": (
        "The program does not find its own llama.cpp: install or choose a backend in its settings,"
        " or install the program again.",
    ),
    "llama.kobold.image": (
        "The image model could not be set up: pass all files that its kind needs (VAE, T5, CLIP),"
        " and do not load an image model as a text model.",
    ),
    "llama.kobold.screen": (
        "There is no screen ({why}): pass the model and options on the command line instead.",
    ),
    "llama.python.library": (
        "The library {library} of the Python package is missing, or needs another one (CUDA, ROCm, "
        "Visual C++ runtime, libgomp) that is: install the package again, or a prebuilt wheel for "
        "this CUDA, and the runtime it was built for.",
    ),
    "llama.llamafile.large": (
        "Windows does not run a program of more than 4 GiB, which most llamafiles with a model in "
        "them are: download the llamafile program alone (llamafile.exe from its releases), and "
        "pass the file as the model: llamafile.exe -m FILE.llamafile.",
    ),
    "llama.python.ggml": (
        "{path} is, by its name, a file in the format before GGUF (August 2023), which "
        "llama-cpp-python reads no more since 0.1.79: download a GGUF file of the model. If the "
        "path itself may be wrong, see that the file is there.",
    ),
    "llama.python.windows": (
        "Windows does not find a library that {library} needs, usually one of CUDA: the folder bin "
        "of the CUDA release for which the package was built must be on PATH, and CUDA_PATH must "
        "name that release (a new console after its installation); the Visual C++ Redistributable "
        "and, for a build with MinGW, its own libraries must be there, too. If no such toolkit is "
        "wanted, install a wheel for the CPU, or one for the CUDA that is there.",
    ),
    "llama.python.package": (
        "text-generation-webui could not import llama-cpp-python, which has {attribute}: its wheel "
        "is missing, or does not fit this Python, system or CPU. Run the update script "
        "(update_wizard_*), or install its requirements file that fits this machine again; on a "
        "processor without AVX2 the one with noavx2. `python -c 'import llama_cpp'` in its "
        "environment prints the reason.",
        "The Python package that has the module {module} is not in the environment that runs: "
        "llama_cpp is of llama-cpp-python (pip install llama-cpp-python, or a prebuilt wheel for "
        "this CUDA); llama_cpp_binaries and other names are wheels of the program itself "
        "(text-generation-webui): run its update script, or install its requirements file that "
        "fits this machine.",
    ),
    "llama.python.context": (
        "The context is too short for a single token: start the server with a larger --n_ctx (such "
        "as 4096).",
    ),
    "llama.python.handler": (
        "llama-cpp-python knows no chat format {handler}: name one that the line lists, as the "
        "model's page says (Llama(chat_format=...), --chat_format of its server, the variable "
        "CHAT_FORMAT). None means that neither a format was set nor a template found in the file: "
        "set one, update the package, or use a GGUF file with a chat template.",
    ),
    "llama.python.answer": (
        "The server's own answer does not fit its description, so that the client gets status 500 "
        "({count} fields): a fault of this release, or of the releases of FastAPI, Pydantic and "
        "typing_extensions around it. Update the server's package (llama-cpp-python or its fork), "
        "or install it anew in an environment of its own; the request is not to blame.",
    ),
    "llama.python.decode": (
        "llama-cpp-python: there was no place left in the context for the tokens ({full}): raise "
        "n_ctx, begin a new conversation (llm.reset()), or send less.",
        "llama-cpp-python: llama.cpp could not compute the tokens ({code}); its own lines, with "
        "verbose=True, say why. Most probable first: no memory is left (a smaller n_ctx, n_batch "
        "or n_gpu_layers), or one Llama object is used by several threads at once.",
    ),
    "llama.python.unmade": (
        "llama-cpp-python could not make the context, and hid llama.cpp's reason: pass "
        "verbose=True. Usually the memory does not suffice for it: lower n_ctx first, then "
        "n_batch, or n_gpu_layers where the card is full.",
    ),
    "llama.kobold.unpacked": (
        "The program unpacks itself into the folder for temporary files, and that is full or "
        "cannot be written: free some space there (Windows %TEMP%, Linux /tmp: 1 GB and more for a "
        "build with CUDA; old folders _MEI* may be deleted), or set TEMP or TMPDIR to another one.",
    ),
    "llama.python.path": ("There is no file {path}: correct its path.",),
}
"""Sentences by signature; one with an unknown {name} is left out."""
