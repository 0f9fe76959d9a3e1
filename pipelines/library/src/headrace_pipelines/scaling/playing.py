"""Play a scene: send its traffic, start its members or its autoscaler, and check the lag until all records are
handled."""

from __future__ import annotations

import itertools
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace import Admin

from ..access import Access
from ..errors import PipelineFailedError, StoppedError
from ..members import Member, stop_all
from ..places import Places
from ..sending import Sending
from ..show import Meter, Show
from ..stopping import Stop
from . import schema
from .beside import QUERY, Beside
from .positions import Positions
from .processes import SCALED, member, rows_of
from .scenes import PARTITIONS, Scene
from .truth import Row

#: Seconds between two checks of the positions.
LOOK_S = 0.2
#: Longest time without a handled record while records wait, and longest time until the members have joined.
STALL_S = 60.0


@dataclass(frozen=True, slots=True)
class Look:
    """One observation of a scene. ``at_s``: seconds since the start of the scene. ``end``: number of records in the
    topic. ``handled``: number of records that the group has handled. ``spark_lag``: number of records that Spark has
    not read."""

    at_s: float
    end: int
    handled: int
    spark_lag: int = 0


@dataclass(slots=True)
class Played:
    """The result of a scene. ``scaled``: the autoscaler's decisions, each as seconds since the start of the scene and
    the number of members. ``epochs``: the group's epochs before the first record and after the last record; a rebalance
    raises the epoch."""

    looks: list[Look] = field(default_factory=list)
    deaths: dict[str, int] = field(default_factory=dict)
    scaled: list[tuple[float, float]] = field(default_factory=list)
    idle: int = 0
    epochs: tuple[int | None, int | None] = (None, None)

    @property
    def rebalanced(self) -> bool:
        """Whether a member died, or the group was rebalanced while records waited. If so, a record may have been
        handled again."""
        began, ended = self.epochs
        return bool(self.deaths) or began is None or began != ended

    def figures(self) -> dict[str, Any]:
        """Measured figures for the summary: the largest lag, and the records per second while records were handled."""
        moves = [new for old, new in zip(self.looks, self.looks[1:], strict=False) if new.handled > old.handled]
        spent_s = moves[-1].at_s - moves[0].at_s if len(moves) > 1 else 0.0
        rate = (moves[-1].handled - moves[0].handled) / spent_s if spent_s else None
        figures: dict[str, Any] = {
            "lag_max": max(look.end - look.handled for look in self.looks),
            "handled_per_s": None if rate is None else round(rate),
            "members_idle": self.idle,
            "rebalanced": self.rebalanced,
        }
        if self.scaled:
            counts = [int(count) for _, count in self.scaled]
            figures["members"] = [counts[0], *(new for old, new in itertools.pairwise(counts) if new != old)]
        return figures


class Player:
    """Plays scenes on a cluster."""

    def __init__(self, access: Access, admin: Admin, places: Places, show: Show, stop: Stop, rate: float) -> None:
        self.access, self.admin, self.places = access, admin, places
        self.stop, self.rate = stop, rate
        self._show = show

    def play(self, scene: Scene, sent: Sequence[tuple[bytes, bytes]], beside: Beside | None) -> Played:
        """Play a scene to its end. Raises HeadraceError, StoppedError."""
        with self._show.meter("records", len(sent)) as meter:
            scenery = _Scenery(self, scene, meter, beside)
            return scenery.play(sent)


class _Scenery:
    """A scene while it runs."""

    def __init__(self, player: Player, scene: Scene, meter: Meter, beside: Beside | None) -> None:
        self._player, self._scene, self._meter, self._beside = player, scene, meter, beside
        self._members: list[Member] = []
        self._topic = schema.topic_of(scene.name)
        self._positions = self._positions_of(PARTITIONS)
        self._spark = Positions(player.admin, self._topic, PARTITIONS, schema.group(QUERY))
        self._played = Played()
        self._began_s, self._began_at_s = time.monotonic(), time.time()

    def _positions_of(self, partitions: int) -> Positions:
        return Positions(self._player.admin, self._topic, partitions, schema.group(self._scene.name))

    def play(self, sent: Sequence[tuple[bytes, bytes]]) -> Played:
        scene = self._scene
        waits = bool(scene.raised) and not scene.drains
        epoch: int | None = None  # members that start while records wait count as a change of the group
        try:
            if not waits:
                epoch = self._start()
            if self._beside is not None:
                self._beside.start(is_limited=True)
            self._began_s, self._began_at_s = time.monotonic(), time.time()
            at = 0
            counts = scene.counts(self._player.rate)
            for number, ((_, share), count) in enumerate(zip(scene.parts, counts, strict=True)):
                self._send(sent[at : at + count], share * self._player.rate)
                at += count
                if number == 0 and scene.raised:
                    if scene.drains:
                        self._follow(lambda look: look.handled >= look.end)
                    self._player.admin.create_partitions({self._topic: scene.raised})
                    self._positions = self._positions_of(scene.raised)
            if waits:
                self._start()
            if self._beside is not None:
                self._follow(lambda look: look.handled >= look.end)
                self._beside.start(is_limited=False)
            self._follow(lambda look: look.handled >= look.end and not look.spark_lag)
            if self._beside is not None:
                self._beside.stop()
            if scene.is_scaled:
                self._follow(lambda look: [members for _, members in self._scaled()[-1:]] == [1.0])
            ended, assigned = self._group()
            self._played.idle = 0 if scene.is_scaled else sum(not count for count in assigned)
            self._played.epochs = epoch, ended
        finally:
            stop_all(self._members)
        deaths: Counter[str] = Counter()
        for each in self._members:
            deaths[each.role] += each.deaths
        self._played.deaths = dict(+deaths)
        self._played.scaled = self._scaled() if scene.is_scaled else []
        return self._played

    def _start(self) -> int:
        """Start the members, and wait until the group has them; or start the autoscaler. Returns the group's epoch."""
        scene, root = self._scene, self._player.places.root
        role, count = ("autoscaler", 1) if scene.is_scaled else ("member", scene.members)
        self._members = [member(role, self._player.access, scene.name, root, 1 + each) for each in range(count)]
        partitions = scene.raised if scene.raised and not scene.drains else PARTITIONS
        deadline = time.monotonic() + STALL_S
        while True:
            epoch, found = self._group()
            if len(found) >= count and sum(found) >= partitions:
                return epoch
            if time.monotonic() > deadline:
                raise PipelineFailedError(
                    f"scene {scene.name}: {len(found)} of {count} members have joined; see {root}/logs"
                )
            self._look_at_members()

    def _group(self) -> tuple[int, list[int]]:
        """The epoch of the group, and the number of partitions of each member; no members during a rebalance."""
        (group,) = self._player.admin.describe_groups([schema.group(self._scene.name)], raise_errors=False)
        assigned = [len(each.assigned) for each in group.members] if group.state == "stable" else []
        return group.group_epoch, assigned

    def _send(self, records: Sequence[tuple[bytes, bytes]], rate: float) -> None:
        sending = Sending(f"{self._topic} traffic", self._player.access, self._topic, records, rate)
        sending.start()
        try:
            self._follow(lambda _: not sending.is_alive())
            sending.result()
        finally:
            sending.stop()

    def _follow(self, is_done: Callable[[Look], bool]) -> None:
        """Look until ``is_done``."""
        before, changed_s = (-1, -1, -1), time.monotonic()
        while True:
            spark_lag = 0
            if self._beside is not None:
                self._beside.look()
                end, read = self._spark.look()
                spark_lag = end - read
            done = self._positions.look()
            look = Look(time.monotonic() - self._began_s, *done, spark_lag)
            self._played.looks.append(look)
            self._meter.at(min(look.handled, self._meter.total), f"lag {look.end - look.handled:,}")
            if is_done(look):
                return
            if (*done, spark_lag) != before:
                before, changed_s = (*done, spark_lag), time.monotonic()
            elif time.monotonic() - changed_s > STALL_S:
                raise PipelineFailedError(
                    f"{self._scene.name}: no progress for {STALL_S:g} s: {look}; see {self._player.places.root}/logs"
                )
            self._look_at_members()

    def _look_at_members(self) -> None:
        for each in self._members:
            each.look()
        if self._player.stop.wait(LOOK_S):
            raise StoppedError({"scene": self._scene.name, "handled": sum(self._positions.look()[1:])})

    def _scaled(self) -> list[tuple[float, float]]:
        """The decisions in the autoscaler's output: seconds since the start of the scene, and the number of members."""
        log = self._player.places.root / "logs" / f"{self._scene.name}-autoscaler-1.log"
        return [(at_s - self._began_at_s, members) for at_s, members in scalings(log.read_text(errors="replace"))]


def scalings(log: str) -> list[tuple[float, float]]:
    """The decisions in an autoscaler's log: seconds since 1970, and the number of members. The last line may be
    incomplete."""
    found = re.findall(rf"^{SCALED} ([\d.]+) (\d+) .*\n", log, re.MULTILINE)
    return [(float(at_s), float(members)) for at_s, members in found]


def database_rows(scene: Scene, out: Path) -> list[Row]:
    """The rows that the members of a scene have written."""
    with closing(sqlite3.connect(rows_of(scene.name, out))) as database:
        return list(database.execute("SELECT part, number, key, n FROM handled"))
