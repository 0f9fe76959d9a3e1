"""The end of a run of the pipeline logs: the tick, and the check of the numbers."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from headrace_pipelines.clickstream import job as clickstream
from headrace_pipelines.errors import PipelineFailedError
from headrace_pipelines.logs import job as logs
from headrace_pipelines.logs import pictures
from headrace_pipelines.logs.hosts import FILE, HostLine
from headrace_pipelines.logs.job import Job
from headrace_pipelines.places import Places
from headrace_pipelines.telemetry import job as telemetry

LINES = [HostLine("web-01", b"a", 1_000), HostLine("web-01", b"b", 2_000)]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    stop = MagicMock(is_asked=False)
    return Job(MagicMock(), MagicMock(), Places(tmp_path), MagicMock(), stop, 0)


def test_the_tick_comes_after_a_batch_with_the_last_lines(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one batch with lines, the tick may be visible before lines of other partitions, which are late then."""
    order: list[Any] = []
    queries = MagicMock()
    queries.__enter__.return_value = queries
    queries.drain.side_effect = lambda names, on_look: order.append(names) or on_look()
    monkeypatch.setattr(logs, "Arrived", MagicMock())
    for name in ("_shipper", "_follow", "_summarize"):
        monkeypatch.setattr(job, name, MagicMock())
    monkeypatch.setattr(job, "start", lambda: queries)
    monkeypatch.setattr(logs, "send_tick", lambda access, content: order.append("tick"))
    job.stream(LINES, MagicMock(), is_continued=False)
    assert order == [["lines"], "tick", ["lines"], ["archive", "rates"]]


@pytest.mark.parametrize(
    ("in_windows", "is_late", "is_right"),
    [(2, False, True), (1, False, False), (0, True, True), (3, True, False), (3, False, False)],
    ids=["all", "missing", "both late in one window", "doubled beside late ones", "doubled"],
)
def test_only_late_requests_are_in_no_window(
    job: Job, tmp_path: Path, in_windows: int, is_late: bool, is_right: bool
) -> None:
    """Spark counts two late requests of a host in a window as one dropped row."""
    by_path = defaultdict(list, {str(tmp_path / "hosts/web-01" / FILE): [b"a", b"b"]})
    summary = {"requests": 2, "dead_letters": 0, "archived": 2}

    def check() -> None:
        job._check(LINES, MagicMock(by_path=by_path), summary, in_windows, is_late=is_late)

    if is_right:
        check()
    else:
        with pytest.raises(PipelineFailedError, match="2 requests"):
            check()


def test_a_log_without_a_request_has_a_picture(tmp_path: Path) -> None:
    assert pictures.draw([], [], tmp_path).stat().st_size > 1_000


@pytest.mark.parametrize("module", [logs, telemetry, clickstream], ids=lambda each: each.__name__.split(".")[-2])
def test_brokers_accept_the_tick_of_a_run_whose_data_are_of_today(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The tick is 30 days after the last record, and by default brokers refuse a record of an hour from now."""
    made: list[Any] = []
    monkeypatch.setattr(module, "replace_topics", lambda access, name, new, **_: made.extend(new))
    if module is clickstream:
        job = clickstream.Job(MagicMock(), MagicMock(), Places(tmp_path), MagicMock(), MagicMock(), rows=1)
        job.create_topics()
    else:
        module.create_topics(MagicMock())
    assert made
    for topic in made:
        is_timed = topic.config.get("cleanup.policy") != "compact"  # twins have the times of their batches
        assert not is_timed or int(topic.config["message.timestamp.after.max.ms"]) > logs.TICK_AFTER_MS
