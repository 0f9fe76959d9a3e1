"""A node that runs out of file descriptors: it notices early, uses its reserve, and reports the end of the shortage."""

from __future__ import annotations

import errno

from headrace_core.node.descriptors import CONNECTIONS_MIN, FLOOR, RESERVE, DescriptorWatch, connections_with_room


class Process:
    """Allocates descriptor numbers as POSIX does: the lowest free number."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used: set[int] = set()
        self.said: list[bool] = []
        self.watch = DescriptorWatch(self.said.append, open_one=self.open, close=self.used.remove)

    def open(self) -> int:
        number = next(each for each in range(self.limit + 1) if each not in self.used)
        if number >= self.limit:
            raise OSError(errno.EMFILE, "too many open files")
        self.used.add(number)
        return number

    def others(self, count: int) -> None:
        for _ in range(count):
            self.open()


def test_watch_holds_a_reserve_and_is_quiet_while_there_are_enough() -> None:
    process = Process(1_000)
    process.others(100)
    for _ in range(3):
        process.watch.check()
    assert len(process.used) == 100 + RESERVE
    assert process.said == []
    process.watch.close()
    assert len(process.used) == 100


def test_shortage_is_reported_once_and_the_reserve_given_up() -> None:
    process = Process(1_000)
    process.watch.check()
    process.others(1_000 - RESERVE - FLOOR + 1)
    for _ in range(3):
        process.watch.check()
    assert process.said == [True]
    assert 1_000 - len(process.used) >= RESERVE
    process.others(1_000 - len(process.used))  # no descriptor is left at all
    process.watch.check()
    assert process.said == [True]


def test_shortage_is_over_when_twice_as_many_are_free() -> None:
    """The broker gets its leaderships back only when the reserve is also free. With the minimum of free descriptors
    alone, the leaderships would move back and forth."""
    process = Process(1_000)
    process.others(1_000)
    process.watch.check()
    for number in range(1_000 - FLOOR - 5, 1_000):
        process.used.remove(number)
    process.watch.check()
    assert process.said == [True]
    for number in range(1_000 - 2 * FLOOR - RESERVE - 5, 1_000 - FLOOR - 5):
        process.used.remove(number)
    process.watch.check()
    assert process.said == [True, False]


def test_limit_that_is_raised_while_the_node_runs_counts() -> None:
    process = Process(100)
    process.others(90)
    process.watch.check()
    process.limit = 1_000
    process.watch.check()
    assert process.said == [True, False]


def test_connections_leave_descriptors_for_files_and_other_nodes() -> None:
    assert connections_with_room(10_000, files=1_000, limit=1_048_576) == 10_000
    assert connections_with_room(10_000, files=1_000, limit=4_096) == 4_096 - 1_000 - 128 - FLOOR - RESERVE
    assert connections_with_room(10_000, files=10_000, limit=1_024) == (1_024 - 128) // 2
    assert connections_with_room(10_000, files=10_000, limit=64) == CONNECTIONS_MIN
    assert connections_with_room(5, files=10, limit=4_096) == CONNECTIONS_MIN
