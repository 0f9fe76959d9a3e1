"""The checks of a scene: a second calculation from the records in its topic and the notes of its members.

This module shares no code with the pipeline: the partitioner and the cache are implemented a second time.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .notes import Note
from .scenes import CACHE_SIZE, CACHE_TTL_S, PARTITIONS, Scene

#: A record in a topic or in a table: partition, offset, key, n.
Row = tuple[int, int, str, int]


@dataclass(slots=True)
class Found:
    """The result of a check: ``wrong`` has a sentence for each fault, ``figures`` goes to the summary."""

    wrong: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def check(
    scene: Scene,
    sent: Sequence[tuple[bytes, bytes]],
    first: int,
    arrived: list[Row],
    notes: list[Note],
    *,
    rebalanced: bool,
) -> Found:
    """Check a scene. ``first``: the number of records before the partitions were raised. ``rebalanced``: a member died,
    or partitions moved to other members, so a record may have been handled again."""
    found = Found()
    expected = [(key.decode(), json.loads(value)["n"]) for key, value in sent]
    if Counter((key, n) for _, _, key, n in arrived) != Counter(expected):
        found.wrong.append(f"the topic of {scene.name} does not have each record once")
    before = Counter(key for key, _ in expected[:first])
    misplaced = sum(part != _place(scene, key, n < before[key]) for part, _, key, n in arrived)
    if misplaced:
        found.wrong.append(f"{scene.name}: {misplaced} records are not in the partitions of their keys")
    if {note[:4] for note in notes} != set(arrived):
        found.wrong.append(f"{scene.name}: the handled records are not the records of the topic")
    found.figures = {"records": len(arrived), "handled_again": len(notes) - len(arrived)}
    found.figures["members_with_records"] = len({note.member for note in notes})
    _check_order(scene, notes, found)
    found.figures["keys_overlapping"] = len(overlapping(notes))
    if not rebalanced:
        _check_steady(scene, found)
    if scene.work == "cached":
        _check_cache(notes, found)
    return found


def check_rows(what: str, rows: Iterable[Row], arrived: list[Row], found: Found) -> None:
    """Check that each record of the topic is in a table once."""
    if sorted(rows) != sorted(arrived):
        found.wrong.append(f"{what} does not have each record of the topic once")


def broken(notes: list[Note]) -> set[str]:
    """The keys with a record that was handled before an earlier record of the key was handled for the first time."""
    last: dict[str, int] = {}
    seen: set[tuple[str, int]] = set()
    keys = set()
    for note in notes:
        if (note.key, note.n) in seen:
            continue
        seen.add((note.key, note.n))
        if note.n < last.get(note.key, -1):
            keys.add(note.key)
        last[note.key] = max(note.n, last.get(note.key, -1))
    return keys


def overlapping(notes: list[Note]) -> set[str]:
    """The keys with two records that were handled at the same time. ``notes`` are sorted by ``at_ns``."""
    ended_ns: dict[str, int] = {}
    keys = set()
    for note in notes:
        if note.at_ns < ended_ns.get(note.key, note.at_ns):
            keys.add(note.key)
        ended_ns[note.key] = max(note.ended_ns, ended_ns.get(note.key, 0))
    return keys


def _check_steady(scene: Scene, found: Found) -> None:
    """Check a scene without a dead member and without a rebalance: each record was handled once, and the records of a
    key one after another."""
    if again := found.figures["handled_again"]:
        found.wrong.append(f"{scene.name}: {again} records were handled again, and no member died or changed")
    if keys := found.figures["keys_overlapping"]:
        found.wrong.append(f"{scene.name}: {keys} keys had two records in progress at the same time")


def _check_order(scene: Scene, notes: list[Note], found: Found) -> None:
    keys = broken(notes)
    moved = {
        note.key for note in notes if scene.raised and _place(scene, note.key, True) != _place(scene, note.key, False)
    }
    found.figures["keys_out_of_order"] = len(keys)
    if scene.raised:
        found.figures["keys_moved"] = len(moved)
    if scene.raised and not scene.drains:
        if stayed := sorted(keys - moved):
            found.wrong.append(f"{scene.name}: keys that kept their partition are out of order: {stayed[:3]}")
    elif keys:
        found.wrong.append(f"{scene.name}: {len(keys)} keys are out of order: {sorted(keys)[:3]}")


def _place(scene: Scene, key: str, is_first: bool) -> int:
    count = PARTITIONS if is_first or not scene.raised else scene.raised
    return (_murmur2(key.encode()) & 0x7FFFFFFF) % count


def _murmur2(data: bytes) -> int:
    """MurmurHash2 with Kafka's seed (org.apache.kafka.common.utils.Utils.murmur2), in plain Python."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) - len(data) % 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def _check_cache(notes: list[Note], found: Found) -> None:
    """Check the cache. A record is a hit if the value of its key is not too old, and fewer than CACHE_SIZE other keys
    were used since.

    A member that was started again has an empty cache."""
    by_member: dict[str, list[Note]] = defaultdict(list)
    for note in notes:
        by_member[note.member].append(note)
    different = 0
    for own in by_member.values():
        used: dict[str, int] = {}
        loaded: dict[str, float] = {}
        for at, note in enumerate(own):
            now_s, since = note.at_ns / 1e9, used.get(note.key)
            is_hit = (
                since is not None
                and now_s - loaded[note.key] < CACHE_TTL_S
                and sum(other > since for other in used.values()) < CACHE_SIZE
            )
            different += is_hit != (note.word == "hit")
            if not is_hit:
                loaded[note.key] = now_s
            used[note.key] = at
    if different:
        found.wrong.append(f"for {different} records the cache had another result than calculated")
    found.figures["calls"] = sum(note.word == "miss" for note in notes)
