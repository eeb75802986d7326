"""The plugin inside a real vLLM on a GPU: same engine, its kernels off and on, side by side.

    engine.py MODEL_FOLDER [--graphs NONE|PIECEWISE|FULL_AND_PIECEWISE] [--drafts N] [--cards N]
              [--tokens N] [--prompt N] [--repeats N]

MODEL_FOLDER holds the configuration of a Qwen3.5-shaped hybrid model with an MTP layer; weights
are random (made here). MTP 3, or with --drafts 0 a token a step; PIECEWISE graphs, prefix caching,
mamba align, at most 4 requests.
The plugin must be installed (entry point vllm.general_plugins). With --cards N the model is split
over N cards, tensor parallel. Two sets of weights are used: "random", where no draft is accepted,
and "copy", whose next token follows from the last one, so that the MTP head guesses it and the
accepted paths run. Whole decode steps in a graph (FULL...)
cannot be switched afterwards: there the kernels are on, and the tokens' digests are to be those
of a PIECEWISE run. Exits 1 if a check fails.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import os
import statistics
import sys
import time

# the workers' functions below are called from this process
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("CAOVAN_SM75_FORCE", "1")
# would be compiled for 100 s, and greedy sampling does not use it
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")

import caovan_vllm_sm75_turbo3 as plugin
import torch
from vllm import LLM, SamplingParams
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)

failures: list[str] = []


def demand(what: str, holds: bool) -> None:
    print(f"{'pass  ' if holds else 'FAILED'} {what}", flush=True)
    if not holds:
        failures.append(what)


def start(folder: str, graphs: str, drafts: int, cards: int) -> LLM:
    return LLM(
        folder,
        dtype="half",
        load_format="dummy",
        language_model_only=True,
        max_model_len=16384,
        max_num_seqs=4,
        max_num_batched_tokens=8192,
        gpu_memory_utilization=0.8,
        enable_prefix_caching=True,
        mamba_cache_mode="align",
        tensor_parallel_size=cards,
        disable_custom_all_reduce=True,  # as on Turing, whose cards talk through NCCL
        enforce_eager=graphs == "NONE",
        compilation_config={
            "cudagraph_mode": graphs,
            "pass_config": {"fuse_allreduce_rms": False},  # FlashInfer would compile for minutes
        },
        additional_config={
            "caovan": True,
            "caovan_mode": "auto",
            "gdn_prefill_backend": "triton",
        },
        speculative_config={"method": "mtp", "num_speculative_tokens": drafts} if drafts else None,
    )


# -- run by every worker in its process, which may be this one --


def models(worker) -> list[torch.nn.Module]:
    drafter = getattr(worker.model_runner, "drafter", None)
    return [worker.model_runner.model, *([drafter.model] if drafter else [])]


def gdn_layers(worker) -> list[torch.nn.Module]:
    """The Gated DeltaNet layers of the target model, ours or not."""
    return [
        m
        for m in worker.model_runner.model.modules()
        if type(m).__name__.endswith(("GatedDeltaNet", "GatedDeltaNetAttention"))
    ]


def random_weights(worker) -> None:
    """Variance-preserving matrices, decays and filters as trained models have them.

    The same numbers in every worker, since what is not split must be equal; but for the
    vocabulary, which is split: equal parts would make every best token a tie.
    """
    torch.manual_seed(0)
    vocabulary = torch.Generator(worker.device).manual_seed(1 + get_tensor_model_parallel_rank())
    seen = set()
    for model in models(worker):
        for name, p in model.named_parameters():
            if p.data_ptr() in seen:
                continue
            seen.add(p.data_ptr())
            if name.endswith("A_log"):
                p.data.uniform_(0, 2.7)
            elif name.endswith(("dt_bias", "linear_attn.norm.weight")):
                p.data.fill_(1)
            elif "conv1d" in name:
                p.data.normal_(0, 0.5)
            elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
                p.data.normal_(0, p.shape[-1] ** -0.5, generator=vocabulary)
            elif p.dim() >= 2:
                p.data.normal_(0, p.shape[-1] ** -0.5)


def copy_weights(worker) -> None:
    """The layers say little, the embedding much: t is followed by t + 1, in the MTP head too."""
    random_weights(worker)
    rank = get_tensor_model_parallel_rank()
    for model in models(worker):
        for name, p in model.named_parameters():
            if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
                p.data.mul_(0.05)
            elif name.split(".")[-2] == "fc" and p.dim() == 2:
                rows, hidden = p.shape[0], p.shape[1] // 2
                first = rank * rows % hidden  # 0 where it is not split
                p.data.zero_()[:, first : first + rows].fill_diagonal_(1)
    named = dict(worker.model_runner.model.named_parameters())
    embed = next(p for name, p in named.items() if name.endswith("embed_tokens.weight"))
    head = next(p for name, p in named.items() if name.endswith("lm_head.weight"))
    rows, hidden = embed.shape  # of this worker's part of the vocabulary
    whole = torch.randn(
        rows * get_tensor_model_parallel_world_size(),
        hidden,
        dtype=embed.dtype,
        device=embed.device,
    )
    mine = slice(rank * rows, (rank + 1) * rows)
    embed.data.copy_(whole[mine])
    head.data.copy_(whole.roll(1, 0)[mine] * (20 / hidden))


def use(worker, kernels: str) -> tuple[int, int]:
    """Switch every layer of ours; the number of ours and of all Gated DeltaNet layers."""
    layers = gdn_layers(worker)
    ours = [layer for layer in layers if hasattr(layer, "caovan_kernels")]
    for layer in ours:
        layer.caovan_kernels = kernels
        layer.chunk_gated_delta_rule.caovan = kernels != "off"
    return len(ours), len(layers)


def disturb(worker, relative_noise: float) -> None:
    """Multiply each layer's core output by 1 + noise; 0 undoes it."""
    for layer in gdn_layers(worker):
        layer.__dict__.pop("_forward_core", None)
        if relative_noise:

            def forward(mixed_qkv, b, a, core_attn_out, inner=layer._forward_core):
                inner(mixed_qkv, b, a, core_attn_out)
                noise = torch.randn_like(core_attn_out) * relative_noise
                core_attn_out.mul_(1 + noise)

            layer._forward_core = forward


def keep_logits(worker, keep: int = 3) -> None:
    """Keep the first logits the target model computes, and count our kernels from here."""
    model, worker.kept = worker.model_runner.model, []
    worker.counted = collections.Counter(plugin.counts())
    kept, inner = worker.kept, type(model).compute_logits

    def compute_logits(hidden, *args, **kwargs):
        logits = inner(model, hidden, *args, **kwargs)
        if logits is not None and len(kept) < keep:  # tensor parallel: the first rank has them
            kept.append(logits.float().cpu())
        return logits

    model.compute_logits = compute_logits


def kept_logits(worker) -> list[torch.Tensor]:
    worker.model_runner.model.__dict__.pop("compute_logits", None)
    return worker.kept


def counted(worker) -> collections.Counter:
    """Calls of our kernels since `keep_logits`."""
    return collections.Counter(plugin.counts()) - worker.counted


# -- of this process --


def generate(llm: LLM, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    return [list(o.outputs[0].token_ids) for o in outputs]


def prompts_of(lengths: list[int], vocab: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (n,), generator=generator).tolist() for n in lengths]


def first_difference(a: list[list[int]], b: list[list[int]]) -> list[int | None]:
    return [
        next((i for i, (x, y) in enumerate(zip(p, q, strict=True)) if x != y), None)
        for p, q in zip(a, b, strict=True)
    ]


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / a.norm()).item()


def compare(
    llm: LLM,
    name: str,
    lengths: list[int],
    vocab: int,
    tokens: int,
    layers: int,
    kinds: tuple[str, str],
) -> None:
    """The same prompts with the kernels off and on, then once more from the prefix cache.

    Both paths round to fp16, differently. How far apart that may put the logits is measured with
    vLLM's own path: its Gated DeltaNet outputs, half precision, disturbed by one rounding unit
    (2^-11 of themselves, normally distributed). Ours may be twice as far away.
    """
    prompts, first, again, logits = prompts_of(lengths, vocab, 7), {}, {}, {}
    calls: dict[str, list[collections.Counter]] = {}  # of each worker
    for run, kernels in (("off", "off"), ("disturbed", "off"), ("on", "all")):
        llm.collective_rpc(use, args=(kernels,))
        llm.collective_rpc(disturb, args=(2**-11 if run == "disturbed" else 0,))
        llm.reset_prefix_cache()
        llm.collective_rpc(keep_logits)
        first[run] = generate(llm, prompts, tokens)
        logits[run] = llm.collective_rpc(kept_logits)[0]
        again[run] = generate(llm, prompts, tokens)
        calls[run] = llm.collective_rpc(counted)
    for kind in kinds:
        numbers = [n for worker in calls["on"] for (_, k), n in worker.items() if k == kind]
        demand(
            f"{name}: each of {layers} layers ran {kind} on our kernels "
            f"({numbers[0] if numbers else 0} times)",
            len(numbers) == layers * len(calls["on"]) and len(set(numbers)) == 1,
        )
    demand(f"{name}: no layer did with the kernels off", not any(calls["off"]))
    for what, (a, b) in {
        "off and on": (first["off"], first["on"]),
        "off and disturbed": (first["off"], first["disturbed"]),
        "off, prompt computed and cached": (first["off"], again["off"]),
        "on, prompt computed and cached": (first["on"], again["on"]),
    }.items():
        print(
            f"       {name}: first of {tokens} tokens to differ: {what}: {first_difference(a, b)}"
        )
    for step, (a, b, c) in enumerate(
        zip(logits["off"], logits["on"], logits["disturbed"], strict=True)
    ):
        if not a.shape == b.shape == c.shape:
            break
        top = a.topk(2, -1).values
        print(
            f"       {name}: step {step}: logits {relative(a, b):.2e} apart (disturbed: "
            f"{relative(a, c):.2e}), largest {(a - b).abs().max():.3f}, smallest gap of the best "
            f"two {(top[:, 0] - top[:, 1]).min():.3f}, same best in "
            f"{(a.argmax(-1) == b.argmax(-1)).sum()} of {len(a)}"
        )
    difference = relative(logits["off"][0], logits["on"][0])
    noise = relative(logits["off"][0], logits["disturbed"][0])
    demand(
        f"{name}: first logits {difference:.2e} apart, one rounding unit gives {noise:.2e}",
        difference <= 2 * noise,
    )
    print(f"       {name}: digest of the tokens, kernels on: {digest(first['on'])}")


def digest(tokens: list[list[int]]) -> str:
    return hashlib.sha256(repr(tokens).encode()).hexdigest()[:12]


def timed(llm: LLM, prompts: list[list[int]], tokens: int) -> float:
    begin = time.perf_counter()
    generate(llm, prompts, tokens)
    return time.perf_counter() - begin


def throughput(llm: LLM, requests: int, prompt: int, vocab: int, tokens: int, repeats: int) -> None:
    """A row of the table: medians, the kernels switched between any two measurements.

    Decode is what `tokens` new tokens take longer than one; a first round, uncounted, compiles.
    """
    seconds: dict[tuple[str, int], list[float]] = collections.defaultdict(list)
    for r in range(repeats + 1):
        prompts = prompts_of([prompt] * requests, vocab, 100 + r)
        for kernels in ("off", "all"):
            llm.collective_rpc(use, args=(kernels,))
            for n in (1, tokens):
                llm.reset_prefix_cache()
                seconds[kernels, n].append(timed(llm, prompts, n))
    kept = {key: values[1:] for key, values in seconds.items()}
    median = {key: statistics.median(values) for key, values in kept.items()}
    spread = max((max(v) - min(v)) / median[key] for key, v in kept.items())
    row = [f"{requests} x {prompt} + {tokens}"]
    prefill = [requests * prompt / median[kernels, 1] for kernels in ("off", "all")]
    decode = [
        requests * (tokens - 1) / (median[kernels, tokens] - median[kernels, 1])
        for kernels in ("off", "all")
    ]
    for off, on in (prefill, decode):
        row += [f"{off:.1f}", f"{on:.1f}", f"{on / off:.3f}"]
    print("| " + " | ".join([*row, f"{spread:.1%}"]) + " |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--graphs", default="PIECEWISE")
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--cards", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    begin = time.perf_counter()
    llm = start(args.model, args.graphs, args.drafts, args.cards)
    switchable = not args.graphs.startswith("FULL")
    kinds = ("prefill", "verify" if args.drafts else "decode")
    print(f"ready after {time.perf_counter() - begin:.0f} s", flush=True)
    vocab = llm.llm_engine.model_config.get_vocab_size()
    workers = llm.collective_rpc(use, args=("all",))
    layers, gdn = workers[0]
    demand(
        f"all {gdn} Gated DeltaNet layers are ours, in {len(workers)} of {args.cards} workers",
        layers == gdn > 0 and workers == [(layers, gdn)] * args.cards,
    )
    kinds_of_weights = (("random", random_weights), ("copy", copy_weights))
    for name, weights in kinds_of_weights:
        llm.collective_rpc(weights)
        batches = {
            "1 request": [args.prompt],
            "4 requests": [args.prompt, 1000, 33, 517],
            # more than a batch of 8,192 tokens: some verify drafts while others still prefill
            "4 requests, mixed batches": [args.prompt] * 3 + [100],
        }
        for batch, lengths in batches.items():
            what = f"{name}, {batch}"
            if switchable:
                compare(llm, what, lengths, vocab, args.tokens, layers, kinds)
            else:
                llm.reset_prefix_cache()
                tokens = generate(llm, prompts_of(lengths, vocab, 7), args.tokens)
                print(f"       {what}: digest of the tokens, kernels on: {digest(tokens)}")
    for name, weights in kinds_of_weights if switchable else ():
        llm.collective_rpc(weights)
        print(
            f"\n{name} weights, tokens/s\n"
            "| requests | prefill off | on | ratio | decode off | on | ratio | spread of times |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for requests in (1, 4):
            throughput(llm, requests, args.prompt, vocab, 2 * args.tokens, args.repeats)
    print("engine: " + (f"{len(failures)} failures" if failures else "pass"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
