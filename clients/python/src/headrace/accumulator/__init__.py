"""Picks the producer's hot path, once: the compiled one where it is built, else the reference in plain Python.

``HEADRACE_PURE_PYTHON=1`` forces the reference; ``BACKEND`` says which one it is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ._checks import Headers as Headers
from ._checks import NoSuchPartition as NoSuchPartition

BACKEND: str

if TYPE_CHECKING:
    from . import _pure_futures as _futures
    from ._checks import header_list as header_list
    from ._pure import Accumulator as Accumulator
    from ._pure import PartitionQueue as PartitionQueue
    from ._pure import SendBatch as SendBatch
    from ._pure import TopicQueues as TopicQueues
    from ._pure import key_partitions as key_partitions
    from ._pure import murmur2 as murmur2
    from ._pure_metadata import RecordMetadata as RecordMetadata

    AsyncRecordFuture = _futures.AsyncRecordFuture
    RecordFuture = _futures.RecordFuture
else:
    if os.environ.get("HEADRACE_PURE_PYTHON", "0") not in ("", "0"):
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
    RecordMetadata = _chosen.RecordMetadata
    SendBatch = _chosen.SendBatch
    TopicQueues = _chosen.TopicQueues
    header_list = _chosen.header_list
    key_partitions = _chosen.key_partitions
    murmur2 = _chosen.murmur2
