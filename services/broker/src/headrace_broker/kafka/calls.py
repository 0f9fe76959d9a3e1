"""The calls of this broker's own services for Kafka's clients, in the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from headrace_core.errors import HeadraceError, RequestTimedOutError
from headrace_core.security.access import EVERYTHING, Access, Authorization, set_access
from headrace_core.security.caller import set_caller
from headrace_core.security.gate import Gate
from headrace_core.unexpected import answer_to
from headrace_kafka.client import Client
from headrace_kafka.upstream import TIMEOUT_MS_MAX, check


def access_of(client: Client, authorization: Authorization, method: str) -> Access:
    """The client's rights."""
    return EVERYTHING if authorization.authorizer is None else Access(client.caller, authorization, method)


class OwnServices:
    """``services``: for each class of stubs the servicer of this broker. Its methods get the client's caller and
    rights, and check them as they do for a client of gRPC."""

    def __init__(self, services: Mapping[Callable[..., Any], Any], authorization: Authorization) -> None:
        self._services = services
        self._authorization = authorization
        self._gate = Gate("kafka", authorization=authorization)
        self._methods: dict[tuple[Callable[..., Any], str], Any] = {}

    async def call(self, client: Client, stub: Callable[..., Any], method: str, request: Any, timeout_ms: float) -> Any:
        """Raises HeadraceError."""
        check(method, stub, request)
        behaviour = self._methods.get((stub, method))
        if behaviour is None:
            path = f"/headrace.v1.{stub.__name__.removesuffix('Stub')}/{method}"
            found = getattr(self._services[stub], method)
            behaviour = self._methods[stub, method] = self._gate.guarded(found, path, has_request=True)
        set_caller(client.caller)
        set_access(access_of(client, self._authorization, method))
        try:
            async with asyncio.timeout(min(max(timeout_ms, 1), TIMEOUT_MS_MAX) / 1_000):
                return await behaviour(request, None)
        except TimeoutError:
            raise RequestTimedOutError(f"{method}: the broker did not answer within {timeout_ms:.0f} ms") from None
        except HeadraceError:
            raise
        except Exception as error:
            raise answer_to(error, method) from error
