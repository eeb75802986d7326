"""How each flag is decided: its rule, the key it is planned for, and its obstacles.

Rules run in the order of the rows: a rule may read earlier decisions. A flag that the policy
chooses is a row here, with its rule in `rules` and its obstacle in `obstacles` if it has any.
Verbatim flags are never rewritten: a plan with conflicts stands, and says that it cannot run, why,
and which flag would work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.plan import Plan
from caovand.core.problem import Problem
from caovand.engines.vllm.flags.spelling import PARTS_OF_SPECULATION
from caovand.engines.vllm.memory.estimate import forecast_memory
from caovand.engines.vllm.memory.settings import cards_of_plan
from caovand.engines.vllm.planning import (
    capacity,
    devices,
    draft_schedule,
    inputs,
    loading,
    obstacles,
    parallel,
    precision,
    rules,
    serving,
    speculation,
    splits,
)
from caovand.engines.vllm.planning.capacity import kv_cache_memory_bytes
from caovand.engines.vllm.planning.partial_plan import PlanOnCards, SettingRule
from caovand.engines.vllm.planning.speculation import async_scheduling, speculative_config

FindObstacles = Callable[[PlanOnCards], Iterator[Problem]]
"""Yields the reasons why the planned value cannot run, each with fact and remedy."""
PIN_IT = "add it to [policy] pinned, so that other settings yield"
SET_AUTO = 'set it to "auto"'
STOP_OTHERS = "stop other programs on the cards"


@dataclass(frozen=True)
class Goal:
    """The key of caovan.toml that a flag is planned for, and the remedy if it cannot be met.

    `flags` are verbatim flags that overrule the key, by the operator's own decision. Without
    `value` the setting has the key's value unchanged. `setting` is filled in by the table.
    """

    section: str
    key: str
    remedy: str = SET_AUTO
    flags: tuple[str, ...] = ()
    value: Callable[[Plan], Any] | None = None
    cuda_only: bool = False
    setting: str = ""

    def planned(self, plan: Plan) -> Any:
        return self.value(plan) if self.value else plan.value(self.setting)


@dataclass(frozen=True)
class FlagDecision:
    """How one flag of vLLM is decided.

    `rule` runs before the cards are sized or, if the flag is `sized`, afterwards; without one the
    flag is the operator's alone. `goal` is the key of caovan.toml that requests it. `obstacles`
    find what cannot run with its value. `eases` and `hinders` are places in advice, from 1: among
    the flags that the policy sizes if they are left to it, and among the verbatim ones that may be
    in the way.
    """

    name: str
    rule: SettingRule | None = None
    sized: bool = False
    goal: Goal | None = None
    obstacles: tuple[FindObstacles, ...] = ()
    eases: int = 0
    hinders: int = 0


def _graphs(plan: Plan) -> Any:
    """The plan's CUDA graphs as a value of the key."""
    config = plan.value("compilation_config")
    mode = config.get("cudagraph_mode") if isinstance(config, dict) else None
    return "none" if plan.value("enforce_eager") else str(mode).lower()


DECISIONS = (
    FlagDecision("host", serving.key_rule("server", "host")),
    FlagDecision("port", serving.key_rule("server", "port")),
    FlagDecision("served_model_name", serving.served_model_name, goal=Goal("model", "served_name")),
    FlagDecision("revision", serving.key_rule("model", "revision"), goal=Goal("model", "revision")),
    FlagDecision("runner", serving.runner),
    FlagDecision("hf_overrides", serving.hf_overrides),
    FlagDecision("trust_remote_code", serving.key_rule("model", "trust_remote_code"),
             goal=Goal("model", "trust_remote_code")),
    FlagDecision("chat_template", serving.key_rule("model", "chat_template"),
             goal=Goal("model", "chat_template")),
    FlagDecision("tool_call_parser", serving.tool_call_parser,
             goal=Goal("server", "tool_call_parser")),
    FlagDecision("enable_auto_tool_choice", serving.enable_auto_tool_choice),
    FlagDecision("reasoning_parser", serving.reasoning_parser,
             goal=Goal("server", "reasoning_parser")),
    FlagDecision("model_loader_extra_config", loading.model_loader_extra_config),
    FlagDecision("tensor_parallel_size", parallel.tensor_parallel_size,
             goal=Goal("policy", "tensor_parallel_size"),
             obstacles=(obstacles.cards, obstacles.split, obstacles.order), eases=6),
    FlagDecision("pipeline_parallel_size", parallel.pipeline_parallel_size,
             obstacles=(obstacles.stages, obstacles.uncompiled), hinders=7),
    FlagDecision("data_parallel_size", splits.data_parallel_size,
             obstacles=(splits.experts,), hinders=8),
    FlagDecision("enable_expert_parallel", devices.enable_expert_parallel),
    FlagDecision("dtype", rules.dtype, goal=Goal("policy", "dtype"), obstacles=(obstacles.dtype,),
             hinders=1),
    FlagDecision("speculative_config", speculative_config,
             goal=Goal("policy", "mtp", flags=PARTS_OF_SPECULATION, value=lambda plan: plan.mtp),
             obstacles=(speculation.drafting, draft_schedule.depths), hinders=4),
    FlagDecision("attention_backend", precision.attention_backend,
             obstacles=(obstacles.check_attention_backend, obstacles.shared_memory), hinders=2),
    FlagDecision("kv_cache_dtype", rules.kv_cache_dtype, goal=Goal("policy", "kv_cache_dtype"),
             obstacles=(obstacles.cache_type,), eases=5),
    FlagDecision("enable_prefix_caching", rules.enable_prefix_caching),
    FlagDecision("mamba_cache_mode", rules.mamba_cache_mode),
    FlagDecision("prefix_match_unit", rules.prefix_match_unit, obstacles=(obstacles.matches,)),
    FlagDecision("gdn_prefill_backend", rules.gdn_prefill_backend),
    FlagDecision("disable_custom_all_reduce", rules.disable_custom_all_reduce),
    FlagDecision("enable_flashinfer_autotune", rules.enable_flashinfer_autotune),
    FlagDecision("language_model_only", inputs.language_model_only, sized=True,
             goal=Goal("model", "text_only")),
    FlagDecision("limit_mm_per_prompt", inputs.limit_mm_per_prompt, sized=True),
    FlagDecision("mm_processor_kwargs", inputs.mm_processor_kwargs, sized=True),
    FlagDecision("max_model_len", capacity.max_model_len, sized=True,
             goal=Goal("model", "max_model_len"), obstacles=(obstacles.length,), eases=1),
    FlagDecision("max_num_seqs", capacity.max_num_seqs, sized=True,
             goal=Goal("policy", "max_num_seqs"), obstacles=(obstacles.step,), eases=2),
    FlagDecision("async_scheduling", async_scheduling, sized=True),
    FlagDecision("max_num_batched_tokens", capacity.max_num_batched_tokens, sized=True,
             goal=Goal("policy", "max_num_batched_tokens"), eases=3),
    FlagDecision("enforce_eager", rules.enforce_eager, sized=True,
             goal=Goal("policy", "cuda_graphs", PIN_IT, ("compilation_config",), _graphs, True),
             hinders=5),
    FlagDecision("compilation_config", rules.compilation_config, sized=True),
    FlagDecision("gpu_memory_utilization", rules.gpu_memory_utilization, sized=True, eases=4,
             goal=Goal("policy", "gpu_memory_utilization", STOP_OTHERS, cuda_only=True)),
    FlagDecision("cpu_offload_gb", rules.cpu_offload_gb, sized=True, eases=7),
    FlagDecision("kv_cache_memory_bytes", kv_cache_memory_bytes, sized=True, hinders=9),
    FlagDecision("additional_config", rules.additional_config, sized=True),
    FlagDecision("enable_server_load_tracking", serving.enable_server_load_tracking, sized=True),
    FlagDecision("disable_access_log_for_endpoints", serving.disable_access_log_for_endpoints,
             sized=True),
    FlagDecision("sse_keep_alive_interval", serving.sse_keep_alive_interval, sized=True),
    FlagDecision("shutdown_timeout", serving.shutdown_timeout, sized=True),
    FlagDecision("safetensors_load_strategy", obstacles=(loading.whole_files,)),
    FlagDecision("load_format", obstacles=(loading.files_on_cards,)),
    FlagDecision("quantization", obstacles=(obstacles.quantisation,)),
    FlagDecision("attention_config", hinders=3),
    FlagDecision("enable_chunked_prefill", hinders=6),
    FlagDecision("mamba_block_size", obstacles=(obstacles.states,)),
)  # fmt: skip
FIRST = tuple((row.name, row.rule) for row in DECISIONS if row.rule and not row.sized)
SECOND = tuple((row.name, row.rule) for row in DECISIONS if row.rule and row.sized)
"""Rules that run before and after the cards are sized."""
DECIDED = frozenset(row.name for row in DECISIONS if row.rule)
GOALS = tuple(replace(row.goal, setting=row.name) for row in DECISIONS if row.goal)
OBSTACLES = tuple(obstacle for row in DECISIONS for obstacle in row.obstacles)
EASING = tuple(row.name for row in sorted(DECISIONS, key=lambda row: row.eases) if row.eases)
"""Flags that the policy itself decides if it may."""
HINDERING = tuple(row.name for row in sorted(DECISIONS, key=lambda row: row.hinders) if row.hinders)
"""Verbatim flags that may be in the way, and that the policy does not size."""


def conflicts(plan: Plan, inventory: Inventory, gpus: tuple[Gpu, ...]) -> tuple[Problem, ...]:
    """Each conflict that keeps the plan from running."""
    placed = PlanOnCards(plan, inventory, gpus)
    return tuple(problem for find in OBSTACLES for problem in find(placed))


def forecast(plan: Plan, inventory: Inventory) -> MemoryEstimate:
    """The forecast of memory, with the conflicts and with changes that would make the plan fit."""
    memory = forecast_memory(plan, inventory)
    contradictions = conflicts(plan, inventory, cards_of_plan(plan, inventory))
    if contradictions:
        memory = replace(memory, fits=False, conflicts=contradictions)
    if memory.fits is not False:
        return memory
    return replace(memory, advice=memory.advice or plan.advice)
