"""Missing packages, and restrictions of an environment on Python programs: rows for any engine."""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.engines.common.logs.rows import model_types
from caovand.engines.common.logs.signature import SERVED, signature

_VERSION = r"\d[\w.+-]{0,30}"
_WHOLE = (
    r"(?!transformers_modules|google\b|nvidia\b|azure\b|cuda\b|ruamel\b|zope\b|backports\b"
    r"|opentelemetry\b|jaraco\b|mpl_toolkits\b|sphinxcontrib\b|vllm_flash_attn)[a-zA-Z]\w{1,60}"
)
"""A package; not a namespace that several packages share, where the other half may be missing."""
_OF_PYTHON = (
    r"(?!_(?:C|version)\b|\w{0,40}(?:_C|c_ops|_ops|_cuda)\b|(?:cuda_utils|cpp|bindings)\b)\w{1,80}"
)
"""What Python's source defines; what a build makes is missing where the build was not finished."""
_RAW = re.compile(
    r"(?:\[notice\] |ERROR: |error: |[×✗x╰─▶ ]{1,8})(?:Could not find a version|No matching dist"
    r"|Cannot install |ResolutionImpossible|No solution found|externally-managed|Package .{1,100} "
    r"requires a different Python|Ignored the following versions that require)"
    r"|(?: {0,6}|ERROR: )[\w.\[\]-]{1,60} \d\S{0,30} (?:requires|has requirement) .{1,120}, but\b"
    r"|(?:error: |  [×x╰─▶ ]{1,6})?Failed to (?:fetch|download):? `http"
    r"|.{0,200}\bha(?:s|ve) no wheels with a matching|[ ×✗x╰─▶]{1,8}hint: You require \w{1,20} \d"
    r"|.{0,200}is not a supported wheel on this platform"
    r"|(?:ERROR: )?ld\.so: object |(?:set|get)_mempolicy: |libnuma: |Encountered exception while "
)
ROWS = (
    *model_types.ROWS,
    signature("python.linux", "cause", "engine-unusable",
         r"^ModuleNotFoundError: No module named "
         r"'(?P<module>uvloop|resource|fcntl|termios|pwd|grp)'|uvloop does not support Windows"),
    # torchvision 0.22.1 requires torch==2.7.1, but you have torch 2.8.0 which is incompatible.
    signature("python.conflict", "consequence", "bad-arguments",
         rf"^(?: {{0,6}}|ERROR: )(?P<user>[\w.\[\]-]{{1,60}} {_VERSION}) (?:requires|has "
         rf"requirement) (?P<wants>\S.{{0,120}}?), but(?:$| you(?:'ll)?(?:$| have "
         rf"(?P<have>[\w.-]{{1,60}} {_VERSION})))"),
    signature("python.versions", "cause", "bad-arguments",
         rf"(?P<package>[\w.-]{{1,60}}) version \(?(?P<installed>{_VERSION})\)? does not match "
         rf"(?P<other>[\w.-]{{1,60}})(?: version)? \(?(?P<wanted>{_VERSION})"
         r"|(?P<needs>[\w.-]{1,60}[<>=!~]{1,2}[\w.,<>=!~* -]{1,60}) is required for a normal "
         rf"functioning of this module, but found (?P<found>[\w.-]{{1,60}}=={_VERSION})"
         rf"|Numba needs NumPy (?P<numpy>{_VERSION}) or less"
         rf"|Requires (?P<narrow>[\w.-]{{1,60}}) version (?P<range>[<>=!~]{{1,2}}{_VERSION}"
         rf"(?:, ?[<>=!~]{{1,2}}{_VERSION})?) but got (?P<got>{_VERSION}\w)"
         rf"|Found an incompatible version of (?P<unfit>[\w.-]{{1,60}})\. Found version "
         rf"(?P<old>{_VERSION}), but only versions above (?P<above>{_VERSION})"
         r"|(?P<pair>PyTorch and torchvision) were compiled with different CUDA"
         rf"|(?P<user>[\w.-]{{1,60}}) requires (?:the )?(?P<base>(?:torch|transformers|triton|numpy"
         r"|accelerate|tokenizers|huggingface[_-]hub|flashinfer|vllm|pydantic)\w{0,20})"
         rf"(?: version)? ?(?P<condition>[<>=!~]{{1,2}} ?{_VERSION}(?:, ?[<>=!~]{{1,2}} ?"
         rf"{_VERSION})?)", SERVED),
    signature("transformers.model", "cause", "bad-arguments",
         r"model type `(?P<model_type>(?:(?P<whole>\w{1,100}?)_(?P<part>thinker|talker|vision"
         r"|audio|token2wav)\w{0,20}|(?P<text_part>\w{1,100}_text)|[^`]{1,200}))` but "
         r"Transformers does not recognize"),
    # ValueError: Tokenizer class TokenizersBackend does not exist or is not currently imported.
    signature("tokenizer.class", "cause", "bad-arguments",
         r"Tokenizer class (?P<tokenizer>\w{1,80}) does not exist or is not currently imported",
         SERVED),
    signature("python.release", "cause", "engine-unusable",
         r"^TypeError: unsupported operand type\(s\) for \|: '(?:type|_\w{1,40}|ABCMeta"
         r"|builtin_function_or_method)' and|^TypeError: '(?:type|ABCMeta)' object is not "
         r"subscriptable|requires a different Python: (?P<python>\S{1,20})"
         r"|^RuntimeError: Cannot install on Python version (?P<newer>[\d.]{3,10}); only versions "
         r"(?P<takes>[<>=\d.,]{3,30}) are supported"
         r"|^(?:ImportError|AttributeError): (?:cannot import name|module) '(?:StrEnum|tomllib"
         r"|NotRequired|Self|override)'.{0,30}(?:typing|enum|from)"),
    # all versions of cuda-tile have no wheels with a matching Python ABI tag (e.g., `cp314`)
    signature("python.abi", "cause", "engine-unusable",
         r"(?<!\S)(?P<wheelless>[\w.-]{1,60})(?:[=<>!~]\S{0,40})? ha(?:s|ve) no wheels "
         r"with a matching Python (?:ABI |implementation |version )?tag\b"
         r"|You require \w{1,20} (?P<running>\d\.\d{1,2}) \(`\w{1,20}`\), but we only found wheels "
         r"for `(?P<only>[\w.-]{1,60})`"),
    # because vllm==0.15.0 has no wheels with a matching platform tag
    signature("python.wheel", "cause", "engine-unusable",
         r"ha(?:s|ve) no wheels with a matching"
         r"|(?P<wheel>\S{1,200}\.whl) is not a supported wheel"),
    signature("python.install", "generic", "engine-unusable",
         r"No matching distribution found for (?P<requirement>[^\s]{1,100})"
         r"|Could not find a version that satisfies the requirement (?P<unmet>[^\s(]{1,100})"
         r"|ResolutionImpossible|these package versions have conflicting dependencies"
         r"|No solution found when resolving dependencies"),
    # error: Failed to fetch: `https://wheels.vllm.ai/0.10.2/vllm-0.10.2-...whl`
    signature("python.fetch", "cause", "network",
         r"[Ff]ailed to (?:fetch|download):? `(?P<source>https?://[^`\s]{1,300})`"),
    signature("python.managed", "cause", "engine-unusable",
         r"externally-managed-environment"),
    signature("python.socket", "cause", "bad-arguments",
         r"is longer than (?P<most>\d{1,4}) characters \(sizeof\(sockaddr_un"
         r"|AF_UNIX path too long|ZMQError: File name too long"),
    signature("python.database", "cause", "access-denied",
         r"sqlite3\.OperationalError: (?P<why>unable to open database file"
         r"|attempt to write a readonly database|disk I/O error|database is locked)"),
    signature("python.allocator", "cause", "bad-arguments",
         r"[Ee]xpandable segments are not compatible|expandable_segments not supported"),
    signature("python.preload", "cause", "bad-arguments",
         r"invalid LD_PRELOAD|object '(?P<library>[^']{1,300})' from LD_PRELOAD cannot"),
    signature("python.loop", "cause", "bad-arguments",
         r"asyncio\.run\(\) cannot be called from a running event loop"
         r"|[Tt]his event loop is already running|signal only works in main thread"),
    signature("python.main", "cause", "bad-arguments",
         r"current process has finished its bootstrapping phase"
         r"|not using fork to start your|forgotten to use the proper idiom"
         r"|^ {0,40}The \"freeze_support\(\)\" line can be omitted"),
    signature("python.pickle", "generic", "bad-arguments",
         r"(?:^|Error: )(?:Can't (?:pickle|get) (?:local object )?'?(?P<object>[\w.<>]{3,120})"
         r"|cannot pickle '(?P<kind>[\w.]{1,80})')", SERVED),
    signature("python.locale", "cause", "bad-arguments",
         r"^Unicode(?:De|En)codeError: '(?P<codec>ascii|charmap|gbk|cp\d{3,4}|latin-1)' codec"),
    # No module named 'ray.util'; 'ray' is not a package
    signature("python.shadowed", "cause", "bad-arguments",
         r"^ModuleNotFoundError: No module named '[\w.]{1,200}'; '(?P<name>\w{1,60})' is not a pa"
         r"|partially initialized module '(?P<itself>\w{1,60})'.{0,60}\((?:[^)]{0,300}[/\\])?"
         r"(?P=itself)\.py\)"),
    # No module named 'vllm.transformers_utils.tokenizer': Python found vllm, but not that part;
    # cannot import name 'X' from 'vllm.utils' (/usr/lib/.../vllm/utils.py)
    signature("python.part", "cause", "bad-arguments",
         r"^ModuleNotFoundError: No module named '"
         r"(?!numpy\.(?:lib|_core|compat|array_api)\b)"
         r"(?=(?:transformers\.models\.(?P<model>\w{1,60})|(?P<flash>flash_attn)\.)?)"
         rf"(?P<package>{_WHOLE})\.(?P<part>(?:\w{{1,60}}\.){{0,6}}{_OF_PYTHON})'"
         rf"|^ImportError: cannot import name '(?P<name>{_OF_PYTHON})' from "
         rf"'(?P<module>(?P<of>{_WHOLE})(?:\.\w{{1,60}}){{0,6}})'(?! \(unknown location)",
         SERVED),
    signature("python.triton", "cause", "bad-arguments",
         r"^ModuleNotFoundError: No module named 'triton'|Cannot find a working triton installation"
         r"|^torch\._inductor\.exc\.TritonMissing"),
    signature("python.numa", "cause", "access-denied",
         r"(?:set|get)_mempolicy: Operation not permitted"),
    signature("python.cpu", "cause", "engine-unusable",
         r"Torch not compiled with (?P<runtime>CUDA|ROCm|XPU) enabled"),
    signature("hub.xet", "cause", "network",
         r"CAS service error|\bxet_get\b.{0,60}\bfailed|hf_xet\b.{0,100}(?:failed|error)"),
    signature("hub.limited", "cause", "network",
         r"429 (?:Client Error|Too Many Requests)|rate[- ]limited? (?:by|exceeded|reached)"),
    signature("hub.streamer", "cause", "access-denied",
         r"runai_request to libstreamer due to: b?'?(?P<why>[^']{1,100})"
         r"|(?:NoCredentialsError|Unable to locate credentials|EndpointConnectionError)"
         r"|An error occurred \((?P<code>AccessDenied|403|InvalidAccessKeyId|SignatureDoesNotMatch"
         r"|NoSuchBucket|NoSuchKey|404)\)"),
    signature("hub.cut", "cause", "network",
         r"Consistency check failed: file should be of size"),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "python.linux": (
        "{module} exists only on Linux, and the engine does not run on Windows itself: use WSL2 "
        "or a container. On Linux install {module} into the engine's environment.",
        "The engine does not run on Windows itself: use WSL2 or a container.",
    ),
    "python.versions": (
        "{package} {installed} and {other} {wanted} are of different releases: install the same "
        "release of both, or the engine again in its own environment.",
        "{found} is installed, but {needs} is needed: pip install '{needs}' into the engine's "
        "environment.",
        "{narrow} {got} is installed, and a package here takes only {range}: pip install "
        "'{narrow}{range}', uninstall it if nothing else needs it, or update the package that asks "
        "(the frames above the line name it).",
        "{unfit} {old} is installed, and a package here takes it only above {above}: pip install "
        "--upgrade {unfit}, or uninstall it if nothing else needs it.",
        "The installed NumPy is too new for Numba: install NumPy {numpy} or older.",
        "{pair} are built for different releases of CUDA: install both from one index "
        "(https://download.pytorch.org/whl/...).",
        "{user} needs {base} {condition}: install that, or another release of {user}.",
    ),
    "transformers.model": (
        model_types.OF_PART,
        "The installed Transformers does not know the model type {model_type}, and the engine "
        "reads models by it: first upgrade Transformers in the engine's environment (pip install "
        "--upgrade transformers), as far as the engine's requirements allow (`pip check`).",
        "If that is not enough, use a newer release or image of the engine, which brings the "
        "Transformers that it needs; for a model of the last days install Transformers from its "
        "sources. If other models fail likewise, check model_type in config.json.",
        model_types.OF_TEXT,
    ),
    "tokenizer.class": (
        "tokenizer_config.json names the class {tokenizer}, which the installed Transformers does "
        "not have: a newer one saved the model (TokenizersBackend is of Transformers 5), or the "
        "class is the model's own code (--trust-remote-code). Upgrade Transformers, with a release "
        "of the engine that takes it, or set tokenizer_class in tokenizer_config.json to the "
        "class that the base model has there (such as Qwen2TokenizerFast, or "
        "PreTrainedTokenizerFast). The Transformers that this release of the engine asks for may "
        "be the one that lacks it.",
    ),
    "python.release": (
        "A package takes only Python {takes}, and this environment has {newer}: make one with a "
        "Python within that, usually 3.12 (`uv venv --python 3.12`, or conda create -n engine "
        "python=3.12), and install the engine there.",
        "The code is written for a newer Python than the one that runs it ({python}): make the "
        "environment with the Python that the engine requires (3.10 to 3.13), and install it "
        "there.",
        "The code is written for a newer Python than the one that runs it: make the environment "
        "with the Python that the engine requires (3.10 to 3.13), and install it there.",
    ),
    "python.abi": (
        "{wheelless} has no wheel for the Python of this environment, which is too new for it, or "
        "too old. Make an environment with a Python for which it has one, usually 3.10 to 3.12, "
        "and install the engine there: `uv venv --python 3.12`, or conda create -n engine "
        "python=3.12.",
        "{only} has no wheel for Python {running}. Make an environment with a Python for which it "
        "has one, usually 3.10 to 3.12, and install the engine there: `uv venv --python 3.12`, or "
        "conda create -n engine python=3.12.",
        "Where that Python is needed, try a newer release of the engine.",
    ),
    "python.wheel": (
        "The package is built for other systems than this one: a newer or older Python, another "
        "processor, or a newer C library (a tag manylinux_2_35 needs glibc 2.35: Ubuntu 22.04 or "
        "newer). Take a release or index that has a wheel for this system, another image or "
        "Python, or build it from its sources.",
    ),
    "python.install": (
        "pip finds no {requirement} for this Python, system and CPU: use the Python that the "
        "engine supports (3.10 to 3.13), on Linux (macOS and Windows have few wheels), and the "
        "package index that its instructions name.",
        "pip finds no {unmet} for this Python, system and CPU: use the Python that the "
        "engine supports (3.10 to 3.13), on Linux (macOS and Windows have few wheels), and the "
        "package index that its instructions name.",
        "The packages require releases that exclude each other: install the engine in its own "
        "environment, and do not pin packages that it pins.",
    ),
    "python.conflict": (
        "pip installed {have}, and {user}, which is there, requires {wants}: what uses {user} may "
        "fail to import. If it does, restore that release (pip install '{wants}'), or better "
        "install the engine and the rest in environments of their own, each by one pip command, "
        "so that pip finds releases for all.",
    ),
    "python.fetch": (
        "{source} could not be downloaded; the next line says why. 404: the index does not have "
        "that release for this system (see what it lists, or leave the version or the extra index "
        "out); 401 or 403: it wants a login; anything else: the network, its proxy, or a mirror.",
    ),
    "python.managed": (
        "The system's Python does not accept packages: create a virtual environment (python3 -m "
        "venv, or uv venv) "
        "and install the engine there.",
    ),
    "python.socket": (
        "The path of a socket is longer than Linux allows (107 characters): let TMPDIR (for vLLM "
        "also VLLM_RPC_BASE_PATH) be a short folder such as /tmp.",
    ),
    "python.database": (
        "A cache in SQLite cannot be used ({why}): its folder must be writable for this user, on "
        "a local disk, and not shared by servers. Correct its owner, or choose another folder "
        "(OUTLINES_CACHE_DIR, XDG_CACHE_HOME, HOME).",
    ),
    "python.allocator": (
        "PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF) has expandable_segments:True, which does "
        "not work with sleep mode's memory pool: unset it, or remove --enable-sleep-mode.",
    ),
    "python.preload": (
        "LD_PRELOAD names a library that cannot be loaded, or lacks one that the engine sets: "
        "unset LD_PRELOAD, or add that library to it; the memory saver is off without "
        "--enable-memory-saver.",
    ),
    "python.loop": (
        "The engine is started inside a running event loop or outside of the main thread, as in a "
        "notebook: start it as a separate program (`vllm serve`), or use its asynchronous class "
        "(AsyncLLM, sgl.Engine after nest_asyncio.apply()).",
    ),
    "python.main": (
        "The script starts processes while they import it: put its code below "
        '`if __name__ == "__main__":`.',
    ),
    "python.pickle": (
        "What is passed to the engine's own process cannot be pickled ({object}): it is defined "
        "within a function, or another package put it in place of the engine's own. Define it at "
        "a module's top level; run vLLM's engine in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0"
        ", before 0.11 also VLLM_USE_V1=0); or, if a package did so (Unsloth patches vLLM), update "
        "it, or install the release of vLLM that it was made for.",
        "An object of {kind} cannot be pickled, and so not be passed to the engine's own process: "
        "remove it from what is passed, or run vLLM's engine in this process "
        "(VLLM_ENABLE_V1_MULTIPROCESSING=0).",
    ),
    "python.locale": (
        "A text file was read as {codec}: set PYTHONUTF8=1 (or LANG=C.UTF-8) in the environment.",
    ),
    "python.shadowed": (
        "The program's own file is called {itself}.py, like the package that it imports, and is "
        "found first: rename it (and delete __pycache__).",
        "A file {name}.py in the working folder or in PYTHONPATH hides the package {name}: "
        "rename it, or start in another folder.",
    ),
    "python.part": (
        "A folder {flash} is there that is not the whole package flash-attn (left over, or another "
        "of its packages): pip uninstall flash-attn, and delete it. The engines need none.",
        "The installed Transformers does not have the model {model}, so it is usually older than "
        "the engine's code expects: install the one that this release of the engine requires (pip "
        "install --upgrade transformers, then `pip check`), or the engine again in its own "
        "environment.",
        "{package} is installed, but the installed release has no module {part}: what imports it "
        "was written for another release, newer or older. Update the program that imports it (the "
        "last frame above the line shows it), or install the release of {package} that it "
        "requires; the same releases bring the same error.",
        "{of} is installed, but in the installed release {module} has no {name}: what imports it "
        "was written for another release, newer or older. Update the program that imports it (the "
        "last frame above the line shows it), or install the release of {of} that it requires; the "
        "same releases bring the same error.",
        "{of} has the name only for releases of {backend} that it supports: install the release of "
        "{backend} that {of}'s requirements or its page name.",
        "Here {importer} imports it.",
        "Here {mixed} imports its own module: files of two of its releases are mixed, a folder "
        "named like it hides it, or its installation was cut short. Remove it with its folder, and "
        "install it again.",
    ),
    "python.triton": (
        "Triton is not installed, or does not fit PyTorch: install the triton that PyTorch "
        "requires (on Windows triton-windows), or the engine again; --enforce-eager avoids "
        "compiling, but not the engine's own Triton kernels.",
    ),
    "python.numa": (
        "The container may not bind memory to NUMA nodes: run it with --cap-add SYS_NICE (or "
        "--security-opt seccomp=unconfined); it is a warning if the engine goes on.",
    ),
    "python.cpu": (
        "The installed PyTorch is built without {runtime}: install the build for this card from "
        "https://download.pytorch.org/whl/, and the engine with it in its own environment.",
    ),
    "hub.xet": (
        "The hub's storage (Xet) did not deliver: set HF_HUB_DISABLE_XET=1, which downloads over "
        "plain HTTPS, update hf_xet, and check that the disk of HF_HOME has space and is not a "
        "slow network share; then try again.",
    ),
    "hub.limited": (
        "The hub limits requests (429): set HF_TOKEN, wait some minutes, let fewer nodes download "
        "at once, or download the model once and pass its folder (HF_HUB_OFFLINE=1).",
    ),
    "hub.streamer": (
        "The model's store (S3 or alike) did not deliver it ({why}): check the address, "
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL and the role of "
        "the process; a bucket of another kind also needs RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"
        "=0. Otherwise copy the model to a local folder.",
        "The model's store (S3 or alike) refused ({code}): check the address, AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL and the role of the process.",
        "The model's store (S3 or alike) cannot be used: check AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL.",
    ),
    "hub.cut": (
        "A download was cut short: start again with enough disk for HF_HOME, or delete the file "
        "from the cache and download it with `hf download`.",
    ),
}
"""Sentences by row; one with an unknown {name} is left out."""


def is_raw(line: str) -> bool:
    """Whether a line comes from pip, uv or the loader and begins with no exception's name."""
    return bool(_RAW.match(line))
