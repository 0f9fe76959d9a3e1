"""The controller and the streams of brokers. A heartbeat that has arrived counts before a silence does, and the
controller never forgets the end of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headrace_controller.cluster.requests import (
    CreateTopics,
    Heartbeat,
    HeartbeatsEnded,
    NewTopic,
    RegisterBroker,
    Registered,
    Request,
)
from headrace_controller.deciding import TURN_RECORDS_MAX
from headrace_controller.handlers.cluster import _BrokerHeartbeats
from headrace_controller.quorum_controller import QuorumController
from headrace_controller.waiting import Answer
from headrace_core.errors import DuplicateBrokerRegistrationError
from headrace_core.metadata import BrokerEndpoint
from headrace_core.testing.clock import ManualClock
from headrace_protos.v1 import cluster_pb2
from tests.worlds.cluster_world import CLUSTER, id16
from tests.worlds.controllers_world import formatted, new_driver, open_storage

SESSION_MS, GRACE_MS = 9_000, 500


class Lone:
    """One controller, which runs turn by turn."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.storage = open_storage(formatted(), self.clock)
        self.controller: QuorumController = new_driver(self.storage, self.clock).controller
        self.controller.start()
        self.broker = self.register(life=0)
        self.submit(self.beat(stream=1))
        self.turn()
        assert not self.is_fenced

    @property
    def is_fenced(self) -> bool:
        return self.controller.image.brokers[1].fenced

    def beat(self, stream: int) -> Heartbeat:
        applied = self.controller.image.next_offset
        return Heartbeat(
            broker_id=1, broker_epoch=self.broker.broker_epoch, metadata_offset=applied, want_fence=False, stream=stream
        )

    def ended(self, stream: int) -> HeartbeatsEnded:
        return HeartbeatsEnded(1, self.broker.broker_epoch, stream=stream)

    def register(self, life: int) -> Registered:
        request = RegisterBroker(
            cluster_id=CLUSTER,
            incarnation_id=id16(1_000 + life),
            directory_ids=(id16(1),),
            endpoints=(BrokerEndpoint("client", "h", 1),),
        )
        answers = self.submit(request)
        self.turn()
        (answer,) = answers
        if not isinstance(answer, Answer):
            raise answer
        assert isinstance(answer.reply, Registered)
        return answer.reply

    def submit(self, request: Request) -> list[Any]:
        answers: list[Any] = []
        self.controller.submit(request, answers.append)
        return answers

    def turn(self) -> None:
        """Run turns until no work is due."""
        for _ in range(20):
            if self.controller.begin():
                self.controller.persist()
            self.controller.finish()
            if self.controller.until_due_ms() > 0:
                return
        raise AssertionError("no end of turns")


@pytest.fixture
def lone() -> Iterator[Lone]:
    made = Lone()
    yield made
    made.storage.close()


def test_a_broker_that_is_back_when_a_slow_turn_ends_is_not_fenced(lone: Lone) -> None:
    lone.submit(lone.ended(stream=1))
    lone.turn()
    written = lone.controller.image.next_offset
    lone.submit(lone.beat(stream=2))  # milliseconds later; but the disk is slow
    lone.clock.advance(GRACE_MS + 100)
    lone.turn()
    lone.clock.advance(GRACE_MS + 100)
    lone.turn()
    assert lone.controller.image.next_offset == written, "fenced, and unfenced in the same turn: leaderships moved"


def test_a_heartbeat_that_waits_for_its_turn_ends_the_silence(lone: Lone) -> None:
    # (after a longer pause, the controller would notice that it was paused itself)
    lone.clock.advance(SESSION_MS / 2 - 600)
    lone.turn()
    lone.clock.advance(SESSION_MS / 2 - 600)
    lone.turn()
    written = lone.controller.image.next_offset
    lone.submit(lone.beat(stream=1))
    lone.clock.advance(1_300)
    lone.turn()
    assert lone.controller.image.next_offset == written


def test_who_does_not_come_back_is_fenced_in_the_turn_after_its_grace(lone: Lone) -> None:
    lone.submit(lone.ended(stream=1))
    lone.turn()
    lone.clock.advance(GRACE_MS + 1)
    lone.turn()
    assert lone.is_fenced


def test_a_controller_that_stood_still_takes_nobody_for_dead_before_it_has_listened(lone: Lone) -> None:
    lone.clock.advance(SESSION_MS + 1_000)
    written = lone.controller.image.next_offset
    with pytest.raises(DuplicateBrokerRegistrationError):  # decided in the first turn after the pause
        lone.register(life=1)
    assert lone.controller.image.next_offset == written


# -- much at once -----------------------------------------------------------------------------------------------------


def crowd(lone: Lone, brokers: int, partitions: int) -> list[Registered]:
    """More brokers, each with this number of partitions."""
    made = []
    for number in range(2, 2 + brokers):
        registering = lone.submit(
            RegisterBroker(
                cluster_id=CLUSTER,
                incarnation_id=id16(5_000 + number),
                directory_ids=(id16(number),),
                endpoints=(BrokerEndpoint("client", "h", number),),
            )
        )
        lone.turn()
        broker: Registered = registering[0].reply
        lone.submit(beat_of(lone, broker))
        lone.turn()
        topic = NewTopic(
            name=f"of-{number}", partitions=-1, assignments=dict.fromkeys(range(partitions), (broker.broker_id,))
        )
        creating = lone.submit(CreateTopics((topic,)))
        lone.turn()
        assert creating[0].reply[0].error is None
        made.append(broker)
    return made


def beat_of(lone: Lone, broker: Registered, *, want_shutdown: bool = False) -> Heartbeat:
    applied = lone.controller.image.next_offset
    return Heartbeat(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        metadata_offset=applied,
        want_shutdown=want_shutdown,
        stream=1,
    )


def one_turn(lone: Lone) -> int:
    """The number of records that the controller wrote."""
    before = lone.storage.log_end_offset
    if lone.controller.begin():
        lone.controller.persist()
    lone.controller.finish()
    return lone.storage.log_end_offset - before


def test_many_brokers_that_are_lost_at_once_are_fenced_over_several_turns(lone: Lone) -> None:
    """A thousand changed partitions take 7 ms. If a leader is busy for a second, the other controllers consider it
    dead."""
    brokers = crowd(lone, brokers=5, partitions=4_000)
    for each in brokers:
        lone.submit(HeartbeatsEnded(each.broker_id, each.broker_epoch, stream=1))
    lone.turn()
    wrote = []
    for _ in range(10):
        lone.clock.advance(GRACE_MS + 1)
        lone.submit(lone.beat(stream=1))
        wrote.append(one_turn(lone))
    assert sum(wrote) == 5 * 4_001
    assert max(wrote) <= TURN_RECORDS_MAX + 4_001


def test_many_large_requests_are_decided_over_several_turns_and_none_is_forgotten(lone: Lone) -> None:
    brokers = crowd(lone, brokers=5, partitions=4_000)
    answers = [lone.submit(beat_of(lone, each, want_shutdown=True)) for each in brokers]
    wrote = []
    while not all(answers):
        assert lone.controller.until_due_ms() <= 0, "somebody waits, and nothing is due"
        wrote.append(one_turn(lone))
    assert sum(wrote) == 5 * 4_001
    assert max(wrote) <= TURN_RECORDS_MAX + 4_001


# -- streams ----------------------------------------------------------------------------------------------------------


class _Driver:
    """A controller that answers nothing."""

    def __init__(self) -> None:
        self.said: list[Request] = []
        self.image = type("Image", (), {"next_offset": 10})()

    async def ask(self, request: Request) -> Any:
        self.said.append(request)
        await asyncio.get_running_loop().create_future()

    def tell(self, request: Request) -> None:
        self.said.append(request)


async def _said(turns_before_the_end: int) -> list[Request]:
    """Open a stream to the driver with one heartbeat. The stream ends this number of loop turns after the heartbeat."""
    driver: Any = _Driver()
    stream = _BrokerHeartbeats(driver, None, ManualClock())  # type: ignore[arg-type]
    stream.on_request(cluster_pb2.BrokerHeartbeatRequest(broker_id=1, broker_epoch=7))
    for _ in range(turns_before_the_end):
        await asyncio.sleep(0)
    stream.on_closed()
    await asyncio.sleep(0)
    said: list[Request] = driver.said
    return said


def test_a_stream_that_breaks_before_its_first_answer_has_broken() -> None:
    beat, ended = asyncio.run(_said(turns_before_the_end=1))
    assert isinstance(beat, Heartbeat)
    assert ended == HeartbeatsEnded(1, 7, stream=beat.stream)


def test_a_heartbeat_of_a_stream_that_is_gone_is_no_sign_of_life() -> None:
    assert not [each for each in asyncio.run(_said(turns_before_the_end=0)) if isinstance(each, Heartbeat)]
