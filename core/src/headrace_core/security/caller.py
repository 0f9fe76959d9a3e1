"""The caller of the current call: its principal, its host, and the listener.

A listener sets the caller before it runs a call's handler. The caller is in a context variable, so the handler and all
tasks that it creates can read it without an argument.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from .principal import ANONYMOUS, Principal


@dataclass(frozen=True, slots=True)
class Caller:
    """``host``: the client's IP address; ``client_id``: the client's name for itself, which is not checked. On internal
    listeners ``role`` and ``node_id`` name the node that calls; elsewhere they are None. ``token_id``: the delegation
    token with which the caller authenticated."""

    principal: Principal = ANONYMOUS
    host: str = ""
    client_id: str = ""
    listener: str = ""
    role: str | None = None
    node_id: int | None = None
    token_id: str | None = None


NO_CALLER = Caller()  #: The caller outside of any call, and on a listener without security.

_current: ContextVar[Caller] = ContextVar("headrace-caller", default=NO_CALLER)


def current_caller() -> Caller:
    """Return the caller of the call that the current task handles; NO_CALLER outside of calls."""
    return _current.get()


def set_caller(caller: Caller) -> None:
    """Set the caller for the current task, and for the tasks that it creates from now on."""
    _current.set(caller)
