"""How the console shows bytes: hostile contents become text, long ones are cut."""

from __future__ import annotations

import json
import time

import pytest
from jinja2 import Environment, PackageLoader

from headrace_console.display import (
    LISTED_BYTES_MAX,
    beginning,
    config_words,
    duration,
    json_text,
    noun,
    number,
    shown,
    when,
)
from headrace_core.visible import escaped
from tests.worlds.waiting import check_spent


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, "null", ""),
        (b"", "empty", ""),
        (b"hello", "text", "hello"),
        (b'{"a": 1}', "json", '{"a": 1}'),
        (b"\x00\x01\x02\xff", "binary", "00 01 02 ff"),
        (b"a" * 40 + b"\xff", "text", "a" * 40 + "\\xff"),
        ("\u202egnp.exe".encode(), "text", "\\u202egnp.exe"),
        (b"bell\x07", "text", "bell\\x07"),
    ],
)
def test_bytes_are_shown_as_text(data: bytes | None, kind: str, text: str) -> None:
    found = shown(data)
    assert (found.kind, found.text) == (kind, text)


def test_a_long_value_is_cut_and_says_its_size() -> None:
    found = shown(b"x" * 1_000_000)
    assert (len(found.text), found.size, found.is_cut) == (300, 1_000_000, True)


def test_a_character_at_the_cut_is_not_taken_for_broken_bytes() -> None:
    found = shown("ä€😀".encode() * 1_000)
    assert found.kind == "text"
    assert not found.note


def test_json_is_formatted_on_its_own_page_only_and_deep_json_stays_as_it_is() -> None:
    assert shown(b'{"a":[1]}', limit=1_000, pretty=True).text == json.dumps({"a": [1]}, indent=2)
    deep = b"[" * 100_000
    found = shown(deep, limit=1_000, pretty=True)
    assert (found.kind, found.is_cut, found.text) == ("text", True, "[" * 1_000)


def test_formatted_json_has_the_numbers_that_were_sent() -> None:
    text = '{"a":[0.1234567890123456789,12345678901234567890,1.10,1e400,1E-30,-0,-0.0],"n":"%s"}' % ("9" * 5_000)
    for value in (text, text.replace('"%s"' % ("9" * 5_000), "9" * 5_000)):
        found = shown(value.encode(), limit=10_000, pretty=True)
        assert found.kind == "json"
        assert "".join(found.text.split()) == value


def test_json_whose_lines_begin_with_many_spaces_is_formatted_up_to_the_cut() -> None:
    depth = 400  # formatted whole, this MB is 400 MB, and the console answers no one for 6 s
    value = b"[" * depth + b",".join([b"1"] * 499_600) + b"]" * depth
    begun_s = time.thread_time()
    found = shown(value, limit=1_000, pretty=True)
    check_spent(begun_s, 2)
    assert (found.kind, found.is_cut, len(found.text)) == ("json", True, 1_000)
    assert len(json_text([[["x"] * 100_000]], 1_000)) < 2_000


def test_the_beginning_of_a_long_value_says_the_size_of_the_whole() -> None:
    whole = b'{"a": 1}' + b" " * LISTED_BYTES_MAX
    kept = beginning(whole)
    assert kept is not None
    assert len(kept) < 4_000
    assert shown(kept) == shown(whole)
    assert shown(beginning(b"\x00\xff" * LISTED_BYTES_MAX)).size == 2 * LISTED_BYTES_MAX
    assert (beginning(b"short"), beginning(None)) == (b"short", None)


def test_text_that_hides_is_visible() -> None:
    assert escaped("a\u200bb\x1b[31m\ud800") == "a\\u200bb\\x1b[31m\\ud800"


def test_times_and_units() -> None:
    assert when(1_700_000_000_123) == "2023-11-14 22:13:20.123"
    assert (when(None), when(-1)) == ("–", "–")
    assert when(-86_400_001) == "1969-12-30 23:59:59.999"
    assert [when(ms)[:10] for ms in (-62_135_596_800_000, -62_135_596_800_001)] == ["0001-01-01", "-621355968"]
    assert [duration(ms) for ms in (250, 90_000, 93_600_000)] == ["250 ms", "1 min 30 s", "1 d 2 h"]
    assert config_words("retention.ms", "604800000") == "7 d"
    assert config_words("retention.bytes", "-1") == "no limit"


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 groups"), (1, "1 group"), (1.0, "1 group"), (1.5, "1.5 groups"), (None, "– groups")]
)
def test_a_noun_agrees_with_its_number(count: float | None, shown: str) -> None:
    assert f"{number(count)} {noun(count, 'group')}" == shown


@pytest.mark.parametrize(
    ("listed", "total", "note"), [(0, 0, ""), (50, 50, ""), (50, 1_051, "These are the first 50 of 1,051.")]
)
def test_a_list_that_shows_only_its_beginning_says_so(listed: int, total: int, note: str) -> None:
    environment = Environment(loader=PackageLoader("headrace_console"), autoescape=True)
    environment.filters.update(number=number, noun=noun, visible=escaped)
    page = '{% from "macros.html" import only_first %}{{ only_first(listed, total) }}'
    text = environment.from_string(page).render(listed=listed, total=total)
    assert text.strip() == (f'<p class="hint">{note}</p>' if note else "")
