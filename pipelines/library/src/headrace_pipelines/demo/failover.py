"""Kill a partition's leader while records are produced (kill -9), watch the election, and restart the dead broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace import Admin, LocalCluster
from headrace_core.errors import HeadraceError

#: Seconds that an election may take, and seconds that the restarted broker may take to return to the in-sync set.
TIMEOUT_S = 120.0
_LOOK_S = 0.02


class FailoverFailedError(HeadraceError):
    """In the failover step, no replica became leader, or the restarted broker is not in sync."""

    code = "DEMO_FAILED"


@dataclass(frozen=True, slots=True)
class Election:
    """The old and the new leader of a partition, and how long the failover took. ``elected_s`` is the time from the
    kill until every partition of the dead broker had another leader. ``first_write_s`` is the time from the kill until
    a new leader acknowledged a record sent after the kill."""

    partition: int
    old_leader: int
    old_epoch: int
    new_leader: int
    new_epoch: int
    partitions: int
    elected_s: float
    first_write_s: float

    def summary(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "old_leader": self.old_leader,
            "new_leader": self.new_leader,
            "old_epoch": self.old_epoch,
            "new_epoch": self.new_epoch,
            "partitions_moved": self.partitions,
            "elected_s": round(self.elected_s, 3),
            "first_write_s": round(self.first_write_s, 3),
        }


class LeaderDeath:
    """Kill the leader of ``topic``'s partition 0 (``strike``), and watch the election. ``say`` prints the announcement
    of the kill."""

    def __init__(self, cluster: LocalCluster, topic: str, say: Callable[[str], None]) -> None:
        self._cluster, self._topic, self._say = cluster, topic, say
        self._admin = Admin({"bootstrap.servers": cluster.bootstrap_servers})
        self._victim = self._epoch = -1
        self._led: frozenset[int] = frozenset()
        self._killed_s = 0.0
        self._first_write_s: float | None = None
        self._elected: tuple[float, int, int] | None = None
        self._failure: HeadraceError | None = None
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="demo election", daemon=True)

    # -- in the sending thread

    def strike(self) -> None:
        """kill -9; returns when the process has ended, with records in flight."""
        partitions = self._admin.describe_topics([self._topic])[0].partitions
        self._victim, self._epoch = partitions[0].leader, partitions[0].leader_epoch
        self._led = frozenset(each.partition for each in partitions if each.leader == self._victim)
        led = ", ".join(f"{self._topic}-{number}" for number in sorted(self._led))
        self._say(f"KILLING broker {self._victim} (kill -9), which leads {led}, while records are in flight")
        self._cluster.kill("broker", self._victim)
        self._killed_s = time.perf_counter()
        self._watcher.start()

    @property
    def has_struck(self) -> bool:
        return self._killed_s > 0

    def acknowledged(self, future: Any) -> None:
        """Completion callback for a record sent after the kill; the dead broker cannot have acknowledged this
        record."""
        if self._first_write_s is not None or future.exception(timeout=0) is not None:
            return
        if future.result(timeout=0).partition in self._led:
            self._first_write_s = time.perf_counter() - self._killed_s

    # -- in the watching thread

    def _watch(self) -> None:
        while time.perf_counter() - self._killed_s < TIMEOUT_S and not self._over.is_set():
            try:
                partitions = self._admin.describe_topics([self._topic])[0].partitions
            except HeadraceError as error:
                self._failure = error
            else:
                if all(each.leader not in (-1, self._victim) for each in partitions):
                    elected_s = time.perf_counter() - self._killed_s
                    self._elected = (elected_s, partitions[0].leader, partitions[0].leader_epoch)
                    return
            self._over.wait(_LOOK_S)

    # -- afterwards

    def election(self) -> Election:
        """The outcome. Raises FailoverFailedError when no new leader is elected, or when no record is acknowledged."""
        self._watcher.join()
        if self._elected is None:
            why = "" if self._failure is None else f" ({self._failure})"
            raise FailoverFailedError(
                f"no new leader for the partitions of broker {self._victim} after {TIMEOUT_S:g} s{why}"
            )
        if self._first_write_s is None:
            raise FailoverFailedError(f"no new leader acknowledged a record after the death of broker {self._victim}")
        elected_s, leader, epoch = self._elected
        return Election(
            partition=0,
            old_leader=self._victim,
            old_epoch=self._epoch,
            new_leader=leader,
            new_epoch=epoch,
            partitions=len(self._led),
            elected_s=elected_s,
            first_write_s=self._first_write_s,
        )

    def bring_back(self, *topics: str) -> float:
        """Start the dead broker again; returns the seconds until the broker is in sync in every partition of
        ``topics``.

        Raises FailoverFailedError when the broker is not in sync after two minutes.
        """
        started_s = time.perf_counter()
        self._cluster.restart("broker", self._victim)
        while True:
            described = self._admin.describe_topics(topics)
            short = [
                f"{topic.name}-{each.partition}"
                for topic in described
                for each in topic.partitions
                if len(each.isr) < len(each.replicas)
            ]
            seconds = time.perf_counter() - started_s
            if not short:
                return seconds
            if seconds > TIMEOUT_S:
                raise FailoverFailedError(f"not every replica is in sync after {seconds:.0f} s: {', '.join(short)}")
            time.sleep(_LOOK_S)

    def close(self) -> None:
        self._over.set()
        if self.has_struck:
            self._watcher.join()
        self._admin.close()

    def __enter__(self) -> LeaderDeath:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
