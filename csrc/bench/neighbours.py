"""Check whether concurrent requests corrupt a drafting hybrid's states in vLLM. Needs a GPU.

    neighbours.py MODEL_FOLDER [--drafts N] [--async-scheduling] [--no-prefix-caching]

MODEL_FOLDER is as for engine.py; eight layers are enough. Twenty requests of 20 to 6,000 tokens
come and go, four at a time, then each again with its answer and 40 more tokens, mostly from the
prefix cache. Each request has run alone before. The check compares the logits of the chosen tokens
with that run, with the plugin's kernels off and on. The weights are engine.py's "copy" with
stronger Gated DeltaNet layers: the tokens stay the same, while the logits reveal the states, though
not what attention lacks. Every fifth draft is wrong, so that concurrent requests accept different
numbers of drafts, mostly none or all. Exits 1 if a logit moves by more than rounding explains.
"""

from __future__ import annotations

import argparse
import random
import sys

import engine
import torch
from vllm import LLM, SamplingParams

REQUESTS, LONGEST = 20, 6000
ROUNDING = 0.02
"""Logits are near 17, in fp16. Concurrent requests change the shapes of products, which changes the
last bit."""

Answers = list[tuple[list[int], torch.Tensor]]  # a request's tokens and their logits


def telling_weights(worker) -> None:
    engine.copy_weights(worker)
    target, *heads = engine.models(worker)
    for model in (target, *heads):
        for name, p in model.named_parameters():
            if name.endswith("out_proj.weight"):
                p.data.mul_(6)
    for head in heads:

        def compute_logits(hidden, *args, inner=head.compute_logits, **kwargs):
            logits = inner(hidden, *args, **kwargs)
            wrong = logits.argmax(-1, keepdim=True) % 5 == 0
            return torch.where(wrong, logits.roll(1, -1), logits)

        head.compute_logits = compute_logits


def answers(llm: LLM, prompts: list[list[int]], lengths: list[int], *, together: bool) -> Answers:
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    params = [
        SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False, logprobs=0)
        for n in lengths
    ]
    outputs = []
    if together:
        outputs = llm.generate(inputs, params, use_tqdm=False)
    else:
        for one, param in zip(inputs, params, strict=True):
            engine.empty_cache(llm)
            outputs += llm.generate([one], [param], use_tqdm=False)
    completions = [o.outputs[0] for o in outputs]
    return [
        (
            list(c.token_ids),
            torch.tensor(
                [step[t].logprob for step, t in zip(c.logprobs, c.token_ids, strict=True)]
            ),
        )
        for c in completions
    ]


def hold_against(name: str, got: Answers, alone: Answers) -> None:
    moved = [(x - y).abs() for (_, x), (_, y) in zip(got, alone, strict=True)]
    wrong = [int((d > ROUNDING).sum()) for d in moved]
    others = sum(a != b for (a, _), (b, _) in zip(got, alone, strict=True))
    engine.demand(
        f"{name}: logits moved by {max(d.max() for d in moved):.3f} at most; "
        f"{sum(wrong)} of {sum(len(d) for d in moved)} by more than {ROUNDING}, in "
        f"{sum(w > 0 for w in wrong)} of {len(got)} requests; other tokens in {others}",
        not any(wrong) and not others,
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--async-scheduling", action="store_true")
    parser.add_argument("--no-prefix-caching", action="store_true")
    args = parser.parse_args()
    uncached = {"enable_prefix_caching": False, "mamba_cache_mode": "none"}
    llm = engine.start(
        args.model,
        "NONE",
        args.drafts,
        1,
        async_scheduling=args.async_scheduling,
        logprobs_mode="raw_logits",
        **(uncached if args.no_prefix_caching else {}),
    )
    llm.collective_rpc(telling_weights)
    vocab = llm.llm_engine.model_config.get_vocab_size()
    draw = random.Random(3)
    prompt_lengths = [
        draw.choice([draw.randint(20, 400), draw.randint(400, LONGEST)]) for _ in range(REQUESTS)
    ]
    answer_lengths = [draw.randint(16, 120) for _ in range(REQUESTS)]
    prompts = engine.prompts_of(prompt_lengths, vocab, 11)
    llm.collective_rpc(engine.use, args=("off",))
    alone = answers(llm, prompts, answer_lengths, together=False)
    more = engine.prompts_of([40] * REQUESTS, vocab, 12)
    second = [p + answer + q for p, (answer, _), q in zip(prompts, alone, more, strict=True)]
    second_alone = answers(llm, second, answer_lengths, together=False)
    for kernels in ("off", "all"):
        llm.collective_rpc(engine.use, args=(kernels,))
        engine.empty_cache(llm)
        got = answers(llm, prompts, answer_lengths, together=True)
        hold_against(f"kernels {kernels}, first turn", got, alone)
        got = answers(llm, second, answer_lengths, together=True)
        hold_against(f"kernels {kernels}, second turn", got, second_alone)
    print("neighbours: " + ("spoiled" if engine.failures else "pass"))
    return 1 if engine.failures else 0


if __name__ == "__main__":
    sys.exit(main())
