"""Connections of members and other clients to coordinators: messages arrive in order and completely, until the
connection breaks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace_core.errors import HeadraceError, NetworkError

if TYPE_CHECKING:
    from headrace_coordinator.handlers.membership import MembershipStream
    from tests.simulation.group_hosts import Coordinator, SimServerStream
    from tests.simulation.group_members import Caller, SimMember
    from tests.simulation.group_sim_world import GroupWorld


#: Calls of transactional producers and of their coordinator (group_transactions.TransactionCalls).
TRANSACTION_CALLS = ("offsets", "marker")


class Pipe:
    """One direction of a connection: messages arrive in order and completely, until it is closed. While its link is
    cut, messages wait."""

    def __init__(self, world: GroupWorld, link: tuple[str, str], deliver: Callable[[Any], None]) -> None:
        self._world = world
        self._link = link
        self._deliver = deliver
        self._queue: deque[Any] = deque()
        self._last_ms = 0.0
        self.is_closed = False

    def send(self, message: Any) -> None:
        if self.is_closed:
            return
        self._queue.append(message)
        scheduler = self._world.scheduler
        self._last_ms = max(scheduler.now_ms + (self._world.message_delay_ms(self._link) or 0.1), self._last_ms)
        scheduler.at(self._last_ms, self._arrive)

    def _arrive(self) -> None:
        if self.is_closed or not self._queue:
            return
        if self._link in self._world.cuts:
            self._world.scheduler.after(15.0, self._arrive)
            return
        self._deliver(self._queue.popleft())


class MemberConnection:
    """The stream between a member and a coordinator. The side that closes the stream, or sees it break, knows this at
    once. The other side of the stream learns of its end later."""

    def __init__(self, world: GroupWorld, member: SimMember, process: Coordinator) -> None:
        self.world = world
        self.member = member
        self.process = process
        self._life = member.life
        self._handler: MembershipStream | None = None
        self._stream: SimServerStream | None = None
        self._is_over = False  # at the coordinator
        name = process.host.name
        self._up = Pipe(world, (member.name, name), self._request)
        self._down = Pipe(world, (name, member.name), self._response)
        world.connections.append(self)
        self._up.send(None)  # the dialing itself

    @property
    def is_of_member(self) -> bool:
        return self.member.is_alive and self.member.life == self._life

    # -- the member's end --------------------------------------------------------------------------------------------

    def to_coordinator(self, request: Any) -> None:
        self._up.send(request)

    def closed_by_member(self) -> None:
        """Close the member's end: the member closes it, its process has ended, or it saw the connection break. The
        coordinator's end sees the close later."""
        self._down.is_closed = True
        if not self._up.is_closed:
            self._up.is_closed = True
            self.world.scheduler.after(self.world.rng.uniform(2.0, 40.0), self._seen_by_coordinator)

    def _response(self, message: Any) -> None:
        if not self.is_of_member:
            return
        if message is self:
            self.member.do(lambda: self.member.connected(self))
        elif isinstance(message, tuple):
            self._up.is_closed = self._down.is_closed = True
            self.member.disconnects(self, message[0] or NetworkError("the stream ended"))
        else:
            self.member.do(lambda: self.member.received(self, message))

    # -- the coordinator's end ---------------------------------------------------------------------------------------

    def _on_loop(self, act: Callable[[], None]) -> None:
        if not self.process.loop.is_dead:
            self.process.loop.run(act)

    def _request(self, message: Any) -> None:
        if message is None:
            self._on_loop(lambda: self.process.accept(self))
        else:
            self._on_loop(lambda: self._handle(message))

    def serve(self, handler: MembershipStream, stream: SimServerStream) -> None:
        self._handler, self._stream = handler, stream
        self._down.send(self)

    def _handle(self, request: Any) -> None:
        if self._handler is None or self._stream is None or self._stream.is_ending or self._is_over:
            return
        try:
            self._handler.on_request(request)
        except HeadraceError as error:
            self._stream.finish(error)

    def to_member(self, response: Any) -> None:
        self._down.send(response)

    def ended_by_coordinator(self, error: HeadraceError | None) -> None:
        self._down.send((error,))
        self._on_loop(self._over)

    def _seen_by_coordinator(self) -> None:
        if (self.member.name, self.process.host.name) in self.world.cuts:
            self.world.scheduler.after(25.0, self._seen_by_coordinator)
            return
        self._on_loop(self._over)

    def _over(self) -> None:
        if not self._is_over:
            self._is_over = True
            if self in self.world.connections:
                self.world.connections.remove(self)
            if self._handler is not None:
                self._handler.on_closed()

    # -- both --------------------------------------------------------------------------------------------------------

    def breaks(self, *, coordinator_sees_ms: float | None = None, member_sees_ms: float = 0.0) -> None:
        """The network breaks the connection. Either the member notices the break now, or the coordinator does, and the
        member notices it after the given time (the connection is half open)."""
        if self._up.is_closed or not self.is_of_member:
            return
        self._down.is_closed = self._up.is_closed = True
        if member_sees_ms:
            self.world.checks.is_misled(self.member)
            self._on_loop(self._over)
            self.world.scheduler.after(member_sees_ms, self._seen_by_member)
            return
        self.member.disconnects(self, NetworkError("connection reset"))
        late_ms = self.world.rng.uniform(2.0, 40.0) if coordinator_sees_ms is None else coordinator_sees_ms
        self.world.scheduler.after(late_ms, self._seen_by_coordinator)

    def coordinator_died(self) -> None:
        if self in self.world.connections:
            self.world.connections.remove(self)
        if self._up.is_closed or not self.is_of_member:
            return
        self._down.is_closed = self._up.is_closed = True
        self.world.scheduler.after(self.world.rng.uniform(0.5, 20.0), self._seen_by_member)

    def _seen_by_member(self) -> None:
        if self.is_of_member:
            self.member.disconnects(self, NetworkError("connection reset"))


class CallPipe:
    """The unary calls of one client to one process, in order."""

    def __init__(self, world: GroupWorld, caller: Caller, process: Coordinator) -> None:
        self.world = world
        self.process = process
        self.waiting: dict[int, Callable[[Any], None]] = {}
        name = process.host.name
        self._up = Pipe(world, (caller.name, name), self._request)
        self._down = Pipe(world, (name, caller.name), self._answer)

    @property
    def is_closed(self) -> bool:
        return self._up.is_closed

    def call(self, method: str, request: Any, answered: Callable[[Any], None]) -> None:
        number = next(self.world.numbers)
        self.waiting[number] = answered
        self._up.send((number, method, request))
        from tests.simulation.group_members import REQUEST_TIMEOUT_MS

        self.world.scheduler.after(REQUEST_TIMEOUT_MS, self._too_late, number)

    def _too_late(self, number: int) -> None:
        if number in self.waiting:
            self.close(NetworkError("no answer in time"))

    def close(self, error: HeadraceError | None) -> None:
        self._up.is_closed = self._down.is_closed = True
        waiting, self.waiting = self.waiting, {}
        if error is not None:
            for answered in waiting.values():
                answered(error)

    def _request(self, message: Any) -> None:
        number, method, request = message
        loop = self.process.loop
        if not loop.is_dead:
            loop.run(lambda: self.process.spawn(self._serve(number, method, request)))

    async def _serve(self, number: int, method: str, request: Any) -> None:
        answer: Any
        try:
            if method in TRANSACTION_CALLS:
                answer = await getattr(self.process.transactions, method)(request)
            else:
                answer = await getattr(self.process.service, method)(request, None)
        except HeadraceError as error:
            answer = error
        self._down.send((number, answer))

    def _answer(self, message: Any) -> None:
        number, answer = message
        answered = self.waiting.pop(number, None)
        if answered is not None:
            answered(answer)
