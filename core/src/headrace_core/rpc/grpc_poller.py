"""gRPC's poller as a thread of the operating system, in a program whose threads are greenlets (``real_threads``)."""

from __future__ import annotations

import threading
import types
import weakref
from typing import Any

from ..real_threads import RealThread

_pollers: weakref.WeakSet[RealThread] = weakref.WeakSet()


def grpc_polls() -> bool:
    """Whether a poller of gRPC runs as a RealThread."""
    return any(poller.is_alive() for poller in list(_pollers))


class _Poller(RealThread):
    def start(self) -> None:
        _pollers.add(self)
        super().start()


class _GrpcThreading(types.ModuleType):
    """``threading`` for gRPC's native module: its poller is a thread of the operating system."""

    Thread = _Poller

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


def let_grpc_poll() -> None:
    """Give gRPC's poller a thread of the operating system, which it starts with the first channel, and again whenever
    all its objects had been freed. Call this under gevent, before the first channel."""
    from grpc._cython import cygrpc

    if not isinstance(cygrpc.threading, _GrpcThreading):
        cygrpc.threading = _GrpcThreading("threading")
