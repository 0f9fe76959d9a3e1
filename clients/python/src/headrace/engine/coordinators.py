"""Find the coordinators of groups and transactional ids, and call them; after a change of coordinator, a call is sent
to the new coordinator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from headrace_core.errors import (
    BootstrapError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    HeadraceError,
    NetworkError,
    NotCoordinatorError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    from_number,
)
from headrace_core.plurals import counted
from headrace_protos.v1 import metadata_pb2

from .client import Engine
from .connections import Connections, call

#: First timeout of one attempt of an admin call, in seconds; later rounds of attempts have longer timeouts. The first
#: timeout of an attempt is short, because the groups of a hanging coordinator move to another coordinator when its
#: session ends.
ATTEMPT_TIMEOUT_S = 3.0
_EQUAL_ATTEMPTS = 4
#: Seconds without a response after which a call looks up the coordinator again, and seconds between two such lookups. A
#: suspended coordinator keeps its connections, and its shards move to others when its session ends.
LOOK_EVERY_S = 1.0
#: Maximum number of groups in one request.
GROUPS_PER_REQUEST = 1_000
#: Errors after which the client looks up the group's coordinator again.
_ELSEWHERE = (NetworkError, RequestTimedOutError, NotCoordinatorError, CoordinatorNotAvailableError)


class Kind(NamedTuple):
    """A kind of coordinator: coordinator of groups, or of transactions. The fields are the key type, the nouns for a
    key and a shard in messages, the request's field for keys, the internal topic whose partitions are the shards, and
    the gRPC service."""

    type: metadata_pb2.CoordinatorType
    noun: str
    field: str
    topic: str
    shard_noun: str
    stub: Callable[[Connections, str], Any]


GROUPS = Kind(
    metadata_pb2.COORDINATOR_TYPE_GROUP, "group", "group_id", "__consumer_offsets", "group shard",
    lambda connections, address: connections.groups(address),
)  # fmt: skip
TRANSACTIONS = Kind(
    metadata_pb2.COORDINATOR_TYPE_TRANSACTION, "transactional id", "transactional_id", "__transaction_state",
    "transaction shard", lambda connections, address: connections.transactions(address),
)  # fmt: skip
#: The coordinators of groups, for the offsets of transactions.
GROUP_OFFSETS = GROUPS._replace(stub=TRANSACTIONS.stub)


class Shard(NamedTuple):
    """Metadata of a group's shard (its partition of ``__consumer_offsets``): the shard's epoch (0: unknown), whether
    the shard lacks a coordinator, and an upper limit of the metadata's age (None: unknown)."""

    shard_epoch: int
    is_vacant: bool
    age_s: float | None


class Coordinators:
    """The coordinator cache of one client, used on the I/O thread: a coordinator is remembered until a call shows that
    it has changed. A key is the id of a group, or a transactional id."""

    def __init__(self, engine: Engine, kind: Kind = GROUPS) -> None:
        self._engine = engine
        self._kind = kind
        self._addresses: dict[str, str] = {}
        self._ids: dict[str, int] = {}  # by address
        self._epochs: dict[str, int] = {}  # of the shards of the keys in _addresses; 0: unknown

    async def address(self, key: str, timeout_s: float) -> str:
        """host:port of the key's coordinator. Raises CoordinatorNotAvailableError (retriable: the topic of the shards,
        such as ``__consumer_offsets``, is being created, or no coordinator is alive), InvalidGroupIdError, and errors
        of a call to any broker."""
        found = self._addresses.get(key)
        if found is None:
            self._engine.start()
            located = (await self.addresses([key], timeout_s))[key]
            if isinstance(located, HeadraceError):
                try:
                    raise located
                finally:
                    del located  # the error's traceback keeps this frame: a reference cycle
            found = located
        return found

    async def addresses(self, keys: Iterable[str], timeout_s: float) -> dict[str, str | HeadraceError]:
        """The addresses for many keys, with one request for all keys that are not in the cache; a failed key has an
        error in place of an address."""
        found: dict[str, str | HeadraceError] = dict.fromkeys(keys, "")
        strangers = [key for key in found if key not in self._addresses]
        engine, noun = self._engine, self._kind.noun
        for at in range(0, len(strangers), GROUPS_PER_REQUEST):
            request = metadata_pb2.FindCoordinatorRequest(
                type=self._kind.type, keys=strangers[at : at + GROUPS_PER_REQUEST]
            )
            answer = await engine.anywhere(
                lambda address: engine.connections.metadata(address).FindCoordinator, request, timeout_s
            )
            for located in answer.coordinators:
                if located.error.code:
                    found[located.key] = from_number(
                        located.error.code, f"{noun} {located.key!r}: {located.error.message}"
                    )
                elif located.coordinator_id < 0:
                    found[located.key] = CoordinatorNotAvailableError(
                        f"{noun} {located.key!r}: shard {located.shard} has no coordinator"
                    )
                else:
                    address = self._addresses[located.key] = f"{located.host}:{located.port}"
                    self._ids[address] = located.coordinator_id
                    self._epochs[located.key] = located.shard_epoch
        return {key: self._addresses.get(key, located) for key, located in found.items()}

    async def who_has(self, group_id: str, timeout_s: float) -> Shard:
        """Look up the shard of a group (its partition of ``__consumer_offsets``), without the cache. Raises the errors
        of a call to any broker."""
        engine = self._engine
        request = metadata_pb2.FindCoordinatorRequest(type=self._kind.type, keys=[group_id])
        answer = await engine.anywhere(
            lambda address: engine.connections.metadata(address).FindCoordinator, request, timeout_s
        )
        (located,) = answer.coordinators
        age_s = answer.metadata_age_ms / 1000 if answer.HasField("metadata_age_ms") else None
        return Shard(max(located.shard_epoch, 0), located.coordinator_id < 0, age_s)

    async def has_moved(self, key: str, address: str) -> bool:
        """Whether the key has another coordinator than ``address``, by the metadata of any broker. The shard's epoch
        shows whether the broker's metadata are newer than the cache."""
        if self._addresses.get(key, address) != address:  # another caller has found the new owner
            return True
        engine = self._engine
        request = metadata_pb2.FindCoordinatorRequest(type=self._kind.type, keys=[key])
        try:
            answer = await engine.anywhere(
                lambda each: engine.connections.metadata(each).FindCoordinator, request, LOOK_EVERY_S
            )
        except HeadraceError:
            return False
        (located,) = answer.coordinators
        if located.error.code or located.coordinator_id < 0 or f"{located.host}:{located.port}" == address:
            return False
        known = self._epochs.get(key, 0)
        return not known or located.shard_epoch > known

    async def _unless_moved(self, key: str, address: str, answer: Coroutine[Any, Any, Any]) -> Any:
        """Await ``answer`` of the coordinator at ``address``. Raises RequestTimedOutError (the outcome is unknown) when
        the coordinator is silent and the key has another coordinator."""
        answering, looking = asyncio.ensure_future(answer), None
        try:
            while True:
                await asyncio.wait({answering}, timeout=LOOK_EVERY_S)
                if not answering.done():
                    looking = asyncio.ensure_future(self.has_moved(key, address))
                    await asyncio.wait({answering, looking}, return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    return answering.result()
                if looking is not None and looking.result():
                    raise RequestTimedOutError(
                        f"{address} did not answer, and {self._kind.noun} {key!r} has moved to another coordinator"
                    )
        finally:
            if looking is not None:
                looking.cancel()  # a silent broker's answer about the owner takes a second
            if not answering.cancel() and not answering.cancelled():
                answering.exception()  # (a caller that was cancelled at this moment does not raise it)
            del answering  # its error's traceback keeps this frame: a reference cycle

    def node_of(self, group_id: str) -> tuple[int, str]:
        """The id and address of the coordinator that was last used for the group; (-1, "") if there is none."""
        address = self._addresses.get(group_id, "")
        return self._ids.get(address, -1), address

    def forget(self, group_id: str, address: str) -> None:
        """Remove a wrong address from the cache, so that the next call looks up the coordinator again."""
        if self._addresses.get(group_id) == address:
            del self._addresses[group_id]

    async def call(
        self,
        key: str,
        method: str,
        request: Any,
        deadline: float,
        what: str,
        check: Callable[[Any], None] | None = None,
        attempt_timeout_s: float | None = None,
        traceparent: str | None = None,
    ) -> Any:
        """Call ``method`` at the key's coordinator, with retries until ``deadline`` (time.monotonic()). After a change
        of coordinator, the retries call the new coordinator. ``check`` raises the error in a response; the call is
        retried if that error is retriable. ``attempt_timeout_s``: timeout of one attempt; None: request.timeout.ms.
        ``traceparent``: the context of the program's span."""

        async def attempt(timeout_s: float) -> Any:
            if attempt_timeout_s is not None:
                timeout_s = min(timeout_s, attempt_timeout_s)
            address = await self.address(key, timeout_s)
            stub = self._kind.stub(self._engine.connections, address)
            try:
                asking = call(getattr(stub, method), request, address, timeout_s, traceparent)
                answer = await self._unless_moved(key, address, asking)
                if check is not None:
                    check(answer)
            except _ELSEWHERE:
                self.forget(key, address)
                raise
            return answer

        return await self._engine.retrying(attempt, deadline, what)

    async def each(
        self,
        group_ids: Iterable[str],
        method: str,
        request_of: Callable[[list[str]], Any],
        items_of: Callable[[Any], Iterable[Any]],
        deadline: float,
        *,
        when_repeated: type[HeadraceError] | None = None,
    ) -> dict[str, Any]:
        """Call ``method`` for many groups, or for many transactional ids. The result for each group is its item in a
        response (with ``group_id`` and ``error``), or a HeadraceError. Each round of attempts makes one call per
        coordinator. Until ``deadline``, a group is retried if its coordinator is unknown, does not answer, or has
        changed.

        ``when_repeated``: the error that a second attempt gets if the first attempt took effect but its response was
        lost. An item with the ``when_repeated`` error is a success (result None).
        """
        found: dict[str, Any] = dict.fromkeys(group_ids)
        waiting = list(found)
        lost: set[str] = set()
        why: dict[str, HeadraceError] = {}  # the last attempt may have no time left: keep the earlier cause
        attempt = 0
        while waiting:
            left_s = max(deadline - time.monotonic(), 0.01)
            attempt_timeout_s = ATTEMPT_TIMEOUT_S * 2 ** max(0, attempt - _EQUAL_ATTEMPTS)
            timeout_s = min(attempt_timeout_s, self._engine.request_timeout_s, left_s)
            found |= await self._ask_each(waiting, method, request_of, items_of, timeout_s, lost)
            waiting = [each for each in waiting if isinstance(found[each], HeadraceError) and found[each].retriable]
            for group_id in waiting:
                if group_id not in why or not isinstance(found[group_id], RequestTimedOutError):
                    why[group_id] = found[group_id]
            pause_s = self._engine.backoff.delay_s(attempt)
            if waiting and time.monotonic() + pause_s >= deadline:
                for group_id in waiting:
                    found[group_id] = RequestTimedOutError(
                        f"{method} of {self._kind.noun} {group_id!r}: timed out; the last failure: "
                        f"{why[group_id].message}"
                    )
                break
            attempt += 1
            if waiting:
                await asyncio.sleep(pause_s)
        if when_repeated is not None:
            for group_id in lost:
                if isinstance(found[group_id], when_repeated):
                    found[group_id] = None
        return found

    async def _ask_each(
        self,
        group_ids: list[str],
        method: str,
        request_of: Callable[[list[str]], Any],
        items_of: Callable[[Any], Iterable[Any]],
        timeout_s: float,
        lost: set[str],
    ) -> dict[str, Any]:
        """Make one attempt; return an item or an error per group. Adds to ``lost`` the groups whose request got no
        response, because the request may have taken effect."""
        try:
            found: dict[str, Any] = dict(await self.addresses(group_ids, timeout_s))
        except BootstrapError:
            raise
        except HeadraceError as error:
            return dict.fromkeys(group_ids, error)
        by_address: dict[str, list[str]] = {}
        for group_id, located in found.items():
            if isinstance(located, str):
                by_address.setdefault(located, []).append(group_id)

        async def ask(address: str, some: list[str]) -> None:
            try:
                answer = await call(
                    getattr(self._kind.stub(self._engine.connections, address), method),
                    request_of(some),
                    address,
                    timeout_s,
                )
                items = {getattr(item, self._kind.field): item for item in items_of(answer)}
                for group_id in some:
                    found[group_id] = self._outcome(items.get(group_id), group_id, address)
            except HeadraceError as error:
                found.update(dict.fromkeys(some, error))
                if isinstance(error, RequestTimedOutError) or (isinstance(error, NetworkError) and error.was_sent):
                    lost.update(some)
            for group_id in some:
                if isinstance(found[group_id], _ELSEWHERE):
                    self.forget(group_id, address)

        parts = [
            ask(address, some[at : at + GROUPS_PER_REQUEST])
            for address, some in by_address.items()
            for at in range(0, len(some), GROUPS_PER_REQUEST)
        ]
        await asyncio.gather(*parts)
        return found

    def _outcome(self, item: Any, key: str, address: str) -> Any:
        if item is None:
            return UnknownServerError(f"the response of coordinator {address} lacks {self._kind.noun} {key!r}")
        return from_number(item.error.code, f"{item.error.message} (from {address})") if item.error.code else item

    async def everywhere(
        self, ask: Callable[[str, float], Awaitable[list[Any]]], deadline: float, what: str
    ) -> dict[int, list[Any]]:
        """Call ``ask(address, timeout_s)`` for the coordinators of all shards; return the responses of each
        coordinator. Retry while a shard has no coordinator, is loading (``loading_shards`` of a response) or moves to
        another coordinator, because the responses would be incomplete. The result is empty if no shard exists yet."""
        noun = self._kind.shard_noun

        async def attempt(timeout_s: float) -> dict[int, list[Any]]:
            timeout_s = min(timeout_s, 2 * ATTEMPT_TIMEOUT_S)
            owners, addresses = await self._shards(timeout_s)
            asked = sorted({owner for owner, _ in owners})
            answers = await asyncio.gather(*(ask(addresses[owner], timeout_s) for owner in asked))
            loading = sum(max(response.loading_shards for response in of_one) for of_one in answers)
            if loading:
                raise CoordinatorLoadInProgressError(
                    f"{loading} of {counted(len(owners), noun)} are still loading, so the answer is incomplete; retry"
                )
            if (await self._shards(timeout_s))[0] != owners:
                raise NotCoordinatorError(f"{what}: {noun}s moved to another coordinator during the call; retry")
            return dict(zip(asked, answers, strict=True))

        found: dict[int, list[Any]] = await self._engine.retrying(attempt, deadline, what)
        return found

    async def _shards(self, timeout_s: float) -> tuple[list[tuple[int, int]], dict[int, str]]:
        """The coordinator and epoch of each shard, and the addresses of the coordinators; both are empty if the topic
        of the shards does not exist. Raises CoordinatorNotAvailableError.

        A user who is not authorized to describe the topic of the shards cannot learn the shards. For a user who may not
        describe the topic, each live coordinator stands for one shard, as Kafka's clients ask all live brokers. For a
        user who may not describe the topic, the result lacks the groups or transactions of shards without a
        coordinator."""
        engine, topic_name = self._engine, self._kind.topic
        request = metadata_pb2.MetadataRequest(topics=[topic_name])
        answer = await engine.metadata.ask(request, engine.deadline(timeout_s))
        (topic,) = answer.topics
        error = from_number(topic.error.code, topic.error.message) if topic.error.code else None
        if isinstance(error, UnknownTopicOrPartitionError):
            return [], {}
        addresses = {each.coordinator_id: f"{each.host}:{each.port}" for each in answer.coordinators}
        if isinstance(error, TopicAuthorizationFailedError):
            if not addresses:
                raise CoordinatorNotAvailableError(
                    "no coordinator is alive (`headrace up --coordinators 1` starts one)"
                )
            return [(coordinator_id, -1) for coordinator_id in sorted(addresses)], addresses
        if error is not None:
            raise error
        parts = sorted(topic.partitions, key=lambda part: part.partition)
        owners = [(part.coordinator_id if part.HasField("coordinator_id") else -1, part.shard_epoch) for part in parts]
        orphans = sum(owner not in addresses for owner, _ in owners)
        if orphans:
            raise CoordinatorNotAvailableError(
                f"{orphans} of {counted(len(owners), self._kind.shard_noun)} have no coordinator; "
                "live coordinators: "
                + (", ".join(map(str, sorted(addresses))) or "none (`headrace up --coordinators 1` starts one)")
            )
        return owners, addresses


def raise_first(results: Any, where: str) -> None:
    """Raise the first error in the results; errors that are not retriable take precedence."""
    errors = [from_number(each.error.code, f"{where}: {each.error.message}") for each in results if each.error.code]
    found = next((error for error in errors if not error.retriable), None)
    if found is None and errors:
        found = errors[0]
    if found is not None:
        try:
            raise found
        finally:
            del found, errors  # the error's traceback keeps this frame: a reference cycle
