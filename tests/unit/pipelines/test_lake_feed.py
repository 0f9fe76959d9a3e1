"""What the feed of the lake asks a cluster, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_pipelines.access import Access
from headrace_pipelines.lake import feed


class StandIn:
    """A producer or a consumer that notes its calls."""

    def __init__(self, config: dict[str, Any], calls: list[str]) -> None:
        self._calls = calls
        calls.append(config.get("transactional.id", config.get("isolation.level", "")))

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def init_transactions(self) -> None:
        self._calls.append("init_transactions")


def test_the_count_of_releases_first_ends_the_transaction_of_a_killed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(feed, "Producer", lambda config: StandIn(config, calls))
    monkeypatch.setattr(feed, "Consumer", lambda config: StandIn(config, calls))
    monkeypatch.setattr(feed, "records_in_topic", lambda consumer, topic: [[None] * 3, [None] * 4])
    assert feed.releases_sent(Access("there:1"), planes=7) == 1
    assert calls == ["lake.feed", "init_transactions", "read_committed"]
