"""The session of an authenticated connection, and streams that end with it (KIP-368)."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from ..errors import HeadraceError
from .principal import Principal
from .sasl.exchange import Identity


class Session:
    """One authenticated connection."""

    __slots__ = ("_ending", "_why", "client_id", "expires_s", "identity", "peer", "principal", "token_hash")

    def __init__(self, identity: Identity, peer: str, client_id: str, token_hash: bytes) -> None:
        self.identity = identity
        self.principal: Principal = identity.principal
        self.peer, self.client_id, self.token_hash = peer, client_id, token_hash
        self.expires_s: float | None = None  #: The event loop's time at which the session ends; None: never.
        self._ending: set[Callable[[HeadraceError], object]] = set()
        self._why: HeadraceError | None = None  # why the session is over

    @property
    def token_id(self) -> str | None:
        """The delegation token with which the session was opened."""
        return self.identity.token_id

    def on_end(self, end: Callable[[HeadraceError], object]) -> Callable[[], None]:
        """Call ``end(error)``, which ends a stream, when the session is over. If the session is over already, ``end``
        is called at once, because a stream may begin long after the check of its call. Returns a function that removes
        ``end`` again."""
        if self._why is not None:
            end(self._why.copy())
            return _nothing
        self._ending.add(end)
        return lambda: self._ending.discard(end)

    def over(self, why: HeadraceError) -> None:
        """End the streams of the session."""
        self._why = why
        ending, self._ending = self._ending, set()
        for end in ending:
            end(why.copy())


_current: ContextVar[Session | None] = ContextVar("headrace-session", default=None)


def set_session(session: Session | None) -> None:
    """Set the session of the call that the current task handles."""
    _current.set(session)


def end_with_session(end: Callable[[HeadraceError], object]) -> Callable[[], None]:
    """Call ``end(error)`` when the session of the current call is over. Returns a function that removes ``end``
    again."""
    session = _current.get()
    return _nothing if session is None else session.on_end(end)


def _nothing() -> None:
    pass
