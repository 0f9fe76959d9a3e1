"""The measurements behind ``headrace bench``: produce, consume, latency.

* Values are random bytes, made before the clock starts; memory is touched before it starts too (the first touch of a
  page by a virtual machine is ten times slower than any later one).
* The clock stops when the last outcome is known, not when the last record is queued.
* ``verified`` is checked. Produce: every record was acknowledged, and the end offsets moved by as many. Consume: CRCs
  are valid (check.crcs), and every offset from the earliest on was seen once. Latency: every record came back intact.

``latency_ms`` is, for produce, from send to acknowledgement (samples with object and async, whole calls with many and
arrow); for consume, the time of a call for more records; for latency, from send to receipt.
"""

from __future__ import annotations

from .common import APIS, Api, BenchOptions, BenchResult
from .consume import consume
from .latency import latency
from .produce import produce

__all__ = ["APIS", "Api", "BenchOptions", "BenchResult", "consume", "latency", "produce"]
