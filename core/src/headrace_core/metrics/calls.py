"""Times and errors of the calls of one listener, by the name of the request."""

from __future__ import annotations

from bisect import bisect_left

from .histogram import DURATION_BOUNDS_S, Histogram

#: Maximum number of different request names in the metrics of one listener. The names come from the services, not from
#: clients.
_REQUESTS_MAX = 200


class CallTimes:
    """``seconds``: histograms of the requests' times, by the request's name, such as ``Produce`` (Kafka's name where
    Kafka has the request). ``local_seconds``: the part of the time until this node's log has the records;
    ``remote_seconds``: the rest, which is the wait for other replicas. ``errors``: counts of answers with an error, by
    (request, error code). Calls that last as long as the client wants, such as a stream of heartbeats, are not
    timed."""

    __slots__ = ("errors", "listener", "local_seconds", "remote_seconds", "seconds")

    def __init__(self, listener: str) -> None:
        self.listener = listener
        self.seconds: dict[str, Histogram] = {}
        self.local_seconds: dict[str, Histogram] = {}
        self.remote_seconds: dict[str, Histogram] = {}
        self.errors: dict[tuple[str, str], int] = {}

    def of(self, request: str) -> Histogram:
        """The histogram of a request's times, for code that records times often."""
        return _in(self.seconds, request)

    def answered(self, request: str, started_s: float, local_s: float, now_s: float, count: int = 1) -> None:
        """Record the times of a request that is answered at ``now_s``, or of ``count`` requests with the same times.
        Its records were in the log at ``local_s``."""
        for table, seconds in (
            (self.seconds, now_s - started_s),
            (self.local_seconds, local_s - started_s),
            (self.remote_seconds, now_s - local_s),
        ):
            found = table.get(request) or _in(table, request)
            found.counts[bisect_left(DURATION_BOUNDS_S, seconds)] += count
            found.total += seconds * count

    def failed(self, request: str, code: str) -> None:
        """Count an answer with an error. ``code``: the name of the error, such as NOT_CONTROLLER."""
        key = request, code
        self.errors[key] = self.errors.get(key, 0) + 1


def _in(table: dict[str, Histogram], request: str) -> Histogram:
    found = table.get(request)
    if found is None:
        assert len(table) < _REQUESTS_MAX, "the names of requests must not come from clients"
        found = table[request] = Histogram()
    return found
