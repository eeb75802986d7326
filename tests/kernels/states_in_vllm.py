"""vLLM 0.21's own scheduler, cache manager and state copies around a model that is its history.

    states_in_vllm.py [--without-plugin] [--async-scheduling] [--turns N] [--at-a-time N]
                      [--budget TOKENS] [--drafts N] [--blocks N] [--fickle] [--leave-out FIX]

The "model" writes into each cache slot which tokens it stands for, and looks, at each step, whether
what it goes on from stands for the tokens before. Prints what was wrong, and exits 1 if anything
was. Needs vLLM 0.21's Python files and torch, no GPU. `--fickle`: steps have fewer drafts than
they could, as a grammar or the token budget leave them.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import random
import sys
from types import SimpleNamespace

import conversations
import numpy as np
import torch
import vllm.platforms  # noqa: F401  (before the scheduler: they import each other)
from caovan_vllm_sm75_turbo3 import states
from vllm.model_executor.layers.mamba import mamba_utils as layouts
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker import mamba_utils

BLOCK, BLOCKS, VOCAB, WINDOW = 32, 4000, 997, 3
GDN_GROUPS = 2
PRIME = (1 << 61) - 1


def after(history: int, token: int) -> int:
    return (history * 1_000_003 + token + 7) % PRIME


def histories(tokens: list[int]) -> list[int]:
    """What stands for the first n tokens, by n."""
    result = [1]
    for token in tokens:
        result.append(after(result[-1], token))
    return result


def likely(history: int) -> int:
    return history % VOCAB


overlaps: list[int] = []


def copy(sources, targets, sizes) -> None:
    """batch_memcpy, all at once: what one copy reads no other may have written."""
    numbers = list(zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True))
    read = [ctypes.string_at(source, size) for source, _, size in numbers]
    for (source, target, size), content in zip(numbers, read, strict=True):
        if source < target + size and target < source + size and source != target:
            overlaps.append(source)
        ctypes.memmove(target, content, size)


class Runner:
    """What vLLM 0.21's GPUModelRunner does about states, and nothing else."""

    def __init__(self, config: KVCacheConfig, drafts: int, late: bool, fickle: bool) -> None:
        self.config, self.drafts, self.late, self.fickle = config, drafts, late, fickle
        self.draw = random.Random(5)
        self.attention = np.zeros((BLOCKS, BLOCK), np.int64)
        self.layers = {
            name: SimpleNamespace(
                kv_cache=[
                    torch.zeros(BLOCKS, WINDOW + drafts, 4, dtype=torch.int64),
                    torch.zeros(BLOCKS, 4, dtype=torch.int64),
                ]
            )
            for group in config.kv_cache_groups[1:]
            for name in group.layer_names
        }
        self.functions = (layouts.get_conv_copy_spec, layouts.get_temporal_copy_spec)
        self.copies = mamba_utils.MambaCopyBuffers.create(
            16,
            config,
            self.functions,
            lambda n, dtype: CpuGpuBuffer(
                n, dtype=dtype, device=torch.device("cpu"), pin_memory=False
            ),
        )
        self.batch = SimpleNamespace(req_ids=[], num_accepted_tokens_cpu=np.ones(16, np.int32))
        self.requests: dict[str, SimpleNamespace] = {}
        self.state_idx: dict[str, int] = {}
        self.before: dict[str, int] = {}
        self.wrong: collections.Counter[str] = collections.Counter()
        self.hits = 0

    def update(self, output) -> None:
        """The batch's rows: those that leave, those that come, and those that move."""
        rows: list[str | None] = list(self.batch.req_ids)
        self.before = {name: row for row, name in enumerate(rows)} if self.late else {}
        counts = self.batch.num_accepted_tokens_cpu
        cached = output.scheduled_cached_reqs
        scheduled = set(output.num_scheduled_tokens) - set(cached.resumed_req_ids)
        for name in output.finished_req_ids:
            self.requests.pop(name, None)
        rows = [name if name in scheduled and name in self.requests else None for name in rows]
        self.attention[output.new_block_ids_to_zero or []] = 0
        self.hits += sum(new.num_computed_tokens > 0 for new in output.scheduled_new_reqs)
        for new in output.scheduled_new_reqs:
            self.requests[new.req_id] = SimpleNamespace(
                prompt=len(new.prompt_token_ids),
                tokens=list(new.prompt_token_ids),
                block_ids=[list(ids) for ids in new.block_ids],
                num_computed_tokens=new.num_computed_tokens,
                next=new.num_computed_tokens,
                drafts=[],
            )
        for place, name in enumerate(cached.req_ids):
            state, new = self.requests[name], cached.new_block_ids[place]
            if name in cached.resumed_req_ids:
                state.block_ids = [list(ids) for ids in new]
                state.next = cached.num_computed_tokens[place]
            elif new is not None:
                for ids, more in zip(state.block_ids, new, strict=True):
                    ids.extend(more)
            state.num_computed_tokens = state.next
        for name in output.num_scheduled_tokens:
            if name in rows:
                continue
            if None in rows:
                row = rows.index(None)
                rows[row] = name
            else:
                row = len(rows)
                rows.append(name)
            counts[row] = 1
        while None in rows:
            last = rows.pop()
            if last is not None:
                row = rows.index(None)
                rows[row], counts[row] = last, counts[len(rows)]
        self.batch.req_ids = rows
        self.swap([bool(output.scheduled_spec_decode_tokens.get(name)) for name in rows])
        if self.before:  # GPUModelRunner._prepare_inputs: rows that moved are moved again
            old = counts.copy()
            for row, name in enumerate(rows):
                counts[row] = old[self.before[name]] if name in self.before else 1

    def swap(self, decodes: list[bool]) -> None:
        """Rows that verify drafts come first, as attention wants them."""
        names, counts = self.batch.req_ids, self.batch.num_accepted_tokens_cpu
        while (first := decodes.index(False) if False in decodes else len(decodes)) < sum(decodes):
            last = len(decodes) - 1 - decodes[::-1].index(True)
            for column in (names, decodes, counts):
                column[first], column[last] = column[last], column[first]

    def step(self, output) -> ModelRunnerOutput:
        self.update(output)
        names, counts = self.batch.req_ids, self.batch.num_accepted_tokens_cpu
        about = self.config, SimpleNamespace(enable_prefix_caching=True)
        mamba_utils.preprocess_mamba(
            output,
            *about,
            self.state_idx,
            self.batch,
            self.requests,
            self.layers,
            self.functions,
            self.copies,
        )
        sampled = [
            self.compute(name, output.num_scheduled_tokens[name], self.drafts_of(name, output), row)
            for row, name in enumerate(names)
        ]
        counts[: len(names)] = [max(len(tokens), 1) for tokens in sampled]
        mamba_utils.postprocess_mamba(
            output,
            self.config,
            self.batch,
            self.requests,
            self.state_idx,
            self.layers,
            self.functions,
            self.copies,
        )
        for name, tokens in zip(names, sampled, strict=True):
            state = self.requests[name]
            drafts = len(self.drafts_of(name, output))
            state.next = state.num_computed_tokens + output.num_scheduled_tokens[name]
            if tokens:
                state.next -= drafts - (len(tokens) - 1)
            state.tokens += tokens
            state.drafts = self.guess(state.tokens) if tokens else []
        return ModelRunnerOutput(
            req_ids=list(names),
            req_id_to_index={name: row for row, name in enumerate(names)},
            sampled_token_ids=sampled,
        )

    def drafts_of(self, name: str, output) -> list[int]:
        """Under asynchronous scheduling the scheduler only knows how many there are."""
        planned = output.scheduled_spec_decode_tokens.get(name, [])
        return self.requests[name].drafts[: len(planned)]

    def guess(self, tokens: list[int]) -> list[int]:
        history, drafts = histories(tokens)[-1], []
        for _ in range(self.drafts):
            right = self.draw.random() < 0.7
            drafts.append(likely(history) if right else (likely(history) + 1) % VOCAB)
            history = after(history, drafts[-1])
        return drafts[: self.draw.randint(0, self.drafts)] if self.fickle else drafts

    def compute(self, name: str, number: int, drafts: list[int], row: int) -> list[int]:
        """A step of one request: check what it goes on from, write what it leaves."""
        state, accepted = self.requests[name], int(self.batch.num_accepted_tokens_cpu[row])
        begin, tokens = state.num_computed_tokens, state.tokens + drafts
        end, stands = begin + number, histories(tokens)
        assert end <= len(tokens), (name, begin, number, len(tokens))
        attention = state.block_ids[0]
        held = [self.attention[attention[p // BLOCK], p % BLOCK] for p in range(begin)]
        lacking = [p for p in range(begin) if held[p] != stands[p + 1]]
        if lacking:
            self.wrong["steps whose attention lacks tokens"] += 1
        for p in range(begin, end):
            self.attention[attention[p // BLOCK], p % BLOCK] = stands[p + 1]
        verify = bool(drafts) and begin >= state.prompt
        index, back = (end - 1) // BLOCK, accepted - 1 if verify else 0
        window = [0] * WINDOW + tokens
        for number_of_group, group in enumerate(self.config.kv_cache_groups[1:], 1):
            blocks = state.block_ids[number_of_group]
            for layer in group.layer_names:
                conv, ssm = self.layers[layer].kv_cache
                if begin:
                    if ssm[blocks[index + back], 0] != stands[begin]:
                        self.wrong["states that are not of the tokens before"] += 1
                    if (
                        conv[blocks[index], back : back + WINDOW, 0].tolist()
                        != (window[begin : begin + WINDOW])
                    ):
                        self.wrong["windows that are not of the tokens before"] += 1
                if verify:
                    for place in range(end - begin):
                        ssm[blocks[index + place]] = stands[begin + place + 1]
                    rows = window[begin + 1 : end + WINDOW]
                else:
                    ssm[blocks[index]] = stands[end]
                    rows = window[end : end + WINDOW]
                conv[blocks[index], : len(rows)] = torch.tensor(rows)[:, None]
        if end < len(state.tokens):
            return []
        sampled, history = [], stands[len(state.tokens)]
        for draft in drafts:
            sampled.append(likely(history))
            if draft != sampled[-1]:
                return sampled
            history = after(history, draft)
        return [*sampled, likely(history)]


class Engine:
    """Scheduler and runner; asynchronous: a step is planned before the last one has ended."""

    def __init__(self, args: argparse.Namespace) -> None:
        state = MambaSpec(
            block_size=BLOCK,
            shapes=((WINDOW + args.drafts, 4), (4,)),
            dtypes=(torch.int64, torch.int64),
            mamba_cache_mode="align",
            num_speculative_blocks=args.drafts,
        )
        attention = FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.int64
        )
        groups = [KVCacheGroupSpec(["attention"], attention)]
        groups += [KVCacheGroupSpec([f"gdn{n}"], state) for n in range(GDN_GROUPS)]
        self.cache = KVCacheConfig(
            num_blocks=args.blocks, kv_cache_tensors=[], kv_cache_groups=groups
        )
        config = SimpleNamespace(
            scheduler_config=SimpleNamespace(
                max_num_seqs=args.at_a_time,
                max_num_scheduled_tokens=None,
                max_num_batched_tokens=args.budget,
                policy="fcfs",
                long_prefill_token_threshold=0,
                enable_chunked_prefill=True,
                scheduler_reserve_full_isl=True,
                async_scheduling=args.async_scheduling,
                max_num_encoder_input_tokens=0,
            ),
            cache_config=SimpleNamespace(
                num_gpu_blocks=args.blocks,
                block_size=BLOCK,
                enable_prefix_caching=True,
                mamba_cache_mode="align",
            ),
            speculative_config=SimpleNamespace(
                num_speculative_tokens=args.drafts,
                use_eagle=lambda: True,
                uses_draft_model=lambda: False,
            ),
            model_config=SimpleNamespace(is_encoder_decoder=False, max_model_len=100_000),
            parallel_config=SimpleNamespace(
                data_parallel_index=0,
                decode_context_parallel_size=1,
                prefill_context_parallel_size=1,
                pipeline_parallel_size=1,
            ),
            observability_config=SimpleNamespace(kv_cache_metrics=False, enable_mfu_metrics=False),
            lora_config=None,
            kv_events_config=None,
            kv_transfer_config=None,
            ec_transfer_config=None,
        )
        kind = AsyncScheduler if args.async_scheduling else Scheduler
        self.scheduler = kind(
            vllm_config=config,
            kv_cache_config=self.cache,
            structured_output_manager=SimpleNamespace(should_advance=lambda _: False),
            block_size=BLOCK,
            mm_registry=SimpleNamespace(supports_multimodal_inputs=lambda _: False),
        )
        self.late = args.async_scheduling
        self.runner = Runner(self.cache, args.drafts, self.late, args.fickle)
        init_none_hash(hash)
        self.hasher = get_request_block_hasher(
            BLOCK, lambda value: repr(value).encode()[-24:] + str(hash(value)).encode()
        )
        self.in_flight: collections.deque = collections.deque()
        self.answers: dict[str, list[int]] = {}
        self.kinds: dict[str, str] = {}

    def add(self, turn: conversations.Turn) -> None:
        params = SamplingParams(temperature=0, max_tokens=turn.length, ignore_eos=True)
        self.kinds[turn.name] = turn.kind
        self.answers[turn.name] = []
        request = Request(turn.name, turn.prompt, params, None, block_hasher=self.hasher)
        self.scheduler.add_request(request)

    def step(self) -> list[tuple[str, list[int]]]:
        planned = self.scheduler.schedule()
        self.in_flight.append((planned, self.runner.step(planned)))
        if self.late and len(self.in_flight) < 2 and planned.num_scheduled_tokens:
            return []
        output, result = self.in_flight.popleft()
        outputs = self.scheduler.update_from_output(output, result)
        if not self.late:
            names = [name for name in result.req_ids if name in self.runner.requests]
            drafts = [self.runner.requests[name].drafts for name in names]
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))
        ended = []
        for some in outputs.values():
            for one in some.outputs:
                self.answers[one.request_id] += one.new_token_ids
                if one.finish_reason is not None:
                    ended.append((one.request_id, self.answers.pop(one.request_id)))
        return ended


def right(turn: conversations.Turn) -> bool:
    history = histories(turn.prompt)[-1]
    for token in turn.answer:
        if token != likely(history):
            return False
        history = after(history, token)
    return len(turn.answer) == turn.length


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--without-plugin", action="store_true")
    parser.add_argument("--leave-out", choices=[fix.__name__ for _, _, fix in states.FIXES])
    parser.add_argument("--async-scheduling", action="store_true")
    parser.add_argument("--fickle", action="store_true")
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--at-a-time", type=int, default=4)
    parser.add_argument("--budget", type=int, default=80)
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    args = parser.parse_args()
    states.FIXES = tuple(fix for fix in states.FIXES if fix[2].__name__ != args.leave_out)
    if not args.without_plugin:
        reason = states.fix()
        if reason:
            print(f"not fixed: {reason}")
            return 1
    mamba_utils.batch_memcpy = copy
    engine = Engine(args)
    talk = conversations.Conversations(BLOCK, VOCAB, seed=1)
    wrong: collections.Counter[str] = collections.Counter()
    answered = 0
    try:
        for turn in conversations.drive(engine, talk, args.turns, args.at_a_time):
            answered += 1
            wrong["answers"] += not right(turn)
    except AssertionError as error:
        wrong[f"the engine ends: {error}"] += 1
    wrong.update(engine.runner.wrong)
    wrong["copies that overlap"] = len(overlaps)
    for what, times in wrong.most_common(20):
        print(f"{what}: {times}")
    print(f"turns: {answered}, from the cache: {engine.runner.hits}")
    return 1 if wrong.total() or answered < args.turns else 0


if __name__ == "__main__":
    sys.exit(main())
