"""The directory of gateways: what the leading controller remembers, and what a gateway believes of its answers."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace_controller.handlers import gateways as module
from headrace_controller.handlers.gateways import COMPLETE_MS, FORGET_MS, GATEWAYS_MAX, HOLD_S, GatewayDirectory
from headrace_core.errors import ServerBusyError
from headrace_gateway.directory import GatewayList, announced, entry_of
from headrace_kafka.cluster import GatewayEntry, ListenerPorts
from headrace_protos.v1 import cluster_pb2


def entry(number: int, **broker_ports: int) -> GatewayEntry:
    ports = {int(name[1:]): port for name, port in broker_ports.items()}
    return GatewayEntry(bytes([number]) * 16, {"PLAINTEXT": ListenerPorts(f"host-{number}", 9092, ports)})


def announcement(number: int, *, is_leaving: bool = False, **broker_ports: int) -> cluster_pb2.AnnounceGatewayRequest:
    return cluster_pb2.AnnounceGatewayRequest(
        cluster_id="c", gateway=announced(entry(number, **broker_ports)), is_leaving=is_leaving
    )


def names(answer: cluster_pb2.AnnounceGatewayResponse) -> list[int]:
    return [each.gateway_id[0] for each in answer.gateways]


def answer_of(*entries: GatewayEntry, is_complete: bool = True) -> cluster_pb2.AnnounceGatewayResponse:
    return cluster_pb2.AnnounceGatewayResponse(gateways=map(announced, entries), is_complete=is_complete)


@pytest.mark.parametrize("rack", [None, "eu-1a"])
def test_an_entry_survives_the_wire(rack: str | None) -> None:
    sent = entry(1, b1=19093, b12=19104)._replace(rack=rack)
    assert entry_of(announced(sent)) == sent


def answer_to(
    directory: GatewayDirectory, request: cluster_pb2.AnnounceGatewayRequest, term: int, now_ms: float
) -> Any:
    """Announce a gateway, and return the answer that it gets."""
    directory.announce(request, term, now_ms)
    return directory.answer(now_ms)


def test_a_gateway_is_named_until_it_has_been_silent_for_too_long() -> None:
    directory = GatewayDirectory()
    answer_to(directory, announcement(1), 5, 0)
    assert names(answer_to(directory, announcement(2), 5, FORGET_MS)) == [1, 2]
    assert names(answer_to(directory, announcement(2), 5, FORGET_MS + 1)) == [2]


def test_a_gateway_that_leaves_is_forgotten_at_once() -> None:
    directory = GatewayDirectory()
    answer_to(directory, announcement(1), 5, 0)
    assert names(answer_to(directory, announcement(2), 5, 1)) == [1, 2]
    assert names(answer_to(directory, announcement(1, is_leaving=True), 5, 2)) == [2]


def test_a_gateway_is_forgotten_when_its_last_announcement_breaks() -> None:
    directory = GatewayDirectory()
    old = directory.announce(announcement(1), 5, 0)
    new = directory.announce(announcement(1), 5, 1)
    directory.lost(announcement(1).gateway.gateway_id, old)  # it has called again over another connection
    assert names(directory.answer(2)) == [1]
    directory.lost(announcement(1).gateway.gateway_id, new)
    assert names(directory.answer(3)) == []


def test_new_addresses_replace_the_old_ones() -> None:
    directory = GatewayDirectory()
    answer_to(directory, announcement(1, b1=1), 5, 0)
    (found,) = answer_to(directory, announcement(1, b1=1, b2=2), 5, 1).gateways
    assert entry_of(found) == entry(1, b1=1, b2=2)


def test_a_new_term_begins_without_gateways_and_says_so() -> None:
    directory = GatewayDirectory()
    answer_to(directory, announcement(1), 5, 0)
    assert answer_to(directory, announcement(1), 5, COMPLETE_MS + 1).is_complete
    answer = answer_to(directory, announcement(2), 6, COMPLETE_MS + 2)
    assert (names(answer), answer.is_complete) == ([2], False)
    assert answer_to(directory, announcement(2), 6, 2 * COMPLETE_MS + 3).is_complete


def test_the_version_differs_exactly_when_the_gateways_differ() -> None:
    directory = GatewayDirectory()
    versions = [
        answer_to(directory, announcement(1), 5, 0).version,
        answer_to(directory, announcement(1), 5, 1).version,
        answer_to(directory, announcement(1, b1=1), 5, 2).version,
        answer_to(directory, announcement(2), 5, 3).version,
        answer_to(directory, announcement(2), 5, 4).version,
        answer_to(directory, announcement(2), 5, 3 + FORGET_MS).version,
        answer_to(directory, announcement(2), 6, 4 + FORGET_MS).version,
        answer_to(directory, announcement(2, is_leaving=True), 6, 5 + FORGET_MS).version,
        answer_to(directory, announcement(2, is_leaving=True), 6, 6 + FORGET_MS).version,
    ]
    assert [each == before for before, each in itertools.pairwise(versions)] == [
        *(True, False, False, True),
        *(False, False, False, True),
    ]
    assert len(set(versions)) == 6
    assert 0 not in versions


def test_an_announcement_waits_until_the_gateways_change(monkeypatch: pytest.MonkeyPatch) -> None:
    async def changes_after(change: Callable[[GatewayDirectory], object]) -> float:
        directory = GatewayDirectory()
        known = answer_to(directory, announcement(1), 5, 0).version
        waiting = asyncio.create_task(directory.wait_changed(known))
        await asyncio.sleep(0)
        began_s = time.monotonic()
        change(directory)
        await waiting
        return time.monotonic() - began_s

    with monkeypatch.context() as patch:
        patch.setattr(module, "HOLD_S", 60.0)
        assert asyncio.run(changes_after(lambda directory: directory.announce(announcement(2), 5, 1))) < 60.0 / 2
    assert asyncio.run(changes_after(lambda directory: directory.announce(announcement(1), 5, 1))) >= HOLD_S * 0.9


def test_the_number_of_gateways_is_limited() -> None:
    directory = GatewayDirectory()
    for number in range(GATEWAYS_MAX):
        request = announcement(1)
        request.gateway.gateway_id = number.to_bytes(16, "big")
        directory.announce(request, 5, 0)
    directory.announce(request, 5, 1)  # a known one is still served
    with pytest.raises(ServerBusyError, match="1000 gateways"):
        directory.announce(announcement(255), 5, 1)


def test_a_complete_answer_decides() -> None:
    gateways = GatewayList(bytes([1]) * 16)
    gateways.serves(entry(1))
    gateways.apply(answer_of(entry(1), entry(2), entry(3)), 0)
    assert gateways.entries == (entry(1), entry(2), entry(3))
    gateways.apply(answer_of(entry(1), entry(3)), 1)
    assert gateways.entries == (entry(1), entry(3))


def test_an_answer_of_a_new_leader_removes_no_gateway_at_once() -> None:
    gateways = GatewayList(bytes([1]) * 16)
    gateways.serves(entry(1))
    gateways.apply(answer_of(entry(2), entry(3)), 0)
    gateways.apply(answer_of(entry(3), is_complete=False), FORGET_MS)
    assert gateways.entries == (entry(1), entry(2), entry(3))
    gateways.apply(answer_of(entry(3), is_complete=False), FORGET_MS + 1)
    assert gateways.entries == (entry(1), entry(3))


def test_a_gateway_knows_its_own_addresses_best() -> None:
    gateways = GatewayList(bytes([1]) * 16)
    gateways.serves(entry(1, b1=1, b2=2))
    gateways.apply(answer_of(entry(1, b1=1), entry(2)), 0)
    assert gateways.entries == (entry(1, b1=1, b2=2), entry(2))


def test_an_unchanged_answer_leaves_the_same_object() -> None:
    """Addresses that are computed for clients are kept as long as the object is the same."""
    gateways = GatewayList(bytes([1]) * 16)
    gateways.serves(entry(1))
    gateways.apply(answer_of(entry(1), entry(2)), 0)
    before = gateways.entries
    gateways.apply(answer_of(entry(2), entry(1)), 100)
    gateways.serves(entry(1))
    assert gateways.entries is before
