"""The measurements behind ``headrace bench``: produce, consume, latency.

* The workloads make random values, and touch their memory, before the clock starts. A virtual machine needs ten times
  longer for the first touch of a page than for later touches.
* The clock stops when the outcome of the last record is known, not when that record is queued.
* ``verified`` in a result is True if the check of the run succeeded. A produce run is verified if every record was
  acknowledged and the end offsets grew by the same number. A consume run is verified if all CRCs are valid (check.crcs)
  and every offset from the earliest on was read once. A latency run is verified if every record came back unchanged.

The meaning of ``latency_ms`` depends on the workload. For produce, ``latency_ms`` is the time from send to
acknowledgement: of sampled records with the APIs object and async, of whole calls with the APIs many and arrow. For
consume, ``latency_ms`` is the time of a call for more records. For latency, ``latency_ms`` is the time from send to
receipt.
"""

from __future__ import annotations

from .common import APIS, Api, BenchOptions, BenchResult
from .consume import consume
from .latency import latency
from .produce import produce

__all__ = ["APIS", "Api", "BenchOptions", "BenchResult", "consume", "latency", "produce"]
