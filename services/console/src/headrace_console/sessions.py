"""Sessions of signed-in users: who signed in, when each session ends, and why it ended. The module has no I/O and no
clock; only the ids are random.

    sign-in ──> a session ──> idle_s without an action, or life_s after the sign-in
                          ──> sign-out
                          ──> the cluster refuses the password
                          ──> newer sessions: at most PER_USER_MAX of a user, SESSIONS_MAX in all

The store keeps digests of the ids: neither a dump of its memory nor the time of a look-up reveals an id.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .display import duration

T = TypeVar("T")

#: Maximum number of sessions of one user, and of all users. A sign-in above the limit ends the session whose last use
#: is the oldest.
PER_USER_MAX, SESSIONS_MAX = 5, 64
#: Maximum number of ended sessions for which the sign-in page can still show why they ended.
REASONS_MAX = 1_000
#: Bytes of a session's id.
ID_BYTES = 32

SIGNED_OUT = "You signed out."


@dataclass(eq=False, slots=True)
class Session(Generic[T]):
    """``payload``: the session's console. ``token``: the token in the forms of the session's pages. ``why``: why the
    session ended, "" while the session lasts."""

    user: str
    payload: T
    digest: bytes = field(repr=False)
    token: str = field(repr=False)
    begun_s: float
    used_s: float
    why: str = ""

    def has_token(self, token: str) -> bool:
        return hmac.compare_digest(self.token.encode(), token.encode(errors="replace"))


class Sessions(Generic[T]):
    """The sessions of one console. ``on_end`` is called with each session that ends. ``clock``: seconds."""

    def __init__(
        self,
        *,
        idle_s: float,
        life_s: float,
        on_end: Callable[[Session[T]], None],
        clock: Callable[[], float],
        per_user_max: int = PER_USER_MAX,
        sessions_max: int = SESSIONS_MAX,
    ) -> None:
        self._idle_s, self._life_s = idle_s, life_s
        self._on_end, self._clock = on_end, clock
        self._per_user_max, self._sessions_max = per_user_max, sessions_max
        self._by_digest: dict[bytes, Session[T]] = {}
        self._reasons: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_digest)

    def __iter__(self) -> Iterator[Session[T]]:
        return iter(list(self._by_digest.values()))

    def begin(self, user: str, payload: T) -> tuple[str, Session[T]]:
        """Begin a session; returns its id, which is stored only in the cookie."""
        self.sweep()
        self._make_room([each for each in self if each.user == user], self._per_user_max)
        self._make_room(list(self), self._sessions_max)
        session_id, now = secrets.token_urlsafe(ID_BYTES), self._clock()
        session = Session(user, payload, _digest(session_id), secrets.token_urlsafe(ID_BYTES), now, now)
        self._by_digest[session.digest] = session
        return session_id, session

    def find(self, session_id: str, *, is_use: bool = True) -> Session[T] | None:
        """The session with this id; None if there is no such session, or if the session has ended. ``is_use``: the user
        has acted, so the idle time begins again."""
        session = self._by_digest.get(_digest(session_id))
        if session is None:
            return None
        if why := self._expiry(session):
            self.end(session, why)
            return None
        if is_use:
            session.used_s = self._clock()
        return session

    def why(self, session_id: str) -> str:
        """The reason why the session with this id has ended; "" if that reason is not known."""
        return self._reasons.get(_digest(session_id), "")

    def end(self, session: Session[T], why: str) -> None:
        """End a session. ``why``: a sentence that tells the session's user the reason. Idempotent."""
        if self._by_digest.pop(session.digest, None) is None:
            return
        session.why = why
        self._reasons[session.digest] = why
        while len(self._reasons) > REASONS_MAX:
            self._reasons.popitem(last=False)
        self._on_end(session)

    def sweep(self) -> None:
        """End the sessions that have expired."""
        for session in self:
            if why := self._expiry(session):
                self.end(session, why)

    def _expiry(self, session: Session[T]) -> str:
        now = self._clock()
        if now - session.begun_s >= self._life_s:
            return f"Your session ended {duration(self._life_s * 1_000)} after its sign-in. Sign in again."
        if now - session.used_s >= self._idle_s:
            return f"Your session ended after {duration(self._idle_s * 1_000)} without an action. Sign in again."
        return ""

    def _make_room(self, sessions: list[Session[T]], limit: int) -> None:
        sessions.sort(key=lambda each: each.used_s)
        for each in sessions[: max(0, len(sessions) - limit + 1)]:
            self.end(each, "A newer sign-in ended your session: too many sessions were open. Sign in again.")


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode(errors="surrogatepass")).digest()
