"""Evaluate a consumer's health as Burrow does: from its last commits, without thresholds. Pure.

Sources: Burrow's wiki page "Consumer Lag Evaluation Rules", and its evaluator. The window of a partition contains its
last ten commits, each with the lag at the time of the commit. The first of the following rules that applies decides the
status of a partition:

    0  the lag is zero now                                                                   OK
    1  the time since the last commit exceeds what the window covers, and there have been
       records to read for all that time                                                    STOP
    2  the lag was zero at some commit of the window                                         OK
    3  the offset went back at some commit                                                   REWIND
    4  the offset is the same at all commits                                                 STALL
    5  the lag did not shrink at any commit (the offset moved on)                            WARN
    6  else                                                                                  OK

Headrace differs from Burrow in three ways. First, Burrow's rule 1 needs recent samples in which the log end is beyond
the committed offset. Headrace instead uses the time for which the first unread record has been waiting. Second, by
default Burrow judges a partition only when it knows ten commits. Headrace also judges a partition with fewer than ten
known commits, because the compacted log gives a new owner only the last commits. With fewer than ten commits, rule 1
needs a silence of at least ``SILENCE_MS``, and rules 3 to 5 need two commits. Third, commits in quick succession (after
each batch) share one of the ten entries. With an entry for each quick commit, ten commits would cover almost no time,
and each pause would be a STOP (Burrow's ``min-distance``).
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import NamedTuple

from .messages import LagStatus
from .watermarks import Waiting

WINDOW_COMMITS = 10
COMMITS_APART_MS = 1_000  #: Commits that are less than this many milliseconds apart share an entry of the window.
#: While fewer than ten commits of a partition are known, STOP needs at least this number of milliseconds without a
#: commit.
SILENCE_MS = 60_000


class Commit(NamedTuple):
    """One of the last ten commits of a partition. ``lag`` is None if the high watermark was unknown (for commits read
    from the log)."""

    offset: int
    timestamp_ms: int
    lag: int | None


class CommitWindow:
    """The last commits of one partition of one group, oldest first."""

    __slots__ = ("_fields",)

    def __init__(self) -> None:
        # Three numbers for each of the partition's last ten commits, in a flat array: a coordinator may have a hundred
        # thousand such arrays. A lag of -1 means that the lag is unknown.
        self._fields = array("q")

    @property
    def commits(self) -> tuple[Commit, ...]:
        fields = iter(self._fields)
        return tuple(
            Commit(offset, time_ms, lag if lag >= 0 else None)
            for offset, time_ms, lag in zip(fields, fields, fields, strict=True)
        )

    @property
    def complete(self) -> float:
        """The number of known commits divided by ten, 0 to 1."""
        return len(self._fields) / (3 * WINDOW_COMMITS)

    def note(self, commit: Commit) -> None:
        """Add a commit. Of several commits within COMMITS_APART_MS the newest is kept, but a commit of a lower offset
        is always kept."""
        fields = self._fields
        if len(fields) > 3:
            before_offset, before_ms, _, last_offset = fields[-6:-2]
            is_close = 0 <= commit.timestamp_ms - before_ms < COMMITS_APART_MS
            if is_close and before_offset <= last_offset <= commit.offset:
                del fields[-3:]
        fields.extend((commit.offset, commit.timestamp_ms, -1 if commit.lag is None else commit.lag))
        if len(fields) > 3 * WINDOW_COMMITS:
            del fields[:3]


def judge(window: CommitWindow, *, lag: int, waiting: Waiting, now_ms: int) -> LagStatus:
    """Judge a partition. ``lag`` is the current lag; ``waiting`` says how long the first unread record has been
    waiting."""
    commits = window.commits
    if lag <= 0 or not commits:
        return LagStatus.OK
    if _has_stopped(commits, waiting, now_ms):
        return LagStatus.STOP
    if any(commit.lag == 0 for commit in commits) or len(commits) < 2:
        return LagStatus.OK
    pairs = list(pairwise(commits))
    if any(later.offset < earlier.offset for earlier, later in pairs):
        return LagStatus.REWIND
    if all(later.offset == earlier.offset for earlier, later in pairs):
        return LagStatus.STALL
    lags = [commit.lag for commit in commits if commit.lag is not None]
    if len(lags) > 1 and all(later >= earlier for earlier, later in pairwise(lags)):
        return LagStatus.WARN
    return LagStatus.OK


def _has_stopped(commits: tuple[Commit, ...], waiting: Waiting, now_ms: int) -> bool:
    covered_ms = commits[-1].timestamp_ms - commits[0].timestamp_ms
    if len(commits) < WINDOW_COMMITS:
        covered_ms = max(covered_ms, SILENCE_MS)
    return now_ms - commits[-1].timestamp_ms > covered_ms and waiting.waited_ms > covered_ms


def worst(statuses: list[LagStatus]) -> LagStatus:
    """The status of a group: ERR if any partition has an error, else WARN if any has a warning, else OK."""
    if any(status.is_error for status in statuses):
        return LagStatus.ERR
    return LagStatus.WARN if LagStatus.WARN in statuses else LagStatus.OK
