"""An unreachable controller: the broker's log names the address and the cause, without many repeated lines."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from headrace_core.membership.broker_session import BrokerRegistration, BrokerSession, RegisteredBroker
from headrace_core.membership.metadata_follower import MetadataFollower
from headrace_core.rpc import outage as outage_module
from headrace_core.rpc.outage import Outage
from tests.worlds.this_process import logged

logger = logging.getLogger("test.outage")


class Clock:
    """A clock in seconds, which the test advances."""

    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def _said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in logged(caplog)]


def test_an_outage_is_logged_soon_then_every_ten_seconds_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    clock = Clock()
    outage = Outage(logger, "registering", clock=clock)
    logged_at = []
    for tenth in range(250):  # an attempt every 0.1 s
        clock.now_s = 1_000 + tenth / 10
        before = len(logged(caplog))
        outage.failed("10.0.0.1:19094", "connection refused")
        if len(logged(caplog)) > before:
            logged_at.append(tenth / 10)
    assert logged_at == [1.0, 11.0, 21.0]
    assert _said(caplog)[1] == (
        "WARNING",
        "registering: cannot reach the controller at 10.0.0.1:19094 for 11 s, retrying: connection refused",
    )
    outage.over()
    outage.over()
    assert _said(caplog)[3:] == [("INFO", "registering: the connection is back after 25 s")]


def test_a_short_outage_is_not_worth_a_line_and_is_not_added_to_the_next(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    clock = Clock()
    outage = Outage(logger, "heartbeats", clock=clock)
    for _ in range(5):
        outage.failed("10.0.0.1:19094", "gone")
        clock.now_s += 0.9
        outage.failed("10.0.0.1:19094", "gone")
        outage.over()
    assert _said(caplog) == []


@pytest.mark.parametrize("what", ["registering", "following the metadata log", "heartbeats"])
def test_a_broker_says_that_nothing_listens_where_its_controller_should_be(
    what: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An early version of the broker logged nothing about unreachable controllers."""
    monkeypatch.setattr(outage_module, "_GRACE_S", 0.0)
    caplog.set_level(logging.INFO)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        asyncio.run(_try_for_one_line(what, address, caplog))
    level, line = _said(caplog)[0]
    assert level == "WARNING"
    assert line.startswith(f"{what}: cannot reach the controller at {address} for 0 s, retrying: ")
    assert "refused" in line


async def _try_for_one_line(what: str, address: str, caplog: pytest.LogCaptureFixture) -> None:
    registration = BrokerRegistration(
        cluster_id="c", incarnation_id=bytes(16), directory_ids=(bytes(16),), endpoints=(("client", "127.0.0.1", 1),)
    )
    session = BrokerSession([address], registration, heartbeat_interval_ms=100)
    work: asyncio.Future[object]
    if what == "registering":
        work = asyncio.ensure_future(session.register())
    elif what == "heartbeats":
        session._registered = RegisteredBroker(broker_id=1, broker_epoch=1, metadata_offset=0)
        work = asyncio.ensure_future(session.run())
    else:
        work = asyncio.ensure_future(MetadataFollower([address], "c").run())
    try:
        async with asyncio.timeout(60):
            while not logged(caplog):
                assert not work.done(), work
                await asyncio.sleep(0.01)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
