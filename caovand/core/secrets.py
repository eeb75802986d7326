"""Recognise and redact secrets: their names, their notations, and texts without them.

Every function runs in time linear in the text, because clients control what logs contain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

HIDDEN = "[secret]"
MIN_SECRET_LENGTH = 6  # characters; shorter values occur within too many ordinary words

_ANYWHERE = frozenset({"key", "token", "secret", "password", "passwd", "credential", "credentials"})
"""Parts of a name, between `_`, `-` and `.`, that make it secret in any position."""
_LAST = frozenset({
    "auth", "authorization", "cookie", "cookies", "creds", "dsn", "jwt", "pass", "pat", "pwd",
    "secrets", "signature", "webhook",
})  # fmt: skip
"""Only as the last part: SSH_AUTH_SOCK and pass_config are not secret."""
_KINDS: Mapping[str, tuple[str, ...]] = {
    "key": ("access", "account", "api", "auth", "encryption", "master", "priv", "private",
            "secret", "session", "shared", "signing"),
    "token": ("access", "api", "auth", "bearer", "hf", "refresh", "session"),
}  # fmt: skip
"""Also as a suffix of one word: WANDB_APIKEY, accessToken, dbpassword."""
_GLUED = (
    "password", "passwd", "passphrase", "passcode", "secret", "credentials", "webhookurl",
    "connectionstring", *(kind + what for what, kinds in _KINDS.items() for kind in kinds),
)  # fmt: skip
_PUBLIC = frozenset({
    "classifier_from_token", "audio_token", "bos_token", "cls_token", "eos_token", "image_token",
    "mask_token", "pad_token", "sep_token", "unk_token", "video_token",
})  # fmt: skip
"""Tokens of a vocabulary, in the configurations of models and tokenizers."""
_GLUED_MANY = tuple(f"{one}s" for one in _GLUED)
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_HOME = r"/home/[^/\s\"':]+"
_BETWEEN = re.compile(r"[^A-Za-z0-9]+")

_SECRET_TEXT = re.compile(
    r"\b(hf_|sk-|gh[pousr]_|github_pat_|gl(?:pat|dt|rt|cbt)-|xox[abceprs][-.]|xapp-|nvapi-|npm_"
    r"|pypi-)[A-Za-z0-9_-]{12,}(?:\.[\w.-]*)?"
    r"|(?<![\w.-])(?:(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{30,}|eyJ[\w-]{8,}(?:\.[\w-]*){2,4})"
    r"|(?i:(authorization: *(?:(?:basic|bearer|digest|token) +)?|bearer +))[^\s'\",]{8,}"
    r"|(://[^\s/:@]*:)[^\s/@]+(?=@)"
)
"""Tokens with a known prefix. A JWT begins with "eyJ", which is `{"` in Base64."""
# A name and the characters up to its value: `"a": `, `\"a\": `, `a='`, `--a `, `'--a', `.
_NAMED = re.compile(
    r"(?<![\w.-])(?:(?P<flag>--[\w.-]+)(?:\\*[\"'])?(?:=|,\s*|\s+)"
    r"|(?P<name>[\w.-]+)(?P<quoted>\\*[\"'])?\s*(?P<sign>[:=])\s*)"
)
_HINTS_OF_TEXT = (
    "hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "gldt-", "glrt-",
    "glcbt-", "xox", "xapp-", "nvapi-", "npm_", "pypi-", "akia", "asia", "aiza", "eyj", "auth",
    "bearer", "://",
)  # fmt: skip
"""Lines without any of these, nearly all lines, are not searched further."""
_HINTS_OF_NAME = (
    "key", "token", "secret", "pass", "pwd", "cred", "auth", "cookie", "dsn", "jwt", "pat", "sig",
    "webhook", "connection",
)  # fmt: skip
_COOKIES = ("cookie", "set-cookie")
_OPENING = re.compile(r"[bBuUrR]{0,2}(\\*)([\"'])")
_NUMBER = re.compile(r"-?\d[\w.+-]*")
_WORD = re.compile(r"(?!-|None\b|null\b)[^\s'\"\\,;&)\]}]+")


def redact_home_paths(text: str, own: str) -> str:
    """Replace home folders by `~`: `own`, and those below /home, which contain user names."""
    return re.sub(rf"(?<![\w.-])(?:{re.escape(own)}|{_HOME})/", "~/", text)


def is_secret_name(name: str) -> bool:
    """Whether text under this name is secret."""
    parts = _parts(name)
    if "_".join(parts) in _PUBLIC:
        return False
    return (
        not _ANYWHERE.isdisjoint(parts)
        or any(part.endswith(_GLUED) for part in parts)
        or "".join(parts).endswith(_GLUED + _GLUED_MANY)
        or _ends_secret(name, parts)
    )


def is_secret_entry(name: str, value: Any) -> bool:
    """Whether the value under this name is secret; most numbers are not.

    `num_key_value_heads`, `eos_token_id` and `bytes_per_token` are public.
    """
    if isinstance(value, bool) or not value:
        return False
    if not isinstance(value, (int, float)):
        return is_secret_name(name)
    parts = _parts(name)
    known = bool(parts) and parts[-1] in _ANYWHERE - {"token"}
    return known or "".join(parts).endswith(_GLUED) or _ends_secret(name, parts)


def _parts(name: str) -> list[str]:
    return [part for part in _BETWEEN.split(name.lower()) if part]


def _ends_secret(name: str, parts: list[str]) -> bool:
    return bool(parts) and parts[-1] in _LAST and name != "PWD"  # the shell's working directory


def secrets_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """Values of variables with secret names."""
    return tuple(
        v for name, v in env.items() if is_secret_name(name) and len(v) >= MIN_SECRET_LENGTH
    )


def secrets_in(value: Any) -> Iterator[str]:
    """Secret texts in plain data, by their names."""
    if isinstance(value, Mapping):
        for name, entry in value.items():
            if is_secret_entry(str(name), entry):
                yield from (text for text in _texts(entry) if len(text) >= MIN_SECRET_LENGTH)
            else:
                yield from secrets_in(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from secrets_in(entry)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, (list, tuple)):
        for entry in value:
            yield from _texts(entry)
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    else:
        yield str(value)


_QUOTES: tuple[Callable[[str], str], ...] = (
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: repr(text)[1:-1],
    lambda text: ascii(text)[1:-1],
    # repr escapes one kind of quotes if a text has both.
    lambda text: repr(f"{text}\"'")[1:-4],
    lambda text: ascii(f"{text}\"'")[1:-4],
    lambda text: text.replace("'", "'\"'\"'"),
)


def escaped_forms(secrets: Iterable[str]) -> tuple[str, ...]:
    """Secrets as JSON, Python, shells and URLs escape them, up to twice; longest first."""
    forms: set[str] = set()
    for secret in secrets:
        if not secret:
            continue
        once = {quote(secret) for quote in _QUOTES}
        forms |= {secret, *once, *(quote(text) for text in once for quote in _QUOTES)}
        for safe in ("", "/"):
            for space in ("%20", "+"):
                quoted = _percent_encode(secret, safe).replace("%20", space)
                forms |= {quoted, _PERCENT.sub(lambda m: m[0].lower(), quoted)}
    return tuple(sorted(forms, key=lambda text: (-len(text), text)))


def _percent_encode(text: str, safe: str) -> str:
    """Percent-encode everything except letters, digits, `_.-~` and `safe`."""
    plain = "_.-~" + safe
    return "".join(
        chr(byte) if byte < 128 and (chr(byte).isalnum() or chr(byte) in plain) else f"%{byte:02X}"
        for byte in text.encode("utf-8", "replace")
    )


def hide_in(
    value: Any, secrets: Iterable[str] = (), mark: str = HIDDEN, max_length: int | None = None
) -> Any:
    """Redact plain data; texts are truncated to `max_length` characters."""
    known = escaped_forms(secrets)

    def hidden(value: Any) -> Any:
        if isinstance(value, str):
            text = _hide(value, known, mark)
            too_long = max_length is not None and len(text) > max_length
            return text[:max_length] + "..." if too_long else text
        if isinstance(value, Mapping):
            return {
                hidden(str(name)): mark if is_secret_entry(str(name), entry) else hidden(entry)
                for name, entry in value.items()
            }
        if isinstance(value, (list, tuple, set, frozenset)):
            return [hidden(entry) for entry in value]
        return value if value is None or isinstance(value, (bool, int, float)) else str(value)

    return hidden(value)


def hide(text: str, secrets: Iterable[str] = (), mark: str = HIDDEN) -> str:
    """Redact these secrets in a text, and anything that looks like a secret or has a secret
    name."""
    return _hide(text, escaped_forms(secrets), mark)


def _hide(text: str, known: Iterable[str], mark: str) -> str:
    for form in known:
        text = text.replace(form, mark)
    return "\n".join(_line(line, mark) for line in text.split("\n"))


def _line(line: str, mark: str) -> str:
    lower = line.lower()
    if any(hint in lower for hint in _HINTS_OF_NAME):
        line = "".join(_without_named(line, mark))
    if not any(hint in lower for hint in _HINTS_OF_TEXT):
        return line
    return _SECRET_TEXT.sub(lambda m: f"{m[1] or m[2] or m[3] or ''}{mark}", line)


def _without_named(line: str, mark: str) -> Iterator[str]:
    """Pieces of a line, with values of secret names hidden."""
    shown = at = 0
    while match := _NAMED.search(line, at):
        at = match.end()
        for begin, end, number in _values(line, match):
            name = match["flag"] or match["name"]
            secret = is_secret_entry(name, 1 if number else "text")
            if not (secret or _signs(line, match)) or line[begin:end] == mark:
                break
            if begin == end:
                continue
            yield line[shown:begin] + mark
            shown = at = end
    yield line[shown:]


def _values(line: str, match: re.Match[str]) -> Iterator[tuple[int, int, bool]]:
    """Spans of the values after a name, and whether each is a number."""
    at = match.end()
    opening = _OPENING.match(line, at)
    if match["sign"] == ":" and not match["quoted"] and match["name"].lower() in _COOKIES:
        yield at, len(line), False
    elif line[at : at + 1] in ("[", "("):
        at += 1
        while opening := _OPENING.match(line, at):
            end = _end_of_string(line, opening)
            yield opening.end(), end, False
            at = end + len(opening[1]) + 1
            at += len(line[at : at + 2]) - len(line[at : at + 2].lstrip(", "))
    elif opening:
        yield opening.end(), _end_of_string(line, opening), False
    elif number := _NUMBER.match(line, at):
        # `--token 4711` and `KEY=0123abcd` are words like any other.
        word = _WORD.match(line, at) if _takes_words(line, match) else None
        end = word.end() if word else number.end()
        yield at, max(end, number.end()), word is None
    elif _takes_words(line, match) and (word := _WORD.match(line, at)):
        yield at, word.end(), False


def _takes_words(line: str, match: re.Match[str]) -> bool:
    """Whether an unquoted value counts.

    It does after a flag, a variable, a URL parameter, or a header such as `X-Api-Key: `.
    """
    if match["flag"]:
        return True
    name = match["name"]
    if match["sign"] == ":":
        return "-" in name and not match["quoted"]
    telling = name.isupper() or "".join(_parts(name)).endswith(_GLUED)
    return telling or _is_parameter(line, match)


def _is_parameter(line: str, match: re.Match[str]) -> bool:
    """Whether the name is a URL parameter's."""
    return match["sign"] == "=" and line[max(match.start() - 1, 0) : match.start()] in ("?", "&")


def _signs(line: str, match: re.Match[str]) -> bool:
    """Whether this is the signature in an Azure URL."""
    return match["name"] == "sig" and _is_parameter(line, match)


def _end_of_string(line: str, opening: re.Match[str]) -> int:
    """End of the string at its opening quote's depth of escaping, else the end of the line.

    An inner quote has more backslashes than the quote that ends the string.
    """
    depth, quote = len(opening[1]), opening[2]
    at = opening.end()
    while (place := line.find(quote, at)) >= 0:
        before = line[at:place]
        escapes = len(before) - len(before.rstrip("\\"))
        if escapes >= depth and (escapes - depth) % (2 * (depth + 1)) == 0:
            return place - depth
        at = place + 1
    return len(line)


def shown_value(variable: str, value: Any, mark: str = "***") -> Any:
    """An environment variable's value, safe to display."""
    if is_secret_name(variable) and value:
        return mark
    return hide(value, mark=mark) if isinstance(value, str) else value
