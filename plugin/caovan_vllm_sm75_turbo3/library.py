"""libcaovan_sm75.so through ctypes: find it, load it, call it. Imports neither torch nor vLLM.

The structures mirror csrc/include/caovan_sm75.h field by field; the library rejects a structure of
another size, and a test compares the fields with the header.
"""

from __future__ import annotations

import ctypes
import os
import struct
from ctypes import c_float, c_int32, c_int64, c_uint32, c_void_p
from pathlib import Path

ABI = 1
NAME = "libcaovan_sm75.so"
L2NORM, GATES, DT_BIAS_HALF = 1, 2, 4
KV_HALF, KV_INT8, KV_INT4, KV_FP8 = 0, 1, 2, 3


class LibraryError(Exception):
    """The library is missing, not a library, or of another version."""


class KernelError(RuntimeError):
    """A call was rejected or failed; the text is the library's own."""


def reason_of(error: Exception) -> str:
    """The reason for an error, in our own words if we have any."""
    ours = isinstance(error, (ValueError, LibraryError, KernelError))
    return str(error) if ours else f"{type(error).__name__}: {error}"


class PrefillArgs(ctypes.Structure):
    """caovan_gdn_prefill_args: pointers as integers (0 is NULL), strides in elements."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("tokens", c_int32),
        ("sequences", c_int32),
        ("k_heads", c_int32),
        ("v_heads", c_int32),
        ("head_k_dim", c_int32),
        ("head_v_dim", c_int32),
        ("num_slots", c_int32),
        ("null_slot", c_int32),
        ("scale", c_float),
        ("reserved", c_int32),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("g", c_void_p),
        ("beta", c_void_p),
        ("out", c_void_p),
        ("q_stride", c_int64),
        ("k_stride", c_int64),
        ("v_stride", c_int64),
        ("g_stride", c_int64),
        ("beta_stride", c_int64),
        ("out_stride", c_int64),
        ("a_log", c_void_p),
        ("dt_bias", c_void_p),
        ("cu_seqlens", c_void_p),
        ("initial_state", c_void_p),
        ("final_state", c_void_p),
        ("state_stride", c_int64),
        ("slots", c_void_p),
        ("slots_stride", c_int64),
        ("has_initial_state", c_void_p),
    ]


class DecodeArgs(ctypes.Structure):
    """caovan_gdn_decode_args: pointers as integers (0 is NULL), strides in elements."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("sequences", c_int32),
        ("max_tokens", c_int32),
        ("k_heads", c_int32),
        ("v_heads", c_int32),
        ("head_dim", c_int32),
        ("num_slots", c_int32),
        ("scale", c_float),
        ("conv_width", c_int32),
        ("qkv", c_void_p),
        ("a", c_void_p),
        ("b", c_void_p),
        ("out", c_void_p),
        ("qkv_stride", c_int64),
        ("a_stride", c_int64),
        ("b_stride", c_int64),
        ("out_stride", c_int64),
        ("a_log", c_void_p),
        ("dt_bias", c_void_p),
        ("conv_weight", c_void_p),
        ("conv_bias", c_void_p),
        ("conv_state", c_void_p),
        ("conv_slot_stride", c_int64),
        ("conv_column_stride", c_int64),
        ("conv_channel_stride", c_int64),
        ("cu_seqlens", c_void_p),
        ("state", c_void_p),
        ("state_stride", c_int64),
        ("slots", c_void_p),
        ("slots_stride", c_int64),
        ("num_accepted", c_void_p),
        ("counters", c_void_p),
    ]


class AttentionArgs(ctypes.Structure):
    """caovan_attention_args: pointers as integers (0 is NULL), the cache's strides in bytes."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("format", c_uint32),
        ("sequences", c_int32),
        ("max_tokens", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("segments", c_int32),
        ("scale", c_float),
        ("q", c_void_p),
        ("out", c_void_p),
        ("q_stride", c_int64),
        ("out_stride", c_int64),
        ("k", c_void_p),
        ("v", c_void_p),
        ("k_scale", c_void_p),
        ("v_scale", c_void_p),
        ("block_stride", c_int64),
        ("token_stride", c_int64),
        ("head_stride", c_int64),
        ("block_table", c_void_p),
        ("block_table_stride", c_int64),
        ("cu_seqlens", c_void_p),
        ("kv_lengths", c_void_p),
        ("signs", c_void_p),
    ]


class KvWriteArgs(ctypes.Structure):
    """caovan_kv_write_args: pointers as integers (0 is NULL), the cache's strides in bytes."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("format", c_uint32),
        ("tokens", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("k", c_void_p),
        ("v", c_void_p),
        ("k_stride", c_int64),
        ("v_stride", c_int64),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("k_scale", c_void_p),
        ("v_scale", c_void_p),
        ("block_stride", c_int64),
        ("token_stride", c_int64),
        ("head_stride", c_int64),
        ("slots", c_void_p),
        ("signs", c_void_p),
    ]


class LmHeadArgs(ctypes.Structure):
    """caovan_lm_head_args: pointers as integers (0 is NULL), strides in elements."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("rows", c_int32),
        ("vocabulary", c_int32),
        ("hidden", c_int32),
        ("x", c_void_p),
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("out", c_void_p),
        ("x_stride", c_int64),
        ("weight_stride", c_int64),
        ("out_stride", c_int64),
    ]


class Library:
    """The loaded library; every method raises KernelError with the library's message."""

    def __init__(self, path: Path) -> None:
        try:
            self._c = ctypes.CDLL(str(path))
            self._c.caovan_sm75_version.restype = ctypes.c_char_p
            self._c.caovan_sm75_last_error.restype = ctypes.c_char_p
            abi = self._c.caovan_sm75_abi()
            self._declare()
        except (OSError, AttributeError) as error:
            raise LibraryError(f"cannot load {path}: {error}; reinstall the plugin") from error
        if abi != ABI:
            raise LibraryError(
                f"cannot use {path}: its interface is version {abi}, this plugin's is {ABI}; "
                "install both from one release"
            )
        self.path = path
        self.version: str = self._c.caovan_sm75_version().decode()

    def _declare(self) -> None:
        """Declare the functions' types; raises AttributeError if the library lacks one."""
        prefill, decode = ctypes.POINTER(PrefillArgs), ctypes.POINTER(DecodeArgs)
        self._c.caovan_sm75_prepare.argtypes = []
        self._c.caovan_gdn_prefill_workspace_bytes.argtypes = [c_int32, c_int32, c_int32]
        self._c.caovan_gdn_prefill_workspace_bytes.restype = c_int64
        self._c.caovan_gdn_prefill.argtypes = [prefill, c_void_p, c_int64, c_void_p]
        self._c.caovan_gdn_recurrent.argtypes = [prefill, c_void_p]
        self._c.caovan_gdn_decode.argtypes = [decode, c_void_p]
        attention = ctypes.POINTER(AttentionArgs)
        self._c.caovan_attention_segments.argtypes = [c_uint32, *[c_int32] * 5]
        self._c.caovan_attention_workspace_bytes.argtypes = [c_int32] * 6
        self._c.caovan_attention_workspace_bytes.restype = c_int64
        self._c.caovan_kv_write.argtypes = [ctypes.POINTER(KvWriteArgs), c_void_p]
        self._c.caovan_lm_head.argtypes = [ctypes.POINTER(LmHeadArgs), c_void_p]
        self._c.caovan_attention_decode.argtypes = [attention, c_void_p, c_int64, c_void_p]
        self._c.caovan_attention_prefill.argtypes = [attention, c_void_p]

    def prepare(self) -> None:
        """Load the kernels on the current CUDA device; not inside a graph capture."""
        self._check(self._c.caovan_sm75_prepare())

    def prefill_workspace_bytes(self, tokens: int, sequences: int, v_heads: int) -> int:
        """Device memory in bytes that `prefill` needs."""
        return self._c.caovan_gdn_prefill_workspace_bytes(tokens, sequences, v_heads)

    def prefill(self, args: PrefillArgs, workspace: int, workspace_bytes: int, stream: int) -> None:
        """Chunked prefill on tensor cores."""
        self._check(self._c.caovan_gdn_prefill(args, workspace, workspace_bytes, stream))

    def recurrent(self, args: PrefillArgs, stream: int) -> None:
        """The same function, one token at a time."""
        self._check(self._c.caovan_gdn_recurrent(args, stream))

    def decode(self, args: DecodeArgs, stream: int) -> None:
        """Convolution update and recurrence of a few tokens per sequence."""
        self._check(self._c.caovan_gdn_decode(args, stream))

    def attention_segments(
        self,
        format_: int,
        sequences: int,
        max_tokens: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
    ) -> int:
        """Number of segments into which to split a sequence so that the current device is busy."""
        return self._c.caovan_attention_segments(
            format_, sequences, max_tokens, heads, kv_heads, head_dim
        )

    def attention_workspace_bytes(
        self,
        sequences: int,
        max_tokens: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        segments: int,
    ) -> int:
        """Device memory in bytes that `attention_decode` needs."""
        return self._c.caovan_attention_workspace_bytes(
            sequences, max_tokens, heads, kv_heads, head_dim, segments
        )

    def attention_decode(
        self, args: AttentionArgs, workspace: int, workspace_bytes: int, stream: int
    ) -> None:
        """Attend from a few new tokens per sequence to a paged cache."""
        self._check(self._c.caovan_attention_decode(args, workspace, workspace_bytes, stream))

    def attention_prefill(self, args: AttentionArgs, stream: int) -> None:
        """Attend from any number of new tokens per sequence to a paged cache."""
        self._check(self._c.caovan_attention_prefill(args, stream))

    def kv_write(self, args: KvWriteArgs, stream: int) -> None:
        """Write keys and values of new tokens into a paged cache."""
        self._check(self._c.caovan_kv_write(args, stream))

    def lm_head(self, args: LmHeadArgs, stream: int) -> None:
        """Logits of a few rows from int8 weights."""
        self._check(self._c.caovan_lm_head(args, stream))

    def _check(self, status: int) -> None:
        if status:
            raise KernelError(self._c.caovan_sm75_last_error().decode())


def candidates() -> list[Path]:
    """Paths where the library may be, in order."""
    package = Path(__file__).resolve().parent
    named = os.environ.get("CAOVAN_SM75_LIBRARY")
    return ([Path(named)] if named else []) + [
        package / "lib" / NAME,
        Path("/usr/lib/caovan") / NAME,
        package.parents[1] / "csrc" / "build" / NAME,
    ]


def load() -> Library:
    """Load the first library found. A library named by CAOVAN_SM75_LIBRARY must exist.

    Raises LibraryError with the folders it searched.
    """
    looked = candidates()
    if os.environ.get("CAOVAN_SM75_LIBRARY") and not looked[0].is_file():
        raise LibraryError(
            f"cannot find {looked[0]}: CAOVAN_SM75_LIBRARY names it; correct or unset it"
        )
    for path in looked:
        if path.is_file():
            return Library(path)
    raise LibraryError(
        f"cannot find {NAME}: looked in {', '.join(str(path.parent) for path in looked)}; "
        "reinstall the plugin or set CAOVAN_SM75_LIBRARY"
    )


def architectures(binary: bytes) -> list[str]:
    """Images in a library's fat binaries: "sm_75" for machine code, "compute_75" for PTX."""
    found, magic = set(), struct.pack("<I", 0xBA55ED50)
    at = binary.find(magic)
    while at >= 0:
        header, size = struct.unpack_from("<HQ", binary, at + 6)
        position, end = at + header, at + header + size
        while position < end:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", binary, position)
            (architecture,) = struct.unpack_from("<I", binary, position + 28)
            found.add((kind != 2, f"{'sm' if kind == 2 else 'compute'}_{architecture}"))
            position += entry_header + entry_size
        at = binary.find(magic, end)
    return [name for _, name in sorted(found)]
