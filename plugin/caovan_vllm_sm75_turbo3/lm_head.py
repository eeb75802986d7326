"""Logits from int8 weights, quantised once when a model is loaded, with one scale per row.

Shapes: V rows of the vocabulary, K the hidden size, R rows of inputs.
"""

from __future__ import annotations

import logging

import torch

from . import launch, library

Tensor = torch.Tensor
CHUNK_BYTES = 64 << 20
MAX_ROWS = 16  # per launch
MAX_LAUNCHES = 4  # for more launches, converting the weights to float16 for the call is faster
SCRATCH_BYTES = 32 << 20  # for the converted weights


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a weight [V, K] to int8 [V, K] and float32 scales [V]: a row's largest value becomes
    127.

    The result is bit-identical on every device. Temporary memory is needed for the result and for
    chunks of a few rows. Raises ValueError for a row that is not finite.
    """
    vocabulary, hidden = weight.shape
    rows = torch.empty(vocabulary, hidden, dtype=torch.int8, device=weight.device)
    scale = torch.empty(vocabulary, dtype=torch.float32, device=weight.device)
    step = max(1, CHUNK_BYTES // (4 * hidden))
    for at in range(0, vocabulary, step):
        chunk = weight[at : at + step].float()
        largest = chunk.abs().amax(1)
        # Divide by a tensor: on a GPU, torch multiplies by the reciprocal of a plain number.
        scale[at : at + step] = largest / torch.full_like(largest, 127)
        steps = scale[at : at + step].clamp(min=torch.finfo(torch.float32).tiny)
        rows[at : at + step] = (chunk / steps[:, None]).round_()
    if not scale.isfinite().all():
        row = int((~scale.isfinite()).nonzero()[0])
        raise ValueError(f"cannot quantise row {row} of the lm_head: it is not finite")
    return rows, scale


_failures: list[str] = []  # of the kernel in this process; after the first one, torch multiplies


def multiply(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Like `project`; if the kernel fails, by torch from then on."""
    if not _failures:
        try:
            return project(x.contiguous(), weight, scale)
        except (ValueError, library.LibraryError, library.KernelError) as error:
            _failures.append(str(error))
            log = logging.getLogger("vllm.caovan_sm75")
            log.warning("caovan: the lm_head kernel failed, torch multiplies: %s", error)
    return dequantised(x, weight, scale)


def project(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Return x (scale weight)^T for any number of rows: float16 [R, V] from float16 [R, K].

    Calls with equally many rows are bit-identical. Raises like `logits`.
    """
    rows = x.shape[0]
    if rows > MAX_ROWS * MAX_LAUNCHES:
        return dequantised(x, weight, scale)
    out = x.new_empty(rows, weight.shape[0])
    for at in range(0, rows, MAX_ROWS):
        logits(x[at : at + MAX_ROWS], weight, scale, out[at : at + MAX_ROWS])
    return out


def dequantised(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """The result of `project` by torch alone: part of the vocabulary at a time, in float16."""
    vocabulary, hidden = weight.shape
    out = x.new_empty(x.shape[0], vocabulary)
    step = max(1, SCRATCH_BYTES // (2 * hidden))
    scratch = x.new_empty(min(step, vocabulary), hidden)
    for at in range(0, vocabulary, step):
        end = min(at + step, vocabulary)
        part = scratch[: end - at]
        torch.mul(weight[at:end], scale[at:end, None], out=part)
        out[:, at:end] = x @ part.T
    return out


def logits(x: Tensor, weight: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write x (scale weight)^T to out.

    x: float16 [R, K] with at most 16 rows; weight: int8 [V, K]; scale: float32 [V]; out: float16
    [R, V]. Raises ValueError or KernelError.
    """
    (rows, hidden), vocabulary = x.shape, weight.shape[0]
    for name, tensor, dtype, shape in (
        ("x", x, torch.float16, (rows, hidden)),
        ("weight", weight, torch.int8, (vocabulary, hidden)),
        ("scale", scale, torch.float32, (vocabulary,)),
        ("out", out, torch.float16, (rows, vocabulary)),
    ):
        if tensor.dtype is not dtype or tensor.shape != shape or tensor.stride(-1) != 1:
            raise ValueError(
                f"cannot use {name} of {tensor.dtype}, shape {tuple(tensor.shape)}, strides "
                f"{tensor.stride()}: the kernel expects {dtype} {list(shape)}, rows contiguous"
            )
    args = library.LmHeadArgs(
        struct_size=library.ctypes.sizeof(library.LmHeadArgs),
        rows=rows,
        vocabulary=vocabulary,
        hidden=hidden,
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        scale=scale.data_ptr(),
        out=out.data_ptr(),
        x_stride=x.stride(0),
        weight_stride=weight.stride(0),
        out_stride=out.stride(0),
    )
    stream = torch.cuda.current_stream(x.device).cuda_stream
    launch.shared_library().lm_head(args, stream)
