"""Ports for nodes."""

from __future__ import annotations

import random
import socket

import pytest

from headrace_tools.local import ports


def test_picked_ports_lie_outside_of_the_ephemeral_range_and_are_different() -> None:
    low, high = ports.ephemeral_range()
    found = ports.pick(20)
    assert len(set(found)) == 20
    assert not [port for port in found if low <= port <= high]


def test_a_port_that_is_listened_on_is_not_free_and_never_picked(rng: random.Random) -> None:
    state = rng.getstate()
    (first,) = ports.pick(1, chance=rng)
    with socket.socket() as taken:
        # A port is free although connections to a former server are in TIME_WAIT.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", first))
        taken.listen()
        assert not ports.is_free(first)
        rng.setstate(state)
        assert ports.pick(1, chance=rng) != [first]
    assert ports.is_free(first)


def test_ports_to_avoid_are_avoided(rng: random.Random) -> None:
    state = rng.getstate()
    first = ports.pick(3, chance=rng)
    rng.setstate(state)
    assert not set(ports.pick(3, avoid=first, chance=rng)) & set(first)


def test_parallel_workers_of_pytest_never_pick_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's cluster once took the port of a broker that another worker's test had killed and started again."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    picked: list[set[int]] = []
    for worker in ("gw0", "gw1", "gw2"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        picked.append(set(ports.pick(3_000)))
    assert len(set.union(*picked)) == 9_000
