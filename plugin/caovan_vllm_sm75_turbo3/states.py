"""vLLM 0.21: right recurrent states for a hybrid model that drafts while its prefix cache is on.

With `--mamba-cache-mode align` a cached block keeps the state at its end. Five defects of vLLM
0.21 let a request go on from a wrong one, silently, and a sixth ends the engine:

1. A drafting model's lookup asks every group for one block more and drops the last. Attention
   drops it, the states' manager never does: a hit may be a block longer than what attention has
   (vllm#43559, vllm#46281). `make_lookup` asks the states for no more than attention has.
2. Past the last block that a lookup can use, a chunk of a prompt may end anywhere. The next one
   crosses the border, and the state from inside the block is kept as the one at its end
   (vllm#51113). With `make_chunk_end`, a chunk that begins inside a block stops at its border.
3. The numbers of accepted drafts stand in rows of the batch. Under asynchronous scheduling, rows
   that moved are moved again (vllm#51571), and a request left out of a step loses its number.
   `make_step_start` and `make_step_end` keep them by request.
4. A step without drafts, after one that accepted some, reads the state after the first of them.
   `make_step_start` moves the right one there.
5. A state that moves within its block is copied by threads that do not wait for each other, and
   the next step's copies are described where the last one's may still be read from.
   `make_block_copy` goes through a buffer where source and target overlap; `wait` waits.
6. A step with fewer drafts than the last may need a block less, and an assertion ends the engine.
   `make_allocation` keeps the block.

Each function is replaced by one that calls it; all of them, or none. `refusal` compares the
sources of what is replaced, and of what that relies on, with those this file was written for.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
from typing import Any

from .pins import digest
from .versions import release

RELEASE = (0, 21)
RIGHT_BY_ITSELF = (0, 32)

COORDINATOR = "vllm.v1.core.kv_cache_coordinator"
MANAGER = "vllm.v1.core.single_type_kv_cache_manager"
SCHEDULER = "vllm.v1.core.sched.scheduler"
COPIES = "vllm.v1.worker.mamba_utils"
SOURCES = {
    (COORDINATOR, "HybridKVCacheCoordinator.verify_and_split_kv_cache_groups"): "f4a6e48854f5667d",
    (COORDINATOR, "HybridKVCacheCoordinator.find_longest_cache_hit"): "1960e449cd41a069",
    (MANAGER, "MambaManager.find_longest_cache_hit"): "6dcbdafe289fd078",
    (MANAGER, "MambaManager.remove_skipped_blocks"): "d7603702b0e3d9c9",
    (MANAGER, "MambaManager.get_num_blocks_to_allocate"): "8e861f74e43e9ef7",
    (MANAGER, "MambaManager.allocate_new_blocks"): "05f89bfc449675ef",
    (MANAGER, "MambaManager.cache_blocks"): "0a5eefba040c4173",
    (SCHEDULER, "Scheduler._mamba_block_aligned_split"): "b1511aee3f0da38f",
    (COPIES, "MambaCopyBuffers.create"): "69d80c953911de31",
    (COPIES, "batch_memcpy"): "eb6f45555e8635d7",
    (COPIES, "collect_mamba_copy_meta"): "c26dc38728b3f4b4",
    (COPIES, "do_mamba_copy_block"): "9aa97d241e62da9f",
    (COPIES, "preprocess_mamba"): "32631b0e2e80db44",
    (COPIES, "postprocess_mamba"): "f5a76f6f43ae3b72",
}
"""Digests of vLLM 0.21.0's sources, by module and name."""


def is_fixed_release() -> bool:
    """Whether the installed vLLM is the release that is fixed here."""
    return (release("vllm") or ())[:2] == RELEASE


def refusal() -> str | None:
    """The reason why nothing is fixed here; None if it is. Imports the modules to patch."""
    installed = release("vllm")
    if installed is None:
        return "vLLM is not installed"
    if installed >= RIGHT_BY_ITSELF:
        return "this vLLM keeps the states correct itself"
    if not is_fixed_release():
        return f"vLLM {'.'.join(map(str, installed))} is not supported here, the fix is for 0.21"
    for (module, name), known in SOURCES.items():
        try:
            source = inspect.getsource(resolve(module, name))
        except (ImportError, AttributeError, OSError, TypeError) as error:
            return f"cannot read {module}.{name}: {error}"
        if digest(source) != known:
            return f"{module}.{name} is not vLLM 0.21.0's"
    return None


def resolve(module: str, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


# -- in the scheduler's process --


def make_lookup(theirs):
    """Never look up recurrent states for more blocks than attention has."""
    from vllm.v1.kv_cache_interface import MambaSpec

    def verify_and_split_kv_cache_groups(self) -> None:
        theirs(self)
        self.eagle_attn_group_indices = {
            index
            for index in self.eagle_attn_group_indices
            if not isinstance(self.attention_groups[index][0], MambaSpec)
        }

    return verify_and_split_kv_cache_groups


def make_chunk_end(theirs):
    """End a chunk that starts within a block at that block's boundary at the latest.

    Blocks before a boundary are then empty or hold the state at their end, wherever a step's budget
    ends a chunk. Nothing waits for a larger budget.
    """

    def _mamba_block_aligned_split(
        self,
        request,
        num_new_tokens: int,
        num_new_local_computed_tokens: int = 0,
        num_external_computed_tokens: int = 0,
    ) -> int:
        tokens = theirs(
            self,
            request,
            num_new_tokens,
            num_new_local_computed_tokens,
            num_external_computed_tokens,
        )
        begin = (
            request.num_computed_tokens
            + num_new_local_computed_tokens
            + num_external_computed_tokens
        )
        block = self.cache_config.block_size
        inside = begin % block
        if inside and begin < max(request.num_prompt_tokens, request.num_tokens - 1):
            return min(tokens, block - inside)
        return tokens

    return _mamba_block_aligned_split


def make_allocation(theirs):
    """Keep a block allocated for missing drafts for later ones."""

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> list:
        if self.mamba_cache_mode == "align" and request_id in self._allocated_block_reqs:
            blocks = -(-num_tokens_main_model // self.block_size)
            if blocks + self.num_speculative_blocks < len(self.req_to_blocks[request_id]):
                return []
        return theirs(self, request_id, num_tokens, num_tokens_main_model)

    return allocate_new_blocks


def make_block_count(theirs):
    """Never return a negative number: blocks already allocated free nothing for other groups."""

    def get_num_blocks_to_allocate(self, *args, **kwargs) -> int:
        return max(theirs(self, *args, **kwargs), 0)

    return get_num_blocks_to_allocate


# -- in the workers' processes --


def accepted_counts(copies) -> dict[str, int]:
    """Number of accepted tokens in each request's last step; it lives as long as the copy
    buffers."""
    return copies.__dict__.setdefault("caovan_accepted", {})


def wait(copies) -> None:
    """Wait until the last copies' descriptions have been read, so that the next may be written."""
    copied = copies.__dict__.get("caovan_copied")
    if copied is not None:
        copied.synchronize()


def make_step_start(theirs):
    def preprocess_mamba(
        scheduler_output,
        kv_cache_config,
        cache_config,
        mamba_state_idx,
        input_batch,
        requests,
        forward_context,
        mamba_state_copy_funcs,
        copy_bufs,
    ) -> None:
        accepted, counts = accepted_counts(copy_bufs), input_batch.num_accepted_tokens_cpu
        for request in itertools.chain(
            scheduler_output.finished_req_ids,
            scheduler_output.preempted_req_ids or (),
            scheduler_output.scheduled_cached_reqs.resumed_req_ids,
        ):
            accepted.pop(request, None)
        for row, request in enumerate(input_batch.req_ids):
            counts[row] = accepted.get(request, 1)
        wait(copy_bufs)
        theirs(
            scheduler_output,
            kv_cache_config,
            cache_config,
            mamba_state_idx,
            input_batch,
            requests,
            forward_context,
            mamba_state_copy_funcs,
            copy_bufs,
        )
        drafts = scheduler_output.scheduled_spec_decode_tokens
        draftless = [
            row
            for row, request in enumerate(input_batch.req_ids)
            if counts[row] > 1 and not drafts.get(request)
        ]
        if not draftless:
            return
        copies = importlib.import_module(COPIES)
        wait(copy_bufs)
        copy_bufs.offset = 0
        for row in draftless:
            request = input_batch.req_ids[row]
            copies.collect_mamba_copy_meta(
                copy_bufs,
                kv_cache_config,
                mamba_state_copy_funcs,
                copy_bufs.mamba_group_ids,
                mamba_state_idx[request],
                mamba_state_idx[request],
                counts[row] - 1,
                requests[request],
                forward_context,
            )
            counts[row] = 1
        copies.do_mamba_copy_block(copy_bufs)

    return preprocess_mamba


def make_step_end(theirs):
    def postprocess_mamba(
        scheduler_output,
        kv_cache_config,
        input_batch,
        requests,
        mamba_state_idx,
        forward_context,
        mamba_state_copy_funcs,
        copy_bufs,
    ) -> None:
        wait(copy_bufs)
        theirs(
            scheduler_output,
            kv_cache_config,
            input_batch,
            requests,
            mamba_state_idx,
            forward_context,
            mamba_state_copy_funcs,
            copy_bufs,
        )
        accepted = accepted_counts(copy_bufs)
        for row, request in enumerate(input_batch.req_ids):
            accepted[request] = int(input_batch.num_accepted_tokens_cpu[row])

    return postprocess_mamba


def make_block_copy(theirs):
    def do_mamba_copy_block(copy_bufs) -> None:
        import torch

        number = copy_bufs.offset
        if not number:
            return
        buffers = copy_bufs.src_ptrs, copy_bufs.dst_ptrs, copy_bufs.sizes
        sources, targets, sizes = (buffer.np[:number] for buffer in buffers)
        overlap = (sources < targets + sizes) & (targets < sources + sizes) & (sources != targets)
        device = copy_bufs.src_ptrs.gpu.device
        later = None
        if overlap.any():
            ends = sizes[overlap].astype("int64").cumsum()
            buffer = torch.empty(int(ends[-1]), dtype=torch.uint8, device=device)
            between = buffer.data_ptr() + ends - sizes[overlap]
            later = [
                torch.from_numpy(numbers.copy()).to(device)
                for numbers in (between, targets[overlap], sizes[overlap])
            ]
            targets[overlap] = between
        theirs(copy_bufs)
        if later is not None:
            importlib.import_module(COPIES).batch_memcpy(*later)
        if device.type == "cuda":
            copied = copy_bufs.__dict__.setdefault("caovan_copied", torch.cuda.Event())
            copied.record()

    return do_mamba_copy_block


FIXES = (
    (COORDINATOR, "HybridKVCacheCoordinator.verify_and_split_kv_cache_groups", make_lookup),
    (SCHEDULER, "Scheduler._mamba_block_aligned_split", make_chunk_end),
    (MANAGER, "MambaManager.allocate_new_blocks", make_allocation),
    (MANAGER, "MambaManager.get_num_blocks_to_allocate", make_block_count),
    (COPIES, "preprocess_mamba", make_step_start),
    (COPIES, "postprocess_mamba", make_step_end),
    (COPIES, "do_mamba_copy_block", make_block_copy),
)


@functools.cache
def fix() -> str | None:
    """Patch the defects, once per process; return the reason for a refusal, None on success."""
    reason = refusal()
    if reason is None:
        for module, name, wrapper in FIXES:
            *parents, last = name.split(".")
            owner = functools.reduce(getattr, parents, importlib.import_module(module))
            theirs = getattr(owner, last)
            setattr(owner, last, functools.wraps(theirs)(wrapper(theirs)))
    return reason
