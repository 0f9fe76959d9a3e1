"""Consumers, blocking and asyncio, over the same core."""

from __future__ import annotations

from .. import engine as _engine  # noqa: F401  (before grpc)
from .aio import AsyncConsumer
from .blocking import Consumer

__all__ = ["AsyncConsumer", "Consumer"]
