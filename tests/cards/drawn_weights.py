"""A vLLM plugin: `--load-format dummy` draws weights that compute something, the same each time.

vLLM's own leaves packed integers as they lie in memory, and other weights within 0.001: engines of
one model would have other weights, and an answer would not depend on its prompt.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch

INT4_DEVIATION = 4.61
"""Of the sixteen values of a weight in 4 bits, all as frequent."""
SHARPNESS = 3.0
"""Deviation of attention scores: enough for some ten of 250,000 keys to matter."""
INTO_RESIDUALS = ("o_proj", "out_proj", "down_proj")


def register() -> None:
    """Draw dummy weights in this process; every process of the engine runs this."""
    from vllm.model_executor.model_loader import register_model_loader  # noqa: PLC0415
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader  # noqa: PLC0415

    class DrawnModelLoader(DummyModelLoader):
        def load_weights(self, model: Any, model_config: Any) -> None:
            draw(model, model_config.hf_text_config.num_hidden_layers)
            # Whoever rounds weights once they are loaded does it now.
            model.load_weights(iter(()))

    register_model_loader("dummy")(DrawnModelLoader)


def draw(model: Any, layers: int) -> None:
    """Fill the parameters of a model of so many layers, each from a seed of its own.

    Matrices keep the variance of their inputs. Outputs of a layer's two parts are scaled so that
    all layers together add as much as the embedding: rounding is not amplified from layer to layer.
    """
    for prefix, module in model.named_modules():
        part = (2 * layers) ** -0.5 if prefix.endswith(INTO_RESIDUALS) else 1.0
        inputs: int = getattr(module, "input_size", 0)
        for name, parameter in module.named_parameters(prefix, recurse=False):
            data = parameter.data
            own = torch.Generator(data.device).manual_seed(zlib.crc32(name.encode()))
            kind = name.rpartition(".")[2]
            if data.dtype is torch.int32:
                data.random_(-(2**31), 2**31 - 1, generator=own)
            elif not data.is_floating_point():
                continue  # an int8 head that a drafter shares
            elif kind == "scales":
                data.fill_(part * inputs**-0.5 / INT4_DEVIATION)
            elif kind == "A_log":
                data.uniform_(0, 2.7, generator=own)
            elif kind == "dt_bias" or name.endswith("linear_attn.norm.weight"):
                data.fill_(1)
            elif name.endswith("q_norm.weight"):
                data.fill_(SHARPNESS - 1)
            elif "conv1d" in name:
                data.normal_(0, 0.5, generator=own)
            elif "embed_tokens" in name:
                data.normal_(generator=own)
            elif data.dim() > 1:
                data.normal_(0, part * (inputs or data.shape[-1]) ** -0.5, generator=own)
            else:
                data.zero_()  # vLLM adds 1 to these norms
