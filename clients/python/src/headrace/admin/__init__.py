"""Administration clients, blocking and asyncio, with the same calls."""

from __future__ import annotations

from .. import engine as _engine  # noqa: F401  (before grpc)
from .aio import AsyncAdmin
from .blocking import Admin

__all__ = ["Admin", "AsyncAdmin"]
