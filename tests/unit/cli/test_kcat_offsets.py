"""``-o``, compared with kcat(1)."""

from __future__ import annotations

import pytest

from headrace_core.errors import InvalidArgumentError, UnsupportedVersionError
from headrace_tools.cli.kcat import parse_offsets


@pytest.mark.parametrize(
    ("given", "by_time", "expected"),
    [
        ([], None, 100),
        (["beginning"], None, 100),
        (["earliest"], None, 100),
        (["end"], None, 500),
        (["latest"], None, 500),
        (["150"], None, 150),
        (["0"], None, 100),  # records below 100 are deleted, so all readable records are included
        (["-10"], None, 490),
        (["-1000"], None, 100),  # more records than the log has
        (["s@1700000000000"], 321, 321),
        (["s@1700000000000"], None, 500),  # no record is that late, so reading begins at the end
        (["s@1700000000000", "e@1700000009999"], 321, 321),
    ],
)
def test_the_start_in_a_partition_of_offsets_100_to_500(given: list[str], by_time: int | None, expected: int) -> None:
    assert parse_offsets(given).start(100, 500, by_time) == expected


def test_a_stop_by_time_is_kept_apart_from_the_start() -> None:
    found = parse_offsets(["-5", "e@123"])
    assert (found.at, found.stop_ms) == (-5, 123)


@pytest.mark.parametrize("given", [["middle"], ["1.5"], ["s@"], ["s@now"], ["1", "2"], ["e@1", "e@2"], ["end", "3"]])
def test_what_makes_no_sense_is_refused(given: list[str]) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_offsets(given)


def test_stored_offsets_are_a_groups() -> None:
    with pytest.raises(UnsupportedVersionError, match="-G GROUP"):
        parse_offsets(["stored"])
