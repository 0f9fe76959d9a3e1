"""Engine: configuration, lifecycle, and calls with retries, for all clients."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from headrace_core.errors import (
    HeadraceError,
    IllegalStateError,
    InvalidArgumentError,
    LeaderNotAvailableError,
    NetworkError,
    NotControllerError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from headrace_core.plurals import counted
from headrace_core.real_threads import refuse_eventlet

from .. import arguments
from .connections import Connections, call
from .io_thread import IoThread, Tenant, io_thread, register
from .metadata import Backoff, MetadataCache, TopicInfo
from .security import channels_of


class FinalError(Exception):
    """Raised inside ``retrying``: an error that must not be retried, although its class is retriable."""

    def __init__(self, error: HeadraceError) -> None:
        super().__init__(error.message)
        self.error = error


class NoSuchTopicError(FinalError):
    """Raised when the topic is still unknown after the grace period for new topics."""


class Engine:
    """The connections and the metadata of one client. All methods except ``__init__``, ``io``, ``is_used`` and
    ``check_alive`` run on the I/O thread.

    A client that is open but unused has no thread, and the fork handlers do not know the client. An unused client works
    in a child process, because no thread has started for the client.
    """

    def __init__(
        self,
        config: dict[str, Any],
        tenant: Tenant,
        *,
        watches: bool = True,
        on_failure: Callable[[], object] | None = None,
    ) -> None:
        """``watches``: open a stream for metadata changes; False for clients that make only a few calls.
        ``on_failure`` is called on the I/O thread when a background task of the client has failed. Raises
        IllegalStateError under eventlet's patches."""
        refuse_eventlet()
        self.config = config
        self.watches = watches
        self._tenant = weakref.ref(tenant)
        self._io: IoThread | None = None
        self.connections = Connections(channels_of(config), config["client.id"])
        self.backoff = Backoff(config)
        self.request_timeout_s: float = config["request.timeout.ms"] / 1000
        self.api_timeout_s: float = config["default.api.timeout.ms"] / 1000
        self.bootstrap_timeout_s: float = config["bootstrap.timeout.ms"] / 1000
        self.close_timeout_s: float = config["close.timeout.ms"] / 1000
        self.create_topics: bool = config["allow.auto.create.topics"]
        self.metadata = MetadataCache(config, self.connections)
        self._keepers: list[asyncio.Task[None]] = []
        self._on_failure = on_failure
        self.has_failed = ""  # why the client no longer works: a background task has failed

    @property
    def is_used(self) -> bool:
        return self._io is not None

    @property
    def io(self) -> IoThread:
        """The process's I/O thread; the first use registers the client with the thread. Raises IllegalStateError in a
        forked child process that cannot have an I/O thread."""
        if self._io is None:
            found, tenant = io_thread(), self._tenant()
            if tenant is not None:
                register(tenant)
            self._io = found
        return self._io

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Schedule ``function`` on the I/O thread; callable from any thread. ``call`` does nothing while the process
        ends."""
        loop = (self._io or self.io).loop
        with contextlib.suppress(RuntimeError):  # a closed loop raises RuntimeError
            loop.call_soon_threadsafe(function, *arguments)

    def start(self) -> None:
        """Start the client's background tasks, unless they run already."""
        if not self._keepers:
            self._keepers.append(self.spawn(self.metadata.keep_fresh(), "headrace-metadata"))
            if self.watches:
                self._keepers.append(self.spawn(self.metadata.watch(), "headrace-metadata-watch"))

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a background task that the client needs. If the task fails, all later calls of the client raise
        IllegalStateError (``check_alive``)."""
        return self.io.spawn(work, name, self._failed)

    def _failed(self, name: str, error: BaseException) -> None:
        if not self.has_failed:
            self.has_failed = (
                f"this client no longer works: its background task {name} failed with "
                f"{type(error).__name__}: {error}. Close the client and open a new one; this is a bug, the log has its "
                "traceback"
            )
            if self._on_failure is not None:
                self._on_failure()

    def failure(self) -> HeadraceError | None:
        """The error of a client with a background task that has failed."""
        return IllegalStateError(self.has_failed) if self.has_failed else None

    def check_alive(self) -> None:
        """Raise IllegalStateError if a background task of the client has failed. Callable from any thread."""
        if self.has_failed:
            raise IllegalStateError(self.has_failed)

    async def close(self) -> None:
        keepers, self._keepers = self._keepers, []
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        # Break the reference cycles: the memory of a closed client is then freed at once.
        self.metadata.listeners.clear()
        await self.connections.close()

    def deadline(self, timeout_s: float | None = None) -> float:
        """The time (of time.monotonic()) at which a call gives up. Raises InvalidArgumentError for an invalid
        timeout."""
        return time.monotonic() + (self.api_timeout_s if timeout_s is None else arguments.seconds(timeout_s))

    async def connect(self) -> None:
        """Read the cluster's metadata, unless the client has them. Raises BootstrapError, which names each address of
        ``bootstrap.servers`` and its failure, within ``bootstrap.timeout.ms``; SaslAuthenticationFailedError."""
        if not self.metadata.snapshot.brokers:
            await self.metadata.refresh([], deadline=self.deadline(self.bootstrap_timeout_s))

    async def topic(self, name: str, timeout_s: float | None = None, *, create: bool | None = None) -> TopicInfo:
        self.start()
        return await self.metadata.topic(
            name, create=self.create_topics if create is None else create, deadline=self.deadline(timeout_s)
        )

    async def learn(self, topics: Iterable[str]) -> None:
        """Read the metadata of many topics with one request. If the response has no metadata of a topic, a later
        call of ``topic`` requests them again or raises the error."""
        with contextlib.suppress(HeadraceError):
            deadline = self.deadline(self.request_timeout_s)
            await self.metadata.refresh(topics, create=self.create_topics, unless_known=True, deadline=deadline)

    async def retrying(self, attempt_once: Callable[[float], Any], deadline: float, what: str) -> Any:
        """Await ``attempt_once(timeout_s)`` until it succeeds, fails with a final error, or ``deadline`` passes."""
        attempt = 0
        why = ""  # why the last attempt failed; the timeout of an attempt that had no time left does not count
        while True:
            left = deadline - time.monotonic()
            try:
                return await attempt_once(max(min(self.request_timeout_s, left), 0.01))
            except FinalError as found:
                raise found.error from None
            except HeadraceError as error:
                pause = self.backoff.delay_s(attempt)
                if not error.retriable or error.code == "BOOTSTRAP_FAILED":
                    raise
                if not why or not isinstance(error, RequestTimedOutError):
                    why = error.message
                if time.monotonic() + pause >= deadline:
                    raise RequestTimedOutError(f"{what}: timed out; the last failure: {why}") from error
            attempt += 1
            await asyncio.sleep(pause)

    async def at_leader(self, topic: str, partition: int, timeout_s: float | None = None) -> tuple[str, int]:
        """The address and the leader epoch of a partition's leader. Call ``at_leader`` within ``retrying``.

        Raises LeaderNotAvailableError (retriable) if the partition has no leader, InvalidArgumentError if the topic
        lacks the partition; ``retrying`` raises UnknownTopicOrPartitionError if the topic does not exist.
        """
        try:
            info = await self.topic(topic, timeout_s)
        except UnknownTopicOrPartitionError as error:
            raise NoSuchTopicError(error) from None
        if partition >= len(info.partitions):
            refresh_timeout_s = self.request_timeout_s if timeout_s is None else timeout_s
            await self.metadata.refresh([topic], deadline=self.deadline(refresh_timeout_s))
            info = self.metadata.snapshot.topics.get(topic, info)
        if partition < len(info.partitions):
            part = info.partitions[partition]
            broker = self.metadata.snapshot.brokers.get(part.leader)
            if broker is not None:
                return broker.address, part.leader_epoch
            self.metadata.invalidate()
            raise LeaderNotAvailableError(f"{topic}-{partition} has no leader")
        raise InvalidArgumentError(
            f"topic {topic!r} has {counted(len(info.partitions), 'partition')}; partition {partition} does not exist"
        )

    async def anywhere(
        self,
        stub_of: Callable[[str], Callable[..., Any]],
        request: Any,
        timeout_s: float,
        *,
        once: bool = False,
        sees_own_writes: bool = False,
    ) -> Any:
        """Send a request to any node; the result is the response of the first node that can be reached.
        ``stub_of(address)`` returns the gRPC method for one node.

        ``once``: a call that may have taken effect is not repeated, not even by ``retrying``; RequestTimedOutError then
        means that the outcome is unknown. ``sees_own_writes``: wait until the node has applied this client's changes.
        """
        if not self.metadata.snapshot.brokers:
            await self.metadata.refresh([], deadline=self.deadline(timeout_s))
        failure: HeadraceError | None = None
        for address in self.metadata.addresses():
            try:
                if sees_own_writes:
                    await self.metadata.own_writes_at(address, timeout_s)
                return await call(stub_of(address), request, address, timeout_s)
            except NetworkError as error:
                if once and error.was_sent:
                    raise FinalError(
                        RequestTimedOutError(
                            f"the connection broke after the request was sent ({error.message}); whether the server "
                            "carried out the request is unknown: check before you retry"
                        )
                    ) from None
                failure = error
            except NotControllerError as error:  # this controller does not know the leader; another may
                failure = error
            except RequestTimedOutError as error:
                if once:
                    raise FinalError(error) from None
                raise
        assert failure is not None
        try:
            raise failure
        finally:
            del failure  # break the reference cycle: the error's traceback keeps this frame
