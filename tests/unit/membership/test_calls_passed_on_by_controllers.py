"""Calls forwarded by a controller that does not lead, while leadership moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace_controller.handlers.forwarding import LeaderLink
from headrace_core.errors import NotControllerError, RequestTimedOutError, TopicAlreadyExistsError
from headrace_protos.v1 import admin_pb2
from tests.unit.membership.test_calls_to_the_leader import Controller, lead, three
from tests.worlds.waiting import until_async as until


class Driver:
    """A controller that does not lead, with the attributes that LeaderLink reads."""

    def __init__(self, found: list[Controller]) -> None:
        self.controller = self
        self.addresses = {each.node_id: each.address for each in found}
        self.leader_id = 1
        self.watchers: list[Callable[[], None]] = []

    def on_turn(self, watcher: Callable[[], None]) -> None:
        self.watchers.append(watcher)

    def led_by(self, leader_id: int) -> None:
        self.leader_id = leader_id
        for watcher in self.watchers:
            watcher()

    def not_controller(self) -> NotControllerError:
        return NotControllerError("no leader is known")


def create(name: str) -> admin_pb2.CreateTopicsRequest:
    return admin_pb2.CreateTopicsRequest(topics=[admin_pb2.NewTopic(name=name)])


def run(work: Callable[[list[Controller], Driver, LeaderLink], Any]) -> None:
    async def live() -> None:
        async with three() as (found, _):
            driver = Driver(found)
            link = LeaderLink(driver)  # type: ignore[arg-type]
            try:
                await work(found, driver, link)
            finally:
                await link.close()

    asyncio.run(live())


def test_a_change_whose_answer_was_lost_has_an_unknown_outcome_and_is_not_to_be_repeated() -> None:
    async def work(found: list[Controller], driver: Driver, link: LeaderLink) -> None:
        found[0].mood = "breaks"
        with pytest.raises(RequestTimedOutError, match="whether the controller carried out the request is unknown"):
            await link.call("CreateTopics", create("t"), 20)
        assert found[0].created == ["t"]

    run(work)


def test_what_only_reads_may_be_asked_again_when_its_answer_was_lost() -> None:
    async def work(found: list[Controller], driver: Driver, link: LeaderLink) -> None:
        found[0].mood = "breaks"
        with pytest.raises(NotControllerError, match="retry"):
            await link.call("DescribeQuorum", admin_pb2.DescribeQuorumRequest(), 20)
        lead(found[1:], None, 2, 2)
        driver.led_by(2)
        assert (await link.call("DescribeQuorum", admin_pb2.DescribeQuorumRequest(), 20)).leader_id == 2

    run(work)


def test_a_leader_that_stands_still_is_not_waited_for_once_another_leads() -> None:
    async def work(found: list[Controller], driver: Driver, link: LeaderLink) -> None:
        found[0].mood = "stands still"
        asked = asyncio.ensure_future(link.call("CreateTopics", create("t"), 600))
        await until(lambda: found[0].stuck, "the first one to be asked")
        lead(found[1:], None, 2, 2)
        driver.led_by(2)
        with pytest.raises(RequestTimedOutError, match=r"another controller is leader now.*is unknown"):
            await asked
        await link.call("CreateTopics", create("u"), 600)
        assert found[1].created == ["u"]

    run(work)


def test_a_leader_that_makes_way_answers_what_it_was_asked_before() -> None:
    """The next request goes to the next leader on a separate channel. The answer to the first request still arrives."""

    async def work(found: list[Controller], driver: Driver, link: LeaderLink) -> None:
        found[0].mood, found[1].mood = "takes its time", "leads"
        asked = asyncio.ensure_future(link.call("CreateTopics", create("t"), 20))
        await until(lambda: found[0].stuck, "the first one to be asked")
        driver.led_by(2)
        await link.call("CreateTopics", create("u"), 20)
        found[0].goes_on.set()
        assert (await asked).metadata_offset == 9
        assert (found[0].created, found[1].created) == (["t"], ["u"])

    run(work)


def test_who_cannot_be_reached_has_done_nothing_and_the_leaders_own_errors_are_passed_back() -> None:
    async def work(found: list[Controller], driver: Driver, link: LeaderLink) -> None:
        found[1].mood = "refuses"
        driver.led_by(2)
        with pytest.raises(TopicAlreadyExistsError, match="it exists"):
            await link.call("CreateTopics", create("t"), 20)
        await found[0].stop()
        driver.led_by(1)
        with pytest.raises(NotControllerError, match=r"cannot reach the leading controller.*; retry"):
            await link.call("CreateTopics", create("t"), 20)
        driver.led_by(-1)
        with pytest.raises(NotControllerError, match="no leader is known"):
            await link.call("CreateTopics", create("t"), 20)

    run(work)
