"""Advice on arguments that vLLM refuses, by signature."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.engines.common.logs.rows.python_advice import CHOICE

SPECIAL: Mapping[str, tuple[str, ...]] = {
    "args.cli": (
        "vllm.entrypoints.api_server is vLLM's demo server, which has no {demo} in any release: "
        "start the server with OpenAI's interface instead, `vllm serve MODEL` (in releases before "
        "0.6 python -m vllm.entrypoints.openai.api_server). If it was that one already, the "
        "release is too old for the option.",
        "vLLM dropped {gone}, which older releases had: {instead}.",
        "{foreign} is an option of {whose}; what vLLM has in its place is {ours}.",
        "{later} came with a later release of vLLM than the installed one: install a newer one "
        "(pip install -U vllm, or a newer image), or leave it out.",
        "This release of vLLM has no argument {unknown}: remove it, or install a release or the "
        "package that has it.",
        "{positional} stands where only options are taken: the entry point of the container image "
        "is `vllm serve` (before 0.10 api_server) already. Pass the model and options alone, the "
        "model in --model for api_server; for another command set --entrypoint.",
        "{command} stands where vllm expects its command (serve): the entry point of the container "
        "image is `vllm` already, so that it must not come again. Pass `serve`, the model and "
        "options alone, or for another command set --entrypoint (Kubernetes: command, not args).",
        "{json} takes JSON in this release, and {raw} is not: as in --limit-mm-per-prompt "
        "'{{\"image\": 4}}' (the outer quotes are for the shell; in a list of Compose or "
        "Kubernetes leave them out). The release's own help shows the form of each option.",
        CHOICE,
        "vLLM refused the value of {argument}: the line says why.",
        "{required} is missing from the arguments.",
        "vLLM refused its arguments; starting again cannot help.",
    ),
    "args.v1": (
        "VLLM_USE_V1=1 is set, and the V1 engine of this release does not support {what}: unset "
        "it, or set it to 0 for the older engine. From 0.11 on there is V1 alone, and it "
        "supports more: install a newer release, or do without {what}.",
    ),
    "args.value": ("vLLM refused its configuration: {reason}.", "{all}"),
    "args.raise": (
        "Set {argument} (an option of the same name, with dashes) to at least {wanted}: the line "
        "says what needs it.",
    ),
    "args.limit": ("Set {argument} to at most {most}: the engine names that limit itself.",),
    "args.length": (
        "Set max_model_len to at most {longest}, the model's own limit.",
        "Longer contexts need the scaling of positions that the model's page names (such as YaRN "
        "for Qwen: rope_scaling in config.json or --hf-overrides). VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 "
        "only lifts the check: without such scaling, positions beyond the limit give NaN or fail.",
    ),
    "drafts.interface": (
        "This release's code for the model gives no hidden states to a draft model of {kind}: "
        "remove --speculative-config, or install a newer release, which may support drafts for "
        "this model.",
    ),
    "engine.fault": (
        "The engine's own code is at fault: its {holder} has no {member}. No setting supplies it: "
        "install the next or the previous release, and if the model is new, the one that its page "
        "names. Files of two releases in one environment look the same: install it in a new one.",
    ),
    "dtype.compile": (
        "{card} does not compute in bfloat16, and its kernels cannot be compiled for it: set "
        "--dtype half (float16), or float32 if the model gives NaN.",
    ),
    "gpu.rank": (
        "A process of data parallelism looks for card {rank}, and sees fewer: Ray or the trainer "
        "shows each process one card (CUDA_VISIBLE_DEVICES), or the machine has fewer than "
        "--data-parallel-size-local times --tensor-parallel-size. Let the processes see all cards, "
        "or lower these.",
    ),
    "args.lora": (
        "An adapter was asked for, and the engine runs without support for them: start it with "
        "--enable-lora (in Python enable_lora=True). If that is set, an option turned it off in a "
        "worker: leave --num-scheduler-steps, drafts and the like out, or install a newer release.",
    ),
    "args.async": (
        "This release cannot schedule asynchronously with what else is set (drafts over pipeline "
        "stages, for one): pass --no-async-scheduling, or leave the other out; a newer release may "
        "do both.",
    ),
    "args.address": (
        "This machine does not have the address to listen on: correct [server] host.",
    ),
    "args.match-unit": (
        "Prefixes of this model's cache cannot match every {unit} tokens: remove "
        "--prefix-match-unit.",
    ),
    "args.uneven": (
        "The model cannot be split this way: lower tensor_parallel_size to a divisor of its heads "
        "and sizes, key-value heads included, and check that none of them is 0 in config.json.",
    ),
}
"""Sentences by signature; one with an unknown {name} is left out."""
