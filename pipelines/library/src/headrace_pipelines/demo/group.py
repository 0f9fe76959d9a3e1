"""The lag of the demo's query, as the query's consumer group reports it. The demo shows the lag of its query while the
query runs, and checks the lag at the end."""

from __future__ import annotations

import subprocess
import sys
import time
from types import TracebackType

from headrace import Admin, GroupLag
from headrace_core.errors import HeadraceError

#: The consumer group to which the query commits its progress.
GROUP = "departures_by_hour"

#: Seconds that the coordinator may take to learn the query's position and the log's end (the coordinator samples every
#: two seconds).
TIMEOUT_S = 60.0
_LOOK_S = 0.1
#: Timeout in seconds of the lag request for the progress bar.
_GLANCE_S = 2.0


class GroupFailedError(HeadraceError):
    """The lag of the consumer group contradicts the result of the demo's query."""

    code = "DEMO_FAILED"


def described(servers: str) -> list[str]:
    """The output of ``headrace groups describe`` for the query's group. Raises GroupFailedError."""
    command = [sys.executable, "-m", "headrace_tools", "groups", "describe", GROUP, "-b", servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise GroupFailedError(f"headrace groups describe {GROUP} failed: {done.stderr.strip()}")
    return [line.rstrip() for line in done.stdout.splitlines() if line.strip()]


class QueryLag:
    def __init__(self, servers: str) -> None:
        self._admin = Admin({"bootstrap.servers": servers})
        #: The largest lag that the progress bar has seen.
        self.largest = 0

    def now(self) -> int | None:
        """Number of records between the query's position and the log's end; None: the lag is not known yet."""
        try:
            (lag,) = self._admin.describe_lag([GROUP], timeout=_GLANCE_S)
        except HeadraceError:
            return None  # the lag is only a progress figure; ``at_end`` checks it
        return self._total(lag)

    def at_end(self, processed: int) -> GroupLag:
        """Check after the query that the group has committed ``processed`` records and has no lag.

        Raises GroupFailedError if the group does not commit ``processed`` records in time, or still has lag.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            (lag,) = self._admin.describe_lag([GROUP])
            committed = sum(each.committed_offset for each in lag.partitions)
            if (committed, self._total(lag)) == (processed, 0):
                return lag
            if time.monotonic() > deadline:
                raise GroupFailedError(
                    f"group {GROUP} has committed {committed} records (lag {lag.total_lag}), but the query has "
                    f"processed {processed}"
                )
            time.sleep(_LOOK_S)

    def _total(self, lag: GroupLag) -> int | None:
        known = [each.lag for each in lag.partitions if each.lag is not None]
        if not lag.partitions or len(known) < len(lag.partitions):
            return None
        self.largest = max(self.largest, sum(known))
        return sum(known)

    def __enter__(self) -> QueryLag:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.close()
