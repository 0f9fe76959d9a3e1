"""Selects compaction in compiled code or in plain Python, as ``records`` does for its codec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...records import BACKEND

if TYPE_CHECKING:
    from . import _pure as _backend
elif BACKEND == "native":
    try:
        from . import _cleaning as _backend
    except ImportError:  # the extension was built before compaction existed
        from . import _pure as _backend
else:
    from . import _pure as _backend

BatchFilter = _backend.BatchFilter
KeyIndexer = _backend.KeyIndexer
OffsetMap = _backend.OffsetMap
scan_batches = _backend.scan_batches

__all__ = ["BatchFilter", "KeyIndexer", "OffsetMap", "scan_batches"]
