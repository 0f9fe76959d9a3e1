"""A subscription to a topic that does not exist is not silent: one warning names it, and a metric counts it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import pytest

from headrace.consumer import missing_topics
from headrace.consumer.driving import drive_async
from headrace.group.member import Subscription
from headrace_core.errors import (
    HeadraceError,
    LeaderNotAvailableError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from headrace_protos.v1 import metadata_pb2
from tests.unit.client.test_group_consumer import Coordinator, Make, Party, make, parties, run

__all__ = ["make", "parties"]


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing_topics, "LOOK_EVERY_S", 0.001)


class Cluster:
    """Answers the metadata requests of a party. ``errors``: of the topics that it does not show."""

    def __init__(self, party: Party, **errors: HeadraceError) -> None:
        self.errors, self.asked, self.fails = errors, list[list[str]](), False
        party.core.engine.metadata.refresh = self.refresh  # type: ignore[method-assign,assignment]
        self.party = party

    async def refresh(self, topics: Iterable[str], *, deadline: float) -> dict[str, HeadraceError]:
        self.asked.append(sorted(topics))
        if self.fails:
            raise RequestTimedOutError("no node answers")
        return {name: error for name, error in self.errors.items() if name in topics}

    async def looks(self, times: int = 3) -> None:
        wanted = len(self.asked) + times
        await self.party.away_until(lambda: len(self.asked) >= wanted)

    @property
    def missing(self) -> float:
        return self.party.core.metric_values()["subscribed-topics-missing"]


def subscribed(make: Make, *topics: str, gives: tuple[int, ...] = (0,)) -> Party:
    party = make(Coordinator(*gives))
    party.subscribe()
    party.group.subscribe(Subscription(topics), party.callbacks)
    return party


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "subscribed topic" in each.message]


def unknown() -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError("no such topic")


def test_a_topic_that_does_not_exist_is_named_once_until_it_exists(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        party = subscribed(make, "t", "ordres")
        cluster = Cluster(party, ordres=unknown())
        await party.until(lambda: party.core.reading.partitions)
        await cluster.looks(5)
        assert cluster.asked[-1] == ["ordres"], "the member has a partition of the other topic"
        assert said(caplog) == [
            "group 'g': the subscribed topic 'ordres' does not exist; check the name, or create the topic (headrace "
            "topics create ordres)"
        ]
        assert cluster.missing == 1
        cluster.errors.clear()
        await party.away_until(lambda: not cluster.missing)
        asked = len(cluster.asked)
        await asyncio.sleep(0.02)
        assert len(cluster.asked) == asked, "it exists, so nobody asks again"
        assert len(said(caplog)) == 1
        await drive_async(party.group.leave_steps(), party.io)
        assert not party.io.tasks

    with caplog.at_level(logging.WARNING, "headrace"):
        run(scenario)


def test_a_topic_that_is_deleted_under_its_reader_is_named(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        party = subscribed(make, "t")
        cluster = Cluster(party, t=unknown())
        await party.until(lambda: party.core.reading.partitions)
        assert not cluster.missing
        party.coordinator.push()  # it revokes the partitions of the deleted topic
        await party.until(lambda: cluster.missing)
        assert len(said(caplog)) == 1
        await drive_async(party.group.leave_steps(), party.io)
        assert not cluster.missing, "a consumer without a subscription misses nothing"

    run(scenario)


def test_a_topic_that_this_user_may_not_see_is_named_with_the_reason(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        party = subscribed(make, "secret", gives=())
        cluster = Cluster(party, secret=TopicAuthorizationFailedError("no DESCRIBE for User:eve"))
        await cluster.looks()
        (line,) = said(caplog)
        assert "'secret' cannot be read: TOPIC_AUTHORIZATION_FAILED: no DESCRIBE for User:eve" in line
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


@pytest.mark.parametrize("why", ["no node answers", "no leader yet"])
def test_what_may_pass_is_no_missing_topic(make: Make, caplog: pytest.LogCaptureFixture, why: str) -> None:
    async def scenario() -> None:
        party = subscribed(make, "t", gives=())
        cluster = Cluster(party, t=LeaderNotAvailableError("an election"))
        cluster.fails = why == "no node answers"
        await cluster.looks()
        assert (said(caplog), cluster.missing) == ([], 0)
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


def test_a_member_that_was_evicted_says_it_no_second_time(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        party = make(Coordinator(), max_poll_interval_ms=20, enable_auto_commit=False)
        party.subscribe()
        cluster = Cluster(party, t=unknown())
        await cluster.looks()
        await party.is_evicted()
        await party.until(lambda: not party.group.is_evicted)
        await cluster.looks()
        assert len(said(caplog)) == 1
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


RE2_ONLY = r"\pN+"  #: Python does not know it.


@pytest.mark.parametrize(
    ("pattern", "is_missing"), [("ordr.*", True), ("ord.*", False), ("rder", True), (RE2_ONLY, False)]
)
def test_a_pattern_that_matches_no_topic_is_named_once(
    make: Make, caplog: pytest.LogCaptureFixture, pattern: str, *, is_missing: bool
) -> None:
    asked = 0

    async def ask(request: Any, deadline: float) -> Any:
        nonlocal asked
        assert request.all_topics
        asked += 1
        return metadata_pb2.MetadataResponse(topics=[metadata_pb2.TopicMetadata(name="orders")])

    async def scenario() -> None:
        party = make(Coordinator())
        party.subscribe()
        party.core.engine.metadata.ask = ask  # type: ignore[method-assign]
        party.group.subscribe(Subscription(pattern=pattern), party.callbacks)
        if is_missing:
            await party.until(lambda: asked >= 3)
        else:
            await party.until(lambda: (task := party.group._missing._task) is not None and task.done())
        assert party.core.metric_values()["subscribed-topics-missing"] == is_missing
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)
    lines = [each.getMessage() for each in caplog.records if "pattern" in each.message]
    assert lines == [f"group 'g': no topic matches the subscribed pattern {pattern!r}"] * is_missing
