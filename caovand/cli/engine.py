"""caovanctl engine: make, prove, list and switch the environments that vLLM runs in.

Needs no daemon and nothing but the standard library. Results go to stdout, progress to stderr.
Also runs by itself from a bare checkout: python3 -m caovand.cli.engine install --build cpu
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from caovand.adapters.environment import commands, install, lock, places, pythons, resolve, verify
from caovand.adapters.environment import wheels as wheel_files
from caovand.adapters.environment.bring import archives_of, bring
from caovand.adapters.environment.errors import EngineError
from caovand.adapters.nvml import read_gpus
from caovand.cli.printing import shown
from caovand.cli.progress import Screen
from caovand.core.inventory import Gpu
from caovand.core.shortfalls import old_driver
from caovand.core.wire import failure_fields

ENGINE = "NAME"
"""What an argument is called that is an engine's name; shells complete it."""
EPILOG = """\
examples:
  sudo caovanctl engine install                      the build this machine can use
  sudo caovanctl engine install 0.33.0               another version; the old one is kept
  sudo caovanctl engine rollback                     back to the one before
  caovanctl engine fetch --build cuda --wheels DIR   on a machine with network, then
  sudo caovanctl engine install --wheels DIR         on one without
After a switch: caovanctl reload
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb `engine` to a program's verbs."""
    parser = subparsers.add_parser(
        "engine",
        help="make, list and switch the environments vLLM runs in",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    add_arguments(parser)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--root",
        metavar="DIR",
        help=f"where engines lie (default: ${places.ROOT_VARIABLE}, else {places.DEFAULT_ROOT})",
    )
    shared.add_argument("--json", action="store_true", help="print the result as JSON")
    verbs = parser.add_subparsers(dest="engine_verb", metavar="VERB", required=True)

    def verb(name: str, text: str, example: str) -> argparse.ArgumentParser:
        return verbs.add_parser(
            name,
            help=text,
            description=text,
            parents=[shared],
            epilog=f"example: {example}",
        )

    add = verb(
        "install",
        "make an engine from its lock file, prove it and switch to it",
        "sudo caovanctl engine install --build cuda",
    )
    fetch = verb(
        "fetch",
        "download an engine's wheels into a folder, for a machine offline",
        "caovanctl engine fetch --build cuda --wheels ./wheels",
    )
    for one in (add, fetch):
        one.add_argument(
            "version", nargs="?", metavar="VERSION", help="of vLLM (default: the recommended one)"
        )
        one.add_argument(
            "--build",
            choices=sorted(lock.DEFAULT_VERSION),
            help="default: cuda where an NVIDIA GPU is, else cpu",
        )
        one.add_argument(
            "--python",
            metavar="X.Y|PATH",
            help="the engine's Python (default: found, or brought by uv)",
        )
    add.add_argument("--wheels", metavar="DIR", help="install offline from this folder")
    add.add_argument(
        "--plugin",
        metavar="PATH",
        help="caovan's vLLM plugin, a wheel or its source (default: on CUDA, the one that came "
        "with caovan)",
    )
    add.add_argument(
        "--again", action="store_true", help="make it anew beside the one that is there, as NAME.2"
    )
    fetch.add_argument("--wheels", metavar="DIR", required=True, help="the folder to fill")
    fetch.add_argument(
        "--with-python",
        action="store_true",
        help="put the engine's Python there too, for a machine that has none of its version",
    )
    verb("list", "list engines; * is the one in use", "caovanctl engine list --json")
    use = verb("use", "switch to an engine", "sudo caovanctl engine use NAME")
    use.add_argument("name", metavar=ENGINE)
    verb(
        "rollback",
        "switch back to the engine used before",
        "sudo caovanctl engine rollback && sudo caovanctl reload",
    )
    remove = verb(
        "remove", "delete an engine that is not in use", "sudo caovanctl engine remove NAME"
    )
    remove.add_argument("name", metavar=ENGINE)
    check = verb(
        "verify", "check every file of an engine and import vLLM in it", "caovanctl engine verify"
    )
    check.add_argument("name", nargs="?", metavar=ENGINE, help="default: the one in use")
    make = verb(
        "lock",
        "resolve a lock's source (.in) again; for maintainers, needs uv",
        "caovanctl engine lock packaging/engines/cpu-0.32.0.in",
    )
    make.add_argument("source", metavar="FILE.in")
    make.add_argument("--find-links", metavar="DIR", help="a folder of wheels to resolve from too")
    make.add_argument(
        "--json-index",
        metavar="URL",
        default="https://pypi.org",
        help="an index that has /pypi/NAME/json (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Do what `args` ask for; 0 done, 1 failed (said on stderr, with --json on stdout too)."""
    try:
        return VERBS[args.engine_verb](args)
    except EngineError as error:
        return _failed(args, "engine-failed", error.message, error.remedy)
    except KeyboardInterrupt:
        print(file=sys.stderr)  # what is told stands under the ^C
        return _failed(args, "interrupted", "stopped", "the same command goes on where it was")
    except OSError as error:
        return _failed(args, "os-error", f"cannot go on: {error}", "nothing in use was changed")


def _failed(args: argparse.Namespace, code: str, message: str, hint: str) -> int:
    if args.json:
        print(json.dumps(failure_fields(code, message, hint)))
    print(f"caovanctl: {message}; {hint}", file=sys.stderr)
    return 1


def _world(screen: Screen) -> commands.World:
    return commands.World(
        run=commands.run,
        free_bytes=lambda path: shutil.disk_usage(path).free,
        now=lambda: datetime.now(timezone.utc),
        environ=os.environ,
        say=screen.say,
        progress=screen.progress,
    )


def _root(args: argparse.Namespace) -> Path:
    return places.root_from(args.root, os.environ)


def _lock(args: argparse.Namespace, screen: Screen) -> lock.Lock:
    build = args.build
    if build is None:
        # WSL has no card on its bus, but a driver that knows it.
        here = on_the_bus(Path("/sys/bus/pci/devices")) or read_gpus({})
        build = "cuda" if here else "cpu"
        why = "an NVIDIA GPU is here" if build == "cuda" else "no NVIDIA GPU is here"
        screen.say(f"build: {build} ({why}; --build chooses)")
    return lock.load(build, args.version)


def on_the_bus(devices: Path) -> bool:
    """Whether a display controller of NVIDIA is on the PCI bus, driver or not."""
    for device in devices.glob("*"):
        try:
            vendor = (device / "vendor").read_text(errors="replace").strip()
            kind = (device / "class").read_text(errors="replace")
            if vendor == "0x10de" and kind.startswith("0x03"):
                return True
        except OSError:
            continue
    return False


def _install(args: argparse.Namespace) -> int:
    screen = Screen(sys.stderr)
    wanted = _lock(args, screen)
    if wanted.build == "cuda":
        check_driver(wanted, read_gpus({}))
    root = _root(args)
    engine = install.install(
        install.Order(
            lock=wanted,
            root=root,
            python=args.python,
            offline=Path(args.wheels).absolute() if args.wheels else None,
            plugin=_plugin(args.plugin, wanted.build),
            again=args.again,
            public=os.geteuid() == 0 and root == places.DEFAULT_ROOT,
        ),
        _world(screen),
    )
    _print(
        args,
        _facts(engine),
        f"{engine.name} is in use: vLLM {engine.version}, torch "
        f"{engine.torch}, Python {engine.python}, {engine.interpreter}",
    )
    return 0


def check_driver(wanted: lock.Lock, gpus: Sequence[Gpu]) -> None:
    """EngineError, before gigabytes are downloaded, where the driver is too old for the lock."""
    runtime = next((pin.version for pin in wanted.pins if pin.name == "nvidia-cuda-runtime"), "")
    fact, _, remedy = old_driver(gpus, runtime).partition("; ")
    if fact:
        raise EngineError(f"install {wanted.name}", fact, remedy)


def _plugin(chosen: str | None, build: str) -> Path | None:
    """The plugin to add: the one given, else the installed package's or the checkout's on CUDA."""
    if chosen:
        if not Path(chosen).exists():
            raise EngineError("add the plugin", f"there is no {chosen}", "check --plugin")
        return Path(chosen).absolute()
    if build != "cuda":
        return None
    found = sorted(Path("/usr/share/caovan/plugin").glob("caovan_vllm_sm75_turbo3-*.whl"))
    checkout = Path(__file__).resolve().parents[2] / "plugin"
    if (checkout / "pyproject.toml").is_file():
        found.append(checkout)
    return found[-1] if found else None


def _fetch(args: argparse.Namespace) -> int:
    screen = Screen(sys.stderr)
    wanted = _lock(args, screen)
    folder = wheel_files.Folder(Path(args.wheels).absolute())
    with install.readable_by_all(), places.locked(folder.path, f"fetch {wanted.name}"):
        # one that is brought goes there too: who fetches need not be root
        if args.with_python and not archives_of(wanted.python, folder.path):
            screen.say(f"bringing Python {wanted.python} into {folder.path}")
            bring(wanted.python, folder.path, os.environ, commands.run, True)
        python = pythons.find(wanted.python, args.python, folder.path, os.environ, commands.run)
        wheel_files.download(wanted, python.path, folder, commands.run, screen.progress)
    result = {"wheels": str(folder.path), "count": len(wanted.pins)}
    _print(args, result, f"{folder.path} has all {len(wanted.pins)} wheels of {wanted.name}")
    return 0


def _list(args: argparse.Namespace) -> int:
    root = _root(args)
    now, found, begun = places.current(root), places.engines(root), places.unfinished(root)
    if args.json:
        print(
            json.dumps(
                {
                    "root": str(root),
                    "current": now.name if now else None,
                    "engines": [_facts(engine) for engine in found],
                    "unfinished": begun,
                }
            )
        )
        return 0
    for engine in found:
        mark = "*" if now is not None and now.name == engine.name else " "
        plugin = f"plugin {engine.plugin}" if engine.plugin else "no plugin"
        print(
            f"{mark} {engine.name:24} vLLM {engine.version:12} torch {engine.torch:14} "
            f"Python {engine.python:8} {plugin}"
        )
    if not found:
        print(f"no engine in {root}; make one with: caovanctl engine install")
    for name in begun:
        print(
            f"note: {name} is unfinished: install it again to go on, or remove it", file=sys.stderr
        )
    return 0


def _use(args: argparse.Namespace) -> int:
    with places.locked(_root(args), f"use {args.name}", make=False):
        places.switch(_root(args), args.name)
    _print(
        args,
        {"current": args.name},
        f"{args.name} is in use; a running daemon sees it on caovanctl reload",
    )
    return 0


def _rollback(args: argparse.Namespace) -> int:
    with places.locked(_root(args), "roll back", make=False):
        engine = places.rollback(_root(args))
    _print(
        args,
        {"current": engine.name},
        f"{engine.name} is in use again; a running daemon sees it on caovanctl reload",
    )
    return 0


def _remove(args: argparse.Namespace) -> int:
    with places.locked(_root(args), f"remove {args.name}", make=False):
        places.remove(_root(args), args.name)
    kept = _root(args) / ".wheels"
    also = f"; downloaded wheels are kept in {kept}" if kept.is_dir() else ""
    _print(args, {"removed": args.name}, f"{args.name} is removed{also}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    screen, root = Screen(sys.stderr), _root(args)
    engine = (
        places.get(root, args.name, f"verify {args.name}") if args.name else places.current(root)
    )
    if engine is None:
        raise EngineError(
            "verify the engine",
            f"none is in use in {root}",
            "make one with caovanctl engine install",
        )
    damage, proof = verify.verify(engine, commands.run, screen.progress)
    for line in damage:
        screen.say(line)
    _print(
        args,
        {"name": engine.name, "damage": damage, "proof": asdict(proof) if proof else None},
        f"{engine.name} is damaged, {len(damage)} findings; caovanctl engine install --again"
        if damage or proof is None
        else f"{engine.name} is whole: vLLM {proof.vllm}, torch {proof.torch}, "
        f"{', '.join(proof.devices) or 'no GPU'}",
    )
    return 1 if damage else 0


def _make_lock(args: argparse.Namespace) -> int:
    screen, source = Screen(sys.stderr), Path(args.source)
    text = resolve.resolve(
        source.read_text(encoding="utf-8"),
        index=args.json_index,
        say=screen.say,
        find_links=Path(args.find_links) if args.find_links else None,
    )
    target = source.with_suffix(".txt")
    places.write_atomically(target, text)
    _print(args, {"lock": str(target)}, f"{target} is written")
    return 0


def _facts(engine: places.Engine) -> dict[str, object]:
    return {**asdict(engine), "path": str(engine.path), "interpreter": str(engine.interpreter)}


def _print(args: argparse.Namespace, result: dict[str, object], text: str) -> None:
    print(json.dumps(result, default=str) if args.json else text)


VERBS = {
    "install": _install,
    "fetch": _fetch,
    "list": _list,
    "use": _use,
    "rollback": _rollback,
    "remove": _remove,
    "verify": _verify,
    "lock": _make_lock,
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="caovanctl engine", epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    with shown():
        return run(parser.parse_args(argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
