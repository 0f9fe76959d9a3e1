"""The rolling restart: wait until the cluster is healthy, restart one node, wait again.

Only one rolling restart of a cluster can run at a time: it holds a lock (flock) on the cluster's ``config`` directory.
No other command locks the ``config`` directory. The restart of each node holds the cluster's own lock, as ``headrace
restart`` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from headrace_core.errors import ClusterStartError, IllegalStateError, InvalidArgumentError

from ..local.directory import ClusterDirectory
from .looking import Looking
from .rules import TURNS, NodeName, Returned, Seen, next_node, not_whole, unavoidable

#: Timeout in seconds for the cluster to be healthy before the first restart: controllers that have just started need
#: some time to connect to each other.
SETTLE_S = 15.0
_LOOK_S = 0.3
_TELL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """A restarted node. ``away_s``: time from the stop request until the node served again. ``whole_s``: time from the
    node's return until the cluster was healthy; None if the roll was ended before."""

    node: NodeName
    pid: int | None
    away_s: float
    whole_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """The result of a rolling restart. ``left``: nodes that were not restarted, because the roll was ended. ``notes``:
    effects that clients may notice."""

    restarted: tuple[Restarted, ...]
    left: tuple[NodeName, ...]
    notes: tuple[str, ...]


class RollingRestart:
    """A rolling restart of ``cluster``, which ``looking`` observes. ``timeout_s``: how long the cluster may need until
    it is healthy again after a restart. ``tell`` receives lines of progress; ``at`` is called repeatedly with the
    number of finished nodes, the total, and the current step. ``ends`` is called between nodes and while the roll
    waits; it returns whether the roll should end."""

    def __init__(
        self,
        cluster: ClusterDirectory,
        looking: Looking,
        *,
        timeout_s: float,
        tell: Callable[[str], None],
        at: Callable[[int, int, str], None] = lambda done, total, what: None,
        ends: Callable[[], bool] = lambda: False,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._cluster = cluster
        self._looking = looking
        self._timeout_s = timeout_s
        self._settle_s = min(settle_s, timeout_s)
        self._tell = tell
        self._at, self._now = at, (0, 0, "looking at the cluster")
        self._ends = ends

    def run(self, roles: Collection[str] = TURNS) -> Rolled:
        """Restart every node of the given ``roles``.

        Raises IllegalStateError when the cluster is not healthy, or when another roll is running; the message names the
        last restarted node, if any. Raises ClusterStartError when a node does not start again.
        """
        with _sole_roll(self._cluster):
            return self._run(roles)

    def _run(self, roles: Collection[str]) -> Rolled:
        waiting = [NodeName(node.role, node.id) for node in self._cluster.state().nodes if node.role in roles]
        total = len(waiting)
        if not waiting:
            raise InvalidArgumentError(
                f"the cluster in {self._cluster.directory} has no {' or '.join(roles)}; pass another --role"
            )
        # Do not wait for a dead node, because it does not come back by itself.
        dead = any(not node.alive() for node in self._cluster.state().nodes)
        seen, reasons = self._wait(lambda now, _: not_whole(now), 0 if dead else self._settle_s)
        if reasons and not self._ends():
            raise IllegalStateError(
                f"nothing was restarted, because the cluster is not healthy: {'; '.join(reasons)}. Retry when it is "
                f"healthy (`headrace doctor --data {self._cluster.directory}` names cures)"
            )
        notes = unavoidable(seen, waiting)
        for each in notes:
            self._tell(f"note: {each}")
        done: list[Restarted] = []
        while waiting and not self._ends():  # here the latest check has found a healthy cluster
            node = next_node(waiting, None if seen.quorum is None else seen.quorum.leader_id)
            self._tell(f"[{total - len(waiting) + 1}/{total}] {node}: restarting")
            self._now = (total - len(waiting), total, f"{node} restarts")
            self._at(*self._now)
            waiting.remove(node)
            try:
                done.append(self._restart(node))
            except ClusterStartError:
                self._tell(f"  {node} did not start again. {_progress(done, waiting)}")
                raise
            seen, done[-1] = self._until_whole(done, waiting)
        return Rolled(restarted=tuple(done), left=tuple(waiting), notes=tuple(notes))

    def _restart(self, node: NodeName) -> Restarted:
        begun = time.monotonic()
        pid = self._cluster.restart(node.role, node.node_id).pid()
        away_s = time.monotonic() - begun
        self._tell(f"  {node} serves again after {away_s:.1f} s (pid {pid})")
        self._now = (*self._now[:2], f"until the cluster is healthy after {node}")
        return Restarted(node=node, pid=pid, away_s=away_s, whole_s=None)

    def _until_whole(self, done: list[Restarted], waiting: list[NodeName]) -> tuple[Seen, Restarted]:
        """Wait until the cluster is healthy, or the roll should end. Return the state of the cluster at the last check,
        and the last entry of ``done``. If the cluster became healthy, the entry has the duration of the wait."""
        last = done[-1]
        since = time.monotonic()

        def check(seen: Seen, asked: float) -> list[str]:
            return not_whole(seen, Returned(node=last.node, ago_ms=(asked - since) * 1_000))

        seen, reasons = self._wait(check, self._timeout_s)
        if reasons and self._ends():
            return seen, last
        if reasons:
            raise IllegalStateError(
                f"after the restart of {last.node} the cluster is not healthy: {'; '.join(reasons)}. Waited "
                f"{self._timeout_s:g} s (--timeout). {_progress(done, waiting)}"
            )
        whole_s = time.monotonic() - since
        self._tell(f"  healthy again after {whole_s:.1f} s")
        return seen, dataclasses.replace(last, whole_s=whole_s)

    def _wait(self, check: Callable[[Seen, float], list[str]], limit_s: float) -> tuple[Seen, list[str]]:
        """Collect the state of the cluster until ``check`` finds no reason to wait, until ``limit_s`` has passed, or
        until the roll should end. ``check`` is called with the state and the time before the state was collected."""
        begun = reported_s = time.monotonic()
        while True:
            asked = time.monotonic()
            self._at(*self._now)
            seen = self._looking.look(self._cluster.state())
            reasons = check(seen, asked)
            now = time.monotonic()
            if not reasons or now - begun >= limit_s or self._ends():
                return seen, reasons
            if now - reported_s >= _TELL_S:
                reported_s = now
                self._tell(f"  waiting: {'; '.join(reasons)}")
            time.sleep(_LOOK_S)


def _progress(done: list[Restarted], waiting: list[NodeName]) -> str:
    reported_s, left = ", ".join(str(each.node) for each in done), ", ".join(map(str, waiting))
    return f"Restarted: {reported_s or 'none'}; not restarted: {left or 'none'}"


@contextlib.contextmanager
def _sole_roll(cluster: ClusterDirectory) -> Iterator[None]:
    """The lock that is held during the roll. Raises IllegalStateError if another roll is running, InvalidArgumentError
    if there is no cluster."""
    cluster.state()
    try:
        lock = os.open(cluster.directory / "config", os.O_RDONLY)
    except OSError as error:
        raise ClusterStartError(f"cannot open {cluster.directory / 'config'}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise IllegalStateError(
                f"the cluster in {cluster.directory} is being restarted by another `headrace cluster roll`; "
                "wait until it ends"
            ) from None
        yield
    finally:
        os.close(lock)
