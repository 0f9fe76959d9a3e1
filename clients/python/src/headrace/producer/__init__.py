"""Producers, blocking and asyncio, over the same core."""

from __future__ import annotations

from .. import engine as _engine  # noqa: F401  (before grpc)
from .aio import AsyncProducer
from .blocking import Producer
from .futures import AsyncRecordFuture, ManyFuture, RecordFuture

__all__ = ["AsyncProducer", "AsyncRecordFuture", "ManyFuture", "Producer", "RecordFuture"]
