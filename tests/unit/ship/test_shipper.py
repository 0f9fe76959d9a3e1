"""Lines above the limit of the topic of ``headrace ship``. The cluster is an object in memory."""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import RecordTooLargeError, UnknownTopicOrPartitionError
from headrace_tools.ship import shipper
from headrace_tools.ship.positions import TOPIC, Stored
from headrace_tools.ship.shipper import Settings, Shipper


class Cluster:
    """An Admin and a Producer of a topic whose batches have at most ``limit`` bytes. The limit that the topic has at
    the start of the shipper is ``limit_at_start``; None: the topic does not exist yet."""

    def __init__(self, limit: int, limit_at_start: int | None) -> None:
        self.limit, self.limit_at_start = limit, limit_at_start
        self.lines: list[tuple[bytes, bool]] = []

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def describe_topics(self, names: list[str]) -> list[types.SimpleNamespace]:
        if self.limit_at_start is None:
            raise UnknownTopicOrPartitionError("no such topic")
        return [types.SimpleNamespace(name=name, max_message_bytes=self.limit_at_start) for name in names]

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        yield

    def send(self, topic: str, *, value: bytes, key: bytes, headers: list[tuple[str, bytes]] = []) -> None:  # noqa: B006
        size = len(value) + len(key) + sum(len(name) + len(text) for name, text in headers)
        if topic == TOPIC:
            return
        if size > self.limit:
            raise RecordTooLargeError(f"a record of {size} bytes is too large")
        self.lines.append((value, "continues" not in dict(headers)))


def ship(cluster: Cluster, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipper, "Admin", lambda *_: cluster)
    monkeypatch.setattr(shipper, "Producer", lambda *_: cluster)
    monkeypatch.setattr(shipper, "ensure_topic", lambda _: None)
    monkeypatch.setattr(shipper, "read_positions", lambda *_: Stored())
    settings = Settings(config={}, producer={}, topic="t", paths=[str(log)], name="s", host="h", once=True)
    Shipper(settings, threading.Event(), lambda _: None).run()


@pytest.mark.parametrize("limit", [100_000, 4_000])
def test_a_line_above_the_topics_limit_is_divided_and_holds_up_no_other_line(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n" + b"x" * 200_000 + b"\ntwo\n")
    cluster = Cluster(limit, limit)
    ship(cluster, log, monkeypatch)
    assert [line for line, _ in (cluster.lines[0], cluster.lines[-1])] == [b"one", b"two"]
    assert b"".join(line for line, _ in cluster.lines[1:-1]) == b"x" * 200_000
    assert [is_whole for _, is_whole in cluster.lines[1:-1]] == [False] * (len(cluster.lines) - 3) + [True]


@pytest.mark.parametrize("limit_at_start", [None, 0, 900_000], ids=["no topic", "unknown", "lowered later"])
def test_the_error_for_a_line_that_is_too_large_names_its_file_and_position(
    limit_at_start: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n" + b"x" * 200_000 + b"\n")
    with pytest.raises(RecordTooLargeError, match=rf"the line at position 4 of {log}: a record of 2\d+ bytes is too"):
        ship(Cluster(100_000, limit_at_start), log, monkeypatch)
