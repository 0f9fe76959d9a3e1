"""A node's description of itself, for any client, at any rate."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace_core.membership import node_description
from headrace_core.membership.node_description import DESCRIPTORS_KEPT_MS, NodeService
from headrace_protos.v1 import node_pb2


class Clock:
    """A clock that the test sets."""

    at_ms = 1_000.0

    def now_ms(self) -> int:
        return 5

    def monotonic_ms(self) -> float:
        return self.at_ms


def test_descriptors_are_counted_once_a_second_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter((10, 20, 30))
    monkeypatch.setattr(node_description, "open_descriptors", lambda: next(counts))
    clock: Any = Clock()
    service = NodeService("broker", lambda: 1, lambda: "c", clock)

    def count() -> int:
        return int(asyncio.run(service.DescribeNode(node_pb2.DescribeNodeRequest(), None)).open_descriptors)

    assert [count() for _ in range(5)] == [10] * 5
    clock.at_ms += DESCRIPTORS_KEPT_MS
    assert [count(), count()] == [20, 20]


@pytest.mark.parametrize("has_directory", [True, False])
def test_a_node_with_a_directory_describes_its_disk(tmp_path: Path, *, has_directory: bool) -> None:
    clock: Any = Clock()
    directory = str(tmp_path) if has_directory else ""
    service = NodeService("coordinator", lambda: 1, lambda: "c", clock, directory=directory)
    answer = asyncio.run(service.DescribeNode(node_pb2.DescribeNodeRequest(), None))
    assert answer.HasField("disk") is has_directory
    if has_directory:
        assert answer.disk.path == directory
        assert 0 < answer.disk.free_bytes <= answer.disk.total_bytes


def test_a_directory_that_is_gone_hides_only_the_disk(tmp_path: Path) -> None:
    clock: Any = Clock()
    service = NodeService("coordinator", lambda: 1, lambda: "c", clock, directory=str(tmp_path / "gone"))
    answer = asyncio.run(service.DescribeNode(node_pb2.DescribeNodeRequest(), None))
    assert (answer.node_id, answer.HasField("disk")) == (1, False)
