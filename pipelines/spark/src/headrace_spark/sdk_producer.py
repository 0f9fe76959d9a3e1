"""The producer behind the sink: one for each worker process and configuration, kept for the worker's next tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headrace import Producer

#: A worker that has served so many different sinks closes the producer that it has not used for longest.
KEPT = 4

Key = tuple[int, frozenset[tuple[str, str]]]

#: By process id, since a worker is a fork; in the order of their last use.
_of_worker: dict[Key, Producer] = {}


def worker_producer(config: Mapping[str, str]) -> Producer:
    """The producer of this worker process: a worker runs one task after the other, and connects once.

    Between tasks it holds nothing that is not acknowledged, so Spark may end the worker with a signal at any time.
    """
    key = (os.getpid(), frozenset(config.items()))
    found = _of_worker.pop(key, None) or Producer(dict(config))
    while len(_of_worker) >= KEPT:
        _of_worker.pop(next(iter(_of_worker))).close()
    _of_worker[key] = found
    return found


def give_up(producer: Producer) -> None:
    """Close it at once: what is queued is not sent any more, lest a failed task goes on writing."""
    for key in [key for key, kept in _of_worker.items() if kept is producer]:
        del _of_worker[key]
    producer.close(0)
