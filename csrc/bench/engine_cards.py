"""The plugin inside a real vLLM on several GPUs: a tensor-parallel engine, its kernels off and on.

    engine_cards.py MODEL_FOLDER [--cards N] [--drafts N] [--tokens N] [--prompt N]

MODEL_FOLDER, weights ("copy") and settings as in engine.py. Each rank must run every layer on our
kernels when they are on and none when they are off, with the same greedy tokens; then prefill and
decode are timed side by side. Exits 1 if a check fails.
"""

from __future__ import annotations

import argparse
import collections
import sys

import caovan_vllm_sm75_turbo3 as plugin
import engine
import torch


def inner(worker):
    return getattr(worker, "worker", worker)


def prepare(worker) -> tuple[int, str]:
    """Give a rank its weights; how many layers are ours there, and its card."""
    engine.copy_weights(inner(worker))
    return engine.use(inner(worker), "all"), str(inner(worker).device)


def switch(worker, kernels: str) -> None:
    engine.use(inner(worker), kernels)


def counts(_worker) -> dict[tuple[str, str], int]:
    return dict(plugin.counts())


def calls(llm, earlier: list[dict] | None = None) -> list[collections.Counter]:
    """A rank's calls of our kernels since `earlier`."""
    now = [collections.Counter(rank) for rank in llm.collective_rpc(counts)]
    return (
        now
        if earlier is None
        else [n - collections.Counter(e) for n, e in zip(now, earlier, strict=True)]
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--cards", type=int, default=2)
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=4096)
    args = parser.parse_args()
    llm = engine.start(args.model, "PIECEWISE", args.drafts, tensor_parallel_size=args.cards)
    vocab = llm.llm_engine.model_config.get_vocab_size()
    ranks = llm.collective_rpc(prepare)
    print(f"{torch.cuda.get_device_name()}: layers and card of each rank: {ranks}")
    engine.demand(
        "every rank has the same layers, on a card of its own",
        len({layers for layers, _ in ranks}) == 1
        and len({card for _, card in ranks}) == args.cards,
    )
    for batch, lengths in {
        "1 request": [args.prompt],
        "4 requests": [args.prompt, 1000, 33, 517],
        "4 requests, mixed batches": [args.prompt] * 3 + [100],
    }.items():
        prompts, tokens = engine.prompts_of(lengths, vocab, 7), {}
        for kernels in ("off", "all"):
            llm.collective_rpc(switch, args=(kernels,))
            llm.reset_prefix_cache()
            before = calls(llm)
            tokens[kernels] = engine.generate(llm, prompts, args.tokens)
            for rank, made in enumerate(calls(llm, before)):
                kinds = ("prefill", "verify" if args.drafts else "decode")
                numbers = {kind: [n for (_, k), n in made.items() if k == kind] for kind in kinds}
                engine.demand(
                    f"{batch}, kernels {kernels}, rank {rank}: "
                    + ", ".join(f"{len(n)} layers ran {kind}" for kind, n in numbers.items()),
                    all(len(n) == ranks[rank][0] and len(set(n)) == 1 for n in numbers.values())
                    if kernels == "all"
                    else not made,
                )
        engine.demand(
            f"{batch}: the same {args.tokens} tokens with the kernels off and on",
            tokens["off"] == tokens["all"],
        )
    print(
        "\n| requests | prefill off | on | ratio | decode off | on | ratio |\n" + "| --- " * 7 + "|"
    )
    for requests in (1, 4):
        engine.throughput(
            llm,
            lambda kernels: llm.collective_rpc(switch, args=(kernels,)),
            requests,
            args.prompt,
            vocab,
            2 * args.tokens,
            3,
        )
    print("engine: " + (f"{len(engine.failures)} failures" if engine.failures else "pass"))
    return 1 if engine.failures else 0


if __name__ == "__main__":
    sys.exit(main())
