"""The plugin inside a real vLLM on a GPU: same engine, its kernels off and on, side by side.

    engine.py MODEL_FOLDER [--graphs NONE|PIECEWISE|FULL_AND_PIECEWISE] [--drafts N] [--cards N]
              [--tokens N] [--prompt N] [--repeats N]

MODEL_FOLDER holds the configuration of a Qwen3.5-shaped hybrid model with an MTP layer, its word
embeddings not tied; weights are random (made here). MTP 3, or with --drafts 0 a token a step;
PIECEWISE graphs, prefix caching, mamba align, at most 4 requests; with --cards N split over N
cards, tensor parallel. The plugin must be installed (entry point vllm.general_plugins). "Off" is
vLLM's Triton (FLA) path, the one it has on Turing.

There are two sets of weights: with "random", no draft is accepted; with "copy", the next token is
the last one plus one, so that the MTP head predicts it and the code for accepted drafts runs.
Decode steps captured whole (FULL...) cannot switch kernels afterwards: the kernels stay on, and the
printed digests can be compared with those of a PIECEWISE run. Exits 1 if a check fails.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import os
import statistics
import sys
import time
from collections.abc import Sequence

# one process less to start, to switch and to debug
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("CAOVAN_SM75_FORCE", "1")
# takes 100 s to compile and is not used by greedy sampling
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")

import caovan_vllm_sm75_turbo3 as plugin
import torch
from vllm import LLM, SamplingParams
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.model_executor.layers.linear import ReplicatedLinear, RowParallelLinear

failures: list[str] = []


def demand(what: str, holds: bool) -> None:
    print(f"{'pass  ' if holds else 'FAILED'} {what}", flush=True)
    if not holds:
        failures.append(what)


def start(folder: str, graphs: str, drafts: int, cards: int, **others: object) -> LLM:
    settings = {
        "dtype": "half",
        "load_format": "dummy",
        "language_model_only": True,
        "max_model_len": 16384,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.8,
        "enable_prefix_caching": True,
        "mamba_cache_mode": "align",
        "tensor_parallel_size": cards,
        "async_scheduling": False if drafts else None,  # caovan plans it like this with drafts
        "disable_custom_all_reduce": True,  # as on Turing, where cards communicate through NCCL
        "enforce_eager": graphs == "NONE",
        "compilation_config": {
            "cudagraph_mode": graphs,
            # FlashInfer would take minutes to compile
            "pass_config": {"fuse_allreduce_rms": False},
        },
        "additional_config": {
            "caovan": True,
            "caovan_mode": "auto",
            "gdn_prefill_backend": "triton",
        },
        "speculative_config": (
            {"method": "mtp", "num_speculative_tokens": drafts} if drafts else None
        ),
    }
    return LLM(folder, **(settings | others))


# -- run by each worker in its own process, which may be this one --


def models(worker) -> list[torch.nn.Module]:
    """The target model and, if there is one, the draft model."""
    runner = worker.model_runner
    # vLLM's second model runner, the default since 0.33 at the latest, names it differently.
    drafter = getattr(runner, "speculator", None) or getattr(runner, "drafter", None)
    return [runner.model, *([drafter.model] if drafter else [])]


def gdn_layers(worker) -> list[torch.nn.Module]:
    """The target model's Gated DeltaNet layers, whether the plugin's or not."""
    return [
        m
        for m in worker.model_runner.model.modules()
        if type(m).__name__.endswith(("GatedDeltaNet", "GatedDeltaNetAttention"))
    ]


def random_weights(worker) -> None:
    """Variance-preserving matrices, with decays and filters like those of trained models.

    Each worker draws its own numbers for split weights, and the same numbers for replicated ones.
    """
    shared = torch.Generator(worker.device).manual_seed(0)
    own = torch.Generator(worker.device).manual_seed(1 + get_tensor_model_parallel_rank())
    seen = set()
    for model in models(worker):
        for prefix, module in model.named_modules():
            generator = shared if isinstance(module, ReplicatedLinear) else own
            for name, p in module.named_parameters(prefix, recurse=False):
                if p.data_ptr() in seen:
                    continue
                seen.add(p.data_ptr())
                if name.endswith("A_log"):
                    p.data.uniform_(0, 2.7, generator=generator)
                elif name.endswith(("dt_bias", "linear_attn.norm.weight")):
                    p.data.fill_(1)
                elif "conv1d" in name:
                    p.data.normal_(0, 0.5, generator=generator)
                elif p.dim() >= 2:
                    row_parallel = isinstance(module, RowParallelLinear)
                    inputs = module.input_size if row_parallel else p.shape[-1]
                    p.data.normal_(0, inputs**-0.5, generator=generator)


def copy_weights(worker) -> None:
    """Let the embedding dominate the layers, so that t + 1 follows t, also in the MTP head."""
    random_weights(worker)
    rank = get_tensor_model_parallel_rank()
    for model in models(worker):
        for name, p in model.named_parameters():
            if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
                p.data.mul_(0.05)
            elif name.split(".")[-2] == "fc" and p.dim() == 2:
                rows, hidden = p.shape[0], p.shape[1] // 2
                first = rank * rows % hidden  # 0 if it is not split
                p.data.zero_()[:, first : first + rows].fill_diagonal_(1)
    named = dict(worker.model_runner.model.named_parameters())
    embed = next(p for name, p in named.items() if name.endswith("embed_tokens.weight"))
    head = next(p for name, p in named.items() if name.endswith("lm_head.weight"))
    rows, hidden = embed.shape  # this worker's part of the vocabulary
    whole = torch.empty(
        rows * get_tensor_model_parallel_world_size(),
        hidden,
        dtype=embed.dtype,
        device=embed.device,
    ).normal_(generator=torch.Generator(embed.device).manual_seed(0))
    mine = slice(rank * rows, (rank + 1) * rows)
    embed.data.copy_(whole[mine])
    head.data.copy_(whole.roll(1, 0)[mine] * (20 / hidden))


def kernels_of(worker) -> list[str | None]:
    """The plugin's decision for each Gated DeltaNet layer; None if the layer is not the
    plugin's."""
    return [getattr(layer, "caovan_kernels", None) for layer in gdn_layers(worker)]


def use(worker, kernels: str) -> None:
    """Switch the kernels of every layer, including its prefill operator."""
    for layer in gdn_layers(worker):
        layer.caovan_kernels = kernels
        layer.chunk_gated_delta_rule.caovan = kernels != "off"


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


def watch_logits(worker, keep: int = 3) -> None:
    """Keep the target model's first logits, and a checksum of each step's bits."""
    model, worker.kept, worker.sums = worker.model_runner.model, [], []
    if get_tensor_model_parallel_rank():
        return
    kept, sums, inner = worker.kept, worker.sums, type(model).compute_logits

    def compute_logits(hidden, *args, **kwargs):
        logits = inner(model, hidden, *args, **kwargs)
        exact = logits.float()
        if len(kept) < keep:
            kept.append(exact.cpu())
        bits = exact.view(torch.int32).flatten().long()
        sums.append((bits * torch.arange(1, len(bits) + 1, device=bits.device)).sum())
        return logits

    model.compute_logits = compute_logits


def watched_logits(worker) -> tuple[list[torch.Tensor], list[int]]:
    worker.model_runner.model.__dict__.pop("compute_logits", None)
    return worker.kept, [int(x) for x in worker.sums]


def calls(worker) -> collections.Counter:
    """The number of calls of our kernels so far."""
    return collections.Counter(plugin.counts())


def drain(worker) -> None:
    """Wait for asynchronous work of the last steps."""
    torch.cuda.synchronize()


# -- run in this process --


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


def empty_cache(llm: LLM) -> None:
    if not llm.reset_prefix_cache():
        raise RuntimeError(
            "cannot compare: the prefix cache could not be emptied, blocks are in use"
        )


def cold(llm: LLM, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Generate with an empty cache."""
    empty_cache(llm)
    return generate(llm, prompts, tokens)


def watched(
    llm: LLM, prompts: list[list[int]], tokens: int
) -> tuple[list[list[int]], list[torch.Tensor], list[int]]:
    """Generate with an empty cache; returns tokens, first logits, and a checksum of each step's
    bits."""
    llm.collective_rpc(watch_logits)
    generated = cold(llm, prompts, tokens)
    return generated, *llm.collective_rpc(watched_logits)[0]


def demand_kernels(llm: LLM, name: str, before: list, layers: int, kinds: Sequence[str]) -> None:
    """Since `before`, each layer of each worker has run every kind, and all equally often."""
    since = [now - then for now, then in zip(llm.collective_rpc(calls), before, strict=True)]
    for kind in kinds:
        numbers = [n for worker in since for (_, k), n in worker.items() if k == kind]
        demand(
            f"{name}: each of {layers} layers ran {kind} on our kernels "
            f"({numbers[0] if numbers else 0} times)",
            len(numbers) == layers * len(since) and len(set(numbers)) == 1,
        )
    if not kinds:
        demand(f"{name}: no layer ran on our kernels", not any(since))
    alone = any(kind == "operator" for worker in since for _, kind in worker)
    demand(f"{name}: no layer ran the prefill operator alone", not alone)


def demand_copies(name: str, prompts: list[list[int]], tokens: list[list[int]], vocab: int) -> None:
    """With "copy" weights, each token is the previous one plus one."""
    follow = all(
        generated == [(prompt[-1] + 1 + i) % vocab for i in range(len(generated))]
        for prompt, generated in zip(prompts, tokens, strict=True)
    )
    demand(f"{name}: every token follows from the one before", follow)


def compare(
    llm: LLM,
    name: str,
    prompts: list[list[int]],
    tokens: int,
    layers: int,
    kinds: tuple[str, str],
) -> list[list[int]]:
    """Run the same prompts with the kernels off and on, then once more from the prefix cache.

    Both paths round to fp16, but differently. The allowed distance of the logits is measured on
    vLLM's own path, by disturbing its half-precision Gated DeltaNet outputs by one rounding unit
    (2^-11 of their value, normally distributed). Ours may be twice as far away. Returns the tokens
    generated with the kernels on.
    """
    first, logits, cached = {}, {}, {}
    for run, kernels in (("off", "off"), ("disturbed", "off"), ("on", "all")):
        llm.collective_rpc(use, args=(kernels,))
        llm.collective_rpc(disturb, args=(2**-11 if run == "disturbed" else 0,))
        before = llm.collective_rpc(calls)
        first[run], logits[run], _ = watched(llm, prompts, tokens)
        cached[run] = generate(llm, prompts, tokens)
        demand_kernels(llm, f"{name}, {run}", before, layers, kinds if run == "on" else ())
    for what, (a, b) in {
        "off and on": (first["off"], first["on"]),
        "off and disturbed": (first["off"], first["disturbed"]),
        "off, prompt computed and cached": (first["off"], cached["off"]),
        "on, prompt computed and cached": (first["on"], cached["on"]),
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
    return first["on"]


def repeat(llm: LLM, name: str, prompts: list[list[int]], tokens: int, times: int) -> None:
    """Run the same prompts `times` times with an empty cache, and count how often tokens or logits
    differ."""
    others = {}
    for kernels in ("off", "all"):
        llm.collective_rpc(use, args=(kernels,))
        seen = []
        for _ in range(times):
            generated, _, sums = watched(llm, prompts, tokens)
            seen.append((generated, sums))
        others[kernels] = sum(run != seen[0] for run in seen)
    print(
        f"       {name}: runs of {times} whose tokens or logits are not the first's, to the bit: "
        f"off {others['off']}, on {others['all']}"
    )
    demand(
        f"{name}: ours repeats itself if vLLM's own does", not others["all"] or others["off"] > 0
    )


def digest(tokens: list[list[int]]) -> str:
    return hashlib.sha256(repr(tokens).encode()).hexdigest()[:12]


def timed(llm: LLM, prompts: list[list[int]], tokens: int) -> float:
    llm.collective_rpc(drain)
    begin = time.perf_counter()
    cold(llm, prompts, tokens)
    return time.perf_counter() - begin


def throughput(llm: LLM, requests: int, prompt: int, vocab: int, tokens: int, repeats: int) -> None:
    """A row of the table: medians over all rounds, and the smallest and largest ratio of a round.

    Each round measures both variants on the same prompts and alternates which one goes first; the
    first round compiles and does not count. The decode time is the time of `tokens` new tokens
    minus that of one.
    """
    rates: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    for r in range(repeats + 1):
        prompts = prompts_of([prompt] * requests, vocab, 100 + r)
        for kernels in ("off", "all") if r % 2 else ("all", "off"):
            llm.collective_rpc(use, args=(kernels,))
            one, all_of_them = (timed(llm, prompts, n) for n in (1, tokens))
            if r:
                rates["prefill", kernels].append(requests * prompt / one)
                rates["decode", kernels].append(requests * (tokens - 1) / (all_of_them - one))
    row = [f"{requests} x {prompt} + {tokens}"]
    for what in ("prefill", "decode"):
        off, on = rates[what, "off"], rates[what, "all"]
        ratios = [b / a for a, b in zip(off, on, strict=True)]
        row += [f"{statistics.median(x):.1f}" for x in (off, on)]
        row += [f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"]
    print("| " + " | ".join(row) + " |", flush=True)


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
    print(f"ready after {time.perf_counter() - begin:.0f} s", flush=True)
    config = llm.llm_engine.model_config
    if config.hf_text_config.tie_word_embeddings:
        raise SystemExit(f"cannot make the weights: {args.model} ties its word embeddings")
    vocab = config.get_vocab_size()
    switchable = not args.graphs.startswith("FULL")
    kinds = ("prefill", "verify" if args.drafts else "decode")
    workers = llm.collective_rpc(kernels_of)
    layers = len(workers[0])
    demand(
        f"all {layers} Gated DeltaNet layers are ours, in {len(workers)} of {args.cards} workers",
        layers > 0 and workers == [["all"] * layers] * args.cards,
    )
    if not switchable:  # the captured graphs run whole steps
        recorded = [collections.Counter()] * args.cards
        demand_kernels(llm, "while recording graphs", recorded, layers, kinds[1:])
    weight_sets = (("random", random_weights), ("copy", copy_weights))
    for weights, write in weight_sets:
        llm.collective_rpc(write)
        batches = {
            "1 request": [args.prompt],
            "4 requests": [args.prompt, 1000, 33, 517],
            # more than a batch of 8,192 tokens: some requests verify drafts while others still
            # prefill
            "4 requests, mixed batches": [args.prompt] * 3 + [100],
        }
        for batch, lengths in batches.items():
            name, prompts = f"{weights}, {batch}", prompts_of(lengths, vocab, 7)
            if switchable:
                tokens = compare(llm, name, prompts, args.tokens, layers, kinds)
                repeat(llm, name, prompts, args.tokens, args.repeats)
            else:
                before = llm.collective_rpc(calls)
                tokens = cold(llm, prompts, args.tokens)
                demand_kernels(llm, name, before, layers, kinds[:1])
            if weights == "copy":
                demand_copies(name, prompts, tokens, vocab)
            print(f"       {name}: digest of the tokens, kernels on: {digest(tokens)}", flush=True)
    for weights, write in weight_sets if switchable else ():
        llm.collective_rpc(write)
        print(
            f"\n{weights} weights, tokens/s\n"
            "| requests | prefill off | on | ratio | decode off | on | ratio |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for requests in (1, 4):
            throughput(llm, requests, args.prompt, vocab, 2 * args.tokens, args.repeats)
    print("engine: " + (f"{len(failures)} failures" if failures else "pass"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
