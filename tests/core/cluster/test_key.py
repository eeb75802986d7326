"""The text of a cluster key: it can be read back, and nothing else is accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.cluster.key import FORMAT, BadKey, ClusterKey, parse

SECRETS = st.binary(min_size=32, max_size=32)
KEY = ClusterKey(bytes(range(32)))
DIGITS = KEY.secret.hex()


@given(SECRETS)
def test_what_is_written_is_read_back(secret: bytes) -> None:
    text = ClusterKey(secret).text()
    assert parse(text) == ClusterKey(secret)
    assert [line[:1] for line in text.split("\n")] == ["#", "#", "c", ""]


@given(SECRETS)
def test_what_an_editor_or_windows_makes_of_it_is_read_too(secret: bytes) -> None:
    text = ClusterKey(secret).text()
    for other in (text.replace("\n", "\r\n"), text.rstrip("\n"), f"\n{text}\n# mine\n"):
        assert parse(other) == ClusterKey(secret)


@given(st.one_of(st.text(), st.text("#c-1 0f\n"), st.text("0123456789abcdefABF", min_size=60)))
def test_any_other_text_is_refused_in_words_that_repeat_none_of_it(text: str) -> None:
    with pytest.raises(BadKey) as caught:
        parse(f"{FORMAT} {text}x", "/k")
    assert str(caught.value).startswith("cannot use the cluster key /k: ")
    assert caught.value.problem.remedy
    assert len(text) < 6 or text not in str(caught.value)


@given(SECRETS, st.data())
def test_a_key_that_lost_or_gained_characters_is_refused(
    secret: bytes, data: st.DataObject
) -> None:
    text = ClusterKey(secret).text()
    begin = text.index(FORMAT)
    at = data.draw(st.integers(begin, len(text) - 2))
    more = data.draw(st.text("0123456789abcdef", max_size=3))
    changed = text[:at] + more + text[at + 1 :]
    if len(changed) != len(text):
        with pytest.raises(BadKey):
            parse(changed)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "the file contains no key"),
        ("# only words\n", "the file contains no key"),
        (f"{FORMAT} {DIGITS}\n{FORMAT} {DIGITS}", "the file has 2 lines"),
        (f"caovan-cluster-2 {DIGITS}", "its format is caovan-cluster-2"),
        (DIGITS, f'its line does not begin with "{FORMAT} "'),
        (f"{FORMAT}", "it has 0 of 64"),
        (f"{FORMAT} {DIGITS[:-1]}", "it has 63 of 64"),
        (f"{FORMAT}  {DIGITS}", "it has 65 of 64"),
        (f"{FORMAT} {DIGITS[:-1]}g", "it has characters other than 0-9 and a-f"),
        (f"{FORMAT} {DIGITS.upper()}", "it has characters other than 0-9 and a-f"),
    ],
)
def test_a_refusal_names_what_is_wrong(text: str, fact: str) -> None:
    with pytest.raises(BadKey) as caught:
        parse(text)
    assert caught.value.problem.fact.startswith(fact)
    assert DIGITS[:16] not in str(caught.value).lower()


def test_nothing_shows_the_secret() -> None:
    shown = f"{KEY} {KEY!r}"
    assert DIGITS not in shown
    assert repr(KEY.secret) not in shown


@given(SECRETS, SECRETS)
def test_each_secret_and_each_side_has_a_key_of_its_own(one: bytes, other: bytes) -> None:
    found = {ClusterKey(s).curve_secret(side) for s in (one, other) for side in ("head", "worker")}  # type: ignore[arg-type]
    found |= {bytes.fromhex(ClusterKey(secret).token()) for secret in (one, other)}
    assert {len(key) for key in found} == {32}
    assert len(found) == 3 * len({one, other})
    assert not found & {one, other}


def test_the_derived_keys_never_change() -> None:
    """Nodes of different releases must agree."""
    assert KEY.curve_secret("head").hex() == HEAD
    assert KEY.curve_secret("worker").hex() == WORKER


HEAD = "25645936a801b015b5d9dacf014b7b262da8c2fe7cb9bc390ed7a46237e007c7"
WORKER = "ad7e35a7ae5fc9585eec912f8bac48e454891cbc2ba81acab91983ad7d5d099c"


def test_a_secret_of_another_length_is_no_key() -> None:
    with pytest.raises(ValueError, match="has 32 bytes, not 31"):
        ClusterKey(bytes(31))
