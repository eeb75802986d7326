"""vLLM's lm_head with ours in front of it, on the CPU: which become int8, and what they answer.

Runs in an engine's Python, by test_cpu_engine.py.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import types

import torch
from caovan_vllm_sm75_turbo3 import drafter, int8_head, lm_head
from vllm.model_executor import parameter
from vllm.model_executor.layers import linear, logits_processor
from vllm.model_executor.layers import vocab_parallel_embedding as layers

logging.basicConfig(level=logging.INFO)
assert int8_head.offer() is None
assert int8_head.offer() is None, "vLLM registers plugins more than once in a process"

from caovan_vllm_sm75_turbo3 import head_layer  # noqa: E402

TURING = {"platform": "cuda", "capability": (7, 5), "library_error": None, "forced": False}
head_layer.card_facts = lambda device: TURING
head_layer.launch.prepare = lambda device: None
V, K = 1000, 128
torch.manual_seed(0)
WEIGHT, X = torch.randn(V, K).half(), torch.randn(3, K).half()
rank, ranks = 0, 1
for module in (layers, logits_processor, linear, parameter):  # there are no other processes
    module.get_tensor_model_parallel_rank = lambda: rank
    module.get_tensor_model_parallel_world_size = lambda: ranks
logits_processor.LogitsProcessor._gather_logits = lambda self, logits: logits


def configured(dtype=torch.float16, tied=False, **more) -> types.SimpleNamespace:
    additional = more.pop("additional", {"caovan_lm_head": "int8"})
    return types.SimpleNamespace(
        additional_config=additional,
        model_config=types.SimpleNamespace(
            dtype=dtype, runner_type="generate", head_dtype=more.pop("head_dtype", dtype),
            hf_text_config=types.SimpleNamespace(tie_word_embeddings=tied),
        ),
        lora_config=more.pop("lora", None),
        speculative_config=types.SimpleNamespace(
            method=more.pop("method", "ngram"), draft_lm_head_quantization=None
        ),
        load_config=types.SimpleNamespace(load_format=more.pop("load_format", "auto")),
    )  # fmt: skip


def made(weight=WEIGHT, bias=False, tie=None, **more):
    """A head as vLLM makes, loads and finishes it, and what multiplies by it."""
    config = configured(**more)
    head_layer.get_current_vllm_config = lambda: config
    logits_processor.get_current_vllm_config = lambda: config
    head = layers.ParallelLMHead(V, weight.shape[1], bias=bias, params_dtype=torch.float16)
    head.weight_loader(head.weight, weight)
    if bias:
        head.weight_loader(head.bias, torch.arange(V).half())
    if tie is not None:
        head = head.tie_weights(tie)
    head.quant_method.process_weights_after_loading(head)
    return head, logits_processor.LogitsProcessor(V)


def int8(head) -> bool:
    return head.weight.dtype is torch.int8


# int8: a byte a weight, and what it answers for few and many rows, with and without a bias
head, logits = made()
assert isinstance(head, layers.ParallelLMHead)
assert int8(head)
assert head.weight.shape == (1024, K)
held = (*head.parameters(), *head.buffers())
assert sum(tensor.numel() * tensor.element_size() for tensor in held) == 1024 * (K + 4)
steps, scale = lm_head.quantise(WEIGHT)
exact = X.double() @ (steps.double() * scale.double()[:, None]).T
whole = logits(head, X)
assert whole.shape == (3, V)
assert (whole.double() - exact).abs().max() < 0.02 * exact.std()
assert torch.equal(logits(head, X), whole)
assert torch.equal(logits.get_top_tokens(head, X), exact.argmax(1))
many = logits(head, X.repeat(100, 1))
assert (many[:3].double() - exact).abs().max() < 0.02 * exact.std()
assert logits(head, X[:0]).shape == (0, V)
with_bias, logits = made(bias=True)
moved = with_bias.quant_method.apply(with_bias, X, bias=with_bias.bias)[:, :V].double()
assert (moved - exact - torch.arange(V)).abs().max() < 1
compiled = torch.compile(
    lambda x: torch.ops.caovan.lm_head(x, head.weight, head.weight_scale), backend="eager"
)
assert torch.equal(compiled(X)[:, :V], whole)
before = head.weight
head.quant_method.process_weights_after_loading(head)
assert head.weight is before, "finished once more, as the head of a drafter is"

# each rank has its rows, and nothing in their padding
ranks, parts = 2, []
while rank < ranks:
    shard, _ = made()
    parts.append(shard.quant_method.apply(shard, X))
    rank += 1
assert all(part.shape == (3, 512) for part in parts)
joined = torch.cat(parts, 1)
assert torch.equal(joined[:, :V], whole)
assert not joined[:, V:].any()
rank, ranks = 0, 1

# a kernel that fails: torch goes on from the int8 weights, and the reason is logged once
head, logits = made()
calls = []


def failing(*tensors):
    calls.append(1)
    raise head_layer.library.KernelError("cannot launch lm_head")


project, lm_head.project = lm_head.project, failing
for _ in range(2):
    got = lm_head.multiply(X, head.weight, head.weight_scale)
    assert torch.equal(got[:, :V], whole)
assert len(calls) == 1
lm_head.project = project

# drafts over a part of the vocabulary; the target's logits keep all of it
head, logits = made(additional={"caovan_lm_head": "int8", "caovan_draft_vocabulary": 128})
head.quant_method.drafting = True
drafted = logits(head, X)
head.quant_method.drafting = False
assert torch.equal(drafted[:, :128], whole[:, :128])
assert torch.equal(drafted[:, 488:], whole[:, 488:]), "the last 512 are special"
assert (drafted[:, 128:488] == -torch.inf).all()
assert torch.equal(logits(head, X), whole)

# the MTP model's class is wrapped once the head of a target that drafts by it is int8
assert drafter.MODEL not in sys.modules
head, logits = made(
    additional={"caovan_lm_head": "int8", "caovan_draft_vocabulary": 128}, method="mtp"
)
model = sys.modules[drafter.MODEL].Qwen3_5MTP
assert model.caovan
assert "vllm_config" in inspect.signature(model.__init__).parameters, "vLLM asks for it"

# a drafter's head is the target's from the start, and is not loaded
for drafting in (True, False):
    seen: list = []

    def construct(self, seen=seen) -> None:
        seen.append(layers.ParallelLMHead(V, K, params_dtype=torch.float16))

    (drafter._init(construct) if drafting else construct)(None)
    assert int8(seen[0]) == drafting
    assert (seen[0].weight.data_ptr() == head.weight.data_ptr()) == drafting
    if drafting:
        loads = seen[0].weight.weight_loader
        loads(seen[0].weight, torch.zeros(V, K).half())
        seen[0].quant_method.process_weights_after_loading(seen[0])
        assert torch.equal(logits(seen[0], X), whole)
        assert not any(p.is_meta for p in seen[0].parameters())
drafter._init(construct)(None)
assert not int8(seen[-1]), "another target was made, which is not int8 yet"
head, logits = made(
    additional={"caovan_lm_head": "int8", "caovan_draft_vocabulary": 128}, method="mtp"
)
small = layers.ParallelLMHead
drafter._init(lambda self: seen.append(small(V, 2 * K, params_dtype=torch.float16)))(None)
assert not int8(seen[-1]), "a drafter of another size has its own"
fake = types.SimpleNamespace(lm_head=head, logits_processor=logits)
for _ in range(2):
    assert torch.equal(model.compute_logits(fake, X), drafted)
    assert torch.equal(logits(head, X), whole), "the target's"
fake.lm_head, _ = made(additional={})
assert model.compute_logits(fake, X).isfinite().all()

# its linear layers become int8 once they are loaded


def layers_of(
    by_variable: dict[str, str], **additional
) -> tuple[torch.nn.ModuleList, list[torch.Tensor]]:
    half = {"bias": False, "params_dtype": torch.float16}
    found = torch.nn.ModuleList([
        linear.ColumnParallelLinear(K, 192, **half), linear.RowParallelLinear(192, K, **half),
        linear.ColumnParallelLinear(96, 192, **half), linear.ReplicatedLinear(K, 64, **half),
    ])  # fmt: skip
    for layer in found:
        layer.weight.data.normal_()
    weights = [layer.weight.detach().clone() for layer in found]
    config = configured(additional=additional)
    os.environ |= {name.upper(): value for name, value in by_variable.items()}
    drafter.quantize_layers(types.SimpleNamespace(model=found, vllm_config=config))
    for name in by_variable:
        del os.environ[name.upper()]
    expected = {**additional, **by_variable}
    assert config.additional_config == expected, "compiled code is kept by it"
    for layer in found:
        layer.quant_method.process_weights_after_loading(layer)
    return found, weights


found, weights = layers_of({"caovan_drafter": "int8"}, caovan=True)
assert [int8(layer) for layer in found] == [True, True, False, False]
for layer, weight in zip(found[:2], weights, strict=False):
    x = torch.randn(5, weight.shape[1]).half()
    exact_x = x.double() @ weight.double().T
    out, _ = layer(x)
    assert (out.double() - exact_x).abs().max() < 0.06 * exact_x.std()
for additional in ({}, {"caovan_drafter": "int4"}, {"caovan_drafter": "int8", "caovan": False}):
    assert not any(int8(layer) for layer in layers_of({}, **additional)[0])

# what stays in 16 bits: unwished, tied, of other types, changed by adapters, unsound, elsewhere
embedding = layers.VocabParallelEmbedding(V, K, params_dtype=torch.float16)
for changed in (
    {"additional": {}}, {"additional": {"caovan_lm_head": "int4"}},
    {"additional": {"caovan_lm_head": "int8", "caovan": False}},
    {"additional": {"caovan_lm_head": "int8", "caovan_draft_vocabulary": 10}},
    {"tied": True}, {"tie": embedding}, {"dtype": torch.bfloat16}, {"head_dtype": torch.float32},
    {"lora": object()}, {"load_format": "ipc_cache"}, {"weight": torch.randn(V, 96).half()},
    {"weight": torch.full((V, K), torch.inf).half()},
):  # fmt: skip
    head, logits = made(**changed)
    assert not int8(head), changed
    assert type(head.quant_method) is layers.UnquantizedEmbeddingMethod
head, _ = made(tie=embedding)
assert head.weight is embedding.weight
TURING["capability"] = (9, 0)
assert not int8(made()[0])
TURING["capability"] = (7, 5)
head_layer.facts = lambda *a: 1 / 0
assert not int8(made()[0])
os.environ["CAOVAN_LM_HEAD"] = "off"
assert not int8(made()[0])

# other vLLMs
int8_head.APPLY = ("self", "x")
assert int8_head.refusal() == (
    "UnquantizedEmbeddingMethod.apply accepts ('self', 'layer', 'x', 'bias'), "
    "but this plugin expects ('self', 'x')"
)
