"""The clickstream's pure functions, on small static frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)

RAW = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
NOON = datetime(2015, 5, 17, 12, 0, 0)
GOOD = '10.0.0.7 - - [17/May/2015:12:00:00 +0000] "GET /about/?q=1 HTTP/1.1" 200 54 "http://a.example/b" "Firefox"'


@pytest.fixture
def parse(spark: Any) -> Callable[..., list[Any]]:
    """``parse(line, ...)``: a row of ``parsed`` for each line, which is text, bytes or None."""
    from headrace_pipelines.clickstream.parsing import parsed

    def parsing(*values: str | bytes | None, names: Sequence[bytes] = ()) -> list[Any]:
        rows = [
            (
                None,
                value.encode() if isinstance(value, str) else value,
                "log",
                0,
                offset,
                NOON,
                [("line", names[offset])] if names else None,
            )
            for offset, value in enumerate(values)
        ]
        return list(parsed(spark.createDataFrame(rows, RAW)).orderBy("offset").collect())

    return parsing


@pytest.fixture
def viewed(spark: Any) -> Callable[..., Any]:
    """``viewed((address, seconds after noon, path), ...)``: a frame of views; a fourth item is the referrer."""

    def frame(*rows: tuple[Any, ...]) -> Any:
        return spark.createDataFrame(
            [(a, NOON + timedelta(seconds=s), path, *(more or ["-"])) for a, s, path, *more in rows],
            "address STRING, time TIMESTAMP, path STRING, referrer STRING",
        )

    return frame


# -- lines


def test_a_good_line_has_every_field_and_the_path_has_no_query(parse: Callable[..., list[Any]]) -> None:
    (row,) = parse(GOOD, names=[b"0/1"])
    assert row["reason"] is None
    assert (row["line"], row["address"], row["time"], row["method"], row["path"], row["status"], row["bytes"]) == (
        "0/1",
        "10.0.0.7",
        NOON,
        "GET",
        "/about/",
        200,
        54,
    )
    assert (row["referrer"], row["agent"], row["is_crawler"], row["is_view"]) == (
        "http://a.example/b",
        "Firefox",
        False,
        True,
    )


def test_a_line_without_an_agent_is_a_request_of_a_crawler(parse: Callable[..., list[Any]]) -> None:
    common = '10.0.0.7 - - [17/May/2015:12:00:00 +0000] "GET / HTTP/1.1" 200'
    rows = parse(
        GOOD.removesuffix(' "Firefox"'),  # missing
        GOOD.removesuffix('"'),  # without its closing quotation mark
        GOOD.replace('"Firefox"', '""'),
        GOOD.replace('"Firefox"', '"-"'),
        f"{common} -",
        common,
    )
    found = {(row["reason"], row["agent"], row["is_crawler"], row["is_view"]) for row in rows}
    assert found == {(None, "-", True, False)}


def test_quotation_marks_user_names_and_odd_request_lines_are_read(parse: Callable[..., list[Any]]) -> None:
    quoted, user, dash, hexed = parse(
        GOOD.replace("/about/", r"/a\"b").replace("Firefox", r"Fire \"fox\" \\"),
        GOOD.replace("- -", "- john doe"),
        GOOD.replace("GET /about/?q=1 HTTP/1.1", "-"),
        GOOD.replace("http://a.example/b", r"http://\xe4\xe5/"),
    )
    assert (quoted["path"], quoted["agent"]) == (r"/a\"b", r"Fire \"fox\" \\")
    assert (user["reason"], user["address"]) == (None, "10.0.0.7")
    assert (dash["reason"], dash["path"], dash["is_view"]) == (None, None, False)
    assert hexed["referrer"] == r"http://\xe4\xe5/"


def test_a_bad_line_has_a_reason(parse: Callable[..., list[Any]]) -> None:
    no_request = "not a line of Apache's combined format: needs address, time, request and status"
    no_time = "the time is not like 17/May/2015:10:05:03 +0000"
    wrong_clock = "the time is more than a day from the time of the record"
    bad: list[tuple[str | bytes, str]] = [
        ("", "the line is empty"),
        ("\r", "the line is empty"),
        ("rubbish", no_request),
        ('{"json": true}', no_request),
        (b"\x00\xff\xfe", no_request),
        (GOOD.replace("200", "2000"), no_request),
        (GOOD.replace("200", "OK"), no_request),
        ('1 - - [x] "' + r"\x" * 30_000, no_request),
        (GOOD.replace("GET /about/?q=1 HTTP/1.1", ""), "the request line is empty"),
        (GOOD.replace("17/May", "37/May"), no_time),
        (GOOD.replace("17/May/2015:12:00:00 +0000", "2015-05-17"), no_time),
        (GOOD.replace("2015", "2065"), wrong_clock),
        (GOOD.replace("2015", "1965"), wrong_clock),
        (GOOD + "x" * 5_000_000, "the line is longer than 65536 bytes"),
    ]
    assert [row["reason"] for row in parse(*(value for value, _ in bad))] == [reason for _, reason in bad]


def test_a_line_without_a_name_is_named_by_its_position(parse: Callable[..., list[Any]]) -> None:
    assert [row["line"] for row in parse(GOOD, "rubbish")] == ["log-0@0", "log-0@1"]


def test_every_line_goes_to_one_topic_and_a_dead_letter_is_the_line(spark: Any) -> None:
    from headrace_pipelines.clickstream import parsing, schema
    from headrace_pipelines.dead_letters import header
    from headrace_pipelines.json_rows import decoded

    long = b"x" * 70_000
    rows = [(b"k", value, "log", 1, 40 + i, NOON, []) for i, value in enumerate((GOOD.encode(), long, None))]
    parsed = parsing.parsed(spark.createDataFrame(rows, RAW))
    assert parsed.agg(*parsing.counted()).collect()[0].asDict() == {"good": 2, "bad": 1}
    records = parsing.records(parsed, "requests")
    names = ("reason", "topic", "partition", "offset", "tries")
    (letter,) = records.where("topic = 'log.dead-letters'").select("*", *map(header, names)).collect()
    assert (bytes(letter["key"]), bytes(letter["value"])) == (b"k", long)
    assert letter[4:] == ("the line is longer than 65536 bytes", "log", "1", "41", "0")
    read_back = decoded(records.where("topic = 'requests'"), schema.REQUEST)
    read = {row["address"]: row for row in read_back.collect()}
    assert read["10.0.0.7"].asDict() == parsing.requests(parsed).where("address IS NOT NULL").collect()[0].asDict()
    assert read[None]["time"] == NOON


def test_a_replayed_line_has_another_name_than_its_dead_letter(spark: Any) -> None:
    from headrace_pipelines.clickstream.parsing import parsed

    headers = [("line", b"0/7"), ("headrace.dead-letter.tries", b"2")]
    (row,) = parsed(spark.createDataFrame([(None, b"rubbish", "log", 0, 9, NOON, headers)], RAW)).collect()
    assert row["line"] == "0/7#2"


def test_crawlers_are_known_by_words_in_any_case(parse: Callable[..., list[Any]]) -> None:
    agents = ["Googlebot/2.1", "a CRAWLER", "Baiduspider", "Yahoo! Slurp", "FeedBurner", "archiver"]
    rows = parse(*(GOOD.replace("Firefox", agent) for agent in agents))
    assert [row["agent"] for row in rows if row["is_crawler"] and not row["is_view"]] == agents


def test_a_view_is_a_page_that_a_person_received(parse: Callable[..., list[Any]]) -> None:
    expected = {
        "GET /a HTTP/1.1|200": True,
        "GET /a HTTP/1.1|304": True,
        "GET /a HTTP/1.1|206": False,
        "GET /a HTTP/1.1|301": False,
        "GET /a HTTP/1.1|404": False,
        "HEAD /a HTTP/1.1|200": False,
        "POST /a HTTP/1.1|200": False,
        "GET /a.png HTTP/1.1|200": False,
        "GET /a.WOFF?v=2 HTTP/1.1|200": False,
        "GET /a?b=c.png HTTP/1.1|200": True,
        "GET /a.png/ HTTP/1.1|200": True,
        "GET /a.woff2 HTTP/1.1|200": True,
        "GET /apng HTTP/1.1|200": True,
    }
    texts = [each.split("|") for each in expected]
    line = GOOD.replace("GET /about/?q=1 HTTP/1.1", "{}").replace(" 200 ", " {} ")
    rows = parse(*(line.format(*each) for each in texts))
    assert {row["reason"] for row in rows} == {None}
    assert dict(zip(expected, (row["is_view"] for row in rows), strict=True)) == expected


# -- views, sessions, conversions


def test_a_session_ends_with_a_gap_of_more_than_half_an_hour(viewed: Callable[..., Any]) -> None:
    from headrace_pipelines.clickstream.sessions import sessions

    frame = viewed(("a", 0, "/1"), ("a", 1_800, "/2"), ("a", 3_601, "/3"), ("b", 1_801, "/4"))
    found = sessions(frame).orderBy("address", "began").collect()
    assert [(row["address"], row["views"], row["first_page"], row["last_page"]) for row in found] == [
        ("a", 2, "/1", "/2"),
        ("a", 1, "/3", "/3"),
        ("b", 1, "/4", "/4"),
    ]
    assert (found[0]["began"], found[0]["ended"]) == (NOON, NOON + timedelta(minutes=30))


def test_a_step_of_the_funnel_counts_only_after_the_step_before_it(viewed: Callable[..., Any]) -> None:
    from headrace_pipelines.clickstream.sessions import sessions

    expected = {
        "/": 1,
        "/files/a.jar": 1,
        "/blog/": 1,
        "/ /blog/a.html": 2,
        "/blog/a.html /files/docs/ /files/a.html": 2,
        "/files/a.jar /blog/a.html": 2,
        "/blog/a.html / /files/a.tar.gz": 3,
    }
    rows = [(paths, second, path) for paths in expected for second, path in enumerate(paths.split())]
    assert {row["address"]: row["funnel"] for row in sessions(viewed(*rows)).collect()} == expected


def test_pages_and_hosts_of_referrers_are_counted_by_hour_and_ranked(viewed: Callable[..., Any]) -> None:
    from headrace_pipelines.clickstream.views import counts, top

    frame = viewed(
        ("a", 0, "/1", "http://X.example/page"), ("b", 3_599, "/1"), ("b", 3_600, "/1"), ("b", 1, "/2"), ("b", 2, "/3"),
        ("a", 3, "/3", "https://x.example:80"),
    )  # fmt: skip
    counted = counts(frame)
    found = {(row["kind"], row["name"], row["hour"].hour): row["views"] for row in counted.collect()}
    assert found == {
        ("page", "/1", 12): 2, ("page", "/1", 13): 1, ("page", "/2", 12): 1, ("page", "/3", 12): 2,
        ("referrer", "x.example", 12): 2, ("referrer", "-", 12): 3, ("referrer", "-", 13): 1,
    }  # fmt: skip
    ranked = top(counted, "page", 2).orderBy("hour", "rank").collect()
    assert [(row["hour"].hour, row["rank"], row["name"]) for row in ranked] == [
        (12, 1, "/1"),
        (12, 2, "/3"),
        (13, 1, "/1"),
    ]


def test_a_download_is_joined_with_the_pages_of_the_half_hour_before_it(viewed: Callable[..., Any]) -> None:
    from headrace_pipelines.clickstream.conversions import conversions

    frame = viewed(
        ("a", 0, "/early"), ("a", 1, "/page"), ("a", 1_801, "/files/a.jar"), ("a", 1_802, "/after"), ("b", 1_800, "/b"),
        (None, 1_801, None),
    )  # fmt: skip
    found = conversions(frame).collect()
    assert [(row["address"], row["download"], row["page"]) for row in found] == [("a", "/files/a.jar", "/page")]


def test_only_views_and_ticks_reach_the_windows(spark: Any) -> None:
    from headrace_pipelines.clickstream.views import views

    rows = [(True, "a", NOON), (False, "b", NOON), (False, None, NOON)]
    found = views(spark.createDataFrame(rows, "is_view BOOLEAN, address STRING, time TIMESTAMP")).collect()
    assert [row["address"] for row in found] == ["a", None]
