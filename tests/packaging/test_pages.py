"""Man pages, completion and /etc/caovan.toml: generated from the code, and readable."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from caovand.cli.explain import as_json
from caovand.cli.parser import parser
from caovand.core.config.schema import Config
from caovand.engines.vllm.log.explain import explain
from tests.daemon_process import ROOT
from tests.documents import CHINESE, ENGLISH, name_of

PAGES = sorted(path.name for path in (ROOT / "packaging/man").glob("*.[1-9]"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the finished pages and completions."""
    folder = tmp_path_factory.mktemp("pages")
    subprocess.run([sys.executable, ROOT / "packaging/man/make.py", folder], check=True)
    return folder


def test_every_command_has_a_page(made: Path) -> None:
    scripts = (ROOT / "pyproject.toml").read_text().partition("[project.scripts]")[2]
    commands = re.findall(r"^([\w-]+) = ", scripts.partition("[tool")[0], re.M)
    assert "caovand" in commands
    have = {file.name.rpartition(".")[0] for file in made.glob("*.[18]")}
    assert have == set(commands)


def test_the_page_of_the_configuration_has_every_key(made: Path) -> None:
    text = (made / "caovan.toml.5").read_text()
    keys = [entry.name for part in fields(Config) for entry in fields(getattr(Config(), part.name))]
    assert re.findall(r'^\.BR (\w+) " = ', text, re.M) == keys


def test_the_page_of_caovanctl_has_every_verb(made: Path) -> None:
    text = (made / "caovanctl.1").read_text()
    verbs = next(a for a in parser()._actions if a.dest == "==SUPPRESS==").choices or ()
    for verb in verbs:
        assert re.search(rf"^\.B {re.escape(verb)}\b", text.replace("\\-", "-"), re.M), verb


def test_the_page_of_caovanctl_has_a_verb_with_verbs_by_itself_where_it_can_stand_so(
    made: Path,
) -> None:
    text = (made / "caovanctl.1").read_text()
    assert re.search(r"^\.B incidents$", text, re.M)
    assert re.search(r"^\.B incidents show N", text, re.M)
    assert not re.search(r"^\.B engine$", text, re.M)


def test_the_page_of_caovanctl_has_the_variables_it_reads(made: Path) -> None:
    text = (made / "caovanctl.1").read_text().partition(".SH ENVIRONMENT")[2].partition(".SH ")[0]
    for name in (
        "RUNTIME_DIRECTORY",
        "CAOVAN_ENGINES",
        "CAOVAN_MODELS",
        "HF_TOKEN",
        "CAOVAN_LOCKS",
        "PIP_INDEX_URL",
    ):
        assert name in text


def test_the_page_of_caovanctl_has_every_key_of_an_explanation(made: Path) -> None:
    text = (made / "caovanctl.1").read_text().partition(".SH JSON OF EXPLAIN")[2]
    bold = re.findall(r"^\.BR? (.+)$", text.partition(".SH ")[0], re.M)
    for key in as_json(explain(""), "vllm"):
        assert any(re.search(rf"\b{key}\b", line) for line in bold), key


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_steps_of_the_installation_make_the_service_read_the_edited_file(name: str) -> None:
    # apt has started the unit: another start does nothing
    steps = next(
        block
        for block in (ROOT / name).read_text(encoding="utf-8").split("```")
        if "apt install" in block
    )
    commands = [line.partition("#")[0].strip() for line in steps.strip().splitlines()]
    edit = commands.index("sudoedit /etc/caovan.toml")
    assert commands[edit + 1] == "sudo caovanctl reload"
    assert "start caovan" not in " ".join(commands)


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_first_request_asks_for_the_model_that_was_pulled(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    (pulled,) = set(re.findall(r"^ *sudo caovanctl model pull (\S+/\S+)", text, re.M))
    folder = f"/var/lib/caovan/models/{pulled.replace('/', '--')}"
    assert f'path = "{folder}"' in text
    assert f'"model": "{folder.rpartition("/")[2]}"' in text


def test_the_steps_of_the_installation_stand_once_in_each_language() -> None:
    debian = ROOT / "packaging/debian/caovan.README.Debian"
    for documents in ([*ENGLISH, debian], CHINESE):
        texts = {document: document.read_text(encoding="utf-8") for document in documents}
        (found,) = [name_of(path) for path, text in texts.items() if "apt install ./dist" in text]
        assert found in ("README.md", "README.zh-CN.md")


def test_both_languages_show_the_same_transcripts() -> None:
    shown: list[dict[str, list[str]]] = []
    for documents in (ENGLISH, CHINESE):
        texts = [document.read_text(encoding="utf-8") for document in documents]
        blocks = [block for text in texts for block in text.split("```")[1::2]]
        screens: dict[str, list[str]] = {}
        for block in blocks:
            for part in re.split(r"^(?=\$ )", block, flags=re.M):
                command, _, output = part.partition("\n")
                if command.startswith("$ caovanctl") and output.strip():
                    screens.setdefault(command, []).append(output.strip())
        shown.append(screens)
    english, chinese = shown  # the Chinese ones may cut the end off
    for command, outputs in chinese.items():
        for output in (one.removesuffix("…").strip() for one in outputs):
            assert any(one.startswith(output) for one in english[command]), command


def test_a_token_is_not_sent_into_a_drop_in_and_a_cache_elsewhere_is_made_writable() -> None:
    default = (ROOT / "packaging/debian/caovan.default").read_text()
    assert "chmod 640 /etc/default/caovan" in default
    for name in ("caovan.default", "caovan.README.Debian"):
        text = (ROOT / "packaging/debian" / name).read_text()
        assert "ReadWritePaths=/srv/huggingface" in text


@pytest.mark.parametrize("page", PAGES)
def test_a_page_renders_without_a_warning(made: Path, page: str) -> None:
    if not shutil.which("man"):
        pytest.skip("needs man-db: sudo apt-get install man-db")
    done = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", made / page],
        env={"MANROFFSEQ": "", "MANWIDTH": "80", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    if shutil.which("mandoc"):
        lint = subprocess.run(
            ["mandoc", "-Tlint", "-W", "warning", made / page],
            capture_output=True,
            text=True,
            check=False,
        )
        assert lint.stdout == ""
    assert "@" not in (made / page).read_text()


def completed(made: Path, *words: str) -> set[str]:
    """What bash offers for the last of these words."""
    line = " ".join(words)
    script = f"""
source {made}/caovanctl
COMP_WORDS=({line if words[-1] else line + " ''"}) COMP_CWORD={len(words) - 1}
_caovanctl
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_bash_completes_verbs_their_options_and_their_words(made: Path) -> None:
    assert {"status", "stop", "start"} <= completed(made, "caovanctl", "st")
    assert completed(made, "caovanctl", "relo") == {"reload"}
    assert "--no-wait" in completed(made, "caovanctl", "reload", "--")
    assert completed(made, "caovanctl", "mode", "st") == {"stable"}
    assert "install" in completed(made, "caovanctl", "engine", "ins")


def test_zsh_completes_the_first_time_it_is_asked(made: Path) -> None:
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("needs zsh: sudo apt-get install zsh")
    script = f"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'fpath=({made} $fpath); autoload -U compinit; compinit -u -D; echo loa""ded'
zpty -r -m shell seen '*loaded*'
zpty -w -n shell $'caovanctl relo\\t'
for i in {{1..100}}; do
    zpty -r -t shell more && seen+=$more
    [[ $seen == *'caovanctl reload'* ]] && {{ print completed; break }}
    sleep 0.1
done
"""
    done = subprocess.run(
        [zsh, "-f", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "completed", done.stdout + done.stderr
