"""Picks the producer's hot path, once: the compiled one where it is built, else the reference in plain Python.

``HEADRACE_PURE_PYTHON=1`` forces the reference; ``BACKEND`` says which one it is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

BACKEND: str

if TYPE_CHECKING or os.environ.get("HEADRACE_PURE_PYTHON", "0") not in ("", "0"):
    from . import _pure as _chosen

    BACKEND = "pure"
else:
    try:
        from . import _native as _chosen

        BACKEND = "native"
    except ImportError:
        from . import _pure as _chosen

        BACKEND = "pure"

Accumulator = _chosen.Accumulator
AsyncRecordFuture = _chosen.AsyncRecordFuture
PartitionQueue = _chosen.PartitionQueue
RecordFuture = _chosen.RecordFuture
SendBatch = _chosen.SendBatch
TopicQueues = _chosen.TopicQueues
key_partitions = _chosen.key_partitions
murmur2 = _chosen.murmur2
