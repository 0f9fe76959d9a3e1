"""Where the coordinators of groups are, and calls on them that follow a group from one to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace_core.errors import (
    CoordinatorNotAvailableError,
    HeadraceError,
    NetworkError,
    NotCoordinatorError,
    RequestTimedOutError,
    from_number,
)
from headrace_protos.v1 import metadata_pb2

from .client import Engine
from .connections import call


class Coordinators:
    """Of one client; lives on the I/O thread. What it was told it remembers until somebody finds it wrong."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._addresses: dict[str, str] = {}

    async def address(self, group_id: str, timeout_s: float) -> str:
        """host:port of the group's coordinator. CoordinatorNotAvailableError (retriable: the shards' topic is being
        made, or no coordinator lives), InvalidGroupIdError, and what a call to any broker fails with."""
        found = self._addresses.get(group_id)
        if found is None:
            engine = self._engine
            engine.start()
            request = metadata_pb2.FindCoordinatorRequest(
                type=metadata_pb2.COORDINATOR_TYPE_GROUP,
                keys=[group_id],
            )
            answer = await engine.anywhere(
                lambda address: engine.connections.metadata(address).FindCoordinator, request, timeout_s
            )
            told = answer.coordinators[0]
            if told.error.code:
                raise from_number(told.error.code, f"group {group_id!r}: {told.error.message}")
            if told.coordinator_id < 0:
                raise CoordinatorNotAvailableError(f"group {group_id!r}: no coordinator has shard {told.shard} now")
            found = self._addresses[group_id] = f"{told.host}:{told.port}"
        return found

    def forget(self, group_id: str, address: str) -> None:
        """It was not there: whoever asks next looks it up again."""
        if self._addresses.get(group_id) == address:
            del self._addresses[group_id]

    async def call(
        self,
        group_id: str,
        method: str,
        request: Any,
        deadline: float,
        what: str,
        check: Callable[[Any], None] | None = None,
    ) -> Any:
        """The answer of the group's coordinator to ``method`` of the Groups service, asked for again wherever that has
        gone until ``deadline`` (time.monotonic()). ``check`` looks into the answer, and raises what is in it: a
        retriable error is asked again, another one is the caller's."""

        async def attempt(timeout_s: float) -> Any:
            address = await self.address(group_id, timeout_s)
            stub = self._engine.connections.groups(address)
            try:
                answer = await call(getattr(stub, method), request, address, timeout_s)
                if check is not None:
                    check(answer)
            except (NetworkError, RequestTimedOutError, NotCoordinatorError, CoordinatorNotAvailableError):
                self.forget(group_id, address)
                raise
            return answer

        return await self._engine.retrying(attempt, deadline, what)


def raise_first(results: Any, where: str) -> None:
    """Raise the first error of an answer's items, final ones before those that may pass."""
    errors = [from_number(each.error.code, f"{where}: {each.error.message}") for each in results if each.error.code]
    found: HeadraceError | None = next((error for error in errors if not error.retriable), None)
    if found is None and errors:
        found = errors[0]
    if found is not None:
        raise found
