"""Changes to an environment after its wheels are unpacked, each found necessary by running it.

Each change keeps RECORD correct, so that `engine verify` can check every file afterwards, and has
no effect the second time.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.lock import Lock

_RECORD = re.compile(r"[^/]+\.dist-info/RECORD")
_SCHEMAS = """

if not _has_ops():  # caovan: schemas only
    _caovan_library = torch.library.Library("torchvision", "DEF")
    for _caovan_name in ("nms", "qnms"):
        _caovan_library.define(
            _caovan_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
"""
# vLLM's own truncates floats to integers and writes into a copy of its output: drafted tokens then
# get whatever temperature was in memory, also for greedy requests in the same batch.
_EXPAND = """

def _expand_kernel_impl(  # caovan: the output, and of floats
    output, input_val, cu_num_tokens, replace_from, replace_to, MAX_NUM_TOKENS=None
):
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    replaced = input_val.masked_fill(input_val == replace_from, replace_to)
    output.copy_(torch.repeat_interleave(replaced, counts.long()))
"""


def adapt(lock: Lock, site: Path) -> None:
    """Apply the lock's `adapt` line to a site-packages folder."""
    for step in lock.adapt:
        if step == "torchvision-schemas":
            _declare_torchvision_operators(site)
        elif step == "vllm-distribution":
            _declare_vllm(site, lock)
        elif step == "vllm-expand":
            _append(site, "vllm/utils/cpu_triton_utils.py", _EXPAND)
        else:
            raise AssertionError(step)


def fix_records(site: Path, wheels: Iterable[Path]) -> None:
    """Correct RECORD entries that do not match a wheel's own files (patched after RECORD was
    written).

    A file is only accepted if it is the one in the wheel, whose sha256 the lock names. Only the
    size is compared: reading everything would take minutes.
    """
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            record = next((n for n in archive.namelist() if _RECORD.fullmatch(n)), None)
            if record is None or not (site / record).is_file():
                continue
            text = (site / record).read_text(encoding="utf-8")
            sizes = {one.filename: one.file_size for one in archive.infolist()}
            stale = {}
            for row in csv.reader(archive.read(record).decode().splitlines()):
                name, size = (row[0], row[-1]) if row else ("", "")
                if size.isdigit() and name in sizes and sizes[name] != int(size):
                    stale[name] = ",".join(row)
            for name, line in stale.items():
                path = site / name
                if path.is_file() and path.read_bytes() == archive.read(name):
                    text = text.replace(f"{line}\n", f"{_row(site, name)}\n")
            if stale:
                _replace(site / record, text)


def _declare_torchvision_operators(site: Path) -> None:
    # torchvision's compiled part does not load with torch's CPU build; its Python part, which every
    # Qwen3.5-family class imports, only needs two operators declared
    _append(site, "torchvision/extension.py", _SCHEMAS)


def _append(site: Path, name: str, code: str) -> None:
    """Add code to the end of a module, once."""
    path = site / name
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise EngineError(
            f"adapt {name}", f"{path} cannot be read: {error.strerror}", "install the engine again"
        ) from None
    if code in text:
        return
    _replace(path, text + code)
    for record in site.glob("*.dist-info/RECORD"):
        rows = record.read_text(encoding="utf-8").splitlines()
        if any(row.startswith(f"{name},") for row in rows):
            new = (_row(site, name) if row.startswith(f"{name},") else row for row in rows)
            _replace(record, "".join(f"{row}\n" for row in new))


def _declare_vllm(site: Path, lock: Lock) -> None:
    # vLLM asks for the version of a distribution named "vllm" and picks its platform by the "cpu"
    # in it
    write_dist_info(site, "vllm", f"{lock.version}+cpu", [])


def write_dist_info(site: Path, name: str, version: str, files: Sequence[Path]) -> None:
    """Write a package that owns `files`, which were made here, so that they can be verified
    later."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    (site / info).mkdir(exist_ok=True)
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "INSTALLER": "caovan\n",
    }
    for file, text in texts.items():
        (site / info / file).write_text(text, encoding="utf-8")
    own = [os.path.relpath(file, site) for file in files]
    _record(site, info, list(texts), own)


def _record(site: Path, info: str, names: Sequence[str], others: Sequence[str] = ()) -> None:
    rows = [_row(site, name) for name in (*others, *(f"{info}/{name}" for name in names))]
    rows.append(f"{info}/RECORD,,")
    (site / info / "RECORD").write_text("\n".join(rows) + "\n", encoding="utf-8")


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.new")  # the old one may be a link into a cache
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _row(site: Path, name: str) -> str:
    data = (site / name).read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"
