"""The scenes of a run: the traffic of each scene, and how its records are handled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace_core.errors import InvalidArgumentError

PARTITIONS = 4
#: Seconds of a slow call.
CALL_S = 0.001
#: Maximum number of keys in a member's cache, and seconds for which a cached value is valid. The records have KEYS
#: keys.
CACHE_SIZE, CACHE_TTL_S = 100, 2.0
#: Maximum number of records of a scene, because the run keeps all records and their notes in memory.
RECORDS_MAX = 1_000_000
#: Maximum number of records that ``Consumer.process`` handles at the same time.
CONCURRENCY = 64


@dataclass(frozen=True, slots=True)
class Scene:
    """``work``: a key of handling.WORK. ``parts``: the parts of the traffic in order, each as (seconds, share of
    --rate).

    ``raised``: the number of partitions after the first part of the traffic; 0: the number does not change. ``drains``:
    the number changes only after the group has handled all records of the first part. Without ``drains``, the group
    starts only when the records of both parts are in the topic.
    """

    name: str
    about: str
    work: str
    members: int
    parts: tuple[tuple[float, float], ...] = ((3.0, 1.0),)
    raised: int = 0
    drains: bool = False
    is_scaled: bool = False

    def counts(self, rate: float) -> list[int]:
        """The number of records of each part. The rates in ``parts`` are fractions of ``rate``."""
        return [max(1, int(seconds * share * rate)) for seconds, share in self.parts]


SCENES = (
    Scene("one", "one member, one slow call for each record", "slow", 1, ((2.0, 1.0),)),
    Scene("members", "as many members as partitions, and one more", "slow", PARTITIONS + 1),
    Scene("partitions", "twice the partitions while records wait", "slow", 2 * PARTITIONS, ((1.0, 1.0),) * 2, 8),
    Scene("drained", "twice the partitions after the group has drained", "slow", 8, ((1.0, 1.0),) * 2, 8, drains=True),
    Scene("rows", "a database transaction for each record", "rows", 1, ((0.6, 1.0),)),
    Scene("batches", "a database transaction for each poll", "batches", 1),
    Scene("concurrent", f"one member, {CONCURRENCY} keys at a time", "concurrent", 1),
    Scene("cached", "one member, a cache before the slow call", "cached", 1),
    Scene(
        "autoscaled", "an autoscaler, by the lag in seconds", "slow", 1,
        ((2.0, 0.1), (5.0, 0.5), (6.0, 0.06)), is_scaled=True,
    ),
)  # fmt: skip
NAMES = tuple(scene.name for scene in SCENES)


def check_rate(rate: float, scenes: Iterable[Scene]) -> None:
    """Raise InvalidArgumentError if a scene would send more than RECORDS_MAX records."""
    for scene in scenes:
        seconds = sum(seconds * share for seconds, share in scene.parts)
        if seconds * rate > RECORDS_MAX:
            raise InvalidArgumentError(
                f"--rate {rate:g}: the scene {scene.name} would send {seconds * rate:.3g} records, more than "
                f"{RECORDS_MAX:,}; give at most --rate {int(RECORDS_MAX / seconds)}"
            )


def scenes_of(text: str) -> tuple[Scene, ...]:
    """The scenes in a comma-separated flag. Raises InvalidArgumentError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - set(NAMES))
    if unknown or not names:
        raise InvalidArgumentError(f"unknown scenes {unknown}; give some of {','.join(NAMES)}")
    return tuple(scene for scene in SCENES if scene.name in names)
