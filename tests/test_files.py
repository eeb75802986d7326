"""Whatever opens, replaces or starts something does so in a place that is known and explained.

The class of the defect: code that root runs, and that opens a path which another user can make a
link, a FIFO or a file of its own. New code goes through `adapters/files/safe_files.py`; what cannot
is named here with the reason why nobody else can put anything there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.source_trees import nodes, offenders

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "caovand"
MODULES = {str(file.relative_to(PACKAGE)): file for file in sorted(PACKAGE.rglob("*.py"))}

METHODS = frozenset({
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "symlink_to", "hardlink_to",
    "rename", "touch",
})  # fmt: skip
FUNCTIONS = frozenset({
    "os.open", "os.replace", "os.rename", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "os.chown", "os.mkfifo", "shutil.rmtree", "shutil.copytree", "shutil.copy", "shutil.copy2",
    "shutil.copyfile", "shutil.copymode", "shutil.move", "tempfile.mkstemp", "tempfile.mkdtemp",
    "tempfile.NamedTemporaryFile", "tempfile.TemporaryDirectory", "tarfile.open", "zipfile.ZipFile",
})  # fmt: skip

KERNEL = "only files of the kernel: /proc, /sys, /dev"
ENGINE = "inside an engines' folder, which places.locked found to be root's where root works there"
OWN = "in a folder of the daemon's that directories.make found to be its own"
MODELS = "inside a models' folder, which folders.locked found to be root's where root works there"
EXPLAINED: dict[str, tuple[str, str]] = {
    "__main__.py": ("os.open", "/dev/null"),
    "adapters/files/safe_files.py": (
        "os.link os.open os.replace os.symlink tempfile.mkstemp",
        "it is the safe way",
    ),
    "adapters/confinement/popen.py": ("open", "a file in memory"),
    "adapters/privileges/engine_user.py": ("open os.open", f"files in memory, a cgroup; {KERNEL}"),
    "adapters/privileges/helper.py": ("open", "files in memory, a pipe, /dev/null"),
    "adapters/privileges/spawner.py": ("open", "/dev/tty"),
    "adapters/privileges/calls.py": ("open", "descriptors that the daemon sends"),
    "adapters/confinement/launch.py": (
        "open os.open",
        "/dev/null, a cgroup; nothing is read",
    ),
    "adapters/files/trust.py": (
        "read_text",
        "pyvenv.cfg, that nobody else can write",
    ),
    "engines/explaining/answer.py": ("read_text", "a file of this package"),
    "lab/corpus.py": ("read_text", "files of this package"),
    "adapters/system/kernel_log.py": ("os.open", KERNEL),
    "adapters/privileges/capabilities.py": ("read_text", KERNEL),
    "adapters/system/oom_kills.py": ("read_text", KERNEL),
    "adapters/network/ports.py": ("open", KERNEL),
    "adapters/system/processes.py": ("open os.open read_text read_bytes write_text", KERNEL),
    "adapters/child/engines.py": ("read_bytes", KERNEL),
    "adapters/files/stale_files.py": ("open", KERNEL),
    "adapters/files/emptying.py": (
        "os.open os.rename",
        "a folder of our own that is no link, and by descriptors what is in it",
    ),
    "adapters/engine/pump.py": ("os.replace", OWN),
    "adapters/incidents.py": ("open write_text rename shutil.rmtree tempfile.mkdtemp", OWN),
    "adapters/files/state_file.py": ("shutil.rmtree", OWN),
    "adapters/files/lock_file.py": (
        "os.open",
        "a folder, or a lock not made, " + OWN,
    ),
    "adapters/admission/door.py": ("os.chmod os.chown", OWN),
    "adapters/confinement/parser_process.py": ("open", "a file in memory, without a name"),
    "adapters/engine_install/records.py": (
        "open read_text read_bytes write_text zipfile.ZipFile",
        ENGINE,
    ),
    "adapters/engine_install/pythons.py": ("shutil.rmtree", ENGINE),
    "adapters/engine_install/environment.py": (
        "os.link read_bytes write_bytes write_text shutil.copymode shutil.copytree shutil.rmtree",
        ENGINE,
    ),
    "adapters/engine_install/install.py": ("write_text", ENGINE),
    "adapters/engine_install/from_source.py": (
        "open read_bytes rename write_text shutil.rmtree tarfile.open",
        f"{ENGINE}; an archive from where nobody else can change it",
    ),
    "adapters/engine_install/prove.py": (
        "open read_text write_bytes tempfile.TemporaryDirectory",
        "a folder of its own",
    ),
    "adapters/engine_install/flashinfer_jit_cache.py": ("read_text", ENGINE),
    "adapters/engine_install/kernels.py": ("read_text shutil.rmtree", ENGINE + "; our own script"),
    "adapters/gpu/all_reduce.py": ("read_text", "part of this package"),
    "adapters/gpu/all_reduce_in_env.py": (
        "open os.open shutil.rmtree tempfile.mkdtemp",
        "a folder of its own",
    ),
    "adapters/ray_in_env/__main__.py": (
        "open shutil.rmtree tempfile.mkdtemp",
        "a folder of its own",
    ),
    "adapters/engine_install/kernels_in_env.py": (
        "read_text write_text shutil.copyfile shutil.rmtree",
        ENGINE,
    ),
    "adapters/engine_install/toolkit.py": ("read_text symlink_to", ENGINE),
    "adapters/engine_install/places.py": (
        "read_text rename symlink_to shutil.rmtree",
        f"{ENGINE}; /proc",
    ),
    "adapters/engine_install/verify.py": ("read_bytes", ENGINE),
    "adapters/engine_install/wheels.py": (
        "write_text shutil.rmtree tempfile.TemporaryDirectory",
        "inside the folder that fetch or install has locked, as an engines' folder",
    ),
    "adapters/model_pull/download.py": ("os.replace", MODELS),
    "adapters/model_pull/folders.py": ("os.link os.rename os.replace shutil.rmtree", MODELS),
    "adapters/model_pull/headers.py": ("tempfile.TemporaryDirectory", "a folder of its own"),
    "adapters/model_pull/named.py": ("os.chown tempfile.TemporaryDirectory", "a folder of its own"),
    "cli/engine/choice.py": ("read_text", KERNEL),
    "lab/fieldtest/work.py": ("shutil.rmtree", OWN),
    "cli/common/own_daemon.py": (
        "open os.open",
        "O_EXCL, " + OWN,
    ),
    "adapters/servers/server_main.py": ("write_text", KERNEL),
    "page/files.py": ("read_bytes", "files of this package"),
    "cli/common/ending.py": ("os.open", "/dev/null"),
    "cli/common/archive.py": ("tarfile.open", "over a file that safe_files opened"),
    "cli/explain.py": ("open", "a log that the caller names, which may be a pipe"),
}


def named(node: ast.expr) -> str:
    """A dotted name, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""


def calls(name: str) -> Iterator[ast.Call]:
    return (node for node in nodes(MODULES[name]) if isinstance(node, ast.Call))


def touches(name: str) -> set[str]:
    """What a module calls, or hands on, that opens or replaces something by its path."""
    found = set()
    for node in nodes(MODULES[name]):
        if isinstance(node, ast.Attribute) and named(node) in FUNCTIONS:
            found.add(named(node))
        if not isinstance(node, ast.Call):
            continue
        function = named(node.func)
        if function == "open":
            found.add("open")
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        module = function.partition(".")[0]
        if method in METHODS and module not in ("os", "safe_files", "tarfile"):
            found.add(method)
    return found


def test_what_opens_or_replaces_a_path_is_explained_or_goes_the_safe_way() -> None:
    explained = {name: set(calls.split()) for name, (calls, _) in EXPLAINED.items()}
    assert offenders(MODULES, touches) == explained, "use caovand.adapters.files.safe_files"


def test_no_child_works_in_the_folder_of_who_called_us() -> None:
    def anywhere(name: str) -> list[int]:
        return [
            call.lineno
            for call in calls(name)
            if named(call.func).startswith("subprocess.")
            and named(call.func) != "subprocess.list2cmd"
            and "cwd" not in {word.arg for word in call.keywords}
        ]

    assert offenders(MODULES, anywhere) == {}


def test_no_program_is_looked_for_in_the_current_folder() -> None:
    """PATH may have an empty or a relative part: `trust.program` passes it over."""

    def looking(name: str) -> list[int]:
        return [call.lineno for call in calls(name) if named(call.func) == "shutil.which"]

    assert offenders(MODULES.keys() - {"adapters/files/trust.py"}, looking) == {}


MODULE_RUNS = {
    "adapters/servers/server_process.py": "the daemon starts its servers in /, isolated if it is",
    "adapters/ray_in_env/__main__.py": "it starts Ray in /, as the daemon starts engines",
    "engines/vllm/command.py": "the daemon starts engines in /, `--exec` turns it into a -c",
    "engines/sglang/command.py": "the daemon starts engines in /",
}


def test_a_python_that_runs_a_module_is_isolated() -> None:
    """`-m` puts the current folder before the standard library, `-I` does not."""

    def exposed(name: str) -> list[int]:
        found = []
        for node in nodes(MODULES[name]):
            if isinstance(node, (ast.List, ast.Tuple)):
                words = [one.value if isinstance(one, ast.Constant) else None for one in node.elts]
                found += [
                    node.lineno
                    for before, word in zip([None, *words], words, strict=False)
                    if word == "-m" and before != "-I"
                ]
        return found

    assert offenders(MODULES, exposed).keys() == MODULE_RUNS.keys()
