"""Add the [cluster] section to a configuration file, or remove it, validated by the daemon's
parser."""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from caovand.adapters.files import config_file, safe_files, trust
from caovand.cli.common.errors import CommandError, Exit
from caovand.core.cluster import section
from caovand.core.config.key import ConfigError
from caovand.core.config.schema import Config
from caovand.core.config.services import ClusterSection

BOM = "\ufeff"
"""Editors on Windows start files with a BOM."""
NO_CLUSTER = ClusterSection()


@dataclass(frozen=True)
class ConfigFile:
    """A configuration file: its name as typed, its text, and the parsed configuration.

    `mark` precedes the text: a BOM, or nothing.
    """

    path: Path
    mark: str
    text: str
    config: Config

    @property
    def cluster(self) -> ClusterSection:
        return self.config.cluster

    def is_written(self, cannot: str) -> bool:
        """Whether caovanctl wrote the section."""
        try:
            return section.is_written(self.text)
        except section.BrokenBlock:
            raise CommandError(
                Exit.FAILED,
                f"cannot {cannot}: the comments around [cluster] in {self.path} were changed",
                f"edit {self.path} by hand: delete the section and both comments",
            ) from None


def read(path: Path, cannot: str) -> ConfigFile:
    """Read the file; raises CommandError if it is unreadable or invalid."""
    try:
        whole = safe_files.read_text(path, config_file.MAX_BYTES)
        text = whole.removeprefix(BOM)
        mark = whole.removesuffix(text)
        return ConfigFile(path, mark, text, config_file.loads(text, path))
    except OSError as problem:
        raise _refusal(cannot, path, problem) from None
    except UnicodeDecodeError:
        fact = f"{path} is not UTF-8 text"
        raise CommandError(Exit.FAILED, f"cannot {cannot}: {fact}", "save it as UTF-8") from None
    except ConfigError as problem:
        raise CommandError(Exit.FAILED, f"cannot {cannot}: {problem}", "fix that first") from None


@dataclass(frozen=True)
class Entry:
    """The cluster role that a file is to get: its key, and the text with the section.

    `text` is None if the file already has that section.
    """

    before: ConfigFile
    key: Path
    text: str | None
    cannot: str

    def write(self) -> None:
        """Write the section into the file."""
        if self.text is not None:
            write(self.before, self.text, self.cannot)


def entry(args: argparse.Namespace, role: str, head: str, cannot: str) -> Entry:
    """The entry for this role under this head; raises CommandError if that is impossible."""
    before = read(args.config, cannot)
    key = (args.key_file or Path(before.cluster.key_file)).absolute()
    section = replace(before.cluster, role=role, head=head, key_file=str(key))
    text = None if before.cluster == section else with_section(before, section, cannot)
    return Entry(before, key, text, cannot)


def with_section(before: ConfigFile, target: ClusterSection, cannot: str) -> str:
    """The file's text with the wanted section; raises CommandError if another section is in the
    way."""
    if before.cluster.role != "off" or before.is_written(cannot):
        raise _conflicting_section(before, cannot)
    keys: dict[str, Any] = {"role": target.role, "head": target.head}
    for entry in fields(ClusterSection):
        if getattr(target, entry.name) != getattr(NO_CLUSTER, entry.name):
            keys[entry.name] = getattr(target, entry.name)
    return _edit(before, lambda text: section.add(text, keys), target, cannot)


def without_section(before: ConfigFile, cannot: str) -> str:
    """The file's text without the section that `with_section` added; raises CommandError."""
    if not before.is_written(cannot):
        if before.cluster.role == "off":
            raise CommandError(Exit.FAILED, f"cannot {cannot}: this machine is in no cluster")
        raise CommandError(
            Exit.FAILED,
            f"cannot {cannot}: the section [cluster] in {before.path} was written by hand",
            f'set role = "off" there, or delete the section: sudoedit {before.path}',
        )
    return _edit(before, section.remove, None, cannot)


def write(before: ConfigFile, text: str, cannot: str) -> None:
    """Write the text to the file, keeping its mode and owner."""
    place = Path(os.path.realpath(before.path))
    if doubt := trust.find_doubt(before.path, (0, os.geteuid()), groups=True):
        remedy = "let only root or yourself change it, or name another file with --config"
        raise CommandError(Exit.FAILED, f"cannot {cannot}: {doubt}", remedy)
    try:
        seen = place.stat()
        mode, owner = stat.S_IMODE(seen.st_mode), (seen.st_uid, seen.st_gid)
        safe_files.replace(place, before.mark + text, mode, owner)
    except OSError as problem:
        raise _refusal(cannot, before.path, problem) from None


def _edit(
    before: ConfigFile, edit: Callable[[str], str], target: ClusterSection | None, cannot: str
) -> str:
    """The edited text, verified by parsing the wanted section from it.

    Raises CommandError if the file would be invalid, or if anything else in it would change.
    """
    text = edit(before.text)
    try:
        config = config_file.loads(text, before.path)
    except ConfigError as problem:
        raise CommandError(
            Exit.FAILED,
            f"cannot {cannot}: the file would not be valid then: {problem}",
            f"edit the section [cluster] by hand: sudoedit {before.path}",
        ) from None
    changed = replace(config, cluster=NO_CLUSTER) != replace(before.config, cluster=NO_CLUSTER)
    if changed or target not in (None, config.cluster):
        raise CommandError(
            Exit.FAILED,
            f"cannot {cannot}: the section [cluster] of {before.path} has a form that caovanctl "
            "cannot edit",
            f"edit it by hand: sudoedit {before.path}",
        )
    return text


def _conflicting_section(before: ConfigFile, cannot: str) -> CommandError:
    is_head = before.cluster.role == "head"
    role = "the head" if is_head else f"a worker of {before.cluster.head}"
    if before.cluster.role != "off":
        fact = f"this machine is {role} already, by the section [cluster] in {before.path}"
    else:
        fact = f'the section that caovanctl wrote into {before.path} has role = "off"'
    remedy = f"edit that section by hand: sudoedit {before.path}"
    if before.is_written(cannot):
        remedy = "run `sudo caovanctl cluster leave` first"
    return CommandError(Exit.FAILED, f"cannot {cannot}: {fact}", remedy)


def _refusal(cannot: str, path: Path, problem: OSError) -> CommandError:
    if isinstance(problem, PermissionError):
        text = f"cannot {cannot}: {path} is not yours to change"
        return CommandError(Exit.NOT_PERMITTED, text, "run it with sudo")
    fact = f"{path}: {problem.strerror}"
    remedy = "name the daemon's file with --config"
    return CommandError(Exit.FAILED, f"cannot {cannot}: {fact}", remedy)
