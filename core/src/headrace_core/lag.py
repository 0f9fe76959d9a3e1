"""The verdict about a group's lag, for all programs that judge lag: ``headrace lag``, ``doctor``, ``top``, the console,
and the metrics. Pure.

A coordinator evaluates each partition by Burrow's rules. Three exceptions turn an evaluation into the verdict OK, so
that no alarm is raised without need:

* A group without members is OK: it is a finished batch job, or unused, and its offsets expire.
* A partition without lag, or with an unknown lag, is OK.
* STALL and WARN without a full window of ten commits become OK, as in Burrow, because two or three commits prove
  little.
"""

from __future__ import annotations

from collections.abc import Iterable

#: The verdicts on a group, from good to bad. WARN: the group commits, but its lag grows. REWIND: the committed offset
#: went back. STALL: the group commits the same offset again and again. STOP: the group has stopped committing.
VERDICTS = ("OK", "WARN", "REWIND", "STALL", "STOP")
#: Verdicts that need a full window: the last ten commits of a partition.
_TAKE_A_WINDOW = ("STALL", "WARN")


def verdict(status: str, *, lag: int | None, complete: float, is_empty: bool) -> str:
    """The verdict about one partition of a group.

    ``status``: the coordinator's evaluation. ``lag``: records, None if it is unknown. ``complete``: the part of the
    window of commits that is filled, 0 to 1. ``is_empty``: whether the group has no members.
    """
    if is_empty or not lag or status not in VERDICTS:
        return "OK"
    return "OK" if status in _TAKE_A_WINDOW and complete < 1 else status


def worst(verdicts: Iterable[str]) -> str:
    """The worst of several verdicts; OK if there are none."""
    return max(verdicts, key=VERDICTS.index, default="OK")
