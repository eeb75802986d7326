"""What cannot run whatever the memory: settings that contradict machine, model or each other.

They come from verbatim flags, which are never rewritten; so the plan stands, and says that it
cannot run, why, and which flag would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from caovand.core import releases
from caovand.core.devices import indivisible, largest_split, stages
from caovand.core.flags import count
from caovand.core.inventory import Gpu, Inventory
from caovand.core.kv_cache import TURBOQUANT
from caovand.core.plan import Plan
from caovand.core.precision import (
    AMPERE,
    EXCLUSIVE,
    LEAST_CAPABILITY,
    WITHOUT_HALF,
    method,
    refused_type,
)
from caovand.core.turing import backend_in, flashinfer_refusal, flashinfer_unfit
from caovand.core.unmodelled import ELSEWHERE

ADA = (8, 9)


@dataclass(frozen=True)
class Scene:
    """A plan on its cards."""

    plan: Plan
    inventory: Inventory
    gpus: tuple[Gpu, ...]

    def count(self, name: str) -> int | None:
        """A setting as a number of one or more, None where it is none."""
        return count(self.plan.value(name))

    @property
    def quantization(self) -> str:
        """How the weights are stored, or are quantised while they are loaded."""
        return str(self.inventory.model.quantization or self.plan.value("quantization") or "")

    def first(self, below: tuple[int, int]) -> str:
        """The first card older than this, in words; empty where there is none."""
        old = [gpu for gpu in self.gpus if gpu.compute_capability < below]
        return "GPU {} is SM{}{}".format(old[0].index, *old[0].compute_capability) if old else ""


def conflicts(plan: Plan, inventory: Inventory, gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """Each thing that cannot run, with fact and remedy."""
    scene = Scene(plan, inventory, gpus)
    return tuple(text for check in CHECKS for text in check(scene))


def _cards(scene: Scene) -> Iterator[str]:
    plan = scene.plan
    if not scene.gpus or any(plan.value(name) is not None for name in ELSEWHERE):
        return
    if plan.value("distributed_executor_backend") == "ray":
        return
    split = scene.count("tensor_parallel_size") or 1
    others = stages({name: setting.value for name, setting in plan.settings.items()})
    if split * others > len(scene.gpus):
        fits = largest_split(scene.inventory.model, max(len(scene.gpus) // others, 1))
        fewer = " and fewer stages or replicas" if others > 1 else ""
        yield (
            f"cannot use {split * others} GPUs: {len(scene.gpus)} can be used here; "
            f"use --tensor-parallel-size {fits}{fewer}"
        )


def _split(scene: Scene) -> Iterator[str]:
    split = scene.count("tensor_parallel_size") or 1
    whole = bool(scene.plan.value("enable_expert_parallel"))
    why = indivisible(scene.inventory.model, split, whole_experts=whole)
    if why:
        yield f"cannot split the model over {split} GPUs: {why}"


def _dtype(scene: Scene) -> Iterator[str]:
    old, model = scene.first(AMPERE), scene.inventory.model
    dtype = str(scene.plan.value("dtype")).removeprefix("torch.")
    if old and dtype == "bfloat16":
        other = "float32" if model.model_type in WITHOUT_HALF else "half"
        yield f"cannot use --dtype bfloat16: {old}, which has none; use --dtype {other}"
    if scene.gpus:
        why = refused_type(model, scene.quantization, dtype, old)
        if why:
            yield why


def _quantisation(scene: Scene) -> Iterator[str]:
    asked = method(str(scene.plan.value("quantization") or scene.quantization))
    if asked != scene.quantization and {asked, scene.quantization} <= EXCLUSIVE:
        yield (
            f"cannot read {scene.quantization} weights as {asked}: vLLM takes the checkpoint's own"
            " method; leave --quantization out"
        )
    least = LEAST_CAPABILITY.get(scene.quantization, (0, 0))
    old = scene.first(least)
    if old:
        major, minor = least
        yield (
            f"cannot serve {scene.quantization} weights: {old}, and vLLM needs SM{major}{minor}"
            " for them; use a newer card, or a checkpoint quantised otherwise (AWQ, GPTQ)"
        )


def _length(scene: Scene) -> Iterator[str]:
    asked, limit = scene.count("max_model_len"), scene.inventory.model.max_model_len
    scaled = any(scene.plan.value(name) for name in ("hf_overrides", "rope_scaling"))
    allowed = scene.plan.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN")
    known = scene.inventory.model.limit_known
    if asked and limit and known and asked > limit and not scaled and not allowed:
        yield (
            f"cannot serve a context of {asked} tokens: the model's own limit is {limit}; "
            f"use --max-model-len {limit} or less"
        )


def _attention(scene: Scene) -> Iterator[str]:
    """Which attention keeps which cache on which card."""
    plan, engine = scene.plan, scene.inventory.engine
    backend = str(plan.value("attention_backend") or "").upper()
    nested = backend_in(plan.value("attention_config"))
    if backend and nested:
        yield (
            f"cannot use --attention-backend and --attention-config {nested} both: vLLM takes"
            " one; leave one out"
        )
    backend = backend or nested
    old = scene.first((7, 6))
    if old and backend.startswith("FLASH_ATTN"):
        yield f"cannot use {backend}: {old}, and it needs SM80; leave --attention-backend out"
    plugin = bool(engine.plugin) and "CAOVAN_KERNELS" not in plan.env
    model = scene.inventory.model
    unfit = flashinfer_unfit(model, str(plan.value("dtype") or ""))
    refusal = unfit or flashinfer_refusal(engine, model.head_dim, plugin)
    if old and backend == "FLASHINFER" and refusal:
        remedy = "leave it out" if model.latent else "use --attention-backend TRITON_ATTN"
        yield f"cannot use FLASHINFER: {refusal}; {remedy}"
    kind = str(plan.value("kv_cache_dtype") or "auto")
    early = scene.first(ADA)
    plain = kind.startswith("fp8") and not kind.endswith("per_token_head")
    plain = plain and (engine.version >= releases.TRITON_REFUSES_FP8 or kind != "fp8_e5m2")
    if early and plain and backend == "TRITON_ATTN":
        yield (
            f"cannot keep the cache in {kind} with TRITON_ATTN: {early}, and it needs SM89; "
            "use --kv-cache-dtype auto"
        )
    own = "TRITON_ATTN" if kind.endswith("per_token_head") else ""
    own = "TURBOQUANT" if kind in TURBOQUANT else own
    if own and backend and backend != own:
        text = f"cannot keep the cache in {kind} with {backend}: only {own} does"
        yield f"{text}; leave the backend out"


def _choices(scene: Scene) -> Iterator[str]:
    kind = scene.plan.value("kv_cache_dtype")
    known = dict(scene.inventory.engine.choices).get("--kv-cache-dtype")
    if kind is not None and known and str(kind) not in known:
        yield (
            f"cannot use --kv-cache-dtype {kind}: vLLM {scene.inventory.engine.vllm} has no such "
            f"type; use one of {', '.join(known)}"
        )


def _step(scene: Scene) -> Iterator[str]:
    batch, sequences = scene.count("max_num_batched_tokens"), scene.count("max_num_seqs")
    if batch and sequences and sequences > batch:
        yield (
            f"cannot decode {sequences} sequences in steps of {batch} tokens: each takes one; "
            f"use --max-num-seqs {batch} or less"
        )
    context = scene.count("max_model_len")
    if scene.plan.value("enable_chunked_prefill") is False and batch and (context or 0) > batch:
        yield (
            f"cannot read a prompt of {context} tokens in one step of {batch}: chunked prefill is "
            f"off; use --max-num-batched-tokens {context}, or leave --no-enable-chunked-prefill out"
        )


def _states(scene: Scene) -> Iterator[str]:
    size, off = scene.count("mamba_block_size"), scene.plan.value("enable_prefix_caching") is False
    if size and size != scene.count("max_model_len") and off:
        yield (
            f"cannot keep states every {size} tokens: vLLM takes --mamba-block-size only with"
            " --enable-prefix-caching, which is off; leave it out, or give both"
        )


def _drafting(scene: Scene) -> Iterator[str]:
    config, model = scene.plan.value("speculative_config"), scene.inventory.model
    if not isinstance(config, Mapping) or not model.architecture or model.mtp_layers:
        return
    if str(config.get("method", "")).endswith("mtp") and not config.get("model"):
        yield "cannot draft with MTP: the model has no MTP head; leave --speculative-config out"


CHECKS: tuple[Callable[[Scene], Iterator[str]], ...] = (
    _cards, _split, _dtype, _quantisation, _length, _attention, _choices, _step, _states,
    _drafting,
)  # fmt: skip
