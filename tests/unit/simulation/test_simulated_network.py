"""The simulated network delays, loses and duplicates messages as configured, counts these faults, and repeats them for
the same seed."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from headrace_core.testing.network import Quality, SimulatedNetwork
from headrace_core.testing.scheduler import Scheduler


class Office:
    """A network, and the messages that arrived."""

    def __init__(self, seed: int, quality: Quality | None = None) -> None:
        self.scheduler = Scheduler()
        self.mail: list[tuple[str, str, int]] = []
        self.times: list[float] = []
        self.faults: Counter[str] = Counter()
        self.net: SimulatedNetwork[str, int] = SimulatedNetwork(
            self.scheduler, random.Random(seed), self._arrived, lambda kind: self.faults.update([kind])
        )
        if quality is not None:
            self.net.quality = quality

    def _arrived(self, sender: str, to: str, message: int) -> None:
        self.mail.append((sender, to, message))
        self.times.append(self.scheduler.now_ms)

    def numbers(self) -> list[int]:
        self.scheduler.run(self.scheduler.now_ms + 10_000)
        return [message for _, _, message in self.mail]


def test_a_good_link_delivers_everything_once_and_in_order(seed: int) -> None:
    office = Office(seed)
    for number in range(200):
        office.net.send("a", "b", number)
    assert office.numbers() == list(range(200))
    assert not office.faults


@pytest.mark.parametrize(
    ("kind", "quality"),
    [
        ("drop", Quality(loss=0.3)),
        ("duplicate", Quality(doubling=0.3)),
        ("reorder", Quality(reordering=0.3)),
        ("delay", Quality(slowness=0.3, slow_ms=100.0)),
    ],
)
def test_each_fault_happens_as_often_as_it_is_counted(kind: str, quality: Quality, seed: int) -> None:
    office = Office(seed, quality)
    for number in range(1000):
        office.net.send("a", "b", number)
    got = office.numbers()
    assert set(office.faults) == {kind}
    assert 200 < office.faults[kind] < 400
    if kind == "drop":
        assert got == sorted(got)
        assert len(got) == 1000 - office.faults[kind]
    elif kind == "duplicate":
        assert len(got) == 1000 + office.faults[kind]
    elif kind == "reorder":
        assert got != sorted(got)
        assert sorted(got) == list(range(1000))
    else:
        assert got == list(range(1000))  # late, but a stream keeps its order
        assert office.times[-1] > 50.0


def test_a_cut_is_of_one_direction_and_loses_what_is_under_way(seed: int) -> None:
    office = Office(seed)
    office.net.send("a", "b", 1)
    office.net.cut([("a", "b")])
    office.net.send("a", "b", 2)
    office.net.send("b", "a", 3)
    assert office.net.is_cut("a", "b")
    assert not office.net.is_whole
    assert office.numbers() == [3]
    office.net.mend([("a", "b")])
    assert office.net.is_whole
    office.net.send("a", "b", 4)
    assert office.numbers() == [3, 4]


def test_old_messages_arrive_again_even_where_the_connection_was_another(seed: int) -> None:
    office = Office(seed)
    for number in range(10):
        office.net.send("a", "b", number)
    office.numbers()
    office.net.reset("a", "b")
    assert office.net.replay(5) == 5
    got = office.numbers()
    assert len(got) == 15
    assert set(got) == set(range(10))
    assert office.faults == {"stale_replay": 5}


def test_nothing_can_be_replayed_before_anything_was_sent() -> None:
    assert Office(1).net.replay(3) == 0


def test_the_same_seed_gives_the_same_mail_at_the_same_times(seed: int) -> None:
    def life(own: int) -> tuple[list[tuple[str, str, int]], list[float]]:
        office = Office(own, Quality(loss=0.1, doubling=0.1, reordering=0.1, slowness=0.1, slow_ms=30.0))
        for number in range(300):
            office.net.send("abc"[number % 3], "bca"[number % 3], number)
        office.net.replay(20)
        office.numbers()
        return office.mail, office.times

    assert life(seed) == life(seed)
    assert life(seed) != life(seed + 1)
