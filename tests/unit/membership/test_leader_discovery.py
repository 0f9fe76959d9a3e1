"""The leader, the controllers' addresses, and the controller to ask next."""

from __future__ import annotations

import asyncio

from headrace_core.errors import NetworkError, NotControllerError
from headrace_core.membership.controllers import Controllers
from headrace_core.membership.leader_discovery import LeaderDiscovery
from headrace_core.types import NO_LEADER, join_address, split_address
from tests.worlds.waiting import in_loop

_LOST = NetworkError("gone")


def _three() -> Controllers:
    controllers = Controllers(["a:1"])
    controllers.named({1: "a:1", 2: "b:1", 3: "c:1"})
    return controllers


def test_addresses_with_an_ipv6_host_are_whole_again() -> None:
    for address in ("h:1", "127.0.0.1:19093", "[::1]:5"):
        assert join_address(*split_address(address)) == address
    assert split_address("[::1]:5") == ("::1", 5)


def test_who_leads_in_an_older_epoch_leads_no_more() -> None:
    controllers = _three()
    controllers.led_by(1, 5)
    controllers.led_by(2, 4)
    assert (controllers.leader_id, controllers.leader_epoch) == (1, 5)
    controllers.led_by(NO_LEADER, 5)  # a follower that does not know the new leader yet
    assert controllers.leader_address == "a:1"
    controllers.led_by(NO_LEADER, 6)  # an election is going on
    assert controllers.leader_address is None
    controllers.led_by(3, 6)
    assert controllers.leader_address == "c:1"
    assert controllers.candidates() == ["c:1", "a:1", "b:1"]


def test_a_refusal_that_names_the_leader_is_followed_at_once_whatever_was_known_of_it() -> None:
    controllers = Controllers(["a:1"])
    discovery = LeaderDiscovery(controllers)
    assert discovery.failed(NotControllerError("no", leader=(2, 7, "b:1"))) == 0
    assert discovery.address == "b:1"
    assert (controllers.leader_id, controllers.leader_epoch) == (2, 7)
    assert LeaderDiscovery(controllers).address == "b:1"


def test_two_that_name_each_other_end_a_chase_with_a_pause() -> None:
    controllers = Controllers(["a:1", "b:1"])
    discovery = LeaderDiscovery(controllers)
    pauses = []
    for epoch in range(20):
        named = (2, epoch, "b:1") if discovery.address == "a:1" else (1, epoch, "a:1")
        pauses.append(discovery.failed(NotControllerError("no", leader=named)))
    assert sum(pause > 0 for pause in pauses) >= 5


def test_all_are_tried_before_there_is_a_pause_and_pauses_grow_to_a_bound() -> None:
    discovery = LeaderDiscovery(_three(), pause_ms_max=200)
    asked, pauses = [], []
    for _ in range(30):
        asked.append(discovery.address)
        pauses.append(discovery.failed(_LOST))
    assert {*asked[:3]} == {"a:1", "b:1", "c:1"}
    assert [pause > 0 for pause in pauses] == [False, False, True] * 10
    assert 0.04 <= pauses[2] <= 0.06
    assert max(pauses) <= 0.24


@in_loop
async def test_a_pause_ends_when_a_leader_is_known() -> None:
    controllers = _three()
    discovery = LeaderDiscovery(controllers)
    waiting = asyncio.create_task(discovery.pause(600))
    await asyncio.sleep(0)
    controllers.led_by(3, 1)
    async with asyncio.timeout(60):
        await waiting
    assert discovery.address == "c:1"


def test_a_leader_that_became_known_during_an_attempt_is_asked_next_and_once() -> None:
    controllers = _three()
    discovery = LeaderDiscovery(controllers)
    discovery.failed(_LOST)
    discovery.failed(_LOST)
    controllers.led_by(2, 4)  # while the third one is asked
    assert (discovery.failed(_LOST), discovery.address) == (0.0, "b:1")
    assert discovery.failed(_LOST) > 0, "all were asked in vain"
    assert discovery.address == "c:1"


def test_a_dead_leader_that_all_still_name_does_not_keep_anybody_from_being_asked() -> None:
    controllers = _three()
    controllers.led_by(1, 3)
    discovery = LeaderDiscovery(controllers)
    asked = []
    for _ in range(9):
        asked.append(discovery.address)
        dead = discovery.address == "a:1"
        discovery.failed(_LOST if dead else NotControllerError("no", leader=(1, 3, "a:1")))
    assert {*asked[:3]} == {*asked[3:6]} == {*asked[6:]} == {"a:1", "b:1", "c:1"}


def test_a_connection_that_worked_and_broke_is_made_again_before_anybody_else_is_asked() -> None:
    controllers = _three()
    controllers.led_by(1, 3)
    discovery = LeaderDiscovery(controllers)
    discovery.worked()
    assert (discovery.failed(_LOST), discovery.address) == (0.0, "a:1")
    assert (discovery.failed(_LOST), discovery.address) == (0.0, "b:1"), "once"
    discovery.follow()
    discovery.worked()
    assert (discovery.failed(NotControllerError("no", leader=(3, 4, "c:1"))), discovery.address) == (0.0, "c:1")
    discovery.worked()
    discovery.is_silent()
    assert (discovery.failed(_LOST), discovery.address) == (0.0, "a:1"), "nothing broke: to ask again is to wait again"
