"""Properties of libcaovan_sm75.so that can be checked without a GPU."""

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

from caovan_vllm_sm75_turbo3 import library

ROOT = Path(__file__).resolve().parents[2]
HEADER = (ROOT / "csrc/include/caovan_sm75.h").read_text()
LIMITS = tomllib.loads((Path(__file__).parent / "resources.toml").read_text())
SM75 = {"registers": 65536, "shared": 65536, "threads": 1024}  # a multiprocessor


def kernel_of(symbol: str) -> str:
    """The entry of `resources.toml` that a mangled name belongs to."""
    if m := re.search(r"decode_kernelILi\d+ELi(\d+)E", symbol):
        return f"decode_kernel, {m[1]} warps"
    if m := re.search(r"lm_head_kernelILi(\d)E", symbol):
        return f"lm_head_kernel, {8 * int(m[1])} rows"
    if m := re.search(r"prefill_kernelILNS_9attention6FormatE\dELi(\d+)E", symbol):
        return f"attention prefill_kernel, {m[1]}"
    if m := re.search(r"attention_kernelILNS0_6FormatE(\d)ELi(\d+)E", symbol):
        return f"attention_kernel, {('fp16', 'int8', 'int4', 'fp8')[int(m[1])]} {m[2]}"
    return next(kernel for kernel in LIMITS if kernel in symbol)


def kernels(report: str) -> list[dict]:
    """Kernels in ptxas's report (-v), one dictionary each."""
    found = []
    for entry in re.split(r"(?=ptxas info\s+: Compiling entry function)", report)[1:]:
        name = re.search(r"entry function '(\S+)' for '(\w+)'", entry)
        found.append(
            {
                "symbol": name[1],
                "kernel": kernel_of(name[1]),
                "target": name[2],
                "registers": int(re.search(r"Used (\d+) registers", entry)[1]),
                "shared": int(m[1]) if (m := re.search(r"(\d+) bytes smem", entry)) else 0,
                "spills": sum(int(n) for n in re.findall(r"(\d+) bytes spill", entry)),
                "stack": int(re.search(r"(\d+) bytes stack frame", entry)[1]),
            }
        )
    return found


def test_library_holds_sm75_code_and_ptx_for_newer_gpus(build: Path) -> None:
    assert library.architectures((build / library.NAME).read_bytes()) == ["sm_75", "compute_75"]


def check_limits(build: Path) -> None:
    """No kernel spills or exceeds its limits."""
    report = kernels((build / "resources.txt").read_text())
    assert {k["kernel"] for k in report} == set(LIMITS)
    for k in report:
        limit = LIMITS[k["kernel"]]
        assert (k["spills"], k["stack"], k["target"]) == (0, 0, "sm_75"), k
        assert k["registers"] <= limit["registers"], k
        assert k["shared"] <= limit["shared"], k
        allocated = -(-k["registers"] // 8) * 8 * limit["threads"]  # in units of 8 a thread
        fits = min(
            SM75["registers"] // allocated,
            SM75["threads"] // limit["threads"],
            SM75["shared"] // max(k["shared"], limit["shared"], 1),
        )
        assert fits >= limit["blocks"], (k, fits)


def test_no_kernel_spills_or_exceeds_its_limits(build: Path) -> None:
    check_limits(build)


@pytest.mark.long
def test_without_a_toolkit_the_compiler_comes_from_the_package_index(tmp_path: Path) -> None:
    csrc = tmp_path / "csrc"
    shutil.copytree(ROOT / "csrc", csrc, ignore=shutil.ignore_patterns("build", "__pycache__"))
    found = subprocess.run(
        [csrc / "find-nvcc", "wheels"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.skip(found.stderr.strip().splitlines()[-1])
    nvcc = found.stdout.strip()
    assert Path(nvcc).is_relative_to(csrc)
    subprocess.run(["make", "-C", csrc, f"NVCC={nvcc}"], check=True, capture_output=True)
    made = csrc / "build"
    assert library.architectures((made / library.NAME).read_bytes()) == ["sm_75", "compute_75"]
    check_limits(made)


def test_library_exports_the_header_and_nothing_else(build: Path) -> None:
    nm = shutil.which("nm") or pytest.skip("no nm to list symbols with")
    listed = subprocess.run(
        [nm, "-D", "--defined-only", build / library.NAME],
        capture_output=True,
        text=True,
        check=True,
    )
    exported = {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}
    assert exported == set(re.findall(r"\b(caovan_\w+)\(", HEADER))


def test_library_needs_neither_the_cuda_runtime_nor_python_nor_torch(build: Path) -> None:
    readelf = shutil.which("readelf") or pytest.skip("no readelf to list dependencies with")
    listed = subprocess.run(
        [readelf, "-d", build / library.NAME], capture_output=True, text=True, check=True
    )
    needed = re.findall(r"NEEDED.*\[(.+?)\]", listed.stdout)
    assert not [name for name in needed if re.match(r"libcudart|libpython|libtorch|libc10", name)]


def test_library_runs_on_the_oldest_glibc_that_the_wheels_tag_names(build: Path) -> None:
    readelf = shutil.which("readelf") or pytest.skip("no readelf to list versions with")
    listed = subprocess.run(
        [readelf, "-W", "-V", build / library.NAME], capture_output=True, text=True, check=True
    )
    needed = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", listed.stdout)}
    config = tomllib.loads((ROOT / "plugin/pyproject.toml").read_text())
    tag = config["tool"]["distutils"]["bdist_wheel"]["plat-name"]
    glibc, machine = re.fullmatch(r"manylinux_(\d+_\d+)_(\w+)", tag).groups()
    assert (build / library.NAME).read_bytes()[18:20] == {"x86_64": b"\x3e\0"}[machine]
    assert needed
    assert max(needed) <= tuple(map(int, glibc.split("_")))


@pytest.mark.long
def test_library_is_the_same_when_built_again(build: Path, tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "csrc", tmp_path / "csrc", ignore=shutil.ignore_patterns("build", "__pycache__")
    )
    nvcc = subprocess.run([ROOT / "csrc/find-nvcc"], check=True, capture_output=True, text=True)
    subprocess.run(
        ["make", "-C", tmp_path / "csrc", "-j2", f"NVCC={nvcc.stdout.strip()}"],
        check=True,
        capture_output=True,
    )
    assert (tmp_path / "csrc/build" / library.NAME).read_bytes() == (
        build / library.NAME
    ).read_bytes()


@pytest.mark.parametrize(
    ("structure", "name"),
    [
        (library.PrefillArgs, "caovan_gdn_prefill_args"),
        (library.DecodeArgs, "caovan_gdn_decode_args"),
        (library.AttentionArgs, "caovan_attention_args"),
        (library.KvWriteArgs, "caovan_kv_write_args"),
        (library.LmHeadArgs, "caovan_lm_head_args"),
    ],
)
def test_structures_are_the_headers_field_for_field(
    structure: type[ctypes.Structure], name: str
) -> None:
    body = re.sub(
        r"/\*.*?\*/",
        "",
        re.search(rf"typedef struct {name} {{(.*?)}} {name};", HEADER, re.S)[1],
        flags=re.S,
    )
    types = {
        "uint32_t": ctypes.c_uint32,
        "int32_t": ctypes.c_int32,
        "int64_t": ctypes.c_int64,
        "float": ctypes.c_float,
    }
    fields = []
    for declaration in filter(None, (d.strip() for d in body.split(";"))):
        base, names = re.fullmatch(r"(?:const )?(\w+)\s*(.*)", declaration, re.S).groups()
        for field in names.split(","):
            pointer = "*" in field
            fields.append((field.strip(" *\n"), ctypes.c_void_p if pointer else types[base]))
    assert structure._fields_ == fields


def test_abi_and_version_are_the_headers(build: Path) -> None:
    loaded = library.Library(build / library.NAME)
    assert int(re.search(r"CAOVAN_SM75_ABI (\d+)", HEADER)[1]) == library.ABI
    assert loaded.version == re.search(r'CAOVAN_SM75_VERSION "(.+)"', HEADER)[1]


def prefill_args(**changed) -> library.PrefillArgs:
    """Arguments that would be accepted; the pointers point nowhere."""
    values = {
        "struct_size": ctypes.sizeof(library.PrefillArgs),
        "tokens": 64,
        "sequences": 1,
        "k_heads": 8,
        "v_heads": 24,
        "head_k_dim": 128,
        "head_v_dim": 128,
        "num_slots": 1,
        "null_slot": -1,
        "scale": 1.0,
        "q": 4096,
        "k": 4096,
        "v": 4096,
        "g": 4096,
        "beta": 4096,
        "out": 4096,
        "q_stride": 1024,
        "k_stride": 1024,
        "v_stride": 3072,
        "g_stride": 24,
        "beta_stride": 24,
        "out_stride": 3072,
        "cu_seqlens": 4096,
    }
    return library.PrefillArgs(**values | changed)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"struct_size": 8}, "struct_size is 8"),
        ({"flags": 64}, "cannot honour flags 0x40"),
        ({"sequences": 0}, "cannot take 0 sequences"),
        ({"sequences": 70000}, "split the batch"),
        ({"v_heads": 25}, "cannot map 25 value heads to 8 key heads"),
        ({"num_slots": 0}, "state cache of 0 slots"),
        ({"tokens": 0}, "cannot prefill 0 tokens"),
        ({"q": 0}, "is NULL"),
        ({"flags": library.GATES}, "a_log or dt_bias is NULL"),
        ({"head_k_dim": 96, "head_v_dim": 96}, "use caovan_gdn_recurrent"),
        ({"head_v_dim": 64}, "head sizes 128 (key) and 64 (value)"),
        ({"q": 4098}, "16-byte boundaries"),
        ({"k_stride": 1023}, "16-byte boundaries"),
        ({"final_state": 4100}, "8-byte boundaries"),
    ],
)
def test_prefill_refuses_in_words(build: Path, changed: dict, words: str) -> None:
    lib = library.Library(build / library.NAME)
    with pytest.raises(library.KernelError) as refused:
        lib.prefill(prefill_args(**changed), 4096, 1 << 30, 0)
    assert words in str(refused.value)


def test_prefill_refuses_a_small_workspace(build: Path) -> None:
    lib = library.Library(build / library.NAME)
    needed = lib.prefill_workspace_bytes(64, 1, 24)
    assert needed == 3 * 24 * 4736
    with pytest.raises(library.KernelError, match=f"{needed} are needed"):
        lib.prefill(prefill_args(), 4096, needed - 1, 0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"struct_size": 8}, "struct_size is 8"),
        ({"flags": 1}, "bit 2 is known"),
        ({"head_dim": 256}, "cannot decode head size 256"),
        ({"max_tokens": 9}, "1 to 8 fit the kernel"),
        ({"max_tokens": 4}, "without cu_seqlens"),
        ({"conv_width": 3}, "convolution of width 3"),
        ({"slots": 0}, "required array is NULL"),
        ({"qkv": 4098}, "8-byte boundaries"),
        ({"state": 4104}, "16-byte boundaries"),
    ],
)
def test_decode_refuses_in_words(build: Path, changed: dict, words: str) -> None:
    values = dict.fromkeys(
        (
            "qkv",
            "a",
            "b",
            "out",
            "a_log",
            "dt_bias",
            "conv_weight",
            "conv_state",
            "state",
            "slots",
            "counters",
        ),
        4096,
    )
    values |= {
        "struct_size": ctypes.sizeof(library.DecodeArgs),
        "sequences": 1,
        "max_tokens": 1,
        "k_heads": 8,
        "v_heads": 24,
        "head_dim": 128,
        "num_slots": 4,
        "conv_width": 4,
        "qkv_stride": 5120,
        "conv_slot_stride": 4 * 5120,
        "conv_column_stride": 5120,
        "conv_channel_stride": 1,
        "state_stride": 24 * 128 * 128,
    }
    with pytest.raises(library.KernelError) as refused:
        library.Library(build / library.NAME).decode(library.DecodeArgs(**values | changed), 0)
    assert words in str(refused.value)


def attention_args(**changed) -> library.AttentionArgs:
    """Arguments that would be accepted; the pointers point nowhere."""
    pointers = ("q", "out", "k", "v", "k_scale", "v_scale", "block_table", "cu_seqlens",
                "kv_lengths", "signs")  # fmt: skip
    values = dict.fromkeys(pointers, 4096) | {
        "struct_size": ctypes.sizeof(library.AttentionArgs),
        "format": library.KV_INT4,
        "sequences": 1,
        "max_tokens": 5,
        "heads": 24,
        "kv_heads": 4,
        "head_dim": 256,
        "block_size": 1040,
        "segments": 51,
        "scale": 0.0625,
        "q_stride": 6144,
        "out_stride": 6144,
        "block_stride": 1040 * 4 * 264,
        "token_stride": 4 * 264,
        "head_stride": 264,
    }
    return library.AttentionArgs(**values | changed)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"struct_size": 8}, "struct_size is 8"),
        ({"format": 4}, "a cache of format 4"),
        ({"format": library.KV_FP8, "head_stride": 520}, "16-byte boundaries"),
        (
            {
                "format": library.KV_FP8,
                "head_stride": 512,
                "token_stride": 2048,
                "block_stride": 32768,
                "q_stride": 6146,
            },
            "cannot read q for an fp8 cache",
        ),
        ({"format": library.KV_FP8, "k_scale": 0}, "required array is NULL"),
        ({"sequences": 0}, "cannot take 0 sequences"),
        ({"heads": 25}, "cannot map 25 query heads to 4 KV heads"),
        ({"head_dim": 64}, "head size 64"),
        ({"max_tokens": 513}, "1 to 512 fit the kernel"),
        ({"block_size": 40}, "blocks of 40 tokens"),
        ({"segments": 257}, "ask caovan_attention_segments"),
        ({"kv_lengths": 0}, "required array is NULL"),
        ({"signs": 0}, "required array is NULL"),
        ({"v": 4098}, "4-byte boundaries"),
        ({"head_stride": 263}, "4-byte boundaries"),
        ({"format": library.KV_HALF, "head_stride": 264}, "16-byte boundaries"),
        ({"token_stride": 1 << 24}, "16 MiB"),
        ({"q_stride": 6143}, "4-byte boundaries"),
    ],
)
def test_attention_refuses_in_words(build: Path, changed: dict, words: str) -> None:
    lib = library.Library(build / library.NAME)
    with pytest.raises(library.KernelError) as refused:
        lib.attention_decode(attention_args(**changed), 4096, 1 << 30, 0)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"struct_size": 8}, "struct_size is 8"),
        ({"max_tokens": 0}, "cannot attend with 0 tokens"),
        ({"max_tokens": 1 << 26}, "split them"),
        ({"out_stride": 6143}, "cannot write out: rows must start on 4-byte boundaries"),
        ({"signs": 0}, "required array is NULL"),
    ],
)
def test_prefill_attention_refuses_in_words(build: Path, changed: dict, words: str) -> None:
    lib = library.Library(build / library.NAME)
    with pytest.raises(library.KernelError) as refused:
        lib.attention_prefill(attention_args(**{"segments": 0} | changed), 0)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"struct_size": 8}, "struct_size is 8"),
        ({"format": 4}, "a cache of format 4"),
        ({"format": library.KV_FP8, "v_scale": 0}, "required array is NULL"),
        ({"head_dim": 64}, "head size 64"),
        ({"tokens": 0}, "cannot write 0 tokens"),
        ({"block_size": 0}, "blocks of 0 tokens"),
        ({"signs": 0}, "required array is NULL"),
        ({"v_cache": 4098}, "4-byte boundaries"),
    ],
)
def test_writing_a_cache_refuses_in_words(build: Path, changed: dict, words: str) -> None:
    pointers = ("k", "v", "k_cache", "v_cache", "k_scale", "v_scale", "slots", "signs")
    values = dict.fromkeys(pointers, 4096) | {
        "struct_size": ctypes.sizeof(library.KvWriteArgs),
        "format": library.KV_INT4,
        "tokens": 5,
        "kv_heads": 4,
        "head_dim": 256,
        "block_size": 16,
        "k_stride": 1024,
        "v_stride": 1024,
        "block_stride": 16 * 4 * 264,
        "token_stride": 4 * 264,
        "head_stride": 264,
    }
    with pytest.raises(library.KernelError) as refused:
        library.Library(build / library.NAME).kv_write(library.KvWriteArgs(**values | changed), 0)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"struct_size": 8}, "struct_size is 8"),
        ({"rows": 17}, "logits of 17 rows: 1 to 16 fit"),
        ({"vocabulary": 63}, "a vocabulary of 63"),
        ({"hidden": 96}, "a hidden size of 96: a multiple of 64"),
        ({"scale": 0}, "is NULL"),
        ({"x": 4104}, "16-byte boundaries"),
        ({"weight_stride": 5128}, "16-byte boundaries"),
    ],
)
def test_logits_are_refused_in_words(build: Path, changed: dict, words: str) -> None:
    values = dict.fromkeys(("x", "weight", "scale", "out"), 4096) | {
        "struct_size": ctypes.sizeof(library.LmHeadArgs),
        "rows": 5,
        "vocabulary": 248_320,
        "hidden": 5120,
        "x_stride": 5120,
        "weight_stride": 5120,
        "out_stride": 248_320,
    }
    with pytest.raises(library.KernelError) as refused:
        library.Library(build / library.NAME).lm_head(library.LmHeadArgs(**values | changed), 0)
    assert words in str(refused.value)


def test_attention_refuses_a_small_workspace(build: Path) -> None:
    lib = library.Library(build / library.NAME)
    needed = lib.attention_workspace_bytes(1, 5, 24, 4, 256, 51)
    assert needed == 4 * 32 * 51 * (16 + 512)
    with pytest.raises(library.KernelError, match=f"{needed} are needed"):
        lib.attention_decode(attention_args(), 4096, needed - 1, 0)


def test_a_file_that_is_no_library_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(b"not a library")
    with pytest.raises(library.LibraryError, match=r"cannot load .*reinstall the plugin"):
        library.Library(tmp_path / "x.so")


def test_a_library_that_lacks_a_function_is_an_error_in_words(
    build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Older(ctypes.CDLL):
        def __getitem__(self, name: str) -> object:
            if name == "caovan_gdn_decode":
                raise AttributeError(f"undefined symbol: {name}")
            return super().__getitem__(name)

    monkeypatch.setattr(ctypes, "CDLL", Older)
    with pytest.raises(library.LibraryError, match="undefined symbol: caovan_gdn_decode"):
        library.Library(build / library.NAME)


def test_a_library_named_by_the_operator_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAOVAN_SM75_LIBRARY", "/nowhere/lib.so")
    with pytest.raises(library.LibraryError, match="CAOVAN_SM75_LIBRARY names it"):
        library.load()
