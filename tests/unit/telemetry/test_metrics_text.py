"""The text of a scrape, histograms, and the catalog of metrics."""

from __future__ import annotations

import asyncio
import datetime
import functools
import math
import re
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_core.metrics import catalog
from headrace_core.metrics import exposition as exposition_module
from headrace_core.metrics.exposition import Exposition
from headrace_core.metrics.histogram import DURATION_BOUNDS_S, Histogram, RecentQuantiles, quantile
from headrace_core.metrics.model import COLUMN_MAX, Column, Kind, Metric, Quantiles, Row, Rows, Source, in_columns
from headrace_core.metrics.node import NodeMetrics
from headrace_core.metrics.text import Writer, heads_of, wants_openmetrics
from headrace_core.node.config import NodeConfig


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))

    return run


def _metric(kind: Kind = Kind.GAUGE, *labels: str) -> Metric:
    return Metric("m", kind, 'what "it" is\nin two lines', labels, ("broker",), Source.HEADRACE)


def lines_of(row: Row | Column) -> list[str]:
    return Writer().lines_of(row).decode().splitlines()


def plain(metric: Metric, labels: tuple[str | int, ...], value: int) -> str:
    """A line as the format's page describes it, made without the writer."""
    escaped = [str(each).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for each in labels]
    pairs = ",".join(f'{name}="{each}"' for name, each in zip(metric.labels, escaped, strict=True))
    return f"{metric.sample_name}{{{pairs}}} {value}\n"


def test_a_counter_has_total_and_its_family_only_in_prometheus_text() -> None:
    metric = _metric(Kind.COUNTER, "topic")
    assert lines_of(Row(metric, ("a",), 3)) == ['m_total{topic="a"} 3']
    openmetrics, prometheus = heads_of(metric)
    assert b"# TYPE m counter\n" in openmetrics
    assert b"# TYPE m_total counter\n" in prometheus


def test_labels_and_help_are_escaped_and_a_total_has_no_labels() -> None:
    metric = _metric(Kind.GAUGE, "topic", "partition")
    assert lines_of(Row(metric, ('a"\\\n', 7), 1.5)) == ['m{topic="a\\"\\\\\\n",partition="7"} 1.5']
    assert lines_of(Row(metric, (), math.inf)) == ["m +Inf"]
    assert heads_of(metric)[1].startswith(b'# HELP m what "it" is\\nin two lines\n')
    with pytest.raises(ValueError, match="zip"):
        lines_of(Row(metric, ("a",), 1))


def test_a_column_has_the_lines_of_its_rows_also_with_labels_that_need_care() -> None:
    metric = _metric(Kind.COUNTER, "topic", "partition")
    writer, names = Writer(), ["a%d", "100%", 'q"', "back\\", "two\nlines", "ünï", ""]
    for turn in range(3):
        labels = [(name, number) for name in names for number in range(turn, 3)]
        values = [number * 7 - turn for number in range(len(labels))]
        wanted = "".join(map(plain, [metric] * len(labels), labels, values))
        assert writer.lines_of(Column(metric, labels, values)) == wanted.encode()
        assert writer.lines_of(Column(metric, [], [])) == b""
        writer.end_scrape()


def test_partitions_that_come_and_go_get_their_own_names_and_values() -> None:
    metric, writer = _metric(Kind.GAUGE, "topic", "partition"), Writer()
    for labels in ([("a", 0), ("b", 0)], [("a", 0), ("b", 1)], [("a", 0)], [("b", 0), ("a", 0)], [("a", 0), ("b", 0)]):
        values = list(range(len(labels)))
        wanted = "".join(map(plain, [metric] * len(labels), labels, values))
        assert writer.lines_of(Column(metric, labels, values)).decode() == wanted
        writer.end_scrape()


def test_the_writer_forgets_the_names_that_a_scrape_did_not_use() -> None:
    metric, histogram, writer = _metric(Kind.GAUGE, "topic"), Histogram(), Writer()
    for number in range(50):
        writer.lines_of(Row(metric, (f"t{number}",), 1))
        writer.lines_of(Column(metric, [(f"c{number}",)], [1]))
        writer.lines_of(Row(metric, (f"h{number}",), histogram))
        writer.lines_of(Row(metric, (f"q{number}",), Quantiles([], histogram)))
        writer.end_scrape()
        assert len(writer._kept) == 4


def test_a_writer_shows_each_change_of_a_histogram_and_of_its_quantiles() -> None:
    histogram, writer = Histogram((1, 2)), Writer()
    recent = RecentQuantiles(histogram)
    for number, value in enumerate((0.5, 0.0, 1.5, 9.0, 9.0)):
        histogram.observe(value)
        summary = Quantiles(recent.read(number), histogram)
        for row in (Row(_metric(Kind.HISTOGRAM, "x%"), ("5%",), histogram), Row(_metric(Kind.SUMMARY), (), summary)):
            shown = writer.lines_of(row)
            assert shown == writer.lines_of(row) == Writer().lines_of(row)
            assert f"{number + 1}\n".encode() in shown
        writer.end_scrape()


def test_slices_for_columns_have_each_item_once() -> None:
    items = list(range(2 * COLUMN_MAX + 1))
    slices = list(in_columns(items))
    assert [each for some in slices for each in some] == items
    assert max(map(len, slices)) == COLUMN_MAX
    assert list(in_columns([])) == []


def test_a_histogram_counts_a_value_on_a_bound_below_it() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 2, 9):
        histogram.observe(value)
    assert lines_of(Row(_metric(Kind.HISTOGRAM), (), histogram)) == [
        'm_bucket{le="1.0"} 2',
        'm_bucket{le="2.0"} 4',
        'm_bucket{le="+Inf"} 5',
        "m_sum 14.0",
        "m_count 5",
    ]


def test_a_quantile_is_within_the_bucket_of_the_true_one() -> None:
    histogram, values = Histogram(), [0.0003 * number for number in range(1, 1_001)]
    for value in values:
        histogram.observe(value)
    for share in (0.5, 0.9, 0.99):
        true = values[math.ceil(share * len(values)) - 1]
        found = quantile(histogram.bounds, histogram.counts, share)
        low = max((bound for bound in (0.0, *DURATION_BOUNDS_S) if bound < true), default=0.0)
        high = min(bound for bound in DURATION_BOUNDS_S if bound >= true)
        assert low <= found <= high
    assert math.isnan(quantile((1,), [0, 0], 0.5))
    assert quantile((1, 2), [0, 0, 5], 0.5) == 2


def test_quantiles_forget_what_is_older_than_their_window() -> None:
    histogram = Histogram()
    recent = RecentQuantiles(histogram, window_s=300)
    histogram.observe(20)
    for now_s in range(0, 900, 30):
        found = dict(recent.read(now_s))
    assert math.isnan(found["0.50"])
    histogram.observe(0.001)
    assert dict(recent.read(900))["0.999"] <= 0.001


def test_a_summary_is_scaled_and_has_no_lines_for_quantiles_that_it_does_not_know() -> None:
    histogram = Histogram()
    lines = lines_of(Row(_metric(Kind.SUMMARY), (), Quantiles([("0.99", math.nan)], histogram)))
    assert lines == ["m_sum 0.0", "m_count 0"]
    histogram.observe(0.5)
    lines = lines_of(Row(_metric(Kind.SUMMARY), (), Quantiles([("0.99", 0.5)], histogram, 1_000)))
    assert lines == ['m{quantile="0.99"} 500.0', "m_sum 500.0", "m_count 1"]


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (None, False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;q=0.75,text/plain;q=0.5", True),
        ("application/openmetrics-text;q=0.1, text/plain", False),
        ("application/openmetrics-text;q=none", False),
    ],
)  # fmt: skip
def test_the_client_chooses_the_format(accept: str | None, wanted: bool) -> None:
    assert wants_openmetrics(accept) is wanted


@on_loop
async def test_a_collector_with_a_bug_costs_only_its_own_rows() -> None:
    metric = _metric()

    def broken() -> Rows:
        yield Row(metric, (), 1)
        raise RuntimeError("a bug")

    exposition = Exposition()
    exposition.add(broken)
    exposition.add(lambda: iter([None, Row(catalog.BROKERS, (), 3)]))
    found = await exposition.text(openmetrics=False)
    assert "kafka_brokers 3\n" in found
    assert "headrace_metrics_collector_errors_total 1\n" in found


@on_loop
async def test_scrapes_at_the_same_time_share_one_collection() -> None:
    calls = []
    exposition = Exposition()
    exposition.add(lambda: calls.append(1) or iter([None]))  # type: ignore[func-returns-value]
    await asyncio.gather(*(exposition.text(openmetrics=True) for _ in range(5)))
    assert calls == [1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The node's clock in seconds, which the test sets."""
    now_s = [1_000_000.0]
    clocks = dict.fromkeys(("time", "monotonic", "perf_counter"), lambda: now_s[0])
    monkeypatch.setattr(exposition_module, "time", SimpleNamespace(**clocks))
    return now_s


@on_loop
async def test_a_greedy_scraper_does_not_keep_the_collectors_at_work(clock: list[float]) -> None:
    calls = []

    def slow() -> Rows:
        calls.append(1)
        for _ in range(8):
            clock[0] += 0.125
            yield None
        yield Row(catalog.BROKERS, (), len(calls))

    exposition = Exposition()
    exposition.add(slow)
    for _ in range(8):
        assert b"kafka_brokers 1\n" in await exposition.body(openmetrics=False)
        clock[0] += 0.5
    assert calls == [1], "the text holds four times as long as its collection took"
    clock[0] += 0.5
    assert b"kafka_brokers 2\n" in await exposition.body(openmetrics=False)


@pytest.mark.parametrize("openmetrics", [True, False])
@on_loop
async def test_the_nodes_clock_is_that_of_the_scrape_also_in_a_text_that_scrapes_share(
    openmetrics: bool, clock: list[float]
) -> None:
    """An old clock would look like a clock that is wrong, to the second of two Prometheus servers."""
    calls = []

    def slow() -> Rows:
        calls.append(1)
        clock[0] += 1
        yield Row(catalog.BROKERS, (), 3)

    exposition = Exposition()
    exposition.add(slow)
    shown: list[str] = []
    for _ in range(8):
        asked_s = clock[0]
        text = await exposition.text(openmetrics=openmetrics)
        (found,) = re.findall(r"(?m)^headrace_time_seconds (\S+)$", text)
        assert float(found) == asked_s, "not the time at which the collection ended"
        shown.append(found)
        assert text.endswith("# EOF\n") is openmetrics
        clock[0] += 0.5
    assert calls == [1], "the text holds four times as long as its collection took"


@on_loop
async def test_rows_and_columns_give_the_same_text() -> None:
    labels = [("t", number) for number in range(12_000)]
    texts = []
    for rows in (
        [Row(catalog.LOG_END, each, each[1]) for each in labels],
        [Column(catalog.LOG_END, some, [number for _, number in some]) for some in in_columns(labels)],
    ):
        exposition = Exposition()
        exposition.add(lambda rows=rows: iter(rows))  # type: ignore[misc]
        texts.append((await exposition.text(openmetrics=True)).partition("# HELP headrace_metrics")[0])
    head = heads_of(catalog.LOG_END)[0].decode()
    assert texts[0] == texts[1] == head + "".join(plain(catalog.LOG_END, each, each[1]) for each in labels)


def test_of_certificates_with_the_same_subject_the_first_that_expires_counts() -> None:
    properties = {"log.dirs": "/nowhere", "listeners": "internal://127.0.0.1:0", "node.id": "1"}
    node = NodeMetrics("controller", lambda: 1, NodeConfig.from_properties(properties, role="controller").values)
    for subject, day in (("CN=a", 2), ("CN=a", 1), ("CN=a", 3), ("CN=b", 9), ("", 0)):
        until = datetime.datetime(2026, 1, day or 1, tzinfo=datetime.UTC)
        known = SimpleNamespace(subject=subject, not_after=until) if day else None
        node.add_tls(SimpleNamespace(certificate=lambda known=known: known))  # type: ignore[arg-type, misc]
    days = {
        row.labels[0]: datetime.datetime.fromtimestamp(row.value, datetime.UTC).day
        for row in node._collect_certificates()
        if isinstance(row, Row) and isinstance(row.value, float)
    }
    assert days == {"CN=a": 1, "CN=b": 9}


def test_names_of_kafkas_beans_are_spelled_by_the_rules_of_the_jmx_exporter() -> None:
    """By its kafka-kraft-3_0_0.yml: kafka.DOMAIN<type=TYPE, name=NAME> is kafka_DOMAIN_TYPE_NAME in lower case, without
    PerSec; a rate is a counter with _total. A bean without a name has attributes."""
    for name, metric in catalog.METRICS.items():
        if metric.source is not Source.KAFKA:
            continue
        match = re.fullmatch(r"(kafka[.a-z]+):type=([\w-]+)(?:,name=(\w+))?", metric.bean)
        assert match is not None, metric.bean
        domain, kind, bean = match.groups()
        start = re.sub(r"\W", "_", f"{domain}_{kind}_").lower()
        if bean is None:
            assert name.startswith(start), name
            continue
        rate = bean.endswith("PerSec")
        assert name == start + bean.removesuffix("PerSec").lower(), name
        assert rate is (metric.kind is Kind.COUNTER), name
        assert bean.endswith("Ms") is (metric.kind is Kind.SUMMARY), name


def test_the_catalog_has_only_legal_names_and_words() -> None:
    for name, metric in catalog.METRICS.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name), name
        assert not name.endswith(("_total", "_bucket", "_created", "_info")) or metric.kind is Kind.GAUGE, name
        assert metric.help.endswith("."), name
        assert set(metric.roles) <= set(catalog.ALL), name
        assert (metric.source is Source.HEADRACE) is name.startswith("headrace_"), name
        assert (metric.source is Source.KAFKA) is bool(metric.bean), name
        assert not {"le", "quantile"} & set(metric.labels), name
