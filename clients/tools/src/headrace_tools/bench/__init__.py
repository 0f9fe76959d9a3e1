"""The measurements behind ``headrace bench``: produce, consume, latency. Honest by construction:

* Values are random bytes, made before the clock starts; memory is touched before it starts too (the first touch of a
  page by a virtual machine is an order of magnitude slower than any later one).
* The clock stops when the last outcome is known, not when the last record is handed over.
* ``verified`` is checked, not assumed. Produce: every record acknowledged, and the end offsets moved by as many.
  Consume: CRCs checked (check.crcs), every offset from the earliest on seen once, without a gap. Latency: every record
  came back, whole.

``latency_ms`` is, for produce, from send to acknowledgement (of samples with object and async, of whole calls with many
and arrow); for consume, the time that a call for more records took; for latency, from send to received.
"""

from __future__ import annotations

from .common import APIS, Api, BenchOptions, BenchResult
from .consume import consume
from .latency import latency
from .produce import produce

__all__ = ["APIS", "Api", "BenchOptions", "BenchResult", "consume", "latency", "produce"]
