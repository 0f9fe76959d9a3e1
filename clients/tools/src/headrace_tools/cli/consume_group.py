"""``consume -G``: as a member of a group (kcat -G), beside others that share the work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Protocol

import typer

from headrace_core.errors import CoordinatorNotAvailableError, HeadraceError
from headrace_core.types import TopicPartition

from .client import GROUP_TIMEOUT_S
from .output import note
from .progress import HowFar, Progress

_POLL_S = 0.5
_POLL_RECORDS = 10_000


class Writes(Protocol):
    """Where records go."""

    def write(self, records: list[Any]) -> None: ...

    def close(self) -> None: ...


def check_group_flags(topics: list[str], only: list[int] | None, offsets: list[str]) -> None:
    """What makes no sense in a group is a usage error."""
    if only:
        raise typer.BadParameter("the group says which partitions are read", param_hint="-p")
    if offsets:
        raise typer.BadParameter(
            "a group goes on where it committed, and begins at the start (-X auto.offset.reset=latest: at the end); "
            "`headrace groups reset-offsets` sets it elsewhere",
            param_hint="-o",
        )
    if not topics:
        raise typer.BadParameter("name topics: headrace consume -G GROUP TOPIC...", param_hint="TOPIC")
    if any(topic.startswith("^") for topic in topics) and len(topics) > 1:
        raise typer.BadParameter("a pattern (^...) stands alone", param_hint="TOPIC")


def run_in_group(
    config: dict[str, Any],
    topics: list[str],
    *,
    exit_at_end: bool,
    count: int | None,
    writer: Writes,
    quiet: bool,
    reader_is_gone: Callable[[], bool],
    shown: Progress,
) -> None:
    """Until Ctrl-C, ``count`` records, or with ``exit_at_end`` the ends that the partitions had when they came.

    What is written is committed every five seconds, at the end, and at Ctrl-C; what is being written just then is
    read again (at least once).
    """
    from headrace import Consumer

    tell = (lambda text: None) if quiet else note
    stops: dict[TopicPartition, int] = {}
    left = count
    written: dict[TopicPartition, int] = {}
    commits = str(config.get("enable.auto.commit", True)).lower() != "false"

    def how_far() -> HowFar:
        if count is not None and left is not None:
            return HowFar(count - left, count, f"{count - left:,} of {count:,} records")
        unread = sum(max(0, stop - consumer.position(partition)) for partition, stop in stops.items())
        return HowFar(0, 0, f"{unread:,} offsets to the end")

    def assigned(consumer: Any, partitions: list[TopicPartition]) -> None:
        tell(f"% Group {config['group.id']}: assigned {_named(partitions)}")
        if exit_at_end:
            stops.update(consumer.end_offsets(partitions))

    def gone(consumer: Any, partitions: list[TopicPartition]) -> None:
        if partitions:
            tell(f"% Group {config['group.id']}: gave up {_named(partitions)}")
        for partition in partitions:
            stops.pop(partition, None)

    waited = _Waiting(gives_up=exit_at_end)
    with Consumer(config) as consumer:
        callbacks: dict[str, Any] = {"on_assigned": assigned, "on_revoked": gone}
        if topics[0].startswith("^"):
            consumer.subscribe(pattern=topics[0].removeprefix("^").removesuffix("$"), **callbacks)
        else:
            consumer.subscribe(topics, **callbacks)
        try:
            while left is None or left > 0:
                records = consumer.poll(
                    timeout=_POLL_S, max_records=_POLL_RECORDS if left is None else min(_POLL_RECORDS, left)
                )
                if records:
                    writer.write(records)
                    written.update((TopicPartition(each.topic, each.partition), each.offset + 1) for each in records)
                    left = None if left is None else left - len(records)
                elif reader_is_gone():
                    raise BrokenPipeError
                elif not consumer.assignment():
                    waited.look(consumer)
                shown.at(how_far)
                if stops and all(consumer.position(partition) >= stop for partition, stop in stops.items()):
                    for partition, stop in sorted(stops.items()):
                        tell(f"% Reached end of topic {partition.topic} [{partition.partition}] at offset {stop}")
                    break
        except KeyboardInterrupt:
            if commits and (ours := {tp: offset for tp, offset in written.items() if tp in consumer.assignment()}):
                with contextlib.suppress(HeadraceError):
                    consumer.commit(ours)
            raise
        writer.close()


class _Waiting:
    """Tells a person after some seconds that the group has no coordinator, and again once a minute. ``gives_up``: the
    command is to end by itself, so it fails after GROUP_TIMEOUT_S."""

    def __init__(self, *, gives_up: bool) -> None:
        self._gives_up = gives_up
        self._tell_at = 0.0

    def look(self, consumer: Any) -> None:
        """CoordinatorNotAvailableError."""
        from headrace.consumer.group import WAITING_AGAIN_S, WAITING_S

        group = consumer._core.in_group("consume -G")
        if self._gives_up and (why := group.waiting(GROUP_TIMEOUT_S)):
            raise CoordinatorNotAvailableError(f"nothing was read within {GROUP_TIMEOUT_S:g} s: {why}")
        if time.monotonic() >= self._tell_at and (why := group.waiting(WAITING_S)):
            self._tell_at = time.monotonic() + WAITING_AGAIN_S
            note(f"% {why[0].upper()}{why[1:]}")


def _named(partitions: list[TopicPartition]) -> str:
    return ", ".join(f"{each.topic} [{each.partition}]" for each in partitions)
