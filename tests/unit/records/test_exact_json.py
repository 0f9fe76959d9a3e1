"""JSON that is read and written again has the numbers of its text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_core.exact_json import Number, dumps, loads, parts

_NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,45})(\.[0-9]{1,45})?([eE][+-]?[0-9]{1,9})?", fullmatch=True)
_LEAVES = st.one_of(st.none(), st.booleans(), st.text(max_size=8), _NUMBERS.map(Number))


@given(
    st.recursive(
        _LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    )
)
def test_numbers_are_written_as_they_were_read(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert loads("".join(parts(value))) == value
    assert dumps(value, separators=(",", ":")) == dumps(loads(dumps(value)), separators=(",", ":"))


@given(_NUMBERS)
def test_a_number_stays_letter_for_letter(text: str) -> None:
    assert dumps(loads(text)) == text
    assert "".join(parts(loads(f'{{"a":[{text}]}}'))).split() == ["{", '"a":', "[", text, "]", "}"]


def test_an_integer_may_have_more_digits_than_python_converts() -> None:
    assert dumps(loads("[" + "7" * 10_000 + "]")) == "[" + "7" * 10_000 + "]"


@pytest.mark.parametrize("text", ['{"a":1,"b":{},"a":2}', '[{"":0,"":0}]', '{"b":{"\\u0061":1,"a":1}}'])
def test_an_object_that_would_lose_a_member_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"an object has the name '.*' twice"):
        loads(text)


def test_ordinary_values_are_written_as_by_json() -> None:
    value = {"a": [1, 2.5, None, True, "ü"], "b": {}}
    assert dumps(value) == json.dumps(value, ensure_ascii=False)
    assert "".join(parts(value)) == json.dumps(value, ensure_ascii=False, indent=2)
    with pytest.raises(TypeError, match="a set cannot be written as JSON"):
        dumps({1})
