"""Events: each is emitted once, received by all listeners, and written as one line."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from headrace_core import telemetry
from headrace_core.telemetry import BrokerFenced, BrokerUnfenced, Emitter, Event, Metrics, PartitionClosed, log_events
from headrace_core.types import TopicPartition


def test_every_subscriber_hears_every_event_in_order():
    emitter = Emitter()
    events: list[tuple[str, Event]] = []
    emitter.subscribe(lambda event: events.append(("first", event)))
    emitter.subscribe(lambda event: events.append(("second", event)))
    event = BrokerUnfenced(broker_id=1)
    emitter.emit(event)
    assert events == [("first", event), ("second", event)]


def test_a_subscriber_that_fails_does_not_keep_the_others_from_hearing(caplog):
    emitter = Emitter()
    events: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("full")

    emitter.subscribe(broken)
    emitter.subscribe(events.append)
    emitter.emit(BrokerUnfenced(broker_id=1))
    emitter.emit(BrokerUnfenced(broker_id=2))
    assert len(events) == 2
    assert "BrokerUnfenced(broker_id=1)" in caplog.text


def test_who_unsubscribed_hears_no_more():
    emitter = Emitter()
    events: list[Event] = []
    unsubscribe = emitter.subscribe(events.append)
    unsubscribe()
    unsubscribe()
    emitter.emit(BrokerUnfenced(broker_id=1))
    assert events == []


def test_an_event_is_one_line_at_its_own_severity(caplog):
    logger = logging.getLogger("test.events")
    subscriber = log_events(logger)
    with caplog.at_level(logging.INFO, logger="test.events"):
        subscriber(BrokerFenced(broker_id=3, reason="no heartbeat for 9 s"))
        subscriber(PartitionClosed(partition=TopicPartition("orders", 1), deleted=True))  # debug: not wanted
    (record,) = (each for each in caplog.records if each.name == "test.events")
    assert (record.levelno, record.getMessage()) == (
        logging.WARNING,
        "BrokerFenced broker_id=3 reason='no heartbeat for 9 s'",
    )


@pytest.mark.parametrize(
    "event", [each for each in vars(telemetry).values() if isinstance(each, type) and issubclass(each, Event)]
)
def test_events_are_frozen_and_say_what_they_mean(event):
    assert dataclasses.is_dataclass(event)
    assert event.__dataclass_params__.frozen
    assert event.__doc__


def test_counters_are_shared_by_name_and_seen_in_a_snapshot():
    metrics = Metrics()
    metrics.counter("requests").value += 2
    metrics.counter("requests").value += 3
    metrics.counter("errors")
    assert metrics.snapshot() == {"requests": 5, "errors": 0}
