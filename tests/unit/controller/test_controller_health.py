"""A controller's reported health with a leader, without one, and with a leader again; and how it names a voter."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace_controller.health import Health
from headrace_controller.raft import ReplicaKey
from headrace_core.node.ids import id_from_text, id_to_text
from tests.worlds.this_process import logged


class Recorder:
    """A listener that keeps the states of its health service."""

    def __init__(self) -> None:
        self.states: asyncio.Queue[bool] = asyncio.Queue()

    async def serving(self, serves: bool) -> None:
        self.states.put_nowait(serves)


def test_a_controller_that_lost_its_leader_says_who_leads_afterwards(caplog: pytest.LogCaptureFixture) -> None:
    async def live() -> None:
        controller = SimpleNamespace(node_id=2, leader_id=-1, term=0, is_serving=False)
        recorder = Recorder()
        health = Health(cast(Any, controller), [cast(Any, recorder)])
        running = asyncio.create_task(health.run())
        for serves, leader, term in ((True, 1, 4), (False, -1, 5), (True, 3, 6)):
            controller.is_serving, controller.leader_id, controller.term = serves, leader, term
            health.look()
            async with asyncio.timeout(60):
                assert await recorder.states.get() is serves
                await asyncio.sleep(0)
        running.cancel()

    with caplog.at_level(logging.INFO, logger="headrace.controller"):
        asyncio.run(live())
    assert [record.getMessage() for record in logged(caplog)] == [
        "controller 2 has no leader: not serving; check that a majority of the controllers runs",
        "controller 2 serves again: controller 3 leads in term 6",
    ]


def test_a_voter_is_named_as_quorum_status_names_it_in_short() -> None:
    key = ReplicaKey(2, id_from_text("MvDxzVmcRsaTz33bUuRU6A"))
    assert str(key) == "2@MvDxzV"
    assert id_to_text(key.directory_id).startswith("MvDxzV")
    assert str(ReplicaKey(7)) == "7"
