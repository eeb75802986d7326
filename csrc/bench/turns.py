"""Compare a drafting hybrid's results from vLLM's prefix cache with recomputed ones. Needs a GPU.

    turns.py [--turns N] [--seeds N,N] [--limit SECONDS] [--weights copy|random|both] [--plain]
             [--async-scheduling] [--kernels off|all] [--graphs NONE|PIECEWISE] [--drafts N]
             [--cards N] [--without-plugin] [--match-unit N] [--kv-cache-dtype T]
    turns.py --gain [--cards N]

The model, generated here, has four layers and blocks of 400 tokens, of three to four times as many
with `--kv-cache-dtype int8_per_token_head` and `int4_per_token_head`. Conversations
(conversations.py) begin, continue, branch and repeat at every block boundary: one at a time, four
at a time, four at a time with fewer drafts than the model makes (not with async scheduling, which
does not ask the scheduler about drafts), and four at a time with a grammar; `--plain` omits the
last two. Each seed has its own conversations, so that later runs can continue with new ones.
`--turns` counts the turns of one seed; after `--limit` seconds no further seed starts. Steps take
2.5 blocks, so that prompts share steps and end inside blocks. There are two sets of weights: with
"random", drafts are hardly ever right; with "copy", the next token is the last one plus one, and
every fifth draft is wrong. In both, recurrent states decay slowly and attention is sharp, so that
the logits reveal a missing state or block. --cards splits the model by tensor parallelism.

Afterwards each turn's logits are compared with a reference: prompt and answer in one pass, without
cache and drafts. Two measurements bound the effect of rounding: the reference with its Gated
DeltaNet outputs disturbed by one unit of half precision (2^-11 of their value), and some of the
turns served again without a cache. No turn may be farther from the reference than the farthest of
those. In a cache of 8 or 4 bits, a turn beyond that bound is measured for itself (verdicts.py): it
is served again without the cache, and its reference is disturbed several times, keys and values
too. `--match-unit 16` makes vLLM keep states inside blocks, too (0.32 and later).
`--without-plugin` tests vLLM alone, and fails if that is wrong. The cache has a fixed size, so that
several runs can share a GPU.

`--gain` measures the time to the first token of a second turn, with the shape of a 27B model but 8
of its 64 layers. Exits 1 if a check fails. Each seed prints a line of JSON, and the last line sums
up the run.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

if "--without-plugin" in sys.argv:
    os.environ["VLLM_PLUGINS"] = ""

import conversations
import engine
import torch
import verdicts
from vllm import LLM, SamplingParams
from vllm.forward_context import get_forward_context
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar
from vllm.v1.structured_output.request import StructuredOutputRequest

TEXT = {
    "model_type": "qwen3_5_text",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "attn_output_gate": True,
    "tie_word_embeddings": False,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
    },
}
TINY = TEXT | {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "vocab_size": 2048,
}
WIDE = TEXT | {
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 8,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "vocab_size": 248320,
}
LAYERS_OF_27B = 64
TOP = 5
"""The number of a step's largest logits to compare, besides the chosen token's."""
FEWER, GRAMMAR = "4, fewer drafts", "4, a grammar"
SHARES = (("1 at a time", 1), ("4 at a time", 4), (FEWER, 4), (GRAMMAR, 4))
CACHE_BYTES = 4 << 30
STEP_TOKENS = {"auto": 1024, "int8_per_token_head": 2048, "int4_per_token_head": 4096}
"""By the cache's type."""
COLD = 24
"""The number of turns of each kind of run that are also computed without the cache."""
UNIT = 2**-11
"""One unit of rounding in half precision, as a part of the value."""
DISTURBANCES = 4
"""How often the reference of a doubtful turn is disturbed."""


def made(text: dict) -> str:
    """Create a folder with the configuration; vLLM 0.21 supports this model only with a vision
    tower."""
    layers = ["linear_attention"] * 3 + ["full_attention"]
    text = text | {"layer_types": layers * (text["num_hidden_layers"] // 4)}
    vision = {
        "model_type": "qwen3_5",
        "depth": 1,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 64,
        "out_hidden_size": text["hidden_size"],
        "num_position_embeddings": 64,
    }
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": vision,
        "image_token_id": 5,
        "video_token_id": 6,
        "vision_start_token_id": 7,
        "vision_end_token_id": 8,
    }
    folder = tempfile.mkdtemp(prefix="turns-")
    Path(folder, "config.json").write_text(json.dumps(config))
    return folder


# -- run in the worker, which is this process --


def telling(worker) -> None:
    """Set weights whose states decay slowly and whose attention weighs few tokens."""
    generator = torch.Generator(worker.device).manual_seed(7)
    for model in engine.models(worker):
        for name, p in model.named_parameters():
            if name.endswith("A_log"):
                p.data.uniform_(-9, -1, generator=generator)
            elif name.endswith("q_norm.weight"):  # vLLM adds one when it applies it
                p.data.fill_(3)


def telling_random(worker) -> None:
    engine.random_weights(worker)
    telling(worker)


def telling_copy(worker) -> None:
    engine.copy_weights(worker)
    telling(worker)
    for model in engine.models(worker):
        for name, p in model.named_parameters():
            if name.endswith(("out_proj.weight", "o_proj.weight")):
                p.data.mul_(6)


def spoil_drafts(worker, every: int) -> None:
    """Make one draft in `every` wrong, chosen by its value; 0 undoes it."""
    for head in engine.models(worker)[1:]:
        head.__dict__.pop("compute_logits", None)
        if every:

            def compute_logits(hidden, *args, inner=head.compute_logits, **kwargs):
                logits = inner(hidden, *args, **kwargs)
                wrong = (logits.argmax(-1, keepdim=True) * 7 + 3) % every == 0
                return torch.where(wrong, logits.roll(1, -1), logits)

            head.compute_logits = compute_logits


def disturb_cache(worker, relative_noise: float) -> None:
    """Multiply the keys and values that the target model caches by 1 + noise; 0 undoes it."""
    for module in worker.model_runner.model.modules():
        attention = getattr(module, "impl", None)
        if not hasattr(attention, "do_kv_cache_update"):
            continue
        attention.__dict__.pop("do_kv_cache_update", None)
        if relative_noise:

            def update(layer, key, value, *others, inner=attention.do_kv_cache_update):
                moved = (
                    (x.float() * (1 + torch.randn_like(x.float()) * relative_noise)).to(x.dtype)
                    for x in (key, value)
                )
                inner(layer, *moved, *others)

            attention.do_kv_cache_update = update


def watch_rows(worker) -> None:
    """Keep the target model's last hidden state of each token."""
    worker.rows = []

    def keep(module, inputs, output) -> None:
        metadata = get_forward_context().attn_metadata
        if isinstance(metadata, dict):
            tokens = next(
                m.num_actual_tokens for m in metadata.values() if hasattr(m, "num_actual_tokens")
            )
            worker.rows.append(output[:tokens].clone())

    worker.watching = worker.model_runner.model.register_forward_hook(keep)


def logits_from(worker, first: int, last: int) -> torch.Tensor:
    """The logits of the tokens from `first` up to `last`, exclusive; clears the kept states."""
    rows = torch.cat(worker.rows)
    worker.rows.clear()
    with torch.inference_mode():
        return worker.model_runner.model.compute_logits(rows[first:last]).float().cpu()


def stop_watching(worker) -> None:
    worker.watching.remove()


# -- run in this process --


class Served:
    """vLLM as a server: one request per turn."""

    def __init__(self, llm: LLM) -> None:
        self.llm, self.engine = llm, llm.llm_engine
        self.logits: dict[str, list[dict[int, float]]] = {}
        self.cached_of: dict[str, int] = {}
        self.cached = self.prompts = self.hits = self.steps = 0

    def add(self, turn: conversations.Turn) -> None:
        params = SamplingParams(
            temperature=0,
            max_tokens=turn.length,
            ignore_eos=True,
            detokenize=False,
            logprobs=TOP,
        )
        self.engine.add_request(turn.name, {"prompt_token_ids": turn.prompt}, params)

    def step(self) -> list[tuple[str, list[int]]]:
        self.steps += 1
        ended = []
        for output in self.engine.step():
            if not output.finished:
                continue
            completion = output.outputs[0]
            self.logits[output.request_id] = [
                {token: found.logprob for token, found in step.items()}
                for step in completion.logprobs
            ]
            self.cached_of[output.request_id] = output.num_cached_tokens or 0
            self.cached += output.num_cached_tokens or 0
            self.hits += bool(output.num_cached_tokens)
            self.prompts += len(output.prompt_token_ids)
            ended.append((output.request_id, list(completion.token_ids)))
        return ended

    def alone(self, turn: conversations.Turn) -> tuple[list[int], list[dict[int, float]]]:
        """Run the turn again with an empty cache."""
        engine.empty_cache(self.llm)
        again = conversations.Turn(f"{turn.name} alone", turn.kind, turn.prompt, turn.length)
        self.add(again)
        ended: list[tuple[str, list[int]]] = []
        while not ended:
            ended = self.step()
        del self.cached_of[again.name]
        return ended[0][1], self.logits.pop(again.name)


def unchanged(llm: LLM):
    """vLLM unchanged; returns a function that undoes nothing."""
    return lambda: None


def fickle(llm: LLM):
    """Make the scheduler drop some drafts; returns a function that undoes it."""
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    draw = random.Random(2)

    def update_draft_token_ids(drafts) -> None:
        drafts.draft_token_ids = [
            ids[: draw.randint(0, len(ids))] for ids in drafts.draft_token_ids
        ]
        type(scheduler).update_draft_token_ids(scheduler, drafts)

    scheduler.update_draft_token_ids = update_draft_token_ids
    return lambda: scheduler.__dict__.pop("update_draft_token_ids")


class EveryFifthForbidden(StructuredOutputGrammar):
    """A grammar for tokens without text; the tokens it forbids depend on the number of tokens so
    far."""

    def __init__(self, vocab: int) -> None:
        self._vocab, self._accepted = vocab, 0

    @staticmethod
    def forbids(place: int, token: int) -> bool:
        return (token + 2 * place) % 5 == 0

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        accepted = self.validate_tokens(tokens) == tokens
        self._accepted += len(tokens) if accepted else 0
        return accepted

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        forbidden = (n for n, t in enumerate(tokens) if self.forbids(self._accepted + n, t))
        return tokens[: next(forbidden, len(tokens))]

    def rollback(self, num_tokens: int) -> None:
        self._accepted -= num_tokens

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        allowed = [not self.forbids(self._accepted, token) for token in range(self._vocab)]
        bits = torch.tensor(allowed).view(-1, 32).long() << torch.arange(32)
        bitmask[batch_index] = bits.sum(1).to(torch.int32)

    def is_terminated(self) -> bool:
        return False

    def reset(self) -> None:
        self._accepted = 0


def constrained(llm: LLM):
    """Give each request that grammar; returns a function that undoes it."""
    core = llm.llm_engine.engine_core.engine_core
    vocab = llm.llm_engine.model_config.get_vocab_size()

    def preprocess_add_request(request):
        made, wave = type(core).preprocess_add_request(core, request)
        made.structured_output_request = StructuredOutputRequest(
            params=None, _grammar=EveryFifthForbidden(vocab)
        )
        return made, wave

    def allocate_token_bitmask(rows: int) -> torch.Tensor:
        return torch.full((rows, vocab // 32), -1, dtype=torch.int32)

    core.structured_output_manager.backend = SimpleNamespace(
        allocate_token_bitmask=allocate_token_bitmask, destroy=lambda: None
    )
    core.preprocess_add_request = preprocess_add_request
    return lambda: core.__dict__.pop("preprocess_add_request")


def truth(llm: LLM, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """The logits of each token of the answer, from one pass over prompt and answer."""
    engine.empty_cache(llm)
    tokens = prompt + answer[:-1]
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": tokens}], params, use_tqdm=False)
    return llm.collective_rpc(logits_from, args=(len(prompt) - 1, len(tokens)))[0]


def apart(steps: list[dict[int, float]], want: torch.Tensor) -> list[float]:
    """The largest difference in a turn's logits at each place of the answer."""
    found = []
    for step, row in zip(steps, want, strict=True):
        tokens = torch.tensor(list(step), device=want.device)
        got = torch.tensor(list(step.values()), device=want.device)
        found.append((row[tokens] - got).abs().max().item())
    return found


Done = list[tuple[str, conversations.Turn]]  # the kind of run, and a turn it answered


def have_turns(
    llm: LLM, served: Served, weights: str, seed: int, turns: int, shares: tuple
) -> Done:
    """Run the conversations; each kind of run starts with an empty cache."""
    block = llm.llm_engine.vllm_config.cache_config.block_size
    vocab = llm.llm_engine.model_config.get_vocab_size()
    done: Done = []
    for number, (name, at_a_time) in enumerate(shares):
        engine.empty_cache(llm)
        talk = conversations.Conversations(block, vocab, seed=seed * len(SHARES) + number)
        undo = {FEWER: fickle, GRAMMAR: constrained}.get(name, unchanged)(llm)
        cached, prompts, steps = served.cached, served.prompts, served.steps
        begin = time.perf_counter()
        for turn in conversations.drive(served, talk, turns // len(shares), at_a_time):
            old, turn.name = turn.name, f"{name} {turn.name}"
            for of_turn in (served.logits, served.cached_of):
                of_turn[turn.name] = of_turn.pop(old)
            done.append((name, turn))
        undo()
        print(
            f"       {weights}, {name}: {turns // len(shares)} turns, {served.steps - steps} steps"
            f" in {time.perf_counter() - begin:.0f} s, of the prompts "
            f"{(served.cached - cached) / (served.prompts - prompts):.0%} cached",
            flush=True,
        )
    if weights == "copy":
        wrong = collections.Counter(
            turn.kind
            for name, turn in done
            if name != GRAMMAR
            and turn.answer != [(turn.prompt[-1] + 1 + i) % vocab for i in range(len(turn.answer))]
        )
        what = f"{weights}: every token follows from the one before {dict(wrong) or ''}"
        engine.demand(what.strip(), not wrong)
    disobeyed = sum(
        EveryFifthForbidden.forbids(place, token)
        for name, turn in done
        if name == GRAMMAR
        for place, token in enumerate(turn.answer)
    )
    engine.demand(f"{weights}: the grammar is obeyed", not disobeyed)
    return done


def disturbed(llm: LLM, turn: conversations.Turn, want: torch.Tensor, cache: bool) -> float:
    """The distance of the turn's reference once Gated DeltaNet outputs, and keys and values if
    `cache`, are moved by a unit of rounding."""
    llm.collective_rpc(engine.disturb, args=(UNIT,))
    if cache:
        llm.collective_rpc(disturb_cache, args=(UNIT,))
    moved = truth(llm, turn.prompt, turn.answer)
    llm.collective_rpc(engine.disturb, args=(0,))
    if cache:
        llm.collective_rpc(disturb_cache, args=(0,))
    return (moved - want).abs().max().item()


Alone = tuple[list[int], list[dict[int, float]]]


def without_cache(llm: LLM, turn: conversations.Turn, alone: Alone, want: torch.Tensor) -> float:
    """The distance of a turn that was served alone; `want`: of the answer with the cache."""
    answer, logits = alone
    other = want if answer == turn.answer else truth(llm, turn.prompt, answer)
    return verdicts.farthest(apart(logits, other))


def measure(
    llm: LLM, served: Served, done: Done, shares: tuple
) -> tuple[list[list[float]], float, float]:
    """The distances of each turn's logits from the reference, of the disturbed reference, and of
    the turns without a cache."""
    draw, samples = random.Random(1), set()
    for name, _ in shares:
        those = [turn.name for n, turn in done if n == name]
        samples.update(draw.sample(those, min(COLD, len(those))))
    alone = {turn.name: served.alone(turn) for _, turn in done if turn.name in samples}
    llm.collective_rpc(watch_rows)
    distances, unit, cold = [], 0.0, 0.0
    for _, turn in done:
        want = truth(llm, turn.prompt, turn.answer)
        distances.append(apart(served.logits[turn.name], want))
        if turn.name in samples:
            cold = max(cold, without_cache(llm, turn, alone[turn.name], want))
            unit = max(unit, disturbed(llm, turn, want, False))
    llm.collective_rpc(stop_watching)
    return distances, unit, cold


def doubts(
    llm: LLM, served: Served, done: Done, distances: list[list[float]], bound: float, again: bool
) -> list[verdicts.Doubt]:
    """The turns beyond the bound; with `again`, each is measured for itself."""
    found = []
    for (name, turn), each in zip(done, distances, strict=True):
        place = verdicts.beyond(each, bound)
        if place is None:
            continue
        of_turn: dict = {}
        if again:
            alone = served.alone(turn)
            llm.collective_rpc(watch_rows)
            want = truth(llm, turn.prompt, turn.answer)
            of_turn["alone"] = without_cache(llm, turn, alone, want)
            of_turn["disturbed"] = tuple(
                disturbed(llm, turn, want, True) for _ in range(DISTURBANCES)
            )
            llm.collective_rpc(stop_watching)
        cached = served.cached_of[turn.name]
        found.append(
            verdicts.Doubt(
                name,
                turn.kind,
                len(turn.prompt),
                cached,
                place,
                verdicts.farthest(each),
                **of_turn,
            )
        )
    return found


def prove(llm: LLM, weights: str, seed: int, turns: int, shares: tuple, again: bool) -> dict:
    """Run and judge the turns of one seed; `again`: whether doubtful turns are measured again."""
    served = Served(llm)
    done = have_turns(llm, served, weights, seed, turns, shares)
    cached, hits = served.cached / served.prompts, served.hits
    distances, unit, cold = measure(llm, served, done, shares)
    doubtful = doubts(llm, served, done, distances, max(unit, cold), again)
    wrong = [doubt for doubt in doubtful if doubt.wrong]
    print(
        f"| {weights} | turns | wrong | farthest logit | p99 | kinds that were wrong |\n"
        "| --- | --- | --- | --- | --- | --- |"
    )
    most = [verdicts.farthest(each) for each in distances]
    for name, _ in shares:
        ordered = sorted(far for (n, _), far in zip(done, most, strict=True) if n == name)
        of_run = collections.Counter(doubt.kind for doubt in wrong if doubt.run == name)
        kinds = ", ".join(f"{kind} {n}" for kind, n in of_run.most_common()) or "-"
        print(
            f"| {name} | {len(ordered)} | {of_run.total()} | {ordered[-1]:.4f} "
            f"| {ordered[len(ordered) * 99 // 100]:.4f} | {kinds} |"
        )
    if doubtful:
        print(verdicts.TABLE, *(doubt.row() for doubt in doubtful), sep="\n")
    engine.demand(f"{weights}: logits tell something", 0 < unit < 1)
    engine.demand(f"{weights}: a quarter of the turns go on from the cache", hits >= len(done) / 4)
    engine.demand(
        f"{weights}: {len(done)} turns, {hits} from the cache, {len(doubtful)} beyond the bound, "
        f"{len(wrong)} wrong; logits at most {verdicts.farthest(most):.4f} from the truth, those "
        f"of {len(shares) * COLD} computed without the cache {cold:.4f}, one unit of rounding "
        f"moves the truth by {unit:.4f}",
        not wrong,
    )
    return {
        "turns": len(done),
        "hits": hits,
        "beyond": len(doubtful),
        "wrong": len(wrong),
        "farthest": round(verdicts.farthest(most), 5),
        "cold": round(cold, 5),
        "unit": round(unit, 5),
        "cached": round(cached, 3),
    }


def packed(cache: str) -> dict[str, str]:
    """Settings of a cache in 4 or 8 bits, which one backend alone has."""
    return {} if cache == "auto" else {"kv_cache_dtype": cache, "attention_backend": "TRITON_ATTN"}


def proof(args: argparse.Namespace) -> dict:
    begin = time.perf_counter()
    llm = engine.start(
        made(TINY),
        args.graphs,
        args.drafts,
        args.cards,
        async_scheduling=args.async_scheduling,
        logprobs_mode="raw_logits",
        skip_tokenizer_init=True,
        max_model_len=16384,
        max_num_batched_tokens=STEP_TOKENS[args.kv_cache_dtype],
        gpu_memory_utilization=0.05,
        kv_cache_memory_bytes=CACHE_BYTES,
        **({"prefix_match_unit": args.match_unit} if args.match_unit else {}),
        **packed(args.kv_cache_dtype),
    )
    block = llm.llm_engine.vllm_config.cache_config.block_size
    print(f"ready after {time.perf_counter() - begin:.0f} s, blocks of {block} tokens", flush=True)
    print(f"       kernels of the Gated DeltaNet layers: {llm.collective_rpc(engine.kernels_of)}")
    if not args.without_plugin:
        llm.collective_rpc(engine.use, args=(args.kernels,))
    found: dict = {
        "block": block,
        "cards": args.cards,
        "async": args.async_scheduling,
        "kernels": args.kernels,
        "match_unit": args.match_unit,
        "cache": args.kv_cache_dtype,
    }
    out = {FEWER} if args.async_scheduling else set()
    out |= {FEWER, GRAMMAR} if args.plain else set()
    shares = tuple(share for share in SHARES if share[0] not in out)
    kinds = {"copy": telling_copy, "random": telling_random}
    chosen = {k: write for k, write in kinds.items() if args.weights in (k, "both")}
    for number, (seed, (weights, write)) in enumerate(
        itertools.product(args.seeds, chosen.items())
    ):
        if number and time.perf_counter() - begin > args.limit:
            break
        llm.collective_rpc(write)
        llm.collective_rpc(spoil_drafts, args=(5 if weights == "copy" else 0,))
        again = args.kv_cache_dtype != "auto"
        one = prove(llm, weights, seed, args.turns // len(chosen), shares, again)
        print(json.dumps({"weights": weights, "seed": seed} | one), flush=True)
        found[f"{weights}, seed {seed}"] = one
    return found


def first_token(llm: LLM, tokens: list[int], name: str) -> tuple[float, int]:
    """Seconds to the first token, and the number of cached tokens."""
    llm.collective_rpc(engine.drain)
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    begin = time.perf_counter()
    llm.llm_engine.add_request(name, {"prompt_token_ids": tokens}, params)
    while True:
        for output in llm.llm_engine.step():
            if output.finished:
                return time.perf_counter() - begin, output.num_cached_tokens or 0


def gain(args: argparse.Namespace) -> dict:
    llm = engine.start(
        made(WIDE),
        args.graphs,
        args.drafts,
        args.cards,
        async_scheduling=None,
        skip_tokenizer_init=True,
        max_model_len=131072,
        max_num_seqs=1,
        gpu_memory_utilization=0.5,
    )
    llm.collective_rpc(engine.copy_weights)
    vocab = llm.llm_engine.model_config.get_vocab_size()
    layers = WIDE["num_hidden_layers"]
    engine.cold(llm, engine.prompts_of([9000], vocab, 1), 8)  # warms up what compiles lazily
    print(f"| tokens | cached | seconds, cache off | on | {layers} of {LAYERS_OF_27B} layers |")
    print("| --- | --- | --- | --- | --- |")
    found = {}
    for length in (4096, 25_000, 100_000):
        (prompt,) = engine.prompts_of([length], vocab, length)
        (more,) = engine.prompts_of([200], vocab, 5)
        (answer,) = engine.cold(llm, [prompt], 64)
        on, cached = first_token(llm, prompt + answer + more, f"on {length}")
        engine.empty_cache(llm)
        off, none = first_token(llm, prompt + answer + more, f"off {length}")
        engine.demand(
            f"{length} tokens: {cached} cached with the cache, {none} without", 0 == none < cached
        )
        found[str(length)] = {"off": round(off, 4), "on": round(on, 4), "cached": cached}
        print(f"| {length} | {cached} | {off:.3f} | {on:.3f} | {off / on:.1f} x |", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=1200)
    parser.add_argument(
        "--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0]
    )
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--weights", default="both", choices=("copy", "random", "both"))
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--cards", type=int, default=1)
    parser.add_argument("--graphs", default="NONE", choices=("NONE", "PIECEWISE"))
    parser.add_argument("--kernels", default="all", choices=("off", "all"))
    parser.add_argument("--async-scheduling", action="store_true")
    parser.add_argument("--without-plugin", action="store_true")
    parser.add_argument("--match-unit", type=int, default=0)
    parser.add_argument("--kv-cache-dtype", default="auto", choices=STEP_TOKENS)
    parser.add_argument("--gain", action="store_true")
    args = parser.parse_args()
    found = gain(args) if args.gain else proof(args)
    print("turns: " + (f"{len(engine.failures)} failures" if engine.failures else "pass"))
    print(json.dumps(found | {"failures": engine.failures}))
    return 1 if engine.failures else 0


if __name__ == "__main__":
    sys.exit(main())
