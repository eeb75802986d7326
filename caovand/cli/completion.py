"""`caovanctl completion bash|zsh`: completion made from the parser itself, so it never lags."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from caovand.cli.client import Exit

BASH = """_caovanctl() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} verb= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${{COMP_WORDS[i]}} == --runtime ]] && {{ ((i++)); continue; }}
        [[ ${{COMP_WORDS[i]}} == -* ]] || {{ verb=${{COMP_WORDS[i]}}; break; }}
    done
    case $verb in
{cases}
    *) COMPREPLY=($(compgen -W "{verbs}" -- "$word")) ;;
    esac
    if [[ ${{#COMPREPLY[@]}} -eq 0 && $word != -* && -n $verb ]]; then
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _caovanctl caovanctl
"""
ZSH = """#compdef caovanctl
autoload -U +X bashcompinit && bashcompinit
"""
# Installed as a file, the script is loaded by the first completion, which must be answered too.
ZSH_END = """[[ ${funcstack[1]} != _caovanctl ]] || _bash_complete -o filenames -F _caovanctl
"""


def add_parser(subparsers: Any) -> None:
    """Add the verb."""
    parser = subparsers.add_parser(
        "completion",
        help="print shell completion",
        description="Print the completion script of a shell.",
        epilog="example: source <(caovanctl completion bash)",
    )
    parser.add_argument("shell", choices=("bash", "zsh"))
    parser.set_defaults(run=run, subparsers=subparsers)


def run(args: argparse.Namespace) -> int:
    """completion."""
    verbs: dict[str, argparse.ArgumentParser] = args.subparsers.choices
    cases = "\n".join(
        f'    {name}) COMPREPLY=($(compgen -W "{" ".join(_words(parser))}" -- "$word")) ;;'
        for name, parser in verbs.items()
    )
    script = BASH.format(cases=cases, verbs=" ".join(verbs))
    print(ZSH + script + ZSH_END if args.shell == "zsh" else script, end="")
    return Exit.DONE


def _words(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action.choices, dict):  # verbs of a verb
            yield from action.choices
        elif action.choices and not action.option_strings:
            yield from map(str, action.choices)
