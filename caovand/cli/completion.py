"""`caovanctl completion bash|zsh`: generated from the parser itself, so it is always up to date."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from caovand.adapters.engine_install import places
from caovand.cli.common.errors import Exit
from caovand.cli.common.verb import Group, Verb
from caovand.cli.engine.shared import ENGINE
from caovand.cli.parser import parser

BASH = """_caovanctl() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} verb= option= flags= choices= files= part i
    local engines= root=
    [[ $word == = ]] && word=
    for ((i = 1; i < COMP_CWORD; i++)); do
        part=${{COMP_WORDS[i]}}
        if [[ $part == = ]]; then
            continue # bash makes three words of --mode=fast
        elif [[ -n $option ]]; then
            [[ $option == --root ]] && root=$part
            option=
        else
            [[ $part == --root=* ]] && root=${{part#*=}} # one word in zsh
            case "$verb $part" in
            {valued}) option=$part ;;
            {verbs}) verb="$verb $part" ;;
            esac
        fi
    done
    if [[ -n $option ]]; then
        case "$verb $option" in
{values}
        esac
    else
        case $verb in
{cases}
        esac
        if [[ -n $engines ]]; then
            root=${{root//[\\\\\\"\\']/}} # as typed, quotes included
            [[ $root == "~/"* ]] && root=$HOME/${{root#"~/"}}
            root=${{root:-${{{variable}:-{root}}}}}
            for part in "$root"/*/{marker}; do
                part=${{part%/*}} # the pattern itself if nothing matches
                [[ -L $part || ${{part##*/}} == *[!A-Za-z0-9._+-]* ]] || choices+=" ${{part##*/}}"
            done
        fi
        if [[ $word == -* || -z $choices$files ]]; then
            choices=$flags files=
        fi
    fi
    COMPREPLY=($(compgen -W "$choices" -- "$word"))
    if [[ -n $files ]]; then
        local IFS=$'\\n'
        COMPREPLY+=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _caovanctl caovanctl
"""
"""It also runs in zsh, where `path`, `words` and `options` belong to the shell."""
FILES = ("FILE", "DIR", "PATH", "MODEL")
"""Parts of a metavar that stand for a file or folder."""
ZSH = """#compdef caovanctl
autoload -U +X bashcompinit && bashcompinit
"""
ZSH_END = """[[ ${funcstack[1]} != _caovanctl ]] || _bash_complete -o filenames -F _caovanctl
"""
"""If the script is installed as a file, the first completion loads it and must be answered as
well."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"))


@dataclass(frozen=True)
class CompletedVerb:
    """A verb with its parent verbs, each after a space, and its arguments."""

    verb: str
    actions: tuple[argparse.Action, ...]

    @property
    def flags(self) -> list[str]:
        return [word for action in self.actions for word in action.option_strings]

    @property
    def arguments(self) -> list[argparse.Action]:
        return [action for action in self.actions if not action.option_strings]

    @property
    def valued(self) -> Iterator[tuple[str, argparse.Action]]:
        """Flags that take a value."""
        for action in self.actions:
            if action.option_strings and action.nargs != 0:
                for flag in action.option_strings:
                    yield f"{self.verb} {flag}", action


def run(args: argparse.Namespace) -> int:
    script = bash(parser())
    print(ZSH + script + ZSH_END if args.shell == "zsh" else script, end="")
    return Exit.DONE


def bash(top: argparse.ArgumentParser) -> str:
    """The script for bash."""
    commands = list(_commands(top, ""))
    values = [entry for command in commands for entry in command.valued]
    offers = [(flag, _offer([action])) for flag, action in values]
    return BASH.format(
        variable=places.ROOT_VARIABLE,
        root=places.DEFAULT_ROOT,
        marker=places.MARKER,
        valued=_alternation(flag for flag, _ in values),
        verbs=_alternation(command.verb for command in commands if command.verb),
        values="\n".join(f'        "{flag}") {offer} ;;' for flag, offer in offers if offer),
        cases="\n".join(
            f'        "{command.verb}") flags="{" ".join(command.flags)}"'
            f" {_offer(command.arguments)} ;;"
            for command in commands
        ),
    )


def _commands(of: argparse.ArgumentParser, verb: str) -> Iterator[CompletedVerb]:
    yield CompletedVerb(verb, tuple(of._actions))
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from _commands(inner, f"{verb} {name}")


def _offer(actions: Iterable[argparse.Action]) -> str:
    """Shell assignments that offer the values of arguments."""
    choices = [str(choice) for action in actions for choice in action.choices or ()]
    names = " ".join(str(action.metavar or action.dest).upper() for action in actions)
    files = any(action.type is Path for action in actions) or any(kind in names for kind in FILES)
    completions = [f'choices="{" ".join(choices)}"'] if choices else []
    completions += ["files=1"] if files else []
    completions += ["engines=1"] if any(action.metavar == ENGINE for action in actions) else []
    return " ".join(completions)


def _alternation(texts: Iterable[str]) -> str:
    return " | ".join(f'"{text}"' for text in texts)


VERB = Verb(
    name="completion",
    group=Group.SETUP,
    help="print shell completion",
    description="Print the completion script of a shell.",
    epilog="example: source <(caovanctl completion bash)",
    arguments=arguments,
    run=run,
)
