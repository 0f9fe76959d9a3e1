"""Durations and times on the command line: one grammar for all options."""

from __future__ import annotations

import time

import pytest

from headrace_tools.cli import times
from headrace_tools.cli.app import run
from headrace_tools.cli.kcat import parse_offsets


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500), ("10s", 10_000), ("1.5s", 1_500), ("5m", 300_000), ("5min", 300_000), ("2h", 7_200_000),
        ("7d", 604_800_000), ("1w", 604_800_000), ("1h30m", 5_400_000), ("P1D", 86_400_000), ("PT1H30M", 5_400_000),
        ("pt0.5s", 500), ("P1DT2H", 93_600_000), (" 2H ", 7_200_000),
    ],
)  # fmt: skip
def test_a_duration_has_a_unit_or_is_iso_8601(text: str, ms: int) -> None:
    assert times.duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "5", "-2h", "2 h", "h", "2y", "P", "PT", "P1", "1e3s", "soon"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration such as"):
        times.duration_ms(text)


def test_a_time_is_iso_or_milliseconds_or_so_long_ago() -> None:
    assert times.time_ms("1970-01-01T00:00:01.500") == 1_500
    assert times.time_ms("1970-01-01T01:00:00+01:00") == 0
    assert times.time_ms("1970-01-02") == 86_400_000
    assert times.time_ms("1356998400000") == 1_356_998_400_000
    ago = time.time() * 1_000 - times.time_ms("-2h")
    assert 7_200_000 <= ago < 7_260_000


@pytest.mark.parametrize("text", ["", "2h", "noon", "1969-12-31T23:59:59", "2026-13-01", "-", "-2"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be a time such as|before 1970"):
        times.time_ms(text)


@pytest.mark.parametrize("text", ["9" * 400 + "d", "P" + "9" * 400 + "D", str(1 << 63) + "ms"])
def test_a_time_without_room_in_64_bits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="less than 2"):
        times.duration_ms(text)
    with pytest.raises(ValueError, match=r"must be a time such as"):
        times.time_ms(f"-{text}")
    with pytest.raises(ValueError, match="less than 2"):
        times.time_ms("9" * 19)


def test_only_keys_in_milliseconds_take_a_duration() -> None:
    assert times.config_value("retention.ms", "7d") == "604800000"
    assert times.config_value("retention.ms", "-1") == "-1"
    assert times.config_value("retention.ms", "soon") == "soon"
    assert times.config_value("client.rack", "7d") == "7d"


def test_offsets_of_consume_take_a_time() -> None:
    assert parse_offsets(["s@1970-01-01T00:00:01", "e@2000"]).start_ms == 1_000
    assert parse_offsets(["1970-01-02"]).start_ms == 86_400_000
    two_hours_ago = parse_offsets(["-2h"]).start_ms
    assert two_hours_ago is not None
    assert abs(time.time() * 1_000 - two_hours_ago - 7_200_000) < 60_000
    assert parse_offsets(["-2"]).at == -2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("top", "--interval", "0.1s"), "must be at least 0.2 s"),
        (("doctor", "--timeout", "soon"), "must be a duration such as"),
        (("groups", "list", "--timeout", "-1"), "must be a duration such as"),
        (("groups", "reset-offsets", "g", "-t", "orders", "--by-duration", "7"), "must be a duration such as"),
        (("groups", "reset-offsets", "g", "-t", "orders", "--to-datetime", "7 o'clock"), "must be a time such as"),
    ],
)
def test_a_wrong_time_is_a_usage_error_that_says_what_it_may_be(
    arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments]) == 2
    assert expected in " ".join(capsys.readouterr().err.split())
