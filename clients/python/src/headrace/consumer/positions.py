"""Where partitions without a position begin. Runs on the I/O thread.

Partitions that come together (a thousand at an assign) are asked for together, one request to each leader: one request
for each would take seconds.
"""

from __future__ import annotations

import asyncio
import contextlib

from headrace_core.errors import HeadraceError

from ..engine.offsets import list_offsets
from .inbox import Slice
from .offsets import reset_timestamp
from .tracked import SessionOwner, Tracked

#: A question for many that is not answered in this time is asked again for each partition by itself.
TOGETHER_S = 2.0


async def find_together(fetcher: SessionOwner, lost: list[Tracked]) -> None:
    """Find what can be found in one go for each leader; what fails is left for ``find_position``, which says why."""
    engine = fetcher.engine
    for topic in {tracked.assigned.tp.topic for tracked in lost}:
        with contextlib.suppress(HeadraceError):
            await engine.topic(topic, TOGETHER_S)
    groups: dict[int, list[Tracked]] = {}
    topics = engine.metadata.snapshot.topics
    for tracked in lost:
        tp = tracked.assigned.tp
        info = topics.get(tp.topic)
        if info is not None and tp.partition < len(info.partitions):
            groups.setdefault(info.partitions[tp.partition].leader, []).append(tracked)
    groups.pop(-1, None)  # no leader, nobody to ask
    await asyncio.gather(*(_find_group(fetcher, group) for group in groups.values() if len(group) > 1))


async def _find_group(fetcher: SessionOwner, group: list[Tracked]) -> None:
    engine, policy = fetcher.engine, fetcher.config["auto.offset.reset"]
    with contextlib.suppress(HeadraceError):
        wanted = {tracked.assigned.tp: reset_timestamp(tracked.reset, policy, tracked.assigned.tp) for tracked in group}
        found = await list_offsets(engine, wanted, fetcher.isolation, engine.deadline(TOGETHER_S))
        for tracked in group:
            _note(fetcher, tracked, found[tracked.assigned.tp].offset)


async def find_position(fetcher: SessionOwner, tracked: Tracked) -> None:
    """Where ``reset`` says; raises what the partition fails with."""
    engine, tp = fetcher.engine, tracked.assigned.tp
    timestamp = reset_timestamp(tracked.reset, fetcher.config["auto.offset.reset"], tp)
    found = await list_offsets(engine, {tp: timestamp}, fetcher.isolation, engine.deadline(engine.request_timeout_s))
    _note(fetcher, tracked, found[tp].offset)


def _note(fetcher: SessionOwner, tracked: Tracked, offset: int) -> None:
    tracked.fetch_at = offset
    if tracked.generation != tracked.assigned.generation:
        return
    if tracked.assigned.position is None:
        tracked.assigned.found = (tracked.generation, offset)
    else:  # the position was out of range: the caller's side learns of the new one in its turn, by an empty slice
        fetcher.inbox.put(Slice(tracked.assigned, tracked.generation, offset, offset, b""))
