"""A producer's id and epoch. Any broker assigns a producer id and epoch: before the first batch, and again after a gap
in the sequence numbers (KIP-360)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from headrace_core.errors import (
    HeadraceError,
    InvalidProducerEpochError,
    LeaderNotAvailableError,
    UnknownProducerIdError,
    UnsupportedVersionError,
)
from headrace_protos.v1 import produce_pb2

from ..engine.client import Engine
from ..engine.connections import call
from .sequences import Identity


class ProducerIdentity:
    """The identity of an idempotent producer; its methods run on the I/O thread. Calls ``renewed()`` with each new
    identity, and ``refused(error)`` when no broker grants an identity; the next ``ask`` tries again."""

    def __init__(
        self, engine: Engine, renewed: Callable[[], object], refused: Callable[[HeadraceError], object]
    ) -> None:
        self.current: Identity | None = None
        self.last_error: HeadraceError | None = None
        self._engine = engine
        self._renewed = renewed
        self._refused = refused
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Request a new identity, which has the next epoch of the current producer id; one request runs at a time."""
        if self._task is None:
            self._task = self._engine.spawn(self._ask(), "headrace-producer-id")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _ask(self) -> None:
        error: HeadraceError | None = None
        try:
            self.current = await self._until_answered()
        except HeadraceError as failure:
            error = failure.with_traceback(None)  # drop the traceback, which would keep this frame in a reference cycle
        self.last_error, self._task = error, None
        if error is None:
            self._renewed()
        else:
            self._refused(error)

    async def _until_answered(self) -> Identity:
        request = produce_pb2.InitProducerIdRequest()
        if self.current is not None:
            request.producer_id, request.producer_epoch = self.current
        attempt = 0
        while True:
            try:
                answer = await self._ask_brokers(request)
                return Identity(answer.producer_id, answer.producer_epoch)
            except (InvalidProducerEpochError, UnknownProducerIdError):
                if not request.HasField("producer_id"):
                    raise
                request = produce_pb2.InitProducerIdRequest()  # the old producer id is unusable: request a new id
            except HeadraceError as error:
                if not error.retriable:
                    raise
                self.last_error = error.with_traceback(None)
                await asyncio.sleep(self._engine.backoff.delay_s(attempt))
                attempt += 1

    async def _ask_brokers(self, request: Any) -> Any:
        """Ask brokers in random order until one answers; if none answers, raise the last error."""
        engine = self._engine
        brokers = list(engine.metadata.snapshot.brokers.values())
        random.shuffle(brokers)
        failure: HeadraceError = LeaderNotAvailableError(
            "cannot get a producer id: the client's metadata has no broker yet"
        )
        for broker in brokers:
            method = engine.connections.produce(broker.address).InitProducerId
            try:
                return await call(method, request, broker.address, engine.request_timeout_s)
            except UnsupportedVersionError as error:
                raise UnsupportedVersionError(
                    f"{broker.address} does not support producer ids ({error.message}); set enable.idempotence=false"
                ) from None
            except HeadraceError as error:
                if not error.retriable:
                    raise
                failure = error
        engine.metadata.invalidate()
        try:
            raise failure
        finally:
            del failure  # the error's traceback keeps this frame: a reference cycle
