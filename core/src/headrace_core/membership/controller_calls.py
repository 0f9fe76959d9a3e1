"""Calls of a broker or a coordinator to the active controller.

While there is no active controller, a call waits until a controller becomes active, or until the call's timeout is
over. The method of a call decides how often the call may send its request (``Sending``)::

    AT_MOST_ONCE      AlterPartition. The call ends after one sent request, with any result: the caller counts the
                      attempts (partition/isr.py). The call skips only addresses that it cannot reach.
    UNTIL_ATTEMPTED   changes. The call asks another controller when the first controller has certainly changed
                      nothing: it is not the leader, it is shutting down, or there was no connection. A lost answer
                      ends the call (core/membership/leader_calls.py).
    UNTIL_ANSWERED    reads and idempotent calls: AssignReplicasToDirs repeats a state that the broker compares with the
                      metadata again, a block of producer ids whose answer was lost is never used, and an internal topic
                      that already exists is no error.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import grpc.aio

from ..clock import Clock
from ..errors import HeadraceError, NetworkError, NotControllerError, RequestTimedOutError, ServerShuttingDownError
from ..rpc import ChannelPool, ChannelPurpose
from .controllers import Controllers
from .leader_calls import ask_while_it_leads, outcome_unknown
from .leader_discovery import LeaderDiscovery


class Sending(enum.Enum):
    """How many times one call to the controller may send its request; see the module's docstring."""

    AT_MOST_ONCE = "at most once"
    UNTIL_ATTEMPTED = "until one controller has attempted it"
    UNTIL_ANSWERED = "until one controller has answered"


class ControllerCalls:
    """Calls to the active controller, over channels to the controllers' internal listeners that open on first use."""

    def __init__(self, controllers: Controllers, clock: Clock) -> None:
        self._controllers = controllers
        self._clock = clock
        self._channels = ChannelPool(controllers.channels, ChannelPurpose.CONTROL)

    async def call(
        self,
        stub: Callable[[grpc.aio.Channel], Any],
        method: str,
        request: Any,
        timeout_ms: int,
        sending: Sending,
    ) -> Any:
        """Send ``request`` by ``method`` of the service of ``stub``, and return the answer. The call searches for the
        active controller until ``timeout_ms`` are over, then raises the error of the last attempt. An error in the
        active controller's answer is raised at once."""
        deadline = self._clock.monotonic_ms() + timeout_ms
        discovery = LeaderDiscovery(self._controllers)
        failure: HeadraceError = RequestTimedOutError(
            f"{method}: no controller answered within {timeout_ms} ms; check that most controllers run, then retry"
        )
        while (left_ms := deadline - self._clock.monotonic_ms()) > 0:
            address = discovery.address
            try:
                return await ask_while_it_leads(
                    getattr(stub(self._channels.get(address)), method),
                    request,
                    address,
                    left_ms / 1000,
                    leader_address=lambda: self._controllers.leader_address,
                    subscribe=self._controllers.subscribe,
                )
            except NetworkError as error:
                failure = error
                if error.was_sent and sending is Sending.UNTIL_ATTEMPTED:
                    raise outcome_unknown(method, error) from None
                was_sent = error.was_sent
            except (NotControllerError, ServerShuttingDownError) as error:  # nothing was done
                failure = error
                was_sent = True
            pause_s = discovery.failed(failure)
            if was_sent and sending is Sending.AT_MOST_ONCE:
                raise failure
            left_ms = deadline - self._clock.monotonic_ms()
            await discovery.pause(min(pause_s, max(left_ms, 0) / 1_000))
        raise failure

    async def close(self) -> None:
        await self._channels.close()
